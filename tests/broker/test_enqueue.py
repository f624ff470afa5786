"""Storing tasks: enqueue.lua, register_queues."""

from __future__ import annotations

import time

import pytest

from chronosd.broker import enqueue, sweep
from chronosd.broker.commands import BATCH
from chronosd.broker.consume import Again, Dead, Kept, archive, retain, retry
from chronosd.broker.enqueue import NewTask
from chronosd.broker.message import encode
from chronosd.errors import BrokerRefused
from chronosd.states import State
from tests.support.bench import Bench


def test_a_task_for_now_is_waiting_and_one_with_a_delay_is_scheduled(bench: Bench) -> None:
    words = bench.run(enqueue.enqueue(bench.queue, [bench.new("now"), bench.new("later", delay_ms=60_000)]))
    assert words == ["pending", "scheduled"]
    found = bench.look()
    found.check()
    assert found.waiting == ["now"]
    assert found.sets[State.SCHEDULED]["later"] == pytest.approx(time.time() + 60, abs=5)
    assert found.hashes["now"]["state"] == "1"
    assert found.hashes["later"]["state"] == "6"
    assert float(found.hashes["now"]["enqueued_at"]) == pytest.approx(time.time() * 1000, abs=5000)


def test_an_instant_is_kept_to_the_millisecond_and_one_in_the_past_is_ready_at_once(bench: Bench) -> None:
    at = 4_102_444_800_123
    msg = encode(bench.message("x"), State.SCHEDULED)
    tasks = [NewTask("future", msg, at_ms=at), NewTask("past", msg, at_ms=1)]
    assert bench.run(enqueue.enqueue(bench.queue, tasks)) == ["scheduled", "pending"]
    found = bench.look()
    assert found.sets[State.SCHEDULED] == {"future": at / 1000}
    assert found.waiting == ["past"]


@pytest.mark.parametrize("nonce", ["", "n1"], ids=["own id", "custom id"])
def test_a_resend_of_the_same_call_stores_nothing_twice(bench: Bench, nonce: str) -> None:
    command = enqueue.enqueue(bench.queue, [bench.new("a", nonce=nonce), bench.new("b", nonce=nonce)])
    assert bench.run(command) == ["pending", "pending"]
    before = bench.look()
    assert bench.run(command) == ["repeat", "repeat"]
    assert bench.look() == before


@pytest.mark.parametrize("state", [State.PENDING, State.ACTIVE, State.SCHEDULED, State.RETRY])
def test_an_id_in_use_is_refused_and_nothing_is_changed(bench: Bench, state: State) -> None:
    bench.group()
    bench.add("a", nonce="n1", delay_ms=60_000 if state is State.SCHEDULED else 0)
    if state in (State.ACTIVE, State.RETRY):
        (run,) = bench.fetch()
        if state is State.RETRY:
            bench.run(retry(bench.queue, [Again(run.entry, "a", None, 60)]))
    before = bench.look()
    again = [
        bench.new("a", nonce="n2"),
        bench.new("a", nonce="n3", delay_ms=1000),
        bench.new("b", nonce="n4"),
    ]
    assert bench.run(enqueue.enqueue(bench.queue, again)) == ["conflict", "conflict", "pending"]
    after = bench.look()
    after.check()
    assert after.hashes["a"] == before.hashes["a"]
    assert after.places("a") == [state]


@pytest.mark.parametrize("state", [State.ARCHIVED, State.COMPLETED])
@pytest.mark.parametrize("delay_ms", [0, 60_000])
def test_an_id_that_has_ended_is_replaced_with_nothing_left_of_the_old_task(
    bench: Bench, state: State, delay_ms: int
) -> None:
    run = bench.take("a", nonce="n1", retention=60)
    message = bench.message("a", retention=60)
    if state is State.ARCHIVED:
        fields = {"crashes": 3, "evidence": "[]", "error": "why"}
        bench.run(archive(bench.queue, [Dead(run.entry, "a", message, fields)]))
    else:
        bench.run(retain(bench.queue, [Kept(run.entry, message)]))
    assert bench.look().places("a") == [state]
    new = bench.new("a", nonce="n2", delay_ms=delay_ms, payload=b'{"n":2}')
    (word,) = bench.run(enqueue.enqueue(bench.queue, [new]))
    found = bench.look()
    found.check()
    assert found.places("a") == [State.SCHEDULED if delay_ms else State.PENDING]
    assert word == found.places("a")[0].label
    assert set(found.hashes["a"]) == {"msg", "state", "enqueued_at", "nonce"}
    assert bench.stored().payload == b'{"n":2}'


@pytest.mark.parametrize("delay_ms", [0, 60_000])
def test_what_is_kept_under_an_id_stays_where_the_new_task_has_no_place(bench: Bench, delay_ms: int) -> None:
    """The old task was deleted first, and then the key of another type was met."""
    run = bench.take("a", nonce="n1", retention=60)
    bench.run(retain(bench.queue, [Kept(run.entry, bench.message("a", retention=60))]))
    place = bench.queue.scheduled if delay_ms else bench.queue.stream
    bench.redis.delete(place)
    bench.redis.set(place, "of another type")
    with pytest.raises(BrokerRefused, match="WRONGTYPE"):
        bench.run(enqueue.enqueue(bench.queue, [bench.new("a", nonce="n2", delay_ms=delay_ms)]))
    assert bench.redis.hget(bench.queue.task("a"), "state") == b"3"
    assert bench.redis.zscore(bench.queue.completed, "a") is not None


@pytest.mark.parametrize("state", [State.SCHEDULED, State.RETRY, State.ARCHIVED, State.COMPLETED])
def test_an_id_whose_hash_was_deleted_by_hand_leaves_the_sets_it_was_in(bench: Bench, state: State) -> None:
    bench.redis.zadd(bench.queue.set_of(state), {"a": 1.0})
    bench.add("a", nonce="n1")
    found = bench.look()
    found.check()
    assert found.places("a") == [State.PENDING]


def test_a_hash_without_a_message_is_no_id_in_use_and_lends_nothing_to_the_new_task(bench: Bench) -> None:
    bench.redis.hset(bench.queue.task("a"), mapping={"state": "2", "crashes": "2", "nonce": "n0"})
    bench.redis.hset(bench.queue.task("b"), mapping={"nonce": "n0", "crashes": "2"})
    bench.add("a", "b", nonce="n1")
    found = bench.look()
    found.check()
    assert "crashes" not in found.hashes["a"]
    assert "crashes" not in found.hashes["b"]


def test_something_that_is_no_hash_under_a_tasks_key_is_a_conflict_for_that_task_only(bench: Bench) -> None:
    bench.redis.set(bench.queue.task("odd"), "x")
    tasks = [bench.new("a"), bench.new("odd"), bench.new("b")]
    assert bench.run(enqueue.enqueue(bench.queue, tasks)) == ["pending", "conflict", "pending"]
    assert bench.look().waiting == ["a", "b"]
    assert bench.redis.get(bench.queue.task("odd")) == b"x"


def test_a_full_batch_is_stored_in_order(bench: Bench) -> None:
    ids = [f"t{i}" for i in range(BATCH)]
    bench.add(*ids)
    assert bench.look().waiting == ids


def test_queue_names_are_noted_once_each(bench: Bench) -> None:
    command = enqueue.register_queues(bench.namespace, ["b", "a"])
    bench.run(command)
    bench.run(command)
    assert bench.redis.smembers(bench.namespace.queues) == {b"a", b"b"}


def test_ids_with_odd_characters_go_through_unchanged(bench: Bench) -> None:
    ids = ["a b", "a:b", "{x}", "*?[]", "é☃\U0001f600", "'\"\\", "%s", "t" * 512]
    bench.group()
    bench.add(*ids, nonce="n")
    runs = bench.fetch(count=20)
    assert [run.task_id for run in runs] == ids
    assert bench.done(*runs) == []
    assert bench.look().hashes == {}
    assert bench.run(sweep.drop_consumer(bench.queue, "c1")) == "deleted"
