"""The line between the supervisor and one worker: small JSON messages over a socketpair.

SOCK_SEQPACKET keeps message boundaries and tells of the other end's death (EOF). Neither end ever blocks:
a message that does not fit is refused, because a supervisor that waits for a stuck worker is stuck itself.

Messages are dicts with a type ``t``::

    worker to supervisor   ready (kinds: what listed modules declare) | failed (code, error) | drained
    supervisor to worker   go | drain (timeout: seconds or null) | quiet | resume
                           paused (queues: the names of all that are)
                           offer (queues: by name how many tasks to ask for; only queues with limits)
                           lost (entries: [[queue name, entry id], ...])
                           cancel (entries: as of lost): somebody has cancelled these tasks
                           stacks (entries: of which coroutines; none: of all): written to the stack file
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from chronosd.board import Board
from chronosd.config.schema import Config

_MESSAGE_BYTES = 1 << 18
"""More than Linux takes in one packet by default, so that no message is cut off when it is read."""


class Link:
    """One end."""

    __slots__ = ("_socket",)

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end

    @classmethod
    def pair(cls) -> tuple[Link, Link]:
        """Both ends, the supervisor's first."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        return cls(ours), cls(theirs)

    def send(self, message: Mapping[str, Any]) -> bool:
        """Sends if there is room and somebody to read; False otherwise, also if it is too long for that."""
        data = orjson.dumps(message)
        if len(data) > _MESSAGE_BYTES:
            return False
        try:
            self._socket.send(data)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            return False
        except OSError as error:
            if error.errno in (errno.EMSGSIZE, errno.ENOBUFS):
                return False
            raise
        return True

    def receive(self) -> list[dict[str, Any]] | None:
        """Every message that has arrived; None once the other end is gone and all is read."""
        messages: list[dict[str, Any]] = []
        while True:
            try:
                data = self._socket.recv(_MESSAGE_BYTES)
            except BlockingIOError:
                return messages
            except ConnectionResetError:
                data = b""
            if not data:
                return messages or None
            messages.append(orjson.loads(data))

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """All that a worker process is given when it is forked."""

    index: int
    """Its place, 0 to N-1; a replacement has the same one."""
    generation: int
    consumer: str
    """Its name in the consumer groups, unique to this incarnation."""
    config: Config
    board: Board
    link: Link
    redis_url: str
    """As configured, with ``embedded://`` already resolved to a socket."""
    stack_fd: int | None = None
    """Where the process's stacks are dumped on SIGUSR2 and on a fatal signal."""


READ_AHEAD = 256
"""The most tasks that a worker may buffer beyond its free slots."""


def board_capacity(config: Config) -> int:
    """Slots a worker may need: running, finished but not yet acknowledged, buffered, and one per queue from
    a blocking read."""
    return 2 * config.concurrency + READ_AHEAD + len(config.queues)
