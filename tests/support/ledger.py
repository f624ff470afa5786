"""A file that counts what handlers did, in whichever process they did it, and survives their SIGKILL.

This module imports nothing of chronosd and nothing heavy: handlers in workers use it too.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "CHRONOSD_TEST_LEDGER"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line: *what* happened to task *id* in process *pid* (``attempt`` as the handler saw it)."""

    id: str
    pid: int
    attempt: int
    what: str
    at_ns: int  # time.monotonic_ns, comparable over all processes of this machine
    note: str


class Ledger:
    """Appends and reads lines ``id pid attempt start|end|... monotonic_ns [note]``.

    One write of less than a page with O_APPEND is whole and in order, so any number of processes may
    write, and what was written before a SIGKILL stays.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._fd = -1

    @classmethod
    def of_environment(cls) -> Ledger:
        """The ledger that the harness passed to its daemon, for handlers."""
        return cls(os.environ[VARIABLE])

    def write(self, what: str, task_id: str, attempt: int = 0, note: str = "") -> None:
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        line = f"{task_id} {os.getpid()} {attempt} {what} {time.monotonic_ns()} {note}\n"
        os.write(self._fd, line.encode())

    @contextmanager
    def run(self, task_id: str, attempt: int = 0) -> Iterator[None]:
        """Writes ``start``, then ``end`` if the block was left without an exception."""
        self.write("start", task_id, attempt)
        yield
        self.write("end", task_id, attempt)

    def entries(self, what: str | None = None) -> list[Entry]:
        """All lines so far, in order of writing; only those of one kind if *what* is given."""
        if not self.path.exists():
            return []
        entries = []
        for line in self.path.read_text().split("\n")[:-1]:
            task_id, pid, attempt, did, at_ns, note = line.split(" ", 5)
            if what is None or did == what:
                entries.append(Entry(task_id, int(pid), int(attempt), did, int(at_ns), note))
        return entries

    def starts(self) -> Counter[str]:
        """How often each task was started."""
        return Counter(entry.id for entry in self.entries("start"))

    def ends(self) -> Counter[str]:
        """How often each task came to its end."""
        return Counter(entry.id for entry in self.entries("end"))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
