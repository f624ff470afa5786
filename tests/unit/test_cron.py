"""Cron: chronos-go's vectors, and what they leave open against a clock that is read minute by minute."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from chronosd.cron import Cron, Every, check_timezone, every, go_duration, parse, upcoming

VECTORS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "cron_vectors.jsonl").read_text().splitlines()
]
COMING = [vector for vector in VECTORS if vector.get("Unix")]
REFUSED = sorted({vector.get("Spec", "") for vector in VECTORS if "Unix" not in vector})


def unix(text: str) -> int:
    return int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp())


def following(spec: str, start: str, count: int, timezone: str | None = None) -> list[str]:
    """The next triggers after an instant, as a clock in the zone shows them."""
    rule = parse(spec, timezone)
    at, found = unix(start), []
    for _ in range(count):
        at = rule.next_after(at)
        shown = datetime.fromtimestamp(at, ZoneInfo(timezone) if timezone else UTC)
        found.append(f"{shown:%m-%d %H:%M%z}")
    return found


# ---- the vectors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", COMING, ids=lambda v: f"{v['Spec']} {v['Loc']} {v['Start']}")
def test_a_spec_fires_when_it_does_in_go(vector: dict[str, str]) -> None:
    names_zone = vector["Spec"].startswith(("TZ=", "CRON_TZ=", "@every"))
    rule = parse(vector["Spec"], None if names_zone else vector["Loc"])
    at, found = unix(vector["Start"]), []
    for _ in vector["Unix"]:
        at = rule.next_after(at)
        found.append(at)
    assert found == vector["Unix"]


def test_the_vectors_are_all_there() -> None:
    assert (len(VECTORS), len(COMING)) == (361, 336)


@pytest.mark.parametrize("spec", REFUSED)
def test_a_spec_that_go_refuses_or_that_never_comes_there_is_refused(spec: str) -> None:
    """``0 0 30 2 *`` is no error in Go: it fires over and over with the zero time (weak spot 14)."""
    with pytest.raises(ValueError, match=r"^must "):
        parse(spec)


# ---- fields -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec",
    [
        *("0 0 31 2 *", "0 0 31 4,6,9,11 *", "0 0 30,31 2 *", "0 0 30 2 ?"),
        *("0 9 * * 5-7", "0 9 * * MONDAY", "0 9 * 13 *", "0 9 32 * *", "-1 * * * *", "+1 * * * *"),
        *("1.5 * * * *", "*/-1 * * * *", "*/x * * * *", "1-2-3 * * * *", "1/2/3 * * * *", ", * * * *"),
        *("1, * * * *", "/5 * * * *", "0 0 LW * *", "0 0 * * 5L", "@Daily", "@every", "@every 1s 2s"),
        *("@every 0s", "@every -5s", "@every x", "@every 1.5s", "@every 1h30m1.5s", "CRON_TZ=", "   "),
        *("TZ=Europe/Berlin", "TZ=Europe/Berlin @every 1m", "TZ=../etc/passwd 0 0 * * *"),
        *("TZ=/etc/localtime 0 0 * * *", "TZ= 0 0 * * *", "٣ * * * *"),
        "9" * 5000 + " * * * *",
    ],
)  # fmt: skip
def test_what_is_no_spec_is_refused_in_one_sentence_that_does_not_repeat_it(spec: str) -> None:
    with pytest.raises(ValueError, match=r"^must ") as caught:
        parse(spec)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        ("5/15 * * * *", "5,20,35,50 * * * *"),
        ("*/7 * * * *", "0,7,14,21,28,35,42,49,56 * * * *"),
        ("0-59/20 * * * *", "0,20,40 * * * *"),
        ("1/2 * * * *", "1-59/2 * * * *"),
        ("*/99 * * * *", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "@daily"),
        ("  0  0\t*   * * ", "0 0 * * *"),
        ("0 9 * * MON-fri", "0 9 * * 1-5"),
        ("0 9 * * sun", "0 9 * * 0"),
        ("0 9 * * 1/2", "0 9 * * 1,3,5"),
        ("0 9 * * */3", "0 9 * * 0,3,6"),
        ("0 9 ? feb,Dec ?", "0 9 * 2,12 *"),
        ("0 0 * * */1", "0 0 * * *"),
        ("0 0 *,3 * 1", "0 0 * * 1"),
        ("00 007 * * *", "0 7 * * *"),
    ],
)
def test_two_ways_of_writing_the_same_times(spec: str, same: str) -> None:
    one, two = parse(spec), parse(same)
    start = unix("2026-11-30T10:00:00Z")
    assert upcoming(one, None, start, 40) == upcoming(two, None, start, 40)


def test_minute_star_with_an_hour_fires_sixty_times() -> None:
    """Which is taken for a bug now and then; `schedule ls` shows the next five."""
    rule, at = parse("* 0 * * *"), unix("2026-01-01T12:00:00Z")
    assert rule.next_after(at + 60 * 0) == unix("2026-01-02T00:00:00Z")
    assert upcoming(rule, None, at, 61)[59:] == [unix("2026-01-02T00:59:00Z"), unix("2026-01-03T00:00:00Z")]


def days_of(year: int) -> Iterator[date]:
    day = date(year, 1, 1)
    while day.year == year:
        yield day
        day += timedelta(days=1)


@pytest.mark.parametrize(
    ("spec", "matches"),
    [
        ("0 0 13 * 5", lambda d: d.day == 13 or d.isoweekday() == 5),
        ("0 0 13 * *", lambda d: d.day == 13),
        ("0 0 ? * 5", lambda d: d.isoweekday() == 5),
        # a star with a step restricts, other than in classic cron
        ("0 0 */2 * 1", lambda d: d.day % 2 == 1 or d.isoweekday() == 1),
        ("0 0 1-31 * 1", lambda d: True),
        ("0 0 13 * */2", lambda d: d.day == 13 or d.isoweekday() % 7 in (0, 2, 4, 6)),
        # no June has 31 days: its Sundays are left
        ("0 0 31 6 0", lambda d: d.month == 6 and d.isoweekday() == 7),
        ("0 0 * * mon-fri", lambda d: d.isoweekday() <= 5),
        ("0 0 1,15 feb,aug 6", lambda d: d.month in (2, 8) and (d.day in (1, 15) or d.isoweekday() == 6)),
        ("0 0 29 2 *", lambda d: (d.month, d.day) == (2, 29)),
    ],
)
def test_day_of_month_and_day_of_week_are_joined_by_or_where_both_are_restricted(
    spec: str, matches: object
) -> None:
    assert callable(matches)
    for year in (2027, 2028):
        rule, at, found = parse(spec), unix(f"{year - 1}-12-31T23:59:59Z"), []
        while (at := rule.next_after(at)) < unix(f"{year + 1}-01-01T00:00:00Z"):
            found.append(datetime.fromtimestamp(at, UTC).date())
        assert found == [day for day in days_of(year) if matches(day)]


# ---- time zones -------------------------------------------------------------------------------------


def test_a_time_that_daylight_saving_skips_does_not_come_that_day_and_the_next_day_is_normal() -> None:
    assert following("30 2 * * *", "2027-03-28T00:50:00Z", 3, "Europe/Berlin") == [
        "03-29 02:30+0200",
        "03-30 02:30+0200",
        "03-31 02:30+0200",
    ]
    assert following("0 12 * * 0", "2027-03-27T00:00:00Z", 2, "Europe/Berlin") == [
        "03-28 12:00+0200",
        "04-04 12:00+0200",
    ]
    assert following("* * * * *", "2027-03-28T00:57:00Z", 4, "Europe/Berlin") == [
        "03-28 01:58+0100",
        "03-28 01:59+0100",
        "03-28 03:00+0200",
        "03-28 03:01+0200",
    ]


def test_a_time_that_daylight_saving_repeats_comes_twice() -> None:
    assert following("30 2 * * *", "2026-10-24T12:00:00Z", 3, "Europe/Berlin") == [
        "10-25 02:30+0200",
        "10-25 02:30+0100",
        "10-26 02:30+0100",
    ]


# minutes of the day and days of the week, both of which the scan below can tell from seconds alone
SCANNED = {
    "30 2 * * *": ({150}, range(7)),
    "*/20 1-3 * * *": ({h * 60 + m for h in (1, 2, 3) for m in (0, 20, 40)}, range(7)),
    "15,45 0,2,23 * * 0": ({h * 60 + m for h in (0, 2, 23) for m in (15, 45)}, (0,)),
    "0 */2 * * *": ({h * 60 for h in range(0, 24, 2)}, range(7)),
}


@pytest.mark.parametrize(
    ("zone", "year"),
    [
        ("Australia/Lord_Howe", 2026),  # half an hour
        ("Pacific/Chatham", 2026),  # 12:45 and 13:45 ahead
        ("Antarctica/Troll", 2026),  # two hours
        ("Africa/Casablanca", 2026),  # back for Ramadan
        ("America/Sao_Paulo", 2018),  # skipped midnights
        ("Pacific/Apia", 2011),  # a day that was left out
        ("Europe/Dublin", 2026),  # negative daylight saving
    ],
)
def test_the_times_of_a_year_are_those_that_a_minute_by_minute_look_at_the_clock_finds(
    zone: str, year: int
) -> None:
    start, end = unix(f"{year}-01-01T00:00:00Z"), unix(f"{year + 1}-01-01T00:00:00Z")
    scanned: dict[str, list[int]] = {spec: [] for spec in SCANNED}
    clock = ZoneInfo(zone)
    offset = 0
    # zones change on quarters of an hour, and the specs name multiples of five: no other minute can match
    for at in range(start, end, 300):
        if at % 900 == 0:
            found = datetime.fromtimestamp(at, clock).utcoffset()
            assert found is not None
            offset = int(found.total_seconds())
        wall = at + offset
        minute, weekday = wall // 60 % 1440, (wall // 86400 + 4) % 7
        for spec, (minutes, weekdays) in SCANNED.items():
            if minute in minutes and weekday in weekdays:
                scanned[spec].append(at)
    for spec, expected in scanned.items():
        rule = parse(spec, zone)
        found_: list[int] = []
        at = start - 1
        while (at := rule.next_after(at)) < end:
            found_.append(at)
        assert found_ == expected, spec
        middle = expected[len(expected) // 2]
        assert rule.newest(start, middle) == middle
        assert rule.newest(start, middle + 59) == middle
        assert rule.newest(start, expected[0] - 1) is None


def test_the_newest_time_of_many_years_is_found_at_once() -> None:
    rule = parse("* * * 1 *", "Europe/Berlin")
    assert rule.newest(0, unix("2026-06-01T00:00:00Z")) == unix("2026-01-31T22:59:00Z")


def test_without_a_zone_it_is_utc_and_the_process_s_own_means_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    assert following("0 9 * * *", "2026-01-01T10:00:00Z", 1) == ["01-02 09:00+0000"]


def test_an_unknown_zone_is_refused_and_the_nearest_is_named() -> None:
    with pytest.raises(ValueError, match=r"such as Europe/Berlin; did you mean Europe/Vienna\?$"):
        check_timezone("Europe/Viena")
    with pytest.raises(ValueError, match="keep one of the two"):
        parse("TZ=UTC 0 0 * * *", "Europe/Berlin")


# ---- intervals, and how specs are written -----------------------------------------------------------


def test_an_interval_goes_on_from_its_last_trigger() -> None:
    rule = every(90)
    assert rule == parse("@every 1m30s") == Every(90)
    assert rule.next_after(1000) == 1090
    assert rule.first_after(1000, 1090) == 1180
    assert rule.first_after(1000, 1500) == 1540
    assert [rule.newest(1000, until) for until in (1089, 1090, 1500)] == [None, 1090, 1450]
    assert upcoming(rule, 1000, 1500.7, 2) == [1540, 1630]
    assert upcoming(rule, None, 1500.7) == [], "nobody knows what to count from"
    assert upcoming(rule, 2000, 1500.7, 1) == [2090], "the server's clock went back"
    for seconds in (0, 0.5, 1.5, -1, 1e18):
        with pytest.raises(ValueError, match="whole number of seconds"):
            every(seconds)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1, "1s"), (60, "1m0s"), (90, "1m30s"), (3600, "1h0m0s"), (5401, "1h30m1s"), (86400, "24h0m0s")],
)
def test_durations_are_written_as_go_writes_them(seconds: int, text: str) -> None:
    assert go_duration(seconds) == text
    assert every(seconds).spec == f"@every {text}"


def test_the_spec_names_the_zone_as_go_does() -> None:
    rule = parse(" 0 3  * * MON", "Europe/Berlin")
    assert isinstance(rule, Cron)
    assert (rule.spec, rule.fields, rule.timezone) == (
        "CRON_TZ=Europe/Berlin 0 3 * * MON",
        "0 3 * * MON",
        "Europe/Berlin",
    )
    assert parse(rule.spec) == rule
    assert parse("@daily").spec == "@daily"
