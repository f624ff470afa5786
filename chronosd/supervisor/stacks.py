"""Python stacks of a worker, as text, also from one whose interpreter lock is held for ever.

The worker's ``faulthandler`` writes into a memory file that was made before the fork: on SIGUSR2 when the
supervisor asks, on a fatal signal by itself. The supervisor reads it with pread; nothing in the worker has to
run for that but a C signal handler.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from chronosd.supervisor.process import Child

_LIMIT_BYTES = 16_384


@dataclass(slots=True)
class Stacks:
    """The memory file of one worker."""

    fd: int

    @classmethod
    def create(cls, name: str) -> Stacks:
        """Raises OSError."""
        return cls(os.memfd_create(name, os.MFD_CLOEXEC))

    def ask(self, child: Child) -> None:
        """Has the worker write its stack; :meth:`read` shows it some milliseconds later."""
        # Both processes share one file offset: reset here, it is reset there.
        os.ftruncate(self.fd, 0)
        os.lseek(self.fd, 0, os.SEEK_SET)
        child.send(signal.SIGUSR2)

    def read(self) -> str:
        """What has been written, most recent call first."""
        return os.pread(self.fd, _LIMIT_BYTES, 0).decode("utf-8", "backslashreplace").strip()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
