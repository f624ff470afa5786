"""Durations and sizes as people write them: ``100ms``, ``1h30m``, ``7d``, ``512MiB``.

The grammar of durations is Go's (``time.ParseDuration``) plus ``d`` for days of 24 hours, because the
files and the command line are read by people who also run chronos-go. Inside chronosd every duration is a
float of seconds and every size an int of bytes.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta

import durationpy

DURATION_EXPECTED = "must be a duration such as 250ms, 90s, 1h30m or 7d, or a number of seconds"
SIZE_EXPECTED = "must be a size such as 64KiB, 512MiB or 2GB, or a number of bytes"

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)", re.ASCII)
# durationpy also knows w, mm and y (a "month" of 30 days is a trap), and skips what it cannot read
# between two terms; so the grammar is checked here and only the arithmetic is left to it.
_DURATION = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|μs|ms|s|m|h|d))+", re.ASCII)
_SIZE = re.compile(r"(\d+\.?\d*|\.\d+) ?([kKMGT]?i?B)", re.ASCII)
_UNITS = {"B": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("KMGT", start=1)
    for suffix, base in (("iB", 1024), ("B", 1000))
}
_UNITS["kB"] = 1000
_DAY_S = 86_400


def parse_duration(value: str | float | timedelta) -> float:
    """Return ``value`` in seconds.

    A number (or the text of one) is seconds; a string is Go's notation with ``d`` added. Negative
    durations are returned as such: whether they make sense is for the caller to say.

    Raises:
        ValueError: not a duration, not finite, or out of timedelta's range. The message is one sentence.
    """
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        text = value.strip()
        if _NUMBER.fullmatch(text):
            return _finite(float(text), value)
        if _DURATION.fullmatch(text):
            try:
                return _finite(durationpy.from_str(text).total_seconds(), value)
            except ValueError:  # beyond timedelta's range
                pass
    elif isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return _finite(float(value), value)
        except OverflowError:
            pass
    raise ValueError(f"{DURATION_EXPECTED} (got {_brief(value)})")


def parse_size(value: str | int) -> int:
    """Return ``value`` in bytes.

    ``KiB MiB GiB TiB`` are powers of 1024, ``kB KB MB GB TB`` powers of 1000; a bare number is bytes.

    Raises:
        ValueError: not a size, negative, or not a whole number of bytes. The message is one sentence.
    """
    if isinstance(value, str):
        text = value.strip()
        if re.fullmatch(r"\d{1,30}", text, re.ASCII):
            return int(text)
        if (match := _SIZE.fullmatch(text)) and len(text) <= 40 and match[2] in _UNITS:
            size = float(match[1]) * _UNITS[match[2]]
            if size == int(size):
                return int(size)
    elif isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ValueError(f"{SIZE_EXPECTED} (got {_brief(value)})")


def format_duration(seconds: float) -> str:
    """Return ``seconds`` as :func:`parse_duration` reads it: ``1m30s``, ``250ms``, ``90d``, ``0s``.

    At most nanoseconds below one second and six significant digits of seconds above, as for people.
    """
    if not math.isfinite(seconds):
        return str(seconds)
    sign, left = ("-", -seconds) if seconds < 0 else ("", float(seconds))
    days, left = divmod(left, _DAY_S)
    rest = durationpy.to_str(timedelta(seconds=left))
    if rest == "0":
        return f"{sign}{days:.0f}d" if days else "0s"
    return f"{sign}{days:.0f}d{rest}" if days else sign + rest


def span(seconds: float) -> str:
    """A duration for people: two units are enough, and milliseconds only under a second; rounded down."""
    if seconds >= 86_400:
        return format_duration(seconds // 3600 * 3600)
    if seconds >= 3600:
        return format_duration(seconds // 60 * 60)
    if seconds >= 1:
        return format_duration(float(int(seconds)))
    return format_duration(round(seconds, 3))


def format_size(size: int) -> str:
    """Return a number of bytes as :func:`parse_size` reads it, in the largest unit that divides it."""
    for prefix in "TGMK":
        unit = _UNITS[prefix + "iB"]
        if size and size % unit == 0:
            return f"{size // unit}{prefix}iB"
    return f"{size}B"


def _finite(seconds: float, value: object) -> float:
    if not math.isfinite(seconds) or abs(seconds) > timedelta.max.total_seconds():
        raise ValueError(f"{DURATION_EXPECTED} (got {_brief(value)})")
    return seconds


def _brief(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
