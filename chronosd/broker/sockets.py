"""redis-py's connections, changed so that every wait of a call ends at one deadline."""

from __future__ import annotations

import socket
import ssl
import time
from typing import Any, Protocol, cast

from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection


class Deadline:
    """The monotonic instant at which the call under way has to be over."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = float("inf")

    def left(self) -> float:
        """Seconds left, at most a day. Raises TimeoutError when there are none."""
        left = self.at - time.monotonic()
        if left <= 0:
            raise TimeoutError("deadline exceeded")
        return min(left, 86_400.0)


class _DeadlineSocket:
    """A ``real`` socket whose every wait ends at the deadline; what else is asked of it goes there."""

    def __init__(self, real: socket.socket, deadline: Deadline) -> None:
        self.real = real
        self._deadline = deadline

    def recv_into(self, *args: Any) -> int:
        self.real.settimeout(self._deadline.left())
        return self.real.recv_into(*args)

    def recv(self, *args: Any) -> bytes:
        self.real.settimeout(self._deadline.left())
        return self.real.recv(*args)

    def sendall(self, data: Any) -> None:
        self.real.settimeout(self._deadline.left())
        self.real.sendall(data)

    def settimeout(self, _: float | None) -> None:
        """redis-py's own timeouts, per read, are superseded."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class _Bounded(Protocol):
    """What the three connection classes below have beside redis-py's."""

    deadline: Deadline
    address: str
    host: str
    port: int


def _tcp(connection: _Bounded) -> socket.socket:
    host, deadline = connection.address or connection.host, connection.deadline
    # not socket.create_connection: it grants its timeout to each address anew
    found = socket.getaddrinfo(host, connection.port, type=socket.SOCK_STREAM)
    for tried, (family, kind, protocol, _, address) in enumerate(found, 1):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(deadline.left() / (len(found) - tried + 1))
            sock.connect(address)
        except BaseException as error:
            sock.close()
            if tried == len(found) or not isinstance(error, OSError):
                raise
            continue
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return sock
    raise OSError(f"{host}: no address")


class TcpConnection(Connection):
    def __init__(self, *, deadline: Deadline, address: str, **options: Any) -> None:
        self.deadline, self.address = deadline, address
        super().__init__(**options)  # type: ignore[no-untyped-call,unused-ignore] # redis-py

    def _connect(self) -> Any:
        return _DeadlineSocket(_tcp(cast(_Bounded, self)), self.deadline)


class TlsConnection(SSLConnection):
    def __init__(self, *, deadline: Deadline, address: str, tls: dict[str, Any], **options: Any) -> None:
        self.deadline, self.address, self.tls_options = deadline, address, tls
        super().__init__(**options)  # type: ignore[no-untyped-call,unused-ignore] # redis-py

    def _connect(self) -> Any:
        sock = _tcp(cast(_Bounded, self))
        try:
            sock.settimeout(self.deadline.left())
            wrapped = tls_context(self.tls_options).wrap_socket(sock, server_hostname=self.host)
        except BaseException:
            sock.close()
            raise
        return _DeadlineSocket(wrapped, self.deadline)


class UnixConnection(UnixDomainSocketConnection):
    def __init__(self, *, deadline: Deadline, **options: Any) -> None:
        self.deadline = deadline
        super().__init__(**options)  # type: ignore[no-untyped-call,unused-ignore] # redis-py

    def _connect(self) -> Any:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(self.deadline.left())
            sock.connect(self.path)
        except BaseException:
            sock.close()
            raise
        return _DeadlineSocket(sock, self.deadline)


def tls_context(options: dict[str, Any]) -> ssl.SSLContext:
    """An SSL context from redis-py's ``ssl_*`` options. Raises OSError for files that cannot be read."""
    context = ssl.create_default_context(
        cafile=options.get("ssl_ca_certs"),
        capath=options.get("ssl_ca_path"),
        cadata=options.get("ssl_ca_data"),
    )
    required = options.get("ssl_cert_reqs", "required")
    context.check_hostname = required == "required" and options.get("ssl_check_hostname", True) is not False
    context.verify_mode = {
        "none": ssl.CERT_NONE,
        "optional": ssl.CERT_OPTIONAL,
        "required": ssl.CERT_REQUIRED,
    }[required]
    if options.get("ssl_certfile"):
        context.load_cert_chain(
            options["ssl_certfile"], options.get("ssl_keyfile"), options.get("ssl_password")
        )
    return context
