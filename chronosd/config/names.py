"""The types of texts with rules in the file: import paths, names, paths, URLs.

As in ``fields.py``, a sentence never contains the value: it may be a password. The report adds what was
found.
"""

from __future__ import annotations

import ipaddress
import os
import re
from difflib import get_close_matches
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BeforeValidator, WithJsonSchema

from chronosd import cron
from chronosd.config.expand import Expanded


def _text(value: Any, expected: str = "must be text") -> str:
    if isinstance(value, str):
        return str(value)
    if expected == "must be text" and isinstance(value, int | float):
        expected += "; quote it"
    raise ValueError(expected)


_IDENTIFIERS = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
_MODULE = re.compile(_IDENTIFIERS)
_IMPORT_PATH = re.compile(f"{_IDENTIFIERS}:{_IDENTIFIERS}")


def _import_path(value: Any) -> str:
    expected = "must be an import path module:attribute such as app.mail:send"
    text = _text(value, expected)
    if _IMPORT_PATH.fullmatch(text):
        return text
    if _MODULE.fullmatch(text) and "." in text and not isinstance(value, Expanded):
        module, _, attribute = text.rpartition(".")
        expected += f"; did you mean {module}:{attribute}?"
    raise ValueError(expected)


def _module(value: Any) -> str:
    expected = "must be the dotted name of a module such as app.tasks"
    text = _text(value, expected)
    if not _MODULE.fullmatch(text):
        raise ValueError(expected)
    return text


def _printable(text: str, what: str, most: int) -> str:
    if not text:
        raise ValueError(f"{what} must not be empty")
    if not text.replace(" ", "").isprintable():
        raise ValueError(f"{what} must not contain control characters")
    if len(text.encode()) > most:
        raise ValueError(f"{what} must be at most {most} bytes long")
    return text


def _queue(value: Any) -> str:
    text = _printable(_text(value), "a queue name", 200)
    # The name stands in braces in every key: it is the hash tag that keeps a queue in one cluster slot. What
    # patterns are made of would find other queues' keys.
    if set("{}*?[]") & set(text) or any(c.isspace() for c in text):
        raise ValueError("a queue name must not contain braces, *?[] or white space")
    return text


def _kind(value: Any) -> str:
    text = _printable(_text(value), "a kind", 200)
    if text != text.strip():
        raise ValueError("a kind must not begin or end with white space")
    return text


def _namespace(value: Any) -> str:
    """A key prefix as chronos-go takes it, so that both sides derive the same keys."""
    text = _text(value).strip(":")
    if not text:
        raise ValueError("must not be empty")
    if set("{}*?[]") & set(text) or any(c.isspace() or not c.isprintable() for c in text):
        raise ValueError("must not contain {}, *?[], white space or control characters")
    if len(text.encode()) > 200:
        raise ValueError("must be at most 200 bytes long")
    return text


def _instance(value: Any) -> str:
    text = _text(value)
    # part of directory names and of consumer names
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", text):
        raise ValueError(
            "must be 1 to 64 letters, digits, dots, hyphens or underscores, not a dot or hyphen first"
        )
    return text


def _path(value: Any) -> str:
    text = _text(value, "must be a path")
    if not text or not text.isprintable():
        raise ValueError("must be a path")
    return text


def _socket_path(value: Any) -> str:
    text = _path(value)
    if len(os.fsencode(text)) > 100:
        raise ValueError("must be at most 100 bytes long, as socket paths are")
    return text


SCHEMES = ("redis", "rediss", "unix", "embedded", "redis+sentinel", "redis+cluster")
SCHEMES_NOT_YET = ("redis+sentinel", "redis+cluster")


def _redis_url(value: Any) -> str:
    expected = "must be a URL such as redis://127.0.0.1:6379/0"
    text = _text(value, expected)
    scheme, separator, _ = text.partition("://")
    if not separator:
        raise ValueError(expected)
    if scheme not in SCHEMES:
        near = get_close_matches(scheme, SCHEMES, 1)
        hint = f"; did you mean {near[0]}://?" if near else ""
        raise ValueError(f"the URL must begin with one of {', '.join(s + '://' for s in SCHEMES)}{hint}")
    if not text.isprintable() or " " in text:
        raise ValueError("a URL must not contain white space or control characters; write them as %20")
    if scheme in SCHEMES_NOT_YET:
        raise ValueError(f"{scheme}:// is not available in this version")
    if "#" in text:
        raise ValueError("a URL must not contain #; in a password it is written %23")
    try:
        url = urlsplit(text)
        host, _port = url.hostname, url.port
    except ValueError:
        raise ValueError("the URL's host or port cannot be read; the port is a number up to 65535") from None
    if scheme == "embedded":
        if url.netloc or url.query:
            raise ValueError("must be embedded:// alone or embedded:///directory (three slashes)")
    elif scheme == "unix":
        if not url.path.strip("/"):
            raise ValueError("a unix:// URL needs the path of a socket, such as unix:///run/redis/redis.sock")
    elif not host:
        raise ValueError(f"the URL needs a host, such as {scheme}://127.0.0.1:6379/0")
    elif not re.fullmatch(r"/?|/[0-9]{1,5}", url.path):
        raise ValueError("the path of the URL must be the number of a database, such as /0")
    else:
        check_host(host, _port)
    return text


def check_host(host: str, port: int | None) -> None:
    """Raises ValueError for what no resolver can be asked, or no server can listen on."""
    if port == 0:
        raise ValueError("the port of the URL must not be 0")
    try:
        host.encode("idna")  # what Python does before it looks a name up, and then it is no OSError
    except UnicodeError:
        raise ValueError(f"{host!r} cannot be the name of a host") from None


def _listen(value: Any) -> str:
    expected = "must be an address and a port such as 127.0.0.1:9980 or [::1]:9980"
    text = _text(value, expected)
    try:
        url = urlsplit(f"//{text}")
        usable = bool(url.hostname) and url.port is not None and url.netloc == text
        # an address, not a name: to look one up may take for ever, and the supervisor waits for nobody
        if usable and url.hostname != "localhost":
            ipaddress.ip_address(url.hostname or "")
    except ValueError:
        usable = False
    if not usable or "@" in text:
        raise ValueError(expected)
    return text


def _rate(value: Any) -> str:
    expected = "must be a rate such as 100/s, 6/m or 1000/h"
    text = _text(value, expected)
    if not re.fullmatch(r"[1-9][0-9]{0,8}/(s|m|h|d)", text):
        raise ValueError(expected)
    return text


def _schedule(value: Any) -> str:
    return _printable(_text(value), "a name", 200)


def _cron(value: Any) -> str:
    text = _text(value, cron.EXPECTED)
    cron.parse(text)
    return text


def _timezone(value: Any) -> str:
    text = _text(value, "must be the name of a time zone such as Europe/Berlin")
    return cron.check_timezone(text)


ImportPath = Annotated[
    str,
    BeforeValidator(_import_path),
    WithJsonSchema({"type": "string", "pattern": r"^[^\s:.]+(\.[^\s:.]+)*:[^\s:.]+(\.[^\s:.]+)*$"}),
]
ModuleName = Annotated[
    str, BeforeValidator(_module), WithJsonSchema({"type": "string", "pattern": r"^[^\s:.]+(\.[^\s:.]+)*$"})
]
QueueName = Annotated[
    str,
    BeforeValidator(_queue),
    WithJsonSchema({"type": "string", "minLength": 1, "pattern": r"^[^\s{}*?\[\]]+$"}),
]
KindName = Annotated[str, BeforeValidator(_kind), WithJsonSchema({"type": "string", "minLength": 1})]
Namespace = Annotated[
    str, BeforeValidator(_namespace), WithJsonSchema({"type": "string", "pattern": r"^[^\s{}*?\[\]]+$"})
]
InstanceName = Annotated[
    str,
    BeforeValidator(_instance),
    WithJsonSchema({"type": "string", "pattern": r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"}),
]
FilePath = Annotated[str, BeforeValidator(_path), WithJsonSchema({"type": "string", "minLength": 1})]
SocketPath = Annotated[
    str, BeforeValidator(_socket_path), WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 100})
]
RedisUrl = Annotated[
    str,
    BeforeValidator(_redis_url),
    WithJsonSchema({"type": "string", "pattern": "^(" + "|".join(map(re.escape, SCHEMES)) + ")://"}),
]
Listen = Annotated[str, BeforeValidator(_listen), WithJsonSchema({"type": "string"})]
Rate = Annotated[
    str, BeforeValidator(_rate), WithJsonSchema({"type": "string", "pattern": "^[1-9][0-9]*/[smhd]$"})
]
ScheduleName = Annotated[str, BeforeValidator(_schedule), WithJsonSchema({"type": "string", "minLength": 1})]
CronSpec = Annotated[str, BeforeValidator(_cron), WithJsonSchema({"type": "string", "minLength": 1})]
TimeZone = Annotated[str, BeforeValidator(_timezone), WithJsonSchema({"type": "string", "minLength": 1})]
Text = Annotated[str, BeforeValidator(_text), WithJsonSchema({"type": "string"})]
