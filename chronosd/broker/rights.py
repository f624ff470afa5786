"""What the user that we connect as may do, asked of the server without doing it.

A transaction that is discarded is checked command by command as it is queued: that is the question. If even
MULTI is refused the commands are executed, so all of them are of one throwaway key, and the last deletes it.
"""

from __future__ import annotations

from typing import Any

from chronosd.broker.commands import Command, Steps, plain, text
from chronosd.broker.finding import Finding, redis_cli
from chronosd.broker.keys import GROUP, Namespace
from chronosd.errors import BrokerError, BrokerRefused

_TTL_S = 60


def missing_rights(namespace: Namespace) -> Steps[list[Finding]]:
    """A finding that names the commands and keys that the user lacks; none if nothing is missing.

    Raises BrokerUnavailable.
    """
    probe = namespace.queue("doctor").task("probe")
    asked = commands_used(probe)
    whoami, *_ = yield [plain("ACL", "WHOAMI", parse=text)]
    commands: list[Command[Any]] = [plain("MULTI"), *(plain(*words) for words in asked), plain("DISCARD")]
    (_, *replies, _) = yield commands
    denied, keys = [], False
    for words, reply in zip(asked, replies, strict=True):
        said = str(reply) if isinstance(reply, BrokerError) else ""
        if "NOPERM" in said:
            if " key" in said:
                keys = True
            else:
                denied.append(_name(words))
    plain_names = (namespace.queues, namespace.paused, namespace.daemons)
    for reply in (yield [plain("TYPE", key) for key in plain_names]):
        keys = keys or (isinstance(reply, BrokerRefused) and "NOPERM" in str(reply) and " key" in str(reply))
    return _findings(namespace, whoami if isinstance(whoami, str) else "", list(dict.fromkeys(denied)), keys)


def _findings(namespace: Namespace, user: str, denied: list[str], keys: bool) -> list[Finding]:
    found = []
    who = f"the user {user!r}" if user else "the user"
    if denied:
        words = [f"+{name.lower()}" for name in denied]
        found.append(
            Finding(
                "no-permission",
                f"{who} may not run {', '.join(denied)}",
                redis_cli("ACL", "SETUSER", user or "NAME", *words),
            )
        )
    if keys:
        found.append(
            Finding(
                "no-permission",
                f"{who} may not use the keys of namespace {namespace.prefix}",
                redis_cli("ACL", "SETUSER", user or "NAME", f"~{namespace.prefix}:*"),
            )
        )
    return found


def commands_used(key: str) -> list[tuple[Any, ...]]:
    """Every command that workers, supervisor and clients use, on one key, ended by one that tidies up."""
    nobody = "0" * 40
    return [
        ("INFO",),
        ("TIME",),
        ("EVALSHA", nobody, 0),
        ("SCRIPT", "LOAD", "return 1"),
        ("CLIENT", "ID"),
        ("CLIENT", "UNBLOCK", 0, "TIMEOUT"),
        ("TYPE", key),
        ("EXISTS", key),
        ("XADD", key, "NOMKSTREAM", "*", "task_id", ""),
        ("XACK", key, GROUP, "0-1"),
        ("XDEL", key, "0-1"),
        ("XLEN", key),
        ("XRANGE", key, "-", "+", "COUNT", 1),
        ("XPENDING", key, GROUP),
        ("XCLAIM", key, GROUP, "doctor", 0, "0-1"),
        ("XAUTOCLAIM", key, GROUP, "doctor", 0, "0-0", "COUNT", 1),
        ("XREADGROUP", "GROUP", GROUP, "doctor", "COUNT", 1, "STREAMS", key, ">"),
        ("XINFO", "GROUPS", key),
        ("XINFO", "CONSUMERS", key, GROUP),
        ("XGROUP", "CREATE", key, GROUP, 0),
        ("XGROUP", "DELCONSUMER", key, GROUP, "doctor"),
        ("HGET", key, "msg"),
        ("HMGET", key, "msg"),
        ("HGETALL", key),
        ("HEXISTS", key, "msg"),
        ("HLEN", key),
        ("HSTRLEN", key, "msg"),
        ("HSET", key, "msg", ""),
        ("HINCRBY", key, "returned", 1),
        ("HDEL", key, "msg"),
        ("EXPIRE", key, _TTL_S),
        ("PEXPIRE", key, _TTL_S * 1000),
        ("TTL", key),
        ("PTTL", key),
        ("DEL", key),
        ("ZADD", key, "XX", 0, ""),
        ("ZREM", key, ""),
        ("ZCARD", key),
        ("ZCOUNT", key, 0, 0),
        ("ZRANGE", key, 0, 0),
        ("ZRANGEBYSCORE", key, 0, 0),
        ("ZREMRANGEBYSCORE", key, 0, 0),
        ("ZSCORE", key, ""),
        ("ZSCAN", key, 0, "COUNT", 1),
        ("SADD", key, "doctor"),
        ("SREM", key, "doctor"),
        ("SCARD", key),
        ("SISMEMBER", key, "doctor"),
        ("SMISMEMBER", key, "doctor"),
        ("SSCAN", key, 0, "COUNT", 1),
        ("GET", key),
        ("MGET", key),
        ("SET", key, "", "PX", _TTL_S * 1000),
        ("UNLINK", key),
    ]


def _name(words: tuple[Any, ...]) -> str:
    """As an access list calls it: containers with their subcommand."""
    is_container = words[0] in ("SCRIPT", "CLIENT", "XINFO", "XGROUP")
    return f"{words[0]}|{words[1]}" if is_container else str(words[0])
