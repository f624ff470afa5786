"""What a server is asked: every command of a stretch of time, those of scripts included."""

from __future__ import annotations

import re
import shlex
import socket
from types import TracebackType

from tests.support.waiting import wait_until

_LINE = re.compile(r"^\+[\d.]+ \[[^\]]*\] (.*)$", re.MULTILINE)


class Monitor:
    """``with Monitor("/path/to.sock") as seen: ...``, then ``seen.commands``."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._path = path
        self._said = ""

    def __enter__(self) -> Monitor:
        self._socket.sendall(b"MONITOR\r\n")
        assert self._socket.recv(5) == b"+OK\r\n"
        self._socket.setblocking(False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as last:
                last.connect(self._path)
                last.sendall(b"ECHO that-is-all\r\n")
                wait_until(self._is_all_here, what="the last command")
        self._socket.close()

    def _is_all_here(self) -> bool:
        try:
            while part := self._socket.recv(1 << 20):
                self._said += part.decode(errors="replace")
        except BlockingIOError:
            pass
        return "that-is-all" in self._said

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command, its name in capitals."""
        found = []
        for line in _LINE.findall(self._said):
            words = re.findall(r'"((?:[^"\\]|\\.)*)"', line)
            found.append([words[0].upper(), *words[1:]] if words else shlex.split(line))
        return found


def unbounded(words: list[str]) -> bool:
    """Whether a command reads all keys, or all of what may be long."""
    upper = [word.upper() for word in words]
    match upper:
        case ["KEYS" | "SMEMBERS" | "HVALS" | "HKEYS" | "SORT" | "FLUSHALL" | "FLUSHDB", *_]:
            return True
        case ["ZRANGE" | "ZREVRANGE" | "LRANGE", _, "0", "-1", *_]:
            return True
        case ["XRANGE" | "XREVRANGE", _, first, last, *_]:
            return first != last and "COUNT" not in upper
        case ["ZRANGEBYSCORE", _, "-INF", "+INF", *_]:
            return "LIMIT" not in upper
    return False
