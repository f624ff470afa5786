"""The command: one request to Redis as a value, and the scripts it may name."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Generic, TypeVar

T = TypeVar("T")

BATCH = 500
"""The most entries that one command may touch."""

REPLY_BYTES = 4 << 20
"""The most message bytes that one reply may carry; larger bodies are fetched singly."""


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua file, by name, and the SHA-1 under which the server caches it."""

    name: str
    source: str
    sha: str


def _source(name: str) -> str:
    return files("chronosd.broker").joinpath("lua", f"{name}.lua").read_text("utf-8")


@cache
def script(name: str) -> Script:
    """The script in ``lua/<name>.lua``, with the parts it includes (``--#include part``) put in."""
    source = re.sub(r"^--#include (\w+)\n", lambda part: _source(part[1]), _source(name), flags=re.MULTILINE)
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def _as_is(reply: Any) -> Any:
    return reply


@dataclass(frozen=True, slots=True)
class Command(Generic[T]):
    """One request: its words as Redis takes them, and how its reply becomes a ``T``.

    ``repeatable`` says that sending it twice does what sending it once does, so that a runner may send
    it again over a new connection when the reply was lost.
    """

    words: tuple[Any, ...]
    parse: Callable[[Any], T]
    script: Script | None = None
    repeatable: bool = True


def call(
    script_: Script,
    keys: tuple[str, ...],
    args: list[Any],
    parse: Callable[[Any], T] = _as_is,
    *,
    repeatable: bool = True,
) -> Command[T]:
    """A command that runs a script."""
    return Command(("EVALSHA", script_.sha, len(keys), *keys, *args), parse, script_, repeatable)


def plain(*words: Any, parse: Callable[[Any], T] = _as_is, repeatable: bool = True) -> Command[T]:
    """A command of Redis's own."""
    return Command(words, parse, None, repeatable)


Steps = Generator[list[Command[Any]], list[Any], T]
"""A procedure of several round trips: yields commands, is sent their results, returns a ``T``."""


def text(value: bytes | str | None) -> str:
    """What Redis holds, as text; bytes that are not UTF-8 stay visible as escapes."""
    if value is None:
        return ""
    return value if isinstance(value, str) else value.decode("utf-8", "backslashreplace")
