"""The line to a running daemon: finds its control socket, sends one request, takes one answer."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chronosd import paths
from chronosd.config.load import load
from chronosd.config.schema import Config
from chronosd.errors import ChronosError, ConfigError

_CONNECT_S = 5.0
_KEY = re.compile(r"^(name|namespace|control_socket)[ \t]*:[ \t]*(.*?)[ \t]*(?:#.*)?$", re.MULTILINE)


class NoDaemon(ChronosError):
    """No daemon answers."""


class MuteDaemon(NoDaemon):
    """There is one, and it does not answer."""


class Refused(ChronosError):
    """The daemon answered that it cannot. ``code`` is the exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class _Guess:
    """What is needed to find the daemon of a file that cannot be read in full just now."""

    path: Path
    base: Path
    name: str | None
    namespace: str
    control_socket: str | None


@dataclass(frozen=True, slots=True)
class Line:
    """Where the daemon of a configuration may listen."""

    file: Path | None
    """The configuration; None where there is none: then any daemon of the usual places will do."""
    own: Path | None
    """Where its daemon listens if it was started from the same environment."""
    places: tuple[Path, ...]

    @classmethod
    def find(cls, config_file: str | None) -> Line:
        """For the file that ``-c`` names, else that of the usual places.

        The file may be broken: that is when one asks the daemon how it stands. Raises ConfigError if a
        file is named that does not exist.
        """
        try:
            file = Path(os.path.abspath(paths.find_config(config_file)))
        except ConfigError:
            return cls(None, None, tuple(paths.control_sockets()))
        located = _located(file)
        own = paths.control_socket(located)
        return cls(file, own, tuple(paths.control_sockets(located)))

    def ask(self, command: str, *, timeout_s: float = 30.0, **options: Any) -> dict[str, Any]:
        """The daemon's answer, whatever it is.

        Raises:
            NoDaemon: none answers, or it ended before it did.
        """
        looked = [self.own] if self.own is not None and self.own not in self.places else []
        for place in self.places:
            request = {"command": command, **options}
            if place != self.own and self.file is not None:
                request["config"] = str(self.file)
            try:
                answer = _exchange(place, request, timeout_s)
            except OSError as error:
                if not isinstance(error, ConnectionRefusedError | FileNotFoundError):
                    raise MuteDaemon(f"cannot talk to the daemon at {place}: {_why(error)}") from None
                looked.append(place)
                continue
            if not answer.get("other"):
                return answer
            looked.append(place)
        where = f" (looked at {', '.join(map(str, looked))})" if looked else ""
        raise NoDaemon(f"no running daemon found{where}")

    def demand(self, command: str, **options: Any) -> dict[str, Any]:
        """The answer to a command that has to succeed. Raises NoDaemon, Refused."""
        answer = self.ask(command, **options)
        if not answer["ok"]:
            raise Refused(answer["error"], answer["code"])
        return answer


def _exchange(place: Path, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_CONNECT_S)
        _connect(connection, place)
        connection.sendall(json.dumps(request).encode() + b"\n")
        connection.settimeout(timeout_s)
        said = bytearray()
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(1 << 16):
                said += part
    if said:
        answer: dict[str, Any] = json.loads(said)
        return answer
    if request["command"] == "stop" and request.get("wait"):
        return {"ok": True}  # it has ended, as it was told to
    raise NoDaemon("the daemon ended before it answered")


def _connect(connection: socket.socket, place: Path) -> None:
    """Connects; waits a little where too many others are waiting, which a timeout does not cover."""
    give_up_at = time.monotonic() + _CONNECT_S
    while True:
        try:
            connection.connect(str(place))
            return
        except BlockingIOError:
            if time.monotonic() > give_up_at:
                raise TimeoutError from None
            time.sleep(0.05)


def _why(error: OSError) -> str:
    return "it does not answer" if isinstance(error, TimeoutError) else error.strerror or str(error)


def _located(file: Path) -> Config | _Guess:
    try:
        return load(file)
    except ConfigError as error:
        if not file.exists():
            raise error from None
        return _guess(file)


def _guess(file: Path) -> _Guess:
    """Reads the three keys that matter as text: whatever is wrong with the file, it is rarely with them."""
    try:
        text = file.read_text(errors="replace")
    except OSError:
        text = ""
    found = {key: value.strip("'\"") for key, value in _KEY.findall(text)}
    found = {key: value for key, value in found.items() if value not in ("", "null", "~")}
    place = found.get("control_socket")
    return _Guess(
        path=file,
        base=file.parent,
        name=found.get("name"),
        namespace=found.get("namespace", "chronos").strip(":"),
        control_socket=None if place is None else os.path.normpath(file.parent / place),
    )
