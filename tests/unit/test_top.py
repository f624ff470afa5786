"""`chronosd top` without a server: what is computed between two samples, and how it is laid out."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from chronosd.broker.inspect import QueueStats
from chronosd.cli.top_data import History, Pace, Sample, pace, quantile
from chronosd.cli.top_view import brief, frame, short
from chronosd.metrics import BUCKETS
from chronosd.worker.main import BEAT_S


def measures(counts: dict[tuple[str, str, str], int], *, pid: int = 7, **changes: Any) -> dict[str, Any]:
    worker = {
        "index": 0,
        "pid": 70,
        "role": "running",
        "state": "fetching",
        "beat_age_s": 0.1,
        "rss_bytes": 50 << 20,
        "uptime_s": 100.0,
        "completed": sum(counts.values()),
        "tasks": {"running": 1},
    }
    document: dict[str, Any] = {
        "pid": pid,
        "state": "running",
        "version": "0",
        "uptime_s": 100.0,
        "ready": 1,
        "target": 1,
        "redis": {"reached": True, "error": ""},
        "reload": {"last": None},
        "recycled": {},
        "stuck": [],
        "counters": [["chronos_tasks_processed_total", *labels, n] for labels, n in counts.items()],
        "latencies": {},
        "workers": [worker],
        "coming": [],
        "leaving": [],
        "running": {"70": {"tasks": [], "stepping": None, "stopped": False}},
    }
    return document | changes


def queue(name: str, **changes: Any) -> QueueStats:
    base = {"pending": 0, "active": 0, "scheduled": 0, "retry": 0, "archived": 0, "completed": 0}
    return QueueStats(name, **(base | changes), paused=False, oldest_pending_s=None, consumers=1)


def text(sample: Sample, lately: Pace, height: int = 24, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(frame(sample, lately, height=height))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_rates_are_what_has_ended_between_two_samples() -> None:
    first = Sample(10.0, measures({("a", "k", "succeeded"): 100, ("a", "k", "retried"): 5}))
    last = Sample(
        12.0,
        measures({("a", "k", "succeeded"): 160, ("a", "other", "succeeded"): 40, ("a", "k", "retried"): 6}),
    )
    lately = pace(first, last)
    assert (lately.of("a"), lately.of("a", "succeeded"), lately.of("a", "retried")) == (50.5, 50.0, 0.5)
    assert (lately.of("b"), lately.of(None)) == (0, 50.5)
    assert lately.by_worker == {70: 50.5}


def test_another_daemon_begins_anew_and_one_that_is_away_has_no_rates() -> None:
    history = History()
    history.add(Sample(1.0, measures({("a", "k", "succeeded"): 900})))
    assert history.add(Sample(2.0, measures({("a", "k", "succeeded"): 10}, pid=8))).of("a") == 0
    assert history.add(Sample(3.0, measures({("a", "k", "succeeded"): 20}, pid=8))).of("a") == 10
    assert history.add(Sample(4.0, None)).ended == {}
    assert history.add(Sample(5.0, measures({("a", "k", "succeeded"): 30}, pid=8))).of("a") == 0


def test_rates_are_those_of_the_last_ten_seconds() -> None:
    history = History()
    for second in range(30):
        lately = history.add(Sample(float(second), measures({("a", "k", "succeeded"): second**2})))
    assert lately.of("a") == pytest.approx((29**2 - 19**2) / 10)


@pytest.mark.parametrize(
    ("counts", "share", "bound"), [([1], 0.5, 0.001), ([50, 49, 1], 0.5, 0.001), ([50, 49, 1], 0.99, 0.005)]
)
def test_a_wait_is_the_bound_of_its_bucket(counts: list[int], share: float, bound: float) -> None:
    assert quantile(counts + [0] * (BUCKETS - len(counts)), share) == bound
    assert quantile([0] * (BUCKETS - 1) + [1], share) == float("inf")


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (0.44, "0.4"), (7, "7"), (950, "950"), (9999, "9999"), (12_345, "12.3k"), (4.1e6, "4.1M")],
)
def test_numbers_take_five_characters(number: float, shown: str) -> None:
    assert brief(number) == shown
    assert len(brief(number)) <= 5


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.0123, "12ms"), (4.25, "4.2s"), (61.0, "1m1s"), (7300.0, "2h1m")]
)
def test_durations_are_short(seconds: float, shown: str) -> None:
    assert short(seconds) == shown


@pytest.mark.parametrize("height", [12, 24, 60])
def test_a_frame_fits_the_terminal_and_says_what_it_leaves_out(height: int) -> None:
    queues = [queue(f"queue-{n}", pending=n) for n in range(40)]
    lines = text(Sample(1.0, measures({}), queues=queues), Pace({}, {}, {}), height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= 80
    if height < 50:
        assert any("more queues" in line for line in lines)
        assert any(line.startswith("queue-39 ") for line in lines), "the busiest are shown"
    else:
        assert not any("more queues" in line for line in lines)


def test_a_long_name_and_a_long_reason_are_cut_and_break_no_line() -> None:
    sample = Sample(
        1.0,
        measures({}, stuck=["forwarder"], redis={"reached": False, "error": "x" * 300}),
        queues=[queue("q" * 100)],
        redis_error="y" * 300,
    )
    lines = text(sample, Pace({}, {}, {}))
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("redis: yyy") and line.endswith("…") for line in lines)
    assert any("steps without progress: forwarder" in line for line in lines)
    assert any(line.startswith("qqq") and "…" in line for line in lines)


def test_a_redis_that_takes_no_writes_is_told() -> None:
    lines = text(Sample(1.0, measures({}, redis={"reached": True, "error": "OOM"})), Pace({}, {}, {}))
    assert "redis takes no writes: OOM" in lines


def test_on_a_narrow_terminal_queues_keep_their_names() -> None:
    lines = text(Sample(1.0, measures({}), queues=[queue("default")]), Pace({}, {}, {}), width=60)
    assert any(line.startswith("default ") for line in lines)
    assert max(map(len, lines)) <= 60


def test_a_name_from_redis_cannot_play_with_the_terminal() -> None:
    lines = text(Sample(1.0, None, "none", queues=[queue("a\x1b[2Jb")]), Pace({}, {}, {}))
    assert any("a\\x1b[2Jb" in line for line in lines)


def test_a_worker_whose_loop_stands_still_is_shown_with_what_blocks_it() -> None:
    running = {"tasks": [{"queue": "a", "entry": "2-0", "seconds": 9.0}], "stopped": False}
    document = measures({}, running={"70": {**running, "stepping": {"queue": "a", "entry": "1-0"}}})
    names = {("a", "1-0"): ("id1", "block"), ("a", "2-0"): ("id2", "slow")}
    (row,) = [line for line in text(Sample(1.0, document, names=names), Pace({}, {}, {})) if " 70 " in line]
    assert row.rstrip().endswith("9.0s slow id2")
    document["workers"][0]["beat_age_s"] = 12.5
    (row,) = [line for line in text(Sample(1.0, document, names=names), Pace({}, {}, {})) if " 70 " in line]
    assert row.rstrip().endswith("BLOCKED BY block id1")
    assert " 12.0s " in row
    document["running"]["70"]["stopped"] = True
    (row,) = [line for line in text(Sample(1.0, document), Pace({}, {}, {})) if " 70 " in line]
    assert " stopped " in row
    assert row.rstrip().endswith("BLOCKED BY a/1-0"), "a task whose name is not known yet"
    document["workers"][0]["beat_age_s"] = BEAT_S
    (row,) = [line for line in text(Sample(1.0, document), Pace({}, {}, {})) if " 70 " in line]
    assert row.split()[3] == "-", "a loop that is well and idle says so no more often"
