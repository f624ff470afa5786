"""How Redis is reached: URLs, connections with a total deadline, and what an error means.

Two things of redis-py do not fit a supervisor and are changed here. Its timeouts count per read, so a server
that drips one byte a second keeps a caller for ever: our sockets count against one deadline for the whole
call. And it resends a command up to eleven times by itself: every connection here is built with no retries,
since only this project knows which of its commands may be sent twice.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from dataclasses import dataclass, field
from typing import Any, Protocol, cast
from urllib.parse import urlsplit, urlunsplit

from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection, parse_url
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    TryAgainError,
)
from redis.retry import Retry

from chronosd.errors import BrokerError, BrokerRefused, BrokerUnavailable, ConfigError, Trouble

_CODES: dict[str, Trouble] = {
    "NOSCRIPT": Trouble.RETRY,  # flushed again between the loading and the call
    "LOADING": Trouble.RETRY,
    "TRYAGAIN": Trouble.RETRY,
    "BUSY": Trouble.RETRY,
    "CLUSTERDOWN": Trouble.RETRY,
    "MASTERDOWN": Trouble.RETRY,
    "MOVED": Trouble.RETRY,
    "ASK": Trouble.RETRY,
    "READONLY": Trouble.RECONNECT,
    "UNBLOCKED": Trouble.RECONNECT,
    "UNKILLABLE": Trouble.RETRY,
    "NOGROUP": Trouble.RECREATE,
}
_CODE = re.compile(r"-?(" + "|".join(_CODES) + r")\b")
_WRAPPED = re.compile(
    r"(?:ERR Error running script .*)?@user_script: ?\d+: -?(" + "|".join(_CODES) + r")\b", re.DOTALL
)
"""As servers before 7.0 tell an error of a script, or of a pcall in it."""


def classify(message: str) -> BrokerError:
    """An error reply of the server as an exception, its ``trouble`` set.

    The code may stand first, or inside the text with which older servers wrap an error of a script.
    """
    found = _CODE.match(message) or _WRAPPED.match(message)
    trouble = _CODES[found[1]] if found else Trouble.OPERATOR
    if "max number of clients" in message:  # the one refusal without a code that passes by itself
        trouble = Trouble.RETRY
    if trouble in (Trouble.RETRY, Trouble.RECONNECT):
        return BrokerUnavailable(message, trouble=trouble)
    return BrokerRefused(message, trouble=trouble)


_CLASSES: tuple[tuple[type[RedisError], str], ...] = (
    (BusyLoadingError, "LOADING"),
    (NoScriptError, "NOSCRIPT"),
    (ReadOnlyError, "READONLY"),
    (OutOfMemoryError, "OOM"),
    (NoPermissionError, "NOPERM"),
    (AuthenticationError, "WRONGPASS"),
    (TryAgainError, "TRYAGAIN"),
    (MovedError, "MOVED"),
    (ClusterDownError, "CLUSTERDOWN"),
    (MasterDownError, "MASTERDOWN"),
)


def with_code(error: RedisError) -> str:
    """An error reply as the server wrote it: redis-py takes the code off and makes a class of it."""
    code = getattr(error, "status_code", None)
    if code:  # newer versions keep it
        return str(error) if str(error).startswith(code) else f"{code} {error}"
    for cls, code in _CLASSES:
        if isinstance(error, cls):
            return str(error) if str(error).startswith(code) else f"{code} {error}"
    return str(error)


@dataclass(frozen=True)
class Target:
    """A parsed URL: where to connect, as whom, to which database."""

    url: str = field(repr=False)
    scheme: str
    host: str = "localhost"
    port: int = 6379
    path: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: dict[str, Any] = field(default_factory=dict, repr=False)
    """redis-py's ``ssl_*`` options."""

    @property
    def label(self) -> str:
        """Where it is, for messages: never with a password."""
        return f"unix:{self.path}" if self.path else f"{self.host}:{self.port}"

    def handshake(self, client_name: str) -> list[tuple[Any, ...]]:
        """What a new connection says first."""
        words: list[tuple[Any, ...]] = []
        if self.password is not None:
            words.append(("AUTH", self.username, self.password) if self.username else ("AUTH", self.password))
        if self.db:
            words.append(("SELECT", self.db))
        if client_name:
            words.append(("CLIENT", "SETNAME", client_name))
        return words

    def ssl_context(self) -> ssl.SSLContext:
        """The TLS settings that redis-py would make of the same URL."""
        return tls_context(self.tls)


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


def parse(url: str, password: str | None = None) -> Target:
    """Reads ``redis://``, ``rediss://`` and ``unix://`` URLs. Raises ConfigError with one line.

    ``password`` is used where the URL has none.
    """
    parts = urlsplit(url)
    try:
        options = parse_url(url)  # type: ignore[no-untyped-call] # redis-py's, without annotations
        if parts.scheme in ("redis", "rediss") and parts.path.strip("/") and "db" not in options:
            raise ValueError(f"the database must be a number (got {parts.path.strip('/')!r})")
        if parts.scheme == "unix" and not options.get("path"):
            raise ValueError("unix:// needs the path of a socket")
    except ValueError as error:
        raise ConfigError([f"redis.url: {error}"]) from None
    return Target(
        url=url,
        scheme=parts.scheme,
        host=options.get("host", "localhost"),
        port=options.get("port", 6379),
        path=options.get("path", ""),
        db=int(options.get("db", 0)),
        username=options.get("username"),
        password=options.get("password", password),
        tls={name: value for name, value in options.items() if name.startswith("ssl_")},
    )


def masked(url: str) -> str:
    """The URL without its password, for logs."""
    url = re.sub(r"([?&](?:ssl_)?password=)[^&#]*", r"\1***", url)  # unix:// has it there
    parts = urlsplit(url)
    if parts.password is None:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:***@{host}"))


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
    """A socket whose every wait ends at the deadline; what else redis-py asks of it goes to the real one."""

    def __init__(self, real: socket.socket, deadline: Deadline) -> None:
        self._real = real
        self._deadline = deadline

    def recv_into(self, *args: Any) -> int:
        self._real.settimeout(self._deadline.left())
        return self._real.recv_into(*args)

    def recv(self, *args: Any) -> bytes:
        self._real.settimeout(self._deadline.left())
        return self._real.recv(*args)

    def sendall(self, data: Any) -> None:
        self._real.settimeout(self._deadline.left())
        self._real.sendall(data)

    def settimeout(self, _: float | None) -> None:
        """redis-py's own timeouts, per read, are superseded."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


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


class _TcpConnection(Connection):
    def __init__(self, *, deadline: Deadline, address: str, **options: Any) -> None:
        self.deadline, self.address = deadline, address
        super().__init__(**options)  # type: ignore[no-untyped-call,unused-ignore] # redis-py

    def _connect(self) -> Any:
        return _DeadlineSocket(_tcp(cast(_Bounded, self)), self.deadline)


class _TlsConnection(SSLConnection):
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


class _UnixConnection(UnixDomainSocketConnection):
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


def connection(target: Target, deadline: Deadline, *, address: str = "", client_name: str = "") -> Any:
    """A redis-py connection, not yet connected, whose every wait ends at ``deadline``.

    ``address`` is a numeric one to connect to instead of looking up the host (whose name TLS still checks).
    """
    options: dict[str, Any] = {
        "deadline": deadline,
        "db": target.db,
        "username": target.username if target.password is not None else None,
        "password": target.password,
        "client_name": client_name or None,
        "protocol": 2,
        "driver_info": None,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": None,
        "socket_connect_timeout": None,
    }
    if target.path:
        return _UnixConnection(path=target.path, **options)  # type: ignore[abstract] # redis-py leaves it so too
    options |= {"host": target.host, "port": target.port, "address": address}
    if target.scheme == "rediss":
        return _TlsConnection(tls=target.tls, **options)
    return _TcpConnection(**options)


def translate(error: BaseException, target: Target, *, in_doubt: bool) -> BrokerError:
    """What redis-py or the system raised while talking to ``target``, as ours.

    ``in_doubt``: a write may have been executed. redis-py's TimeoutError is no ConnectionError, and error
    replies to the handshake (LOADING, NOAUTH) arrive as either; all of them end here.
    """
    if isinstance(error, BrokerError):
        return error
    message = str(error) or type(error).__name__
    if isinstance(error, RedisError):
        message = with_code(error) or message
        known = classify(message)
        if known.trouble is not Trouble.OPERATOR or _looks_like_code(message):
            return known
    if isinstance(error, TimeoutError) or "imeout" in type(error).__name__:
        message = "timed out"
    return BrokerUnavailable(f"{target.label}: {message}", maybe_enqueued=in_doubt)


def _looks_like_code(message: str) -> bool:
    """Whether it begins as Redis's own errors do: with a word in capitals."""
    word = message.split(" ", 1)[0]
    return (len(word) > 2 and word.isupper()) or message.startswith(("invalid password", "invalid username"))


def probe(url: str, password: str | None, timeout_s: float) -> str:
    """Finds an address of the server that answers, for a process that may take no such risk itself.

    Looks the name up (which knows no timeout: call it in a child that can be killed), connects, logs in
    and asks PING. Returns the numeric address, "" for a unix socket. Raises BrokerError, ConfigError.
    """
    target = parse(url, password)
    deadline = Deadline()
    deadline.at = time.monotonic() + timeout_s
    addresses = [""]
    if not target.path:
        try:
            found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise BrokerUnavailable(f"{target.label}: {error.strerror or error}") from None
        addresses = list(dict.fromkeys(str(item[4][0]) for item in found))
    last: BrokerError = BrokerUnavailable(f"{target.label}: no address")
    for address in addresses:
        link = connection(target, deadline, address=address)
        try:
            link.connect()
            link.send_command("PING", check_health=False)
            link.read_response()
            return address
        except (RedisError, OSError) as error:
            last = translate(error, target, in_doubt=False)
        finally:
            link.disconnect()
    raise last
