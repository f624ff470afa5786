"""What may start of a queue with limits: fetch_limited.lua, room.lua and the arithmetic they share."""

from __future__ import annotations

import time
from typing import Any

import pytest

from chronosd.broker import consume, limit
from chronosd.broker.commands import Command
from chronosd.broker.consume import Again, Fetched
from chronosd.broker.keys import GROUP
from chronosd.broker.limit import BURST_S, Limit
from chronosd.config.schema import QueueConfig
from chronosd.errors import BrokerRefused, Trouble
from tests.support.bench import Bench
from tests.support.waiting import at_most, wait_until


def at(rate: str = "", most: int | None = None) -> Limit:
    found = Limit.of(QueueConfig(max_in_flight=most, rate_limit=rate or None))
    assert found is not None
    return found


def fetch(
    bench: Bench, given: Limit, count: int = 100, consumer: str = "c1", delivered: Any = ()
) -> list[Fetched]:
    command: Command[consume.Delivery] = limit.fetch_limited(bench.queue, consumer, count, delivered, given)
    return bench.run(command).tasks


def stock(bench: Bench, count: int) -> None:
    bench.group()
    bench.add(*(f"t{i:03}" for i in range(count)))


def server_us(bench: Bench) -> int:
    seconds, micro = bench.redis.time()  # type: ignore[misc]
    return int(seconds) * 1_000_000 + int(micro)


@pytest.mark.parametrize(
    ("rate", "interval_us"),
    [("100/s", 1e4), ("6/m", 1e7), ("1/h", 3.6e9), ("1/d", 8.64e10), ("3/s", 1e6 / 3)],
)
def test_a_rate_is_the_time_between_two_starts(rate: str, interval_us: float) -> None:
    assert at(rate) == Limit(0, pytest.approx(interval_us))


def test_a_queue_without_limits_has_no_limit() -> None:
    assert Limit.of(QueueConfig(weight=3)) is None


def test_a_fetch_within_its_limits_is_a_fetch(bench: Bench) -> None:
    stock(bench, 3)
    bench.redis.delete(bench.queue.task("t001"))
    found = bench.run(limit.fetch_limited(bench.queue, "c1", 10, [], at("1000000/s", 10)))
    assert [task.task_id for task in found.tasks] == ["t000", "t002"]
    assert found.gone == ["t001"]
    assert found.tasks[0].msg == bench.redis.hget(bench.queue.task("t000"), "msg")
    look = bench.look()
    look.check()
    assert look.active == {"t000": "c1", "t002": "c1"}


def test_no_more_are_claimed_than_may_be_in_flight_whoever_has_the_others(bench: Bench) -> None:
    stock(bench, 20)
    assert len(bench.fetch("another host", count=3)) == 3, "it knows of no limit: a Go server, an old worker"
    runs = fetch(bench, at(most=5))
    assert len(runs) == 2
    assert fetch(bench, at(most=5), consumer="c2") == []
    assert bench.done(runs[0]) == []
    assert len(fetch(bench, at(most=5), consumer="c2")) == 1
    assert len(bench.look().owned) == 5
    assert fetch(bench, at(most=4)) == [], "the limit was lowered while five were running"


@pytest.mark.parametrize("way", ["released", "retried", "archived", "recovered"])
def test_whatever_ends_a_run_makes_room_for_one_and_only_one(bench: Bench, way: str) -> None:
    stock(bench, 5)
    (run,) = fetch(bench, at(most=1))
    match way:
        case "released":
            bench.run(consume.release(bench.queue, [(run.entry, run.task_id)]))
        case "retried":
            bench.run(consume.retry(bench.queue, [Again(run.entry, run.task_id, None, 60)]))
        case "archived":
            bench.run(consume.archive(bench.queue, [consume.Dead(run.entry, run.task_id, None)]))
        case "recovered":
            bench.run(consume.retry(bench.queue, [Again(run.entry, run.task_id, None, 0)]))
    assert len(fetch(bench, at(most=1))) == 1
    assert fetch(bench, at(most=1), consumer="c2") == []
    bench.look().check()


def test_entries_delivered_before_are_taken_in_whatever_the_limits_and_count_as_in_flight(
    bench: Bench,
) -> None:
    stock(bench, 3)
    entry = bench.block("c1")
    runs = fetch(bench, at("1/d", 1), delivered=[entry])
    assert [run.task_id for run in runs] == ["t000"]
    assert not bench.redis.exists(bench.queue.rate), "it had its start when it was delivered"
    bench.done(*runs)
    assert [run.task_id for run in fetch(bench, at("1/d", 1))] == ["t001"]


def test_starts_are_spaced_by_the_rate_and_the_burst_is_one_and_a_quarter_of_a_second(bench: Bench) -> None:
    stock(bench, 100)
    began = time.monotonic()
    assert len(fetch(bench, at("1/m"))) == 1
    assert fetch(bench, at("1/m"), consumer="c2") == []
    assert time.monotonic() - began < at_most(50)
    bench.redis.delete(bench.queue.rate)
    began = time.monotonic()
    first = len(fetch(bench, at("20/s")))
    assert first == 1 + 20 * BURST_S
    more = len(fetch(bench, at("20/s"), consumer="c2"))
    assert more <= 1 + 20 * (time.monotonic() - began)
    wait_until(lambda: fetch(bench, at("20/s")), what="the next start")


def test_over_a_while_as_many_start_as_the_rate_says_however_often_it_is_asked(bench: Bench) -> None:
    stock(bench, 500)
    given = at("200/s")
    began_us = server_us(bench)
    started, asked_us, lost_us = len(fetch(bench, given)), began_us, 0.0
    burst = started
    while asked_us - began_us < 500_000:
        time.sleep(0.04)  # far less often than the rate: nothing may be lost by it
        started += len(fetch(bench, given))
        now_us = server_us(bench)
        lost_us += max(now_us - asked_us - BURST_S * 1e6, 0)  # only if this machine stood still
        asked_us = now_us
    fair = 200 * (asked_us - began_us) / 1e6
    assert fair - 200 * lost_us / 1e6 - 2 <= started - burst <= fair + 2


def test_what_is_not_there_costs_no_start_and_unused_starts_do_not_add_up(bench: Bench) -> None:
    bench.group()
    given = at("20/s")
    assert fetch(bench, given) == []
    assert not bench.redis.exists(bench.queue.rate)
    bench.add("gone")
    bench.redis.delete(bench.queue.task("gone"))
    assert fetch(bench, given) == []
    assert not bench.redis.exists(bench.queue.rate), "what was dropped did not start"
    stock(bench, 50)
    assert len(fetch(bench, given)) == 1 + 20 * BURST_S


def test_what_is_kept_of_a_rate_goes_away_by_itself(bench: Bench) -> None:
    stock(bench, 2)
    fetch(bench, at("10/s"))
    assert 0 < bench.redis.pttl(bench.queue.rate) <= 1000 * (BURST_S + 0.1)  # type: ignore[operator]
    wait_until(lambda: not bench.redis.exists(bench.queue.rate), what="its end")


@pytest.mark.parametrize(
    "kept",
    ["later", "words", "nan", "-nan", "inf"],
    ids=["a clock that was set back, a rate that was raised", "garbage", "nan", "-nan", "inf"],
)
def test_what_cannot_be_right_holds_nothing_up(bench: Bench, kept: str) -> None:
    stock(bench, 5)
    value = str(server_us(bench) + 3_600_000_000) if kept == "later" else kept
    bench.redis.set(bench.queue.rate, value)
    assert fetch(bench, at("1/m"))
    assert fetch(bench, at("1/m")) == []
    assert int(bench.redis.get(bench.queue.rate)) < server_us(bench) + 61_000_000  # type: ignore[arg-type]
    bench.redis.delete(bench.queue.rate)
    bench.redis.lpush(bench.queue.rate, "x")
    assert fetch(bench, at("1/m"))


def test_both_limits_hold_together(bench: Bench) -> None:
    stock(bench, 50)
    assert len(fetch(bench, at("20/s", 2))) == 2
    bench.redis.delete(bench.queue.rate)
    assert len(fetch(bench, at("20/s", 50))) == 1 + 20 * BURST_S


def test_room_is_what_waits_and_may_start(bench: Bench) -> None:
    assert bench.run(limit.room(bench.queue, at(most=5))) == 0, "no group yet"
    bench.group()
    assert bench.run(limit.room(bench.queue, at(most=5))) == 0
    bench.add("a", "b", "c")
    assert bench.run(limit.room(bench.queue, at(most=5))) == 3
    assert bench.run(limit.room(bench.queue, at(most=2))) == 2
    assert bench.run(limit.room(bench.queue, at("1/m"))) == 1
    (run,) = fetch(bench, at("1/m", 1))
    assert bench.run(limit.room(bench.queue, at(most=1))) == 0, "it is in flight"
    assert bench.run(limit.room(bench.queue, at("1/m"))) == 0, "the next may start in a minute"
    assert bench.run(limit.room(bench.queue, at(most=9))) == 2
    bench.done(run)
    fetch(bench, at(most=9))
    assert bench.run(limit.room(bench.queue, at(most=9))) == 0, "nothing waits"


def test_room_sees_a_task_that_waits_behind_entries_deleted_while_pending(bench: Bench) -> None:
    stock(bench, 3)
    for run in bench.fetch(count=2):
        bench.redis.xdel(bench.queue.stream, run.entry)
    assert bench.run(limit.room(bench.queue, at(most=9))) == 1


def test_a_missing_group_and_a_wrong_key_are_told_as_by_a_plain_fetch(bench: Bench) -> None:
    with pytest.raises(BrokerRefused) as missing:
        fetch(bench, at("1/s", 1))
    assert missing.value.trouble is Trouble.RECREATE
    bench.redis.set(bench.queue.stream, "x")
    with pytest.raises(BrokerRefused, match="WRONGTYPE"):
        fetch(bench, at("1/s", 1))
    assert bench.run(limit.room(bench.queue, at(most=1))) == 0


def test_other_groups_on_the_stream_do_not_count(bench: Bench) -> None:
    stock(bench, 3)
    bench.redis.xgroup_create(bench.queue.stream, "audit", 0)
    bench.redis.xreadgroup("audit", "x", {bench.queue.stream: ">"}, count=3)
    assert len(fetch(bench, at(most=2))) == 2
    assert bench.redis.xpending(bench.queue.stream, GROUP)["pending"] == 2  # type: ignore[index]
