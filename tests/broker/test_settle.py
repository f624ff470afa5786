"""What becomes of the tasks of a dead owner: settle and recover, with pending.lua and look.lua."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

from chronosd.broker import consume, settle
from chronosd.broker.commands import BATCH, REPLY_BYTES
from chronosd.broker.consume import Fetched
from chronosd.broker.keys import GROUP
from chronosd.broker.recover import Recovered
from chronosd.broker.recover import recover as take_over
from chronosd.broker.settle import Death, Fate, Policy, Settled
from chronosd.errors import BrokerError, Trouble
from chronosd.states import State
from tests.support.bench import Bench

DEATH = Death("worker killed by signal 9", "w1", at=1_700_000_000.5, signal=9)
POLICY = Policy(max_crashes=3, backoff=lambda kind, retried: 60.0)


def settled(
    bench: Bench,
    fates: Mapping[bytes, Fate],
    otherwise: Fate = Fate.RETURN,
    *,
    others: tuple[Bench, ...] = (),
    death: Death = DEATH,
    policy: Policy = POLICY,
) -> Settled:
    queues = {one.queue.name: one.queue for one in (bench, *others)}
    named = {(bench.queue.name, entry.decode()): fate for entry, fate in fates.items()}
    return bench.runner.drive(settle.settle(queues, "c1", named, otherwise, death, policy))


def age(bench: Bench, *runs: Fetched, consumer: str = "c1") -> None:
    """Lets entries look abandoned for an hour."""
    for run in runs:
        bench.redis.xclaim(bench.queue.stream, GROUP, consumer, 0, [run.entry], idle=3_600_000, justid=True)


def recover(
    bench: Bench, cursor: str = "0-0", own: Mapping[str, str] | None = None, count: int = 100
) -> Recovered:
    return bench.runner.drive(take_over(bench.queue, "rec", 30, cursor, own or {}, POLICY, count))


def test_every_entry_meets_its_fate_in_one_settlement(bench: Bench) -> None:
    bench.group()
    bench.add("succeeded", "running", "claimed", "stopped", "unlisted")
    runs = {run.task_id: run.entry for run in bench.fetch()}
    found = settled(
        bench,
        {
            runs["succeeded"]: Fate.ACKNOWLEDGE,
            runs["running"]: Fate.CHARGE,
            runs["claimed"]: Fate.RETURN,
            runs["stopped"]: Fate.RESTORE,
        },
    )
    assert found == Settled(acknowledged=1, returned=3, retried=1)
    assert found.total == 5
    look = bench.look()
    look.check()
    assert sorted(look.waiting) == ["claimed", "running", "stopped", "unlisted"]
    assert {task_id: stored.get("returned") for task_id, stored in look.hashes.items()} == {
        "running": None,
        "claimed": "1",
        "stopped": None,
        "unlisted": "1",
    }
    charged = bench.stored("running")
    assert (charged.retried, charged.last_err) == (1, DEATH.cause)
    assert bench.hash("running")["crashes"] == "1"
    evidence = json.loads(bench.hash("running")["evidence"])
    assert evidence == [{"at": 1_700_000_000.5, "cause": DEATH.cause, "worker": "w1", "signal": 9}]


def test_settling_again_changes_nothing(bench: Bench) -> None:
    run = bench.take("a")
    settled(bench, {run.entry: Fate.CHARGE})
    before = bench.look()
    assert settled(bench, {run.entry: Fate.CHARGE}).total == 0
    assert bench.look() == before


def test_only_the_dead_consumers_entries_are_settled(bench: Bench) -> None:
    bench.group()
    bench.add("a", "b")
    bench.fetch("c1", count=1)
    bench.fetch("c2", count=1)
    assert settled(bench, {}).returned == 1
    look = bench.look()
    look.check()
    assert look.active == {"b": "c2"}


def test_the_first_crash_runs_again_at_once_and_a_second_one_after_its_backoff(bench: Bench) -> None:
    run = bench.take("a")
    settled(bench, {run.entry: Fate.CHARGE})
    assert bench.look().waiting == ["a"]
    (run,) = bench.fetch()
    assert run.crashes == 1
    settled(bench, {run.entry: Fate.CHARGE})
    look = bench.look()
    look.check()
    assert look.sets[State.RETRY]["a"] == pytest.approx(time.time() + 60, abs=5)
    assert len(json.loads(bench.hash()["evidence"])) == 2


def test_a_task_that_crashed_too_often_is_archived_whatever_its_retry_budget(bench: Bench) -> None:
    run = bench.take("a", retried=2)
    bench.redis.hset(bench.queue.task("a"), mapping={"crashes": 2, "evidence": "[1,2]"})
    assert settled(bench, {run.entry: Fate.CHARGE}) == Settled(archived=1, archived_ids=["a"])
    look = bench.look()
    look.check()
    assert look.places("a") == [State.ARCHIVED]
    assert "max_crashes" in bench.stored().last_err
    assert DEATH.cause in bench.stored().last_err
    assert json.loads(bench.hash()["evidence"])[:2] == [1, 2]


@pytest.mark.parametrize("no_archive", [False, True])
def test_a_task_whose_retries_are_spent_is_archived_with_the_cause_or_discarded(
    bench: Bench, no_archive: bool
) -> None:
    run = bench.take("a", retried=1, max_retry=1, no_archive=no_archive)
    found = settled(bench, {run.entry: Fate.CHARGE})
    look = bench.look()
    look.check()
    if no_archive:
        assert found == Settled(discarded=1)
        assert look.hashes == {}
    else:
        assert found == Settled(archived=1, archived_ids=["a"])
        assert bench.stored().last_err == DEATH.cause


def test_crashes_that_do_not_fit_the_message_are_another_tasks(bench: Bench) -> None:
    # chronos-go has stored a new task under the old id and left our fields.
    run = bench.take("a", retried=0)
    bench.redis.hset(bench.queue.task("a"), mapping={"crashes": 2, "evidence": "[1,2]"})
    assert settled(bench, {run.entry: Fate.CHARGE}).retried == 1
    assert bench.hash()["crashes"] == "1"
    assert len(json.loads(bench.hash()["evidence"])) == 1


@pytest.mark.parametrize("evidence", ["", "no json", "7", '{"a":1}', "\x00"])
def test_broken_evidence_is_replaced(bench: Bench, evidence: str) -> None:
    run = bench.take("a", retried=1)
    bench.redis.hset(bench.queue.task("a"), mapping={"crashes": "x", "evidence": evidence, "returned": "y"})
    settled(bench, {run.entry: Fate.CHARGE}, death=Death("c" * 9999, "w", stack="s" * 99_999))
    (one,) = json.loads(bench.hash()["evidence"])
    assert len(one["cause"]) == 500
    assert len(one["stack"]) == 4000


def test_a_task_handed_back_too_often_is_charged(bench: Bench) -> None:
    bench.group()
    bench.add("a")
    for times in range(1, settle.MAX_RETURNS):
        (run,) = bench.fetch()
        settled(bench, {run.entry: Fate.RETURN})
        assert bench.hash()["returned"] == str(times)
    (run,) = bench.fetch()
    assert settled(bench, {run.entry: Fate.RETURN}).retried == 1
    stored = bench.stored()
    assert stored.retried == 1
    assert "handed back" in stored.last_err
    assert "returned" not in bench.hash()


def test_a_long_body_that_was_handed_back_too_often_is_charged_and_not_taken_for_garbage(
    bench: Bench,
) -> None:
    bench.group()
    bench.add("first", "long", payload=b'"' + b"x" * (REPLY_BYTES // 4 * 3) + b'"')
    bench.redis.hset(bench.queue.task("long"), "returned", settle.MAX_RETURNS - 1)
    bench.fetch()
    assert settled(bench, {}) == Settled(returned=1, retried=1)
    bench.look().check()
    assert bench.stored("long").retried == 1


def test_long_bodies_are_read_singly_and_not_mixed_up_between_queues(bench: Bench, other: Bench) -> None:
    # Two queues may have entries of the same id, made in the same millisecond.
    long = b'"' + b"x" * (REPLY_BYTES // 4 * 3) + b'"'
    for one, kind in ((bench, "mine"), (other, "others")):
        one.group()
        one.add("first", payload=long, kind=kind)
        one.add("second", payload=long, kind=kind)
        one.redis.delete(one.queue.stream)
        one.group()
        for entry, task_id in (("7-1", "first"), ("7-2", "second")):
            one.redis.xadd(one.queue.stream, {"task_id": task_id}, id=entry)
        assert len(one.fetch()) == 2
    found = settled(bench, {}, otherwise=Fate.CHARGE, others=(other,))
    assert found == Settled(retried=4)
    for one, kind in ((bench, "mine"), (other, "others")):
        one.look().check()
        assert {one.stored(task_id).kind for task_id in ("first", "second")} == {kind}


def test_more_than_a_page_of_entries_is_settled(bench: Bench) -> None:
    bench.group()
    ids = [f"t{i}" for i in range(BATCH + 7)]
    bench.add(*ids)
    bench.fetch(count=len(ids))
    assert settled(bench, {}).returned == len(ids)
    look = bench.look()
    look.check()
    assert sorted(look.waiting) == sorted(ids)
    assert look.owned == {}


@pytest.mark.parametrize("fate", list(Fate), ids=lambda fate: fate.value)
def test_deleted_tasks_ghost_entries_and_entries_without_a_task_are_cleared(bench: Bench, fate: Fate) -> None:
    bench.group()
    bench.add("deleted", "ghost", "odd", "sound")
    bench.redis.xadd(bench.queue.stream, {"foo": "bar"})
    runs = {run.task_id: run for run in bench.fetch()}
    bench.redis.delete(bench.queue.task("deleted"), bench.queue.task("odd"))
    bench.redis.set(bench.queue.task("odd"), "x")
    bench.redis.xdel(bench.queue.stream, runs["ghost"].entry)
    found = settled(bench, {}, otherwise=fate)
    # the sound one is dead-lettered with the record if it was cancelled
    assert (found.dropped, found.archived) == (3, 2 if fate is Fate.CANCEL else 1)
    assert bench.look().owned == {}
    assert bench.redis.get(bench.queue.task("odd")) == b"x"
    record = bench.stored(f"undecodable-{runs[''].entry.decode()}")
    assert record.kind == consume.UNDECODABLE_KIND


def test_an_undecodable_message_is_archived_as_it_is_with_the_reason(bench: Bench) -> None:
    run = bench.take("a")
    bench.redis.hset(bench.queue.task("a"), "msg", b"\xff{")
    assert settled(bench, {run.entry: Fate.CHARGE}).archived_ids == ["a"]
    look = bench.look()
    look.check()
    assert look.places("a") == [State.ARCHIVED]
    assert bench.redis.hget(bench.queue.task("a"), "msg") == b"\xff{"
    assert "undecodable" in bench.hash()["error"]


def test_a_success_that_died_before_its_acknowledgement_releases_its_lock(bench: Bench) -> None:
    lock = f"{bench.namespace.prefix}:{{q}}:unique:mail:send:00"
    bench.redis.set(lock, "a", px=600_000)
    run = bench.take("a", unique_key=lock)
    assert settled(bench, {run.entry: Fate.ACKNOWLEDGE}) == Settled(acknowledged=1)
    assert not bench.redis.exists(lock)
    assert bench.look().hashes == {}


def test_what_a_blocking_read_delivered_to_the_dead_is_returned(bench: Bench) -> None:
    bench.group()
    bench.add("a")
    bench.block("c1")
    assert settled(bench, {}).returned == 1
    look = bench.look()
    look.check()
    assert look.waiting == ["a"]


def test_a_queue_that_cannot_be_settled_is_named_and_the_others_are_settled(
    bench: Bench, other: Bench
) -> None:
    run = bench.take("a")
    other.group()
    other.redis.delete(other.queue.stream)
    found = settled(bench, {run.entry: Fate.CHARGE}, others=(other,))
    assert found.retried == 1
    assert found.errors.keys() == {"other"}
    assert found.errors["other"].trouble is Trouble.RECREATE


def test_a_stale_snapshot_moves_nothing(bench: Bench) -> None:
    # Between the look and the move the task ended, or was recovered and runs elsewhere.
    bench.group()
    bench.add("ended", "elsewhere")
    runs = {run.task_id: run for run in bench.fetch()}
    steps = settle.settle({"q": bench.queue}, "c1", {}, Fate.CHARGE, DEATH, POLICY)
    commands = steps.send(bench.runner.run_many(next(steps)))
    bench.done(runs["ended"])
    bench.run(consume.release(bench.queue, [(runs["elsewhere"].entry, "elsewhere")]))
    bench.fetch("c2")
    before = bench.look()
    with pytest.raises(StopIteration) as end:
        steps.send(bench.runner.run_many(commands))
    assert end.value.value.lost == 2
    assert bench.look() == before


def test_recovery_leaves_fresh_entries_alone(bench: Bench) -> None:
    bench.take("a")
    found = recover(bench)
    assert (found.cursor, found.claimed, found.settled) == ("0-0", 0, Settled())
    assert bench.look().active == {"a": "c1"}


def test_recovery_charges_what_had_run_and_returns_what_had_not(bench: Bench) -> None:
    bench.group()
    bench.add("ran", "fetched", "blocked")
    runs = bench.fetch(count=2)
    entry = bench.block()
    bench.run(consume.mark_running(bench.queue, [(runs[0].entry, "ran")]))
    age(bench, *runs, Fetched(entry, "blocked", None, 0, 0))
    found = recover(bench)
    assert found.claimed == 3
    assert found.settled == Settled(retried=1, returned=2)
    look = bench.look()
    look.check()
    assert sorted(look.waiting) == ["blocked", "fetched", "ran"]
    assert bench.stored("ran").retried == 1
    assert "lease" in bench.stored("ran").last_err
    assert bench.stored("fetched").retried == 0


def test_recovery_gives_back_what_this_hosts_boards_hold(bench: Bench) -> None:
    bench.group()
    bench.add("mine", "lost")
    mine, lost = bench.fetch()
    age(bench, mine, lost)
    found = recover(bench, own={mine.entry.decode(): "c1"})
    assert found.claimed == 1
    look = bench.look()
    look.check()
    assert look.active == {"mine": "c1"}
    assert bench.done(mine) == []


def test_the_cursor_is_carried_so_that_orphans_behind_live_entries_are_found(bench: Bench) -> None:
    bench.group()
    ids = [f"t{i:03}" for i in range(300)]
    bench.add(*ids)
    runs = bench.fetch(count=300)
    age(bench, *runs[-50:])
    cursor, rounds = "0-0", 0
    recovered = 0
    while True:
        found = recover(bench, cursor, count=10)
        recovered += found.claimed
        cursor, rounds = found.cursor, rounds + 1
        if cursor == "0-0":
            break
    assert recovered == 50
    assert rounds > 1
    look = bench.look()
    look.check()
    assert sorted(look.waiting) == ids[-50:]


def test_recovery_counts_and_clears_entries_that_were_deleted_while_pending(bench: Bench) -> None:
    bench.group()
    bench.add("ghost", "sound")
    ghost, sound = bench.fetch()
    age(bench, ghost, sound)
    bench.redis.xdel(bench.queue.stream, ghost.entry)
    found = recover(bench)
    assert (found.settled.dropped, found.settled.returned) == (1, 1)
    assert bench.look().owned == {}


def test_recovery_of_a_queue_without_its_group_raises_and_the_cursor_stays_valid(bench: Bench) -> None:
    with pytest.raises(BrokerError) as caught:
        recover(bench, "5-1")
    assert caught.value.trouble is Trouble.RECREATE


def test_an_owner_that_lives_after_all_cannot_end_the_new_run(bench: Bench) -> None:
    run = bench.take("a")
    age(bench, run)
    recover(bench)
    (anew,) = bench.fetch("c2")
    assert bench.done(run) == [run.entry]
    found: Any = bench.look()
    found.check()
    assert found.active == {"a": "c2"}
    assert bench.done(anew) == []
