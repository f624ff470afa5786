"""Commands on a terminal: a pty of a given size, keys to type, and what the screen shows in the end."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[=>])")


class Terminal:
    """``chronosd <words>`` on a pty. As a context manager it leaves no process behind."""

    def __init__(
        self,
        *words: str,
        env: Mapping[str, str],
        cwd: Path,
        columns: int = 80,
        lines: int = 24,
    ) -> None:
        self.raw = ""
        """Everything that was printed, escape sequences included."""
        self._fd, theirs = pty.openpty()
        # the size has to be there before the command looks
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chronosd", *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=cwd,
            env={**env, "TERM": "xterm-256color"},
        )
        os.close(theirs)

    def read(self, seconds: float = 0.1) -> bool:
        """Takes in what comes within that time; False once the command has ended."""
        if not select.select([self._fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._fd, 65_536)
        except OSError:  # how Linux tells of the other end's close
            return False
        self.raw += data.decode(errors="replace")
        return bool(data)

    @property
    def text(self) -> str:
        """What was printed, without escape sequences."""
        return _ESCAPES.sub("", self.raw).replace("\r", "")

    @property
    def frames(self) -> list[str]:
        """What was printed between two returns to the top left corner: the frames of a live view."""
        parts = self.raw.split("\x1b[H")
        return [_ESCAPES.sub("", part).replace("\r", "") for part in parts if part.strip()]

    def wait_for(self, is_there: Callable[[Terminal], bool], timeout_s: float = 20.0) -> None:
        """Reads until it is there. Fails in time with what was printed."""
        deadline = time.monotonic() + timeout_s
        while not is_there(self):
            assert self.read(), f"it ended: {self.text[-2000:]}"
            assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {self.text[-2000:]}"

    def type(self, keys: str) -> None:
        """Sends keys."""
        os.write(self._fd, keys.encode())

    def wait(self, timeout_s: float = 20.0) -> int:
        """Reads until the command has ended; returns its exit code (negative: the signal)."""
        deadline = time.monotonic() + timeout_s
        while self.read():
            assert time.monotonic() < deadline, f"it still runs: {self.text[-2000:]}"
        return self._process.wait(timeout_s)

    def close(self) -> None:
        """Ends it if it still runs."""
        self._process.kill()
        self._process.wait()
        os.close(self._fd)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
