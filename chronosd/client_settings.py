"""Where a client connects and what it allows: from its arguments, the environment, or chronos.yaml."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from chronosd.durations import parse_duration
from chronosd.errors import ConfigError
from chronosd.submission import DEFAULT_MAX_PAYLOAD, DEFAULT_TIMEOUT_S, Drafter

if TYPE_CHECKING:
    from chronosd.config.schema import DeadLetterConfig

URL_VARIABLE = "CHRONOSD_REDIS_URL"


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """What both clients are made of."""

    url: str
    """``redis://``, ``rediss://`` or ``unix://``."""
    password: str | None
    timeout_s: float
    drafter: Drafter
    on_dead_letter: DeadLetterConfig | None = None


def settings(
    url: str | None,
    *,
    namespace: str,
    password: str | None = None,
    timeout: str | float | timedelta = DEFAULT_TIMEOUT_S,
    max_payload: int | str = DEFAULT_MAX_PAYLOAD,
    base: Path | None = None,
) -> ClientSettings:
    """Settings from a client's arguments; *base* is where the configuration lies, if there is one.

    Raises:
        ConfigError: no URL, or one of an unknown form; a timeout that is not positive.
        InvalidTask: a namespace that cannot be one.
    """
    if url is None:
        url = os.environ.get(URL_VARIABLE)
        if not url:
            raise ConfigError([f"no Redis URL: pass one, or set ${URL_VARIABLE}"])
    if not isinstance(url, str):
        # a client of the application's own may decode replies, share a loop, or resend by itself
        raise ConfigError([f"the URL must be a string such as redis://localhost:6379/0 (got {type(url)})"])
    try:
        timeout_s = parse_duration(timeout)
    except ValueError as exc:
        raise ConfigError([f"timeout: {exc}"]) from None
    if timeout_s <= 0:
        raise ConfigError([f"timeout: must be positive (got {timeout!r})"])
    if url.startswith("embedded:"):
        from chronosd import embedded  # not needed, and not there on every platform, for other URLs

        url = embedded.resolve(url, base or Path.cwd())
    return ClientSettings(url, password, timeout_s, Drafter(namespace, max_payload))


def settings_of_file(path: str | Path, timeout: str | float | timedelta) -> ClientSettings:
    """Settings from chronos.yaml: server, password, namespace, max_payload.

    Raises:
        ConfigError: the file has problems.
    """
    from chronosd.config.load import load  # pulls in yaml, which a producer with a URL does not need

    config = load(path)
    given = settings(
        config.redis.url,
        password=config.redis.password(),
        namespace=config.namespace,
        timeout=timeout,
        max_payload=config.max_payload,
        base=config.base,
    )
    return replace(given, on_dead_letter=config.on_dead_letter)
