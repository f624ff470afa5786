"""When schedules fire: five cron fields in a time zone, or an interval. Pure; instants are unix seconds.

The rules are chronos-go's, wherever its vectors (``tests/data/cron_vectors.jsonl``) define them, so that a
spec means the same to both:

- Fields: minute, hour, day of month, month, day of week (0 is Sunday). ``*``, ``?`` (the same), numbers,
  three-letter names of months and days in any case, ranges ``a-b``, steps ``/n`` (``5/15`` is ``5-59/15``),
  lists. ``@yearly @annually @monthly @weekly @daily @midnight @hourly``, and ``@every 1h30m``.
- If both day fields are restricted, either may match. A field is unrestricted if ``*`` or ``?`` without a
  step stands in it: ``*/2`` restricts (in classic cron it does not), ``1-31`` does too.
- ``TZ=`` or ``CRON_TZ=`` in front of the fields names the zone; UTC where nothing does. (Go takes the zone of
  its process there. Here a host's zone means nothing.)
- A cron fires at every instant at which a clock on the wall shows a matching minute. A time that daylight
  saving skips does not come on that day, and one that it repeats comes twice: ``30 2 * * *`` fires not at
  all and twice on those two nights in Berlin. Choose hours that are not skipped, or UTC, to avoid both.
- An interval is counted from the first time it was seen, and from then on from the last trigger.

Refused, as in Go: 7 for Sunday, ``L``, ``#``, six fields, ``@reboot``, ranges that end before they begin,
step 0. Refused here although Go takes them: dates that never come (30 February fires over and over there),
intervals with fractions of a second (Go drops the fraction when it fires), signs, and empty items of lists.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from chronosd.durations import format_duration, parse_duration

EXPECTED = "must be five cron fields such as 0 3 * * *"
_EPOCH = datetime(1970, 1, 1)
_DAY_S = 86_400
_MAX_INTERVAL_S = 3650 * _DAY_S
_DESCRIPTORS = dict.fromkeys(("@yearly", "@annually"), "0 0 1 1 *")
_DESCRIPTORS |= {"@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0"}
_DESCRIPTORS |= dict.fromkeys(("@daily", "@midnight"), "0 0 * * *") | {"@hourly": "0 * * * *"}
_MONTHS = dict(jan=1, feb=2, mar=3, apr=4, may=5, jun=6, jul=7, aug=8, sep=9, oct=10, nov=11, dec=12)
_DAYS = dict(sun=0, mon=1, tue=2, wed=3, thu=4, fri=5, sat=6)


@dataclass(frozen=True, slots=True)
class Every:
    """An interval of whole seconds."""

    seconds: int

    @property
    def spec(self) -> str:
        """As chronos-go writes it: ``@every 1m30s``."""
        return f"@every {go_duration(self.seconds)}"

    @property
    def times(self) -> str:
        """For people."""
        return f"every {format_duration(self.seconds)}"

    @property
    def timezone(self) -> str:
        """Intervals have none."""
        return ""

    def next_after(self, trigger: float) -> int:
        """The trigger that follows one."""
        return math.floor(trigger) + self.seconds

    def first_after(self, last: int, instant: int) -> int:
        """The first trigger after ``instant``, counted on from the trigger ``last``, which is before it."""
        return last + ((instant - last) // self.seconds + 1) * self.seconds

    def newest(self, last: int, until: int) -> int | None:
        """The newest trigger after ``last`` and not after ``until``; None if there is none."""
        count = (until - last) // self.seconds
        return last + count * self.seconds if count > 0 else None


@dataclass(frozen=True, slots=True)
class Cron:
    """Five cron fields, read off a clock in a time zone."""

    fields: str
    """As they were written, white space apart."""
    timezone: str
    """Empty if none was given: UTC."""
    expression: str
    """The fields as cronsim takes them: stars and lists of numbers alone."""
    zone: ZoneInfo | None = field(default=None, compare=False, repr=False)
    """Held, so that it is read from disk once; None for UTC."""

    @property
    def spec(self) -> str:
        """As chronos-go reads it."""
        return f"CRON_TZ={self.timezone} {self.fields}" if self.timezone else self.fields

    @property
    def times(self) -> str:
        """For people."""
        return self.fields

    def next_after(self, instant: float) -> int:
        """The first trigger after an instant."""
        zone = self.zone
        at = math.floor(instant)
        offset = _offset(zone, at)
        since = at
        while True:
            wall = next(CronSim(self.expression, _EPOCH + timedelta(seconds=at + offset)))
            found = int((wall - _EPOCH).total_seconds()) - offset
            # Right if the zone keeps its offset until then; else the search goes on from the change.
            change = None if zone is None else _change(zone, since, found, offset)
            if change is None:
                return found
            since = change
            at, offset = change - 1, _offset(zone, change)

    def first_after(self, last: int, instant: int) -> int:
        """The first trigger after both."""
        return self.next_after(max(last, instant))

    def newest(self, last: int, until: int) -> int | None:
        """The newest trigger after ``last`` and not after ``until``; None if there is none."""
        if self.next_after(last) > until:
            return None
        low, high = last, until  # something comes after low until then, and nothing after high
        while high - low > 1:
            middle = (low + high) // 2
            if self.next_after(middle) <= until:
                low = middle
            else:
                high = middle
        return self.next_after(low)


Rule = Cron | Every


def parse(spec: str, timezone: str | None = None) -> Rule:
    """The rule of a spec as chronos-go writes it, in ``timezone`` unless the spec names one itself.

    Raises:
        ValueError: not a spec. The message is one sentence, without the spec.
    """
    words = spec.split()
    if words and words[0].startswith(("TZ=", "CRON_TZ=")):
        if timezone is not None:
            raise ValueError("must not name a time zone beside timezone; keep one of the two")
        timezone = words.pop(0).partition("=")[2]
    zone = None if timezone is None else _zone(timezone)
    if not words:
        raise ValueError(EXPECTED)
    if words[0] == "@every":
        return _every(words[1:], timezone)
    fields = " ".join(words)
    expression = _expression(_DESCRIPTORS.get(fields, fields))
    try:
        next(CronSim(expression, _EPOCH))
    except (CronSimError, StopIteration):
        raise ValueError(f"{EXPECTED}; no month has that day") from None
    return Cron(fields, timezone or "", expression, None if timezone == "UTC" else zone)


def rule_of(spec: str | None, interval_s: float | None, timezone: str | None) -> Rule:
    """The rule of a schedule that has one of a spec and an interval. Raises ValueError."""
    if interval_s is not None:
        return every(interval_s)
    return parse(spec or "", timezone)


def every(seconds: float) -> Every:
    """The rule of an interval. Raises ValueError unless it is a whole number of seconds, at least one."""
    if seconds != int(seconds) or not 1 <= seconds <= _MAX_INTERVAL_S:
        raise ValueError("must be a whole number of seconds, at least 1s")
    return Every(int(seconds))


def check_timezone(name: str) -> str:
    """Returns ``name`` if the system's time zone database has it. Raises ValueError."""
    return _zone(name).key


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        near = get_close_matches(name, available_timezones(), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"must be the name of a time zone such as Europe/Berlin{hint}") from None


def upcoming(rule: Rule, last: int | None, now: float, count: int = 5) -> list[int]:
    """The next triggers after ``now``; none of an interval whose last trigger is not known."""
    if isinstance(rule, Every) and last is None:
        return []
    at = rule.first_after(math.floor(now) if last is None else last, max(math.floor(now), last or 0))
    times = [at]
    while len(times) < count:
        times.append(rule.next_after(times[-1]))
    return times


def go_duration(seconds: int) -> str:
    """Whole seconds as Go's ``Duration.String`` writes them: ``90`` is ``1m30s``, ``3600`` is ``1h0m0s``."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def _every(words: list[str], timezone: str | None) -> Every:
    if len(words) != 1:
        raise ValueError("must be an interval such as @every 90s")
    if timezone:
        raise ValueError("must not have a time zone: an interval has none")
    return every(parse_duration(words[0]))


def _expression(fields: str) -> str:
    words = fields.split()
    if words[0].startswith("@"):
        raise ValueError(f"{EXPECTED}, or one of {', '.join(_DESCRIPTORS)}, @every")
    if len(words) != 5:
        seconds = " (seconds are for every)" if len(words) == 6 else ""
        raise ValueError(f"{EXPECTED}, not {len(words)}{seconds}")
    return " ".join(_field(word, *field) for word, field in zip(words, _FIELDS, strict=True))


_FIELDS: tuple[tuple[str, int, int, dict[str, int], str], ...] = (
    ("minute", 0, 59, {}, "0 to 59"),
    ("hour", 0, 23, {}, "0 to 23"),
    ("day of month", 1, 31, {}, "1 to 31"),
    ("month", 1, 12, _MONTHS, "1 to 12 or JAN to DEC"),
    ("day of week", 0, 6, _DAYS, "0 to 6 or SUN to SAT, Sunday being 0"),
)


def _field(text: str, what: str, least: int, most: int, names: dict[str, int], range_: str) -> str:
    def refuse(why: str) -> ValueError:
        return ValueError(f"{EXPECTED}; the {what} {why}")

    def number(word: str) -> int:
        value = names.get(word.lower(), -1)
        if value < 0 and word.isascii() and word.isdigit() and len(word) <= 9:
            value = int(word)
        if not least <= value <= most:
            raise refuse(f"is {range_}")
        return value

    values: set[int] = set()
    is_free = False
    for item in text.split(","):
        span, slash, step_text = item.partition("/")
        step = 1
        if slash:
            if not (step_text.isascii() and step_text.isdigit() and int(step_text[:9])):
                raise refuse("has a step that is no positive number")
            step = int(step_text[:9])
        if span in ("*", "?"):
            first, last = least, most
            is_free = is_free or step == 1
        else:
            begin, dash, end = span.partition("-")
            first = number(begin)
            last = number(end) if dash else most if slash else first
            if last < first:
                raise refuse("has a range that ends before it begins")
        values.update(range(first, last + 1, step))
    return "*" if is_free else ",".join(map(str, sorted(values)))


def _offset(zone: ZoneInfo | None, at: int) -> int:
    """How far the clocks in a zone are ahead of UTC, in seconds."""
    if zone is None:
        return 0
    offset = datetime.fromtimestamp(at, UTC).astimezone(zone).utcoffset()
    return int(offset.total_seconds()) if offset else 0


def _change(zone: ZoneInfo, since: int, until: int, offset: int) -> int | None:
    """The first instant after ``since`` and not after ``until`` with another offset; None if there is none.

    No zone changes there and back within a day.
    """
    while since < until:
        step = min(since + _DAY_S, until)
        if _offset(zone, step) != offset:
            low, high = since, step
            while high - low > 1:
                middle = (low + high) // 2
                if _offset(zone, middle) == offset:
                    low = middle
                else:
                    high = middle
            return high
        since = step
    return None
