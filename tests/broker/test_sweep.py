"""The supervisor's rounds: forward.lua, extend.lua, trim.lua, drop_consumer.lua, give_back."""

from __future__ import annotations

import time

import pytest

from chronosd.broker import consume, sweep
from chronosd.broker.commands import BATCH
from chronosd.broker.consume import Again, Dead
from chronosd.broker.enqueue import NewTask, enqueue
from chronosd.broker.finding import Expected
from chronosd.broker.keys import GROUP
from chronosd.broker.message import Message, encode
from chronosd.broker.operate import run_task
from chronosd.errors import BrokerRefused, Trouble
from chronosd.examination import examine
from chronosd.states import State
from tests.support.bench import Bench

WAITING = pytest.mark.parametrize("state", [State.SCHEDULED, State.RETRY], ids=lambda s: s.label)


def due(bench: Bench, state: State, **scores: float) -> None:
    """Puts tasks into a waiting set, each with its score."""
    bench.add(*scores, delay_ms=1_000_000)
    bench.redis.zrem(bench.queue.scheduled, *scores)
    bench.redis.zadd(bench.queue.set_of(state), scores)
    for task_id in scores:
        bench.redis.hset(bench.queue.task(task_id), "state", int(state))


def idle_ms(bench: Bench, entry: bytes) -> int:
    (item,) = bench.redis.xpending_range(bench.queue.stream, GROUP, entry, entry, 1)  # type: ignore[misc]
    found: int = item["time_since_delivered"]
    return found


@WAITING
def test_what_is_due_becomes_ready_oldest_first_and_the_rest_waits(bench: Bench, state: State) -> None:
    now = time.time()
    due(bench, state, second=now - 5, first=now - 9, later=now + 100)
    found = bench.forward(state)
    assert (found.moved, found.dropped) == (2, 0)
    assert found.next_due_s == pytest.approx(100, abs=5)
    look = bench.look()
    look.check()
    assert look.waiting == ["first", "second"]
    assert look.places("later") == [state]
    assert bench.forward(state).moved == 0


@WAITING
def test_no_more_than_the_limit_is_moved_and_more_is_due_now(bench: Bench, state: State) -> None:
    due(bench, state, **{f"t{i}": float(i) for i in range(BATCH + 1)})
    assert bench.forward(state) == sweep.Forwarded(BATCH, 0, 0.0)
    assert bench.forward(state) == sweep.Forwarded(1, 0, None)
    bench.look().check()


@WAITING
def test_ids_without_a_message_leave_the_set_and_no_zombie_stays(bench: Bench, state: State) -> None:
    due(bench, state, sound=1.0)
    bench.redis.zadd(bench.queue.set_of(state), {"gone": 1.0, "zombie": 1.0, "odd": 1.0})
    bench.redis.hset(bench.queue.task("zombie"), mapping={"state": int(state), "crashes": 1})
    bench.redis.set(bench.queue.task("odd"), "x")
    found = bench.forward(state)
    assert (found.moved, found.dropped) == (1, 3)
    look = bench.look()
    look.check()
    assert look.waiting == ["sound"]


def test_a_stream_key_of_another_type_loses_nothing_that_is_due(bench: Bench) -> None:
    due(bench, State.RETRY, a=1.0)
    bench.redis.set(bench.queue.stream, "x")
    with pytest.raises(BrokerRefused, match="WRONGTYPE"):
        bench.forward(State.RETRY)
    bench.redis.delete(bench.queue.stream)
    assert bench.look().places("a") == [State.RETRY]


def test_garbage_in_a_waiting_set_does_not_stop_the_rest(bench: Bench) -> None:
    due(bench, State.RETRY, a=1.0)
    bench.redis.zadd(bench.queue.retry, {b"\xff\xfe": float("-inf"), "": 0.0, "a b{}": 0.5})
    assert bench.forward(State.RETRY) == sweep.Forwarded(1, 3, None)


@pytest.mark.parametrize("score", [float("inf"), 1e300, 1e17])
def test_what_is_due_at_no_time_of_this_world_is_not_looked_for_all_the_time(
    bench: Bench, score: float
) -> None:
    due(bench, State.RETRY, a=score)
    told = bench.forward(State.RETRY)
    assert told.moved == 0
    assert told.next_due_s is not None
    assert told.next_due_s > 3600


@pytest.mark.parametrize(
    "raw", [b"\x00\xff", b'{"n":130775545883395173,"e":[],"o":{},"f":1e-320,"z":"\\u0000"}']
)
def test_a_message_goes_through_the_set_byte_for_byte(bench: Bench, raw: bytes) -> None:
    due(bench, State.SCHEDULED, a=1.0)
    bench.redis.hset(bench.queue.task("a"), "msg", raw)
    bench.forward()
    bench.group()
    (run,) = bench.fetch()
    assert run.msg == raw


def test_renewal_keeps_leases_and_counts_no_delivery(bench: Bench) -> None:
    run = bench.take("a")
    bench.redis.xclaim(bench.queue.stream, GROUP, "c1", 0, [run.entry], idle=60_000, justid=True)
    assert bench.run(sweep.extend(bench.queue, "c1", [run.entry.decode()])) == []
    assert idle_ms(bench, run.entry) < 30_000
    (item,) = bench.redis.xpending_range(bench.queue.stream, GROUP, "-", "+", 1)  # type: ignore[misc]
    assert item["times_delivered"] == 1


def test_renewal_tells_what_is_lost_and_takes_nothing_from_its_new_owner(bench: Bench) -> None:
    bench.group()
    bench.add("a", "b", "c")
    a, b, c = (run.entry for run in bench.fetch())
    bench.redis.xclaim(bench.queue.stream, GROUP, "c2", 0, [b], idle=60_000, justid=True)
    bench.redis.xack(bench.queue.stream, GROUP, c)
    entries = [a.decode(), b.decode(), c.decode(), "1-1"]
    assert bench.run(sweep.extend(bench.queue, "c1", entries)) == entries[1:]
    assert bench.look().owned[b.decode()] == ("b", "c2")
    assert idle_ms(bench, b) > 30_000


def test_a_run_whose_entry_was_deleted_can_still_end_its_task(bench: Bench) -> None:
    # XDEL or XTRIM by an operator; XCLAIM would have cleared the pending entry, and the task stayed for ever.
    run = bench.take("a")
    bench.redis.xdel(bench.queue.stream, run.entry)
    assert bench.run(sweep.extend(bench.queue, "c1", [run.entry.decode()])) == []
    assert bench.done(run) == []
    assert bench.look().hashes == {}


@pytest.mark.parametrize("kind", ["mail:send", "mail<&>send"])
def test_the_lock_of_a_running_task_is_lengthened_for_its_owner_and_never_shortened(
    bench: Bench, kind: str
) -> None:
    # chronos-go sets it to twice the lease, whatever it was: a lock of ten hours had seconds left.
    short, long, foreign = (f"{bench.queue.unique_prefix}{kind}:{n:064x}" for n in range(3))
    bench.group()
    for task_id, lock in (("a", short), ("b", long), ("c", foreign)):
        message = Message(task_id, kind, bench.queue.name, b"{}", unique_key=lock)
        bench.run(enqueue(bench.queue, [NewTask(task_id, encode(message, State.PENDING))]))
    bench.redis.set(short, "a", px=5_000)
    bench.redis.set(long, "b", px=36_000_000)
    bench.redis.set(foreign, "somebody else", px=5_000)
    entries = [run.entry.decode() for run in bench.fetch()]
    assert bench.run(sweep.extend(bench.queue, "c1", entries, lock_s=60.0)) == []
    assert 50_000 < int(bench.redis.pttl(short)) <= 60_000
    assert int(bench.redis.pttl(long)) > 35_000_000
    assert int(bench.redis.pttl(foreign)) <= 5_000


def test_more_leases_than_a_page_are_renewed_at_once(bench: Bench) -> None:
    bench.group()
    bench.add(*(f"t{i}" for i in range(BATCH)))
    entries = [run.entry.decode() for run in bench.fetch(count=BATCH)]
    assert bench.run(sweep.extend(bench.queue, "c1", entries)) == []
    assert bench.run(sweep.extend(bench.queue, "c2", entries)) == entries


def test_what_was_claimed_from_a_live_owner_is_given_back(bench: Bench) -> None:
    run = bench.take("a")
    bench.redis.xclaim(bench.queue.stream, GROUP, "recoverer", 0, [run.entry], justid=True)
    bench.run(sweep.give_back(bench.queue, "c1", [run.entry.decode()]))
    assert bench.look().active == {"a": "c1"}


def test_a_dead_consumer_is_deleted_only_when_nothing_is_pending_for_it(bench: Bench) -> None:
    run = bench.take("a")
    assert bench.run(sweep.drop_consumer(bench.queue, "c1")) == "busy"
    assert bench.look().active == {"a": "c1"}
    bench.done(run)
    assert bench.run(sweep.drop_consumer(bench.queue, "c1")) == "deleted"
    assert bench.run(sweep.drop_consumer(bench.queue, "c1")) == "absent"
    assert bench.redis.xinfo_consumers(bench.queue.stream, GROUP) == []


def test_dropping_a_consumer_of_a_group_that_is_gone_asks_to_recreate_it(bench: Bench) -> None:
    with pytest.raises(BrokerRefused) as caught:
        bench.run(sweep.drop_consumer(bench.queue, "c1"))
    assert caught.value.trouble is Trouble.RECREATE


def archived(bench: Bench, *ids: str) -> None:
    bench.group()
    bench.add(*ids)
    runs = bench.fetch(count=len(ids))
    bench.run(
        consume.archive(bench.queue, [Dead(r.entry, r.task_id, bench.message(r.task_id)) for r in runs])
    )


def test_the_janitor_deletes_what_is_past_its_age_then_the_oldest_above_the_number(bench: Bench) -> None:
    archived(bench, "a", "b", "c", "d")
    bench.redis.zadd(bench.queue.archived, {"a": 1.0, "b": 2.0})
    assert bench.run(sweep.trim(bench.queue, State.ARCHIVED, 3600, 1)) == sweep.Trimmed(2, 1)
    found = bench.look()
    found.check()
    assert len(found.hashes) == 1
    assert bench.run(sweep.trim(bench.queue, State.ARCHIVED, 3600, 1)) == sweep.Trimmed(0, 0)


def test_the_surplus_is_what_a_sweep_would_delete(bench: Bench) -> None:
    now = time.time()
    bench.redis.zadd(bench.queue.completed, {f"t{i}": now - 5 + i for i in range(10)})
    assert bench.run(sweep.surplus(bench.queue, State.COMPLETED, 0.0, 0)) == 6
    assert bench.run(sweep.surplus(bench.queue, State.COMPLETED, 0.0, 2)) == 8
    assert bench.run(sweep.surplus(bench.queue, State.COMPLETED, None, 0)) == 0
    assert bench.run(sweep.surplus(bench.queue, State.ARCHIVED, 0.0, 2)) == 0


def test_without_limits_the_janitor_deletes_nothing(bench: Bench) -> None:
    archived(bench, "a")
    bench.redis.zadd(bench.queue.archived, {"a": 1.0})
    assert bench.run(sweep.trim(bench.queue, State.ARCHIVED, None, 0)) == sweep.Trimmed(0, 0)
    assert bench.run(sweep.trim(bench.queue, State.COMPLETED, 0, 0)) == sweep.Trimmed(0, 0)
    assert bench.look().places("a") == [State.ARCHIVED]


def test_the_janitor_deletes_no_more_than_its_limit_in_one_call(bench: Bench) -> None:
    archived(bench, *(f"t{i}" for i in range(20)))
    assert bench.run(sweep.trim(bench.queue, State.ARCHIVED, 0, 0, limit=8)) == sweep.Trimmed(8, 0)
    assert bench.run(sweep.trim(bench.queue, State.ARCHIVED, None, 5, limit=4)) == sweep.Trimmed(0, 4)
    found = bench.look()
    found.check()
    assert len(found.hashes) == 8


def test_the_janitor_never_deletes_a_task_that_lives_again(bench: Bench) -> None:
    # Somebody put an archived task back by hand and forgot the set.
    archived(bench, "a", "odd")
    bench.redis.xadd(bench.queue.stream, {"task_id": "a"})
    bench.redis.hset(bench.queue.task("a"), "state", "1")
    bench.redis.delete(bench.queue.task("odd"))
    bench.redis.set(bench.queue.task("odd"), "x")
    assert bench.run(sweep.trim(bench.queue, State.ARCHIVED, 0, 0)) == sweep.Trimmed(2, 0)
    found = bench.look()
    found.check()
    assert found.waiting == ["a"]


# -- a stream that takes nothing more -------------------------------------


@pytest.mark.parametrize("how", ["forward", "retry", "release", "run"])
def test_where_a_stream_has_no_ids_left_no_task_loses_its_place(bench: Bench, how: str) -> None:
    """XADD fails then, in scripts that had taken the task from where it was."""
    bench.group()
    if how in ("retry", "release"):
        bench.add("a")
        (run,) = bench.fetch()
    else:
        due(bench, State.RETRY, a=1.0)
    last_id = f"{2**64 - 1}-{2**64 - 1}"
    bench.redis.xadd(bench.queue.stream, {"task_id": "x"}, id=last_id)
    if how == "retry":
        bench.run(consume.retry(bench.queue, [Again(run.entry, "a", None, 0)]))
    elif how == "release":
        bench.run(consume.release(bench.queue, [(run.entry, "a")]))
    else:
        with pytest.raises(BrokerRefused, match="exhausted"):
            bench.forward(State.RETRY) if how == "forward" else bench.runner.drive(run_task(bench.queue, "a"))
    assert bench.look().places("a") == [State.RETRY]
    bench.fetch()
    told = examine(bench.runner, bench.namespace, Expected(queues=[bench.queue.name])).findings
    (finding,) = [one for one in told if one.code == "stream-exhausted"]
    assert finding.remedy.endswith(f"redis-cli DEL '{bench.queue.stream}'")
    bench.redis.delete(bench.queue.stream)
    bench.group()
    bench.redis.zadd(bench.queue.retry, {"a": 1.0})
    bench.forward(State.RETRY)
    assert [one.task_id for one in bench.fetch()] == ["a"]
