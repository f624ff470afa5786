"""Where a server's name leads, remembered.

Looking a name up knows no timeout, and a name service that is down must not cut this host off from a Redis
that is not. So what a name led to is kept, and used where a new look-up fails or has no answer after a
second. Every new connection still asks: after a failover the name may lead elsewhere.

A look-up that hangs holds one of the few threads that an event loop has for them, all of them shared by
every name. So there is never more than one look-up of a name under way in a loop.

What the supervisor remembers, the workers that it forks know from their first instant on.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

LOOKUP_S = 1.0
"""How long to wait for a new answer where an old one is known."""

_Name = tuple[str, int]

_known: dict[_Name, list[str]] = {}
_under_way: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[_Name, asyncio.Task[list[str]]]] = (
    WeakKeyDictionary()
)


def remember(host: str, port: int, addresses: Iterable[str]) -> None:
    """Notes the numeric addresses to which a name leads."""
    _known[host, port] = list(addresses)


def look_up(host: str, port: int) -> list[str]:
    """Numeric addresses of a host. Raises OSError where none was ever known.

    Without a known one it takes as long as the system takes: call it in a process that can be killed.
    """
    found: list[str] = []
    failed: list[OSError] = []

    def ask() -> None:
        try:
            found.extend(_numeric(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))
        except OSError as error:
            failed.append(error)

    known = _known.get((host, port))
    if known is None:
        ask()
    else:
        thread = threading.Thread(target=ask, name="look-up", daemon=True)
        thread.start()
        thread.join(LOOKUP_S)
    if found:
        remember(host, port, found)
        return found
    if known is None:
        raise failed[0] if failed else OSError(f"{host}: no address")
    return known


async def resolve(host: str, port: int) -> list[str]:
    """As :func:`look_up`, for coroutines. The caller sees to a time limit for names never looked up."""
    name = (host, port)
    under_way = _under_way.setdefault(asyncio.get_running_loop(), {})
    task = under_way.get(name)
    if task is None:
        task = under_way[name] = asyncio.get_running_loop().create_task(_ask(host, port))
        task.add_done_callback(lambda done: _forget(under_way, name, done))
    known = _known.get(name)
    try:
        async with asyncio.timeout(None if known is None else LOOKUP_S):
            return await asyncio.shield(task)
    except OSError:  # TimeoutError is one of them
        if known is None:
            raise
        return known


async def _ask(host: str, port: int) -> list[str]:
    found = _numeric(await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM))
    if not found:
        raise OSError(f"{host}: no address")
    remember(host, port, found)
    return found


def _forget(
    under_way: dict[_Name, asyncio.Task[list[str]]], name: _Name, done: asyncio.Task[list[str]]
) -> None:
    del under_way[name]
    if not done.cancelled():
        done.exception()  # nobody may have waited for it to the end


def _numeric(found: Sequence[tuple[Any, ...]]) -> list[str]:
    return list(dict.fromkeys(str(item[4][0]) for item in found))
