"""What ``chronosd bench`` makes of its measurements, and the parts that measure without a daemon."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chronosd import bench, bench_idle, bench_lab, bench_view
from chronosd.bench_ceiling import CYCLE, drive
from chronosd.bench_figures import Figure, Report, percentile, spread_of
from chronosd.bench_load import FULL, QUICK
from chronosd.bench_work import Tally
from chronosd.cli import bench as command
from chronosd.errors import ChronosError


@pytest.fixture
def tally(tmp_path: Path) -> Iterator[Tally]:
    one = Tally.create(tmp_path / "tally")
    yield one
    one.close()


@pytest.mark.parametrize(
    ("share", "expected"), [(0.5, 50.0), (0.99, 99.0), (0.991, 100.0), (1.0, 100.0), (0.0, 1.0)]
)
def test_a_percentile_is_the_nearest_rank(share: float, expected: float) -> None:
    assert percentile([float(n) for n in range(100, 0, -1)], share) == expected


def test_the_percentiles_of_one_value_are_that_value() -> None:
    assert [figure.value for figure in spread_of("x", [3.0])] == [3.0, 3.0, 3.0]


def test_the_median_is_taken_over_the_repeats_of_a_name() -> None:
    report = Report()
    for value in (3.0, 1.0, 2.0):
        report.add([Figure("a", "ms", value), Figure("b", "1/s", 10 * value)])
    assert [(row.name, row.median) for row in report.rows] == [("a", 2.0), ("b", 20.0)]


def test_the_ratio_is_the_median_of_the_ratios_and_not_the_ratio_of_the_medians() -> None:
    """Each repeat is compared with its own ceiling: in a slow minute both are low."""
    report = Report()
    for value, ceiling in ((10.0, 20.0), (50.0, 100.0), (60.0, 80.0)):
        report.add([Figure("a", "tasks/s", value, ceiling)])
    (row,) = report.rows
    assert row.ratio == 0.5
    assert report.as_dict()["a"] == {
        "unit": "tasks/s",
        "median": 50.0,
        "runs": [10.0, 50.0, 60.0],
        "ratio_to_ceiling": 0.5,
    }


def test_what_has_no_ceiling_has_no_ratio() -> None:
    report = Report()
    report.add([Figure("a", "ms", 1.0)])
    assert report.as_dict()["a"]["ratio_to_ceiling"] is None


def test_a_tally_counts_tasks_and_not_starts(tally: Tally) -> None:
    for i in (0, 3, 3, 9):
        tally.starts[i] += 1
    assert tally.done(10) == 3
    assert tally.done(9) == 2
    assert tally.repeated(10) == 1
    tally.clear(4)
    assert tally.done(10) == 1


def test_what_one_mapping_of_a_tally_counts_another_one_sees(tally: Tally, tmp_path: Path) -> None:
    other = Tally(tmp_path / "tally")
    other.starts[7] += 1
    other.instants[7] = 123_456_789_012_345
    assert (tally.done(8), tally.instants[7]) == (1, 123_456_789_012_345)
    other.close()


def test_everything_is_measured_unless_something_is_chosen() -> None:
    assert bench.select(()) == [name for name in bench.GROUPS if name != "ceiling"]
    assert bench.select(("latency", "enqueue")) == ["enqueue", "latency"]


def test_the_ceiling_is_measured_alone_or_beside_the_throughput_but_not_twice() -> None:
    assert bench.select(("ceiling",)) == ["ceiling"]
    assert bench.select(("ceiling", "throughput")) == ["throughput"]


def test_the_command_offers_exactly_the_groups_there_are() -> None:
    assert list(bench.GROUPS) == list(command._GROUPS)


def test_the_combinations_are_those_that_were_asked_for() -> None:
    assert set(FULL.combinations) == {
        (sort, concurrency, workers)
        for sort in ("async", "sync")
        for concurrency in (1, 16, 64, 256)
        for workers in (1, 2)
    }
    assert set(QUICK.combinations) < set(FULL.combinations)


@pytest.mark.parametrize("depth", [1, 4, 16])
@pytest.mark.parametrize("chunk", [1, 7, 64, 1 << 20])
def test_a_cycle_counts_as_answered_when_its_last_byte_is_there(depth: int, chunk: int) -> None:
    """Replies arrive in pieces of any size: no mark may be missed or counted twice."""
    ours, theirs = socket.socketpair()
    cycles = [b"cycle-%03d." % i for i in range(40)]
    reply = b"*1\r\n$5\r\n~end-\r\n$16\r\n~end-of-a-cycle~\r\n"
    unanswered: list[int] = []

    def answer() -> None:
        received = b""
        answered = 0
        while answered < len(cycles):
            received += theirs.recv(1 << 16)
            unanswered.append(len(received) // len(cycles[0]) - answered)
            while answered < len(received) // len(cycles[0]):
                for start in range(0, len(reply), chunk):
                    theirs.sendall(reply[start : start + chunk])
                answered += 1

    server = threading.Thread(target=answer)
    server.start()
    ours.settimeout(20)
    drive(ours, cycles, depth)
    server.join(20)
    assert max(unanswered) <= depth
    ours.close()
    theirs.close()


def test_a_server_that_goes_away_ends_the_ceiling_with_one_line() -> None:
    ours, theirs = socket.socketpair()
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(ChronosError, match="closed the ceiling's connection"):
        drive(ours, [b"cycle"], 1)
    ours.close()
    theirs.close()


def test_a_cycle_is_no_larger_than_a_command_may_be() -> None:
    from chronosd.broker.commands import BATCH

    assert CYCLE <= BATCH


def test_processor_time_is_told_finer_than_the_kernels_tick() -> None:
    before = bench_lab.cpu_s([os.getpid()])
    until = time.process_time() + 0.002
    while time.process_time() < until:
        pass
    used = bench_lab.cpu_s([os.getpid()]) - before
    assert 0.002 <= used < 1.0


def test_private_memory_is_some_and_not_all() -> None:
    assert 1 < bench_idle.private_mib(os.getpid()) < 4096


@pytest.mark.parametrize(
    ("value", "shown"), [(0.5, "0.50"), (12.34, "12.3"), (1234.5, "1,234"), (57_012.0, "57,012")]
)
def test_numbers_have_as_many_digits_as_can_be_read(value: float, shown: str) -> None:
    assert bench_view.number(value) == shown


def test_the_table_tells_the_spread_only_of_repeats(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    report.add([Figure("throughput/async/c64/w1", "tasks/s", 40_000.0, 80_000.0)])
    bench_view.show(report.rows, "headline", 1)
    once = capsys.readouterr().out
    report.add([Figure("throughput/async/c64/w1", "tasks/s", 42_000.0, 80_000.0)])
    bench_view.show(report.rows, "headline", 2)
    twice = capsys.readouterr().out
    assert "40,000" in once
    assert "0.50" in once
    assert "lowest" not in once
    assert "40,000 to 42,000" in twice
    assert "41,000" in twice


def test_the_facts_name_server_and_persistence() -> None:
    about = bench.facts({"valkey_version": "9.1.2", "redis_version": "7.2.4", "aof_enabled": "1"})
    assert (about["server"], about["persistence"]) == ("valkey 9.1.2", "aof")
    assert bench.facts({"redis_version": "7.4.1"})["server"] == "redis 7.4.1"
