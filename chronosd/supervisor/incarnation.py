"""This run of the daemon, and those before it that left something.

Every run has a directory of its own under the runtime directory, with a lock file and the boards of its
workers. The workers inherit the lock's descriptor, so a lock that can be had proves all of them dead, not
only their supervisor. What such a dead run left on its boards is settled by whoever takes its lock, which
also keeps two successors from settling it twice.

The directory is made under another name, locked, and renamed: a lock file that nobody holds yet would look
like a dead run.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from chronosd.board import Board

_PREFIX = "run-"
_LOCK = "lock"
_BOARD = ".board"


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One run. ``name`` is unique among all hosts and runs; its consumers' names begin with it."""

    name: str
    directory: Path
    lock_fd: int

    @classmethod
    def create(cls, runtime: Path) -> Incarnation:
        """Makes the directory and takes its lock. Raises OSError."""
        token = secrets.token_hex(4)
        making = runtime / f".new-{token}"
        making.mkdir(mode=0o700)
        lock_fd = os.open(making / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock_fd, fcntl.LOCK_EX)
        host = re.sub(r"[^A-Za-z0-9_.]", "_", socket.gethostname())[:64] or "host"
        name = f"{host}-{token}"
        os.write(lock_fd, f"{name}\n{os.getpid()}\n".encode())
        directory = runtime / f"{_PREFIX}{token}"
        making.rename(directory)
        return cls(name, directory, lock_fd)

    @property
    def recoverer(self) -> str:
        """The consumer name under which entries of other hosts' dead are taken over."""
        return f"{self.name}-recoverer"

    def consumer(self, index: int, generation: int) -> str:
        return f"{self.name}-{index}.{generation}"

    def board_path(self, index: int, generation: int) -> Path:
        return self.directory / f"{index}.{generation}{_BOARD}"

    def boards(self) -> list[Board]:
        """Every board of the run. A file that is none was never given to a worker, and is removed.

        Raises OSError where one cannot be looked at now (no descriptor, no memory): it may be a good one.
        """
        boards: list[Board] = []
        for path in sorted(self.directory.glob(f"*{_BOARD}")):
            try:
                boards.append(Board.open(path))
            except ValueError:
                path.unlink(missing_ok=True)
            except OSError:
                for board in boards:
                    board.close()
                raise
        return boards

    def close(self) -> None:
        """Lets go of the lock, as far as this process holds it."""
        os.close(self.lock_fd)

    def remove(self) -> None:
        """Everything it left has been settled."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.close()


def predecessors(runtime: Path) -> list[Incarnation]:
    """The dead runs under ``runtime``, each with its lock taken.

    One whose lock is still held is left out: it lives, or its last processes are still dying, or a
    handler's child has inherited the lock. Ask again later.
    """
    dead = []
    try:
        entries = sorted(os.listdir(runtime))
    except OSError:
        return []  # gone, or no descriptor to be had
    for entry in entries:
        if not entry.startswith(_PREFIX):
            continue
        try:
            # no Path for it: this is looked at often, and nearly always held, by ourselves
            lock_fd = os.open(f"{runtime}/{entry}/{_LOCK}", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # gone, none of ours, or no descriptor to be had: the daemon must not end for it
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            name = os.pread(lock_fd, 4096, 0).decode(errors="replace").partition("\n")[0]
            directory = runtime / entry
            # Another successor may have finished with it between our open and our lock.
            if name and directory.exists():
                dead.append(Incarnation(name, directory, lock_fd))
                continue
        except BlockingIOError:
            pass
        os.close(lock_fd)
    return dead
