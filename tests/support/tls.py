"""A TLS end before a server: what a provider's load balancer does."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

FILES = Path(__file__).parent.parent / "data" / "tls"
CERTIFICATE = FILES / "server.pem"
"""For localhost, signed by itself, valid for a century; only tests trust it."""


class TlsEnd:
    """Relays TLS connections at ``localhost:port`` to the unix socket of *upstream*."""

    def __init__(self, upstream: str) -> None:
        self._path = unquote(urlsplit(upstream).path)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(CERTIFICATE, FILES / "server.key")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = [self._listener]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def url(self, query: str = "", host: str = "localhost") -> str:
        return f"rediss://{host}:{self.port}/7?{query}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for one in self._open:
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                raw, _ = self._listener.accept()
            except OSError:
                return
            try:
                client = self._context.wrap_socket(raw, server_side=True)
            except OSError:  # a client that does not trust us, or is gone
                raw.close()
                continue
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._path)
            self._open += (client, server)
            for source, sink in ((client, server), (server, client)):
                thread = threading.Thread(target=_pump, args=(source, sink))
                self._threads.append(thread)
                thread.start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)
