"""Hosts whose clocks are wrong."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.support.daemon import ROOT


class Clock:
    """The wall clock of a daemon that is started with ``environment``."""

    def __init__(self, path: Path, ahead_s: float = 0.0) -> None:
        self._path = path
        path.write_bytes(struct.pack("d", ahead_s))

    def step(self, ahead_s: float) -> None:
        """From now on it is that far ahead of the real one."""
        with self._path.open("r+b") as file:
            file.write(struct.pack("d", ahead_s))

    @property
    def environment(self) -> dict[str, str | None]:
        where = ROOT / "tests" / "support" / "clock"
        return {"CHRONOSD_TEST_CLOCK": str(self._path), "PYTHONPATH": f"{where}:{ROOT}"}
