"""The page: how the daemon stands, in memory that the supervisor fills and the web process reads.

The web process asks nobody anything: a scrape costs the supervisor nothing, and a web process that hangs
holds up nothing. The page is anonymous shared memory, mapped before the fork, so a restarted web process has
the same one. A sequence number that is odd while the page is being filled tells the reader to try again.

Layout, in native 64-bit cells: sequence, length in bytes, beat (monotonic nanoseconds of the supervisor's
last turn), then the document, JSON.
"""

from __future__ import annotations

import importlib.util
import mmap
import socket
import time
from dataclasses import dataclass
from typing import Any

import orjson

from chronosd.config.schema import Config

SIZE = 8 << 20
"""Address space only: memory is taken as far as the document goes."""

_SEQUENCE, _LENGTH, _BEAT = range(3)
_HEADER_CELLS = 8
_TRIES = 200
_PAUSE_S = 0.001


class Page:
    """One writer, any number of readers, in processes forked from where it was made."""

    def __init__(self, size: int = SIZE) -> None:
        self._map = mmap.mmap(-1, size)
        self._cells = memoryview(self._map).cast("q")
        self._room = size - _HEADER_CELLS * 8
        self.beat(time.monotonic_ns())

    def beat(self, now_ns: int) -> None:
        """The supervisor's loop has turned."""
        self._cells[_BEAT] = now_ns

    def beat_age_s(self) -> float:
        """Seconds since then."""
        return (time.monotonic_ns() - self._cells[_BEAT]) / 1e9

    def write(self, document: dict[str, Any]) -> bool:
        """Replaces the document; False if there is no room for it: then the old one stays."""
        data = orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS)
        if len(data) > self._room:
            return False
        cells, start = self._cells, _HEADER_CELLS * 8
        sequence = cells[_SEQUENCE] | 1
        cells[_SEQUENCE] = sequence
        self._map[start : start + len(data)] = data
        cells[_LENGTH] = len(data)
        cells[_SEQUENCE] = sequence + 1
        return True

    def read(self) -> dict[str, Any] | None:
        """The document; None before the first one, or if the writer died while it wrote."""
        cells, start = self._cells, _HEADER_CELLS * 8
        for _ in range(_TRIES):
            sequence, length = cells[_SEQUENCE], cells[_LENGTH]
            if not sequence & 1:
                if not 0 < length <= self._room:
                    return None
                data = self._map[start : start + length]
                if cells[_SEQUENCE] == sequence:
                    document: dict[str, Any] = orjson.loads(data)
                    return document
            time.sleep(_PAUSE_S)
        return None

    def close(self) -> None:
        """Unmaps it in this process."""
        self._cells.release()
        self._map.close()


@dataclass(frozen=True, slots=True)
class WebSpec:
    """All that the web process is given when it is forked."""

    listening: socket.socket
    """Bound and listening already: a restart of the web process loses no connection attempt."""
    page: Page
    log_level: str
    log_format: str


_MODULES = ("jinja2", "prometheus_client", "starlette", "uvicorn")


def web_problem(config: Config) -> str | None:
    """What is wrong with ``http`` here, as ``chronos.yaml:9:1: http: ...``; None if nothing is."""
    if config.http is None:
        return None
    missing = [name for name in _MODULES if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    names = " and ".join(missing)
    return f"{config.where('http')}: http: needs {names}: pip install 'chronosd[web]'"
