"""Where an embedded server is: its URL, its state directory, its socket, and who answers there.

Clients and commands need no more than this; nothing here starts anything.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from chronosd import paths
from chronosd.errors import ChronosError

SCHEME: Final = "embedded"
SOCKET: Final = "server.sock"


def is_embedded(url: str) -> bool:
    """Whether *url* names an embedded server."""
    return url.partition(":")[0] == SCHEME


def state_dir(url: str, base: Path) -> Path:
    """The state directory that an ``embedded://`` URL names; *base* is where the configuration lies.

    Raises:
        ChronosError: the URL has a host, a query or a relative path.
    """
    parts = urlsplit(url)
    if parts.netloc or parts.query or parts.fragment or not (parts.path == "" or parts.path.startswith("/")):
        raise ChronosError(f"{url}: write {SCHEME}:// or {SCHEME}:///absolute/directory")
    if parts.path in ("", "/"):
        return paths.state_dir(base)
    return Path(os.path.abspath(unquote(parts.path)))


def resolve(url: str, base: Path) -> str:
    """Turns an ``embedded://`` URL into the ``unix://`` URL of its socket; other URLs come back unchanged.

    Nothing is started: whether a server listens there is for the caller's connection to find out.

    Raises:
        ChronosError: the URL is not of a known form.
    """
    return socket_url(find_socket(state_dir(url, base))) if is_embedded(url) else url


def find_socket(directory: Path) -> Path:
    """The socket of the server with that state directory, running or not.

    A path that is too long for one has a stand-in elsewhere; the server's owner leaves a link to it, as its
    temporary directory may be another one than ours (systemd's PrivateTmp).
    """
    direct = directory / SOCKET
    try:
        return Path(os.readlink(direct))
    except OSError:
        return paths.socket_path(directory, SOCKET)


def socket_url(path: Path) -> str:
    """The ``unix://`` URL of a socket."""
    return "unix://" + quote(str(path))


def ping(path: Path, timeout_s: float) -> int | None:
    """The process id of the server that answers PING at *path* within *timeout_s*, or None."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(timeout_s)
        try:
            peer.connect(str(path))
            peer.sendall(b"PING\r\n")
            answer = peer.recv(64)
            pid: int = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        except OSError:
            return None
    return pid if answer.startswith((b"+PONG", b"-NOAUTH")) else None
