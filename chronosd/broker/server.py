"""What the supervisor asks of the server itself, and of how full the queues are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chronosd.broker.commands import Command, call, plain, script, text
from chronosd.broker.keys import Namespace, QueueKeys

ANNOUNCED_EVERY_S = 5.0
"""How often a daemon says that it runs."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What INFO says that matters to a task queue. Empty or None where the server does not tell."""

    version: str
    run_id: str
    uptime_s: float | None
    maxmemory_policy: str
    has_aof: bool | None
    used_memory: int = 0
    """Bytes; as everywhere here, 0 where it is not told."""
    maxmemory: int = 0
    """0: no limit."""
    system_memory: int = 0
    write_errors: str = ""
    """What the server could not write to its disk, if anything."""


def info() -> Command[ServerInfo]:
    """Who is at the other end."""

    def parse(reply: Any) -> ServerInfo:
        # Everything: only servers from 7.0 on take several section names.
        lines = (line.partition(":") for line in text(reply).splitlines())
        found = {name: value for name, colon, value in lines if colon}
        uptime, aof = found.get("uptime_in_seconds"), found.get("aof_enabled")
        failed = [
            name
            for name in ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status")
            if found.get(name, "ok") != "ok"
        ]
        return ServerInfo(
            version=found.get("valkey_version") or found.get("redis_version", ""),
            run_id=found.get("run_id", ""),
            uptime_s=float(uptime) if uptime and uptime.isdigit() else None,
            maxmemory_policy=found.get("maxmemory_policy", ""),
            has_aof=None if aof is None else aof == "1",
            used_memory=_int(found.get("used_memory")),
            maxmemory=_int(found.get("maxmemory")),
            system_memory=_int(found.get("total_system_memory")),
            write_errors=", ".join(failed),
        )

    return plain("INFO", parse=parse)


def _int(value: str | None) -> int:
    return int(value) if value and value.isdigit() else 0


def load(name: str) -> Command[None]:
    """Has the server compile a script before it is needed."""
    return plain("SCRIPT", "LOAD", script(name).source, parse=lambda _: None)


def time() -> Command[float]:
    """The server's clock, in unix seconds."""
    return plain("TIME", parse=lambda reply: int(reply[0]) + int(reply[1]) / 1e6)


def backlog(queue: QueueKeys) -> Command[int]:
    """How many tasks of a queue are ready, running, or due."""
    return call(script("backlog"), (queue.stream, queue.scheduled, queue.retry), [], int)


def announce(namespace: Namespace, name: str, recover_min_idle_s: float) -> Command[int]:
    """Says that a daemon runs and after how long it takes over what others have not renewed."""
    said = f"{name} {round(recover_min_idle_s * 1000)}"
    return call(script("announce"), (namespace.daemons,), [said], int)


def heard_of(namespace: Namespace, since: float) -> Command[dict[str, float]]:
    """Daemons that were heard of since that instant (unix seconds), with their ``recover_min_idle`` in s."""

    def parse(reply: Any) -> dict[str, float]:
        pairs = (text(member).rpartition(" ") for member in reply)
        return {name: int(ms) / 1000 for name, _, ms in pairs if ms.isdecimal()}

    return plain("ZRANGEBYSCORE", namespace.daemons, f"{since:.0f}", "+inf", parse=parse)
