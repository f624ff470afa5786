"""A TCP relay in front of a server, to be made mute, slow or hostile while clients are connected."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import threading
import time
from typing import Literal, Self
from urllib.parse import unquote, urlsplit

Mode = Literal["pass", "mute", "drip", "reset", "swallow", "refuse"]

_CHUNK = 1 << 16
_RST_ON_CLOSE = struct.pack("ii", 1, 0)


class Proxy:
    """Relays 127.0.0.1:``port`` to the server at *upstream* (``unix://`` or ``redis://``), by ``mode``:

    ``pass``     both ways, unchanged
    ``mute``     connections are accepted; nothing is relayed (what arrives waits and is relayed later)
    ``drip``     requests pass, replies come one byte a second
    ``reset``    connections get a RST, old ones and new ones
    ``swallow``  requests reach the server and are executed, replies are thrown away
    ``refuse``   old connections are closed, new ones are refused

    ``mode`` may be set at any time and is in force when the assignment returns. One thread does it all.
    """

    def __init__(self, upstream: str, mode: Mode = "pass") -> None:
        self._upstream = upstream
        self._mode: Mode = mode
        self._wanted: Mode = mode
        self._connections: list[_Connection] = []
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = os.pipe()
        self._selector.register(self._wake_r, selectors.EVENT_READ)
        self._changed = threading.Condition()
        self._closing = False
        self._listener: socket.socket | None = None
        self.port = 0
        self.accepted = 0
        self._listen()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()
        self.mode = mode

    @property
    def url(self) -> str:
        """The ``redis://`` URL of the relay."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def mode(self) -> Mode:
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        with self._changed:
            self._wanted = mode
            self._wake()
            assert self._changed.wait_for(lambda: self._mode == mode, timeout=10), "the relay hangs"

    def close(self) -> None:
        """Closes every connection and ends the thread."""
        self._closing = True
        self._wake()
        self._thread.join(10)
        for descriptor in (self._wake_r, self._wake_w):
            os.close(descriptor)
        self._selector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _wake(self) -> None:
        os.write(self._wake_w, b"!")

    def _run(self) -> None:
        while not self._closing:
            self._enter_mode()
            ready = {key.fd for key, _ in self._selector.select(self._relay_all())}
            if self._wake_r in ready:
                os.read(self._wake_r, 512)
            if self._listener is not None and self._listener.fileno() in ready:
                self._accept()
        for connection in self._connections:
            connection.close()
        self._unlisten()

    def _enter_mode(self) -> None:
        with self._changed:
            if self._wanted in ("reset", "refuse"):
                for connection in self._connections:
                    connection.close(reset=self._wanted == "reset")
                self._connections.clear()
            if self._wanted == "refuse":
                self._unlisten()
            elif self._listener is None:
                self._listen()
            self._mode = self._wanted
            self._changed.notify_all()

    def _listen(self) -> None:
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", self.port))
        self._listener.listen(128)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._selector.register(self._listener, selectors.EVENT_READ)

    def _unlisten(self) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(BlockingIOError):
            client, _ = self._listener.accept()
            self.accepted += 1
            if self._mode == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
                client.close()
                return
            try:
                server = _connect(self._upstream)
            except OSError:  # the server is down: so is its relay
                client.close()
                return
            self._connections.append(_Connection(client, server, self._selector))

    def _relay_all(self) -> float | None:
        """Moves what can be moved now; returns for how long to sleep if nothing happens."""
        sleep_s: float | None = None
        for connection in list(self._connections):
            try:
                wait_s = connection.relay(self._mode)
            except OSError:
                connection.close()
                self._connections.remove(connection)
                continue
            if wait_s is not None:
                sleep_s = wait_s if sleep_s is None else min(sleep_s, wait_s)
        return sleep_s


class _Connection:
    def __init__(
        self, client: socket.socket, server: socket.socket, selector: selectors.BaseSelector
    ) -> None:
        self._client = client
        self._server = server
        self._selector = selector
        self._to_server = bytearray()
        self._to_client = bytearray()
        self._next_drip = 0.0
        for end in (client, server):
            end.setblocking(False)

    def relay(self, mode: Mode) -> float | None:
        wait_s: float | None = None
        if mode != "mute":
            _read(self._client, self._to_server)
            _write(self._server, self._to_server)
            _read(self._server, self._to_client)
            if mode == "swallow":
                self._to_client.clear()
            elif mode == "drip":
                wait_s = self._drip()
            else:
                _write(self._client, self._to_client)
        self._watch(mode)
        return wait_s

    def close(self, *, reset: bool = False) -> None:
        for end in (self._client, self._server):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(end)
        if reset:
            with contextlib.suppress(OSError):
                self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
        self._client.close()
        self._server.close()

    def _drip(self) -> float | None:
        if not self._to_client:
            return None
        now = time.monotonic()
        if now >= self._next_drip:
            first = self._to_client[:1]
            _write(self._client, first)
            if not first:
                del self._to_client[:1]
            self._next_drip = now + 1.0
        return max(self._next_drip - now, 0.01)

    def _watch(self, mode: Mode) -> None:
        dripping = mode == "drip"
        for end, waiting in ((self._client, self._to_client), (self._server, self._to_server)):
            events = 0
            if mode != "mute":
                if len(waiting) < 16 * _CHUNK:  # a slow reader on this end must not fill our memory
                    events |= selectors.EVENT_READ
                if waiting and not (dripping and end is self._client):
                    events |= selectors.EVENT_WRITE
            known = self._selector.get_map().get(end.fileno())
            if known is None and events:
                self._selector.register(end, events)
            elif known is not None and not events:
                self._selector.unregister(end)
            elif known is not None and known.events != events:
                self._selector.modify(end, events)


def _connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        end = socket.socket(socket.AF_UNIX)
        end.settimeout(5)
        try:
            end.connect(unquote(parts.path))
        except OSError:
            end.close()
            raise
        return end
    return socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 0), timeout=5)


def _read(end: socket.socket, into: bytearray) -> None:
    if len(into) >= 16 * _CHUNK:
        return
    try:
        data = end.recv(_CHUNK)
    except BlockingIOError:
        return
    if not data:
        raise ConnectionResetError("closed by the other end")
    into += data


def _write(end: socket.socket, out: bytearray) -> None:
    if out:
        with contextlib.suppress(BlockingIOError):
            del out[: end.send(out)]
