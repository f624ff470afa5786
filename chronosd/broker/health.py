"""What is wrong with the server itself: version, memory, disk, clock, and daemons that disagree."""

from __future__ import annotations

import re

from chronosd.broker import server
from chronosd.broker.commands import Steps
from chronosd.broker.finding import Finding, redis_cli
from chronosd.broker.keys import Namespace
from chronosd.broker.server import ServerInfo
from chronosd.durations import format_duration
from chronosd.errors import BrokerError

OLDEST_SERVER = (6, 2)
"""XAUTOCLAIM and the exclusive ranges of streams came with it."""

_FULL, _FILLING = 0.95, 0.80
"""Shares of the memory from which on the server is told to be full, or to become so."""
_SKEW_S = 2.0
"""A clock that is further off than this makes log lines and instants misleading."""


def server_findings(info: ServerInfo) -> list[Finding]:
    """What is wrong with the server itself."""
    found = []
    version = tuple(int(n) for n in re.findall(r"\d+", info.version)[:2])
    if version and version < OLDEST_SERVER:
        found.append(
            Finding(
                "old-server",
                f"the server is version {info.version}",
                "use Redis 6.2 or later, or any Valkey",
            )
        )
    if info.maxmemory_policy not in ("", "noeviction"):
        found.append(
            Finding(
                "eviction",
                f"maxmemory-policy is {info.maxmemory_policy}: a full server deletes tasks",
                redis_cli("CONFIG", "SET", "maxmemory-policy", "noeviction") + ", and in its configuration",
            )
        )
    if info.has_aof is False:
        found.append(
            Finding(
                "no-aof",
                "there is no append-only file: a crash loses what was accepted since the last dump",
                redis_cli("CONFIG", "SET", "appendonly", "yes") + ", and in its configuration",
                is_error=False,
            )
        )
    return [*found, *_memory(info), *_persistence(info)]


def _memory(info: ServerInfo) -> list[Finding]:
    if not info.used_memory:
        return []
    limit, what = info.maxmemory, "maxmemory"
    if not limit:
        limit, what = info.system_memory, "the machine's memory"
    share = info.used_memory / limit if limit else 0.0
    if share < _FILLING:
        return []
    used = f"{_mib(info.used_memory)} of {_mib(limit)} ({what}) are in use, {share:.0%}"
    is_full = share >= _FULL
    return [
        Finding(
            "memory",
            f"{used}: a full server refuses every enqueue" if is_full else used,
            f"{redis_cli('CONFIG', 'SET', 'maxmemory', 2 * limit)} if the machine has it; else see what fills"
            " it: chronosd queue ls; delete what is not needed: chronosd queue purge QUEUE --state archived",
            is_error=is_full,
        )
    ]


def _persistence(info: ServerInfo) -> list[Finding]:
    if not info.write_errors:
        return []
    return [
        Finding(
            "cannot-persist",
            f"the server cannot write to its disk ({info.write_errors}): it refuses writes, or loses them",
            "make room on its disk, and look into its log",
        )
    ]


def skew(host_now: float, server_now: float) -> list[Finding]:
    """Whether the clocks of this host and of the server agree; unix seconds."""
    off_s = host_now - server_now
    if abs(off_s) <= _SKEW_S:
        return []
    way = "ahead of" if off_s > 0 else "behind"
    return [
        Finding(
            "clock-skew",
            f"this host's clock is {format_duration(round(abs(off_s), 1))} {way} the server's, by which"
            " tasks run",
            "set both by NTP; `--at` and `at=` mean the instant that the server's clock shows",
            is_error=False,
        )
    ]


def _mib(size: int) -> str:
    return f"{size / 2**20:.{0 if size > 100 << 20 else 1}f} MiB"


def disagreements(namespace: Namespace, configured_s: float | None) -> Steps[list[Finding]]:
    """Daemons whose ``recover_min_idle`` is not that of all others, and of the configuration at hand.

    Raises BrokerError.
    """
    (now,) = yield [server.time()]
    if isinstance(now, BrokerError):
        raise now
    (running,) = yield [server.heard_of(namespace, now - 3 * server.ANNOUNCED_EVERY_S)]
    if isinstance(running, BrokerError):
        return []  # not ours, whatever it is
    values = sorted({*running.values(), *([] if configured_s is None else [configured_s])})
    if len(values) < 2 or not running:
        return []
    told = [f"{name} {format_duration(value)}" for name, value in sorted(running.items())]
    if configured_s is not None:
        told.append(f"the configuration here {format_duration(configured_s)}")
    return [
        Finding(
            "min-idle-differs",
            f"recover_min_idle is not the same everywhere ({', '.join(told)}): running tasks are taken over",
            "set it to the same value in every configuration and restart those daemons",
        )
    ]
