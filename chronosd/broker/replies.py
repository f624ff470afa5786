"""What came back: error replies and what to do about them, scripts that were missing, results in order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    MasterDownError,
    NoPermissionError,
    RedisError,
)

from chronosd.broker.commands import Command, Script
from chronosd.errors import BrokerError, BrokerRefused, BrokerUnavailable, Trouble

T = TypeVar("T")

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


_NO_WRITES = re.compile(r"-?(OOM|MISCONF|READONLY|NOREPLICAS)\b")


def refuses_writes(error: BrokerError) -> bool:
    """Whether a command, not a script, met a server that takes no writes at present, whatever they are of."""
    return _NO_WRITES.match(str(error)) is not None


_CLASSES: tuple[tuple[type[RedisError], str], ...] = (
    (BusyLoadingError, "LOADING"),
    (NoPermissionError, "NOPERM"),
    (AuthenticationError, "WRONGPASS"),
    (MasterDownError, "MASTERDOWN"),
)
"""What a server may answer to what redis-py says: the login, and PING."""


def with_code(error: RedisError) -> str:
    """An error reply as the server wrote it: redis-py takes the code off and makes a class of it."""
    code = getattr(error, "status_code", None)
    if code:  # newer versions keep it
        return str(error) if str(error).startswith(code) else f"{code} {error}"
    for cls, code in _CLASSES:
        if isinstance(error, cls):
            return str(error) if str(error).startswith(code) else f"{code} {error}"
    return str(error)


def missing_scripts(commands: Sequence[Command[Any]], replies: Sequence[Any]) -> list[int]:
    """Indexes of commands that did not run because the server lacks their script (safe to send again)."""
    return [
        i
        for i, reply in enumerate(replies)
        if isinstance(reply, Exception) and commands[i].script is not None and "NOSCRIPT" in str(reply)
    ]


def scripts_of(commands: Sequence[Command[Any]], missing: Sequence[int]) -> list[Script]:
    found = {s.sha: s for i in missing if (s := commands[i].script) is not None}
    return list(found.values())


def merge(
    commands: Sequence[Command[Any]], replies: list[Any], missing: Sequence[int], late: Sequence[Any]
) -> None:
    """Puts in place what came back after the scripts were loaded, or why one could not be loaded."""
    scripts = scripts_of(commands, missing)
    refused = {s.sha: r for s, r in zip(scripts, late, strict=False) if isinstance(r, Exception)}
    for i, reply in zip(missing, late[len(scripts) :], strict=True):
        script = commands[i].script
        replies[i] = refused.get(script.sha, reply) if script is not None else reply


def results_of(commands: Sequence[Command[Any]], replies: Sequence[Any]) -> list[Any]:
    return [
        classify(str(reply)) if isinstance(reply, Exception) else command.parse(reply)
        for command, reply in zip(commands, replies, strict=True)
    ]


def checked(results: list[Any]) -> list[Any]:
    """The results, if all are. Raises the first BrokerError among them."""
    for result in results:
        if isinstance(result, BrokerError):
            raise result
    return results


def single(results: Sequence[T | BrokerError]) -> T:
    """The result of a batch of one. Raises the error in its place."""
    (result,) = results
    if isinstance(result, BrokerError):
        raise result
    return result
