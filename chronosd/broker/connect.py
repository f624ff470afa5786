"""How Redis is reached: URLs, connections with a total deadline, and what an error means.

Two things of redis-py do not fit a supervisor and are changed here. Its timeouts count per read, so a server
that drips one byte a second keeps a caller for ever: our sockets count against one deadline for the whole
call. And it resends a command up to eleven times by itself: every connection here is built with no retries,
since only this project knows which of its commands may be sent twice.
"""

from __future__ import annotations

import re
import ssl
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.exceptions import RedisError
from redis.retry import Retry

from chronosd.broker.addresses import look_up
from chronosd.broker.replies import classify, with_code
from chronosd.broker.sockets import Deadline, TcpConnection, TlsConnection, UnixConnection, tls_context
from chronosd.config.names import check_host
from chronosd.errors import BrokerError, BrokerUnavailable, ConfigError, Trouble

_CONNECTING = re.compile(r"(?:Error -?\d+ connecting to \S+|\[Errno -?\d+\]) (.*?)\.?")
"""Words of redis-py and Python round the system's: the address is said already."""


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


def parse(url: str, password: str | None = None) -> Target:
    """Reads ``redis://``, ``rediss://`` and ``unix://`` URLs. Raises ConfigError with one line.

    ``password`` is used where the URL has none.
    """
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("redis", "rediss", "unix"):
            raise ValueError(
                "must begin with redis://, rediss:// or unix://, such as redis://localhost:6379/0"
            )
        options = parse_url(url)  # type: ignore[no-untyped-call] # redis-py's, without annotations
        if parts.scheme in ("redis", "rediss") and parts.path.strip("/") and "db" not in options:
            raise ValueError(f"the database must be a number (got {parts.path.strip('/')!r})")
        if parts.scheme == "unix" and not options.get("path"):
            raise ValueError("unix:// needs the path of a socket")
        if int(options.get("db", 0)) < 0:
            raise ValueError(f"the database must not be negative (got {options['db']})")
        if parts.scheme != "unix":
            check_host(options.get("host", "localhost"), parts.port)
    except ValueError as error:
        raise ConfigError([f"the URL of Redis: {error}"]) from None
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


def connection(target: Target, deadline: Deadline, *, address: str = "") -> Any:
    """A redis-py connection, not yet connected, whose every wait ends at ``deadline``.

    ``address`` is a numeric one to connect to instead of looking up the host (whose name TLS still checks).
    """
    options: dict[str, Any] = {
        "deadline": deadline,
        "db": target.db,
        "username": target.username if target.password is not None else None,
        "password": target.password,
        "protocol": 2,
        "driver_info": None,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": None,
        "socket_connect_timeout": None,
    }
    if target.path:
        return UnixConnection(path=target.path, **options)  # type: ignore[abstract] # redis-py leaves it so too
    options |= {"host": target.host, "port": target.port, "address": address}
    if target.scheme == "rediss":
        return TlsConnection(tls=target.tls, **options)
    return TcpConnection(**options)


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
    wrapped = _CONNECTING.fullmatch(message)
    return _unanswered(target, wrapped[1] if wrapped else message, in_doubt=in_doubt)


def _unanswered(target: Target, message: str, *, in_doubt: bool = False) -> BrokerUnavailable:
    return BrokerUnavailable(f"no answer from Redis at {target.label}: {message}", maybe_enqueued=in_doubt)


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
            addresses = look_up(target.host, target.port)
        except OSError as error:
            raise _unanswered(target, error.strerror or str(error)) from None
    last: BrokerError = _unanswered(target, "no address")
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
