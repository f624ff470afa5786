"""Python stacks of a worker, as text, also from one whose interpreter lock is held for ever.

The worker's ``faulthandler`` writes into a memory file that was made before the fork: on two signals when the
supervisor asks, on a fatal signal by itself. The supervisor reads it with pread; nothing in the worker has to
run for that but a C signal handler. Coroutines that wait are in no thread's stack: the worker's loop adds
theirs, if it turns.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from chronosd.supervisor import process
from chronosd.supervisor.process import Child

_LIMIT_BYTES = 65_536
_IDLE = re.compile(r'chronosd/worker/(threads|main)\.py", line \d+ in (_work|_beat_in_thread)$')
"""The innermost frame of a thread that runs no handler."""
_BIRTH = re.compile(r'(chronosd/worker/main\.py", line \d+ in run)(?:\n  File [^\n]*)+')
"""What stands below a worker's loop is how it was forked: thirty frames that say nothing of a task."""
_FRAME = re.compile(r'File "(?!<frozen)([^"]+)", line (\d+)')


@dataclass(slots=True)
class Stacks:
    """The memory file of one worker."""

    fd: int

    @classmethod
    def create(cls, name: str) -> Stacks:
        """Raises OSError."""
        return cls(os.memfd_create(name, os.MFD_CLOEXEC))

    def clear(self) -> None:
        """Before something is asked for."""
        # Both processes share one file offset: reset here, it is reset there.
        os.ftruncate(self.fd, 0)
        os.lseek(self.fd, 0, os.SEEK_SET)

    def ask(self, child: Child) -> None:
        """Has the worker write the stack of its main thread; :meth:`read` shows it milliseconds later."""
        child.send(process.STACK)

    def ask_all(self, child: Child) -> None:
        """Of all threads: only just before a kill, for the worker may not survive it."""
        child.send(process.ALL_STACKS)

    def read(self) -> str:
        """What has been written, most recent call first, without threads that wait for work."""
        text = os.pread(self.fd, _LIMIT_BYTES, 0).decode("utf-8", "backslashreplace").strip()
        parts = (part for part in text.split("\n\n") if not _is_idle(part))
        return "\n\n".join(_BIRTH.sub(r"\1", part) for part in parts)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def is_in_handler_thread(stack: str) -> bool:
    """Whether a fault happened in the thread of a sync handler, and so in no coroutine."""
    return "in _run_sync" in stack


def _is_idle(part: str) -> bool:
    lines = part.split("\n")
    return len(lines) > 1 and _IDLE.search(lines[1]) is not None


def innermost(stack: str) -> str:
    """`` (file:line)`` of the frame that a dumped stack ends in, import machinery aside; empty for none."""
    frame = _FRAME.search(stack)
    return f" ({frame[1]}:{frame[2]})" if frame else ""
