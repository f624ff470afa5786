"""Invariant 1 under any order of events: a task is in exactly one place, and leaves only as it should.

A state machine plays the producers, several workers (of which some die, stall and come back late), the
supervisor's rounds, an operator and a chronos-go server against a real server, and looks after every step.
"""

from __future__ import annotations

import itertools
import uuid
from typing import Any

import redis as redis_py
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from chronosd.broker import consume, enqueue, operate, settle, sweep
from chronosd.broker.cancel import Cancellation
from chronosd.broker.cancelling import cancel_task
from chronosd.broker.consume import Again, Dead, Done, Fetched, Kept
from chronosd.broker.enqueue import Holder
from chronosd.broker.keys import GROUP
from chronosd.broker.limit import Limit, fetch_limited
from chronosd.broker.message import decode
from chronosd.broker.recover import recover as take_over
from chronosd.broker.runner import SyncRunner
from chronosd.broker.settle import Death, Fate, Policy
from chronosd.states import SET_STATES, WAITING_SETS, State
from tests.support.bench import Bench
from tests.support.go import Go

IDS = st.sampled_from(["a", "b", "c", "d"])
LOCKS = st.sampled_from(["l1", "l2"])
CONSUMERS = st.sampled_from(["w1", "w2", "w3"])
FATES = st.sampled_from([Fate.CHARGE, Fate.RETURN, Fate.RESTORE])
POLICY = Policy(max_crashes=3, backoff=lambda kind, retried: 0.001)


class OnePlace(RuleBasedStateMachine):
    """What happens to four ids. ``alive`` is the model: the ids that must be somewhere."""

    redis: redis_py.Redis
    runner: SyncRunner

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(self.redis, self.runner, f"m{uuid.uuid4().hex[:12]}")
        self.bench.group()
        self.go = Go(self.bench)
        self.queue = self.bench.queue
        self.alive: set[str] = set()
        self.runs: list[Fetched] = []  # every run that ever began, ended ones too: owners may be late
        self.nonces = itertools.count()

    def pick(self, choice: int) -> list[Fetched]:
        """One of the runs, the newest first, so that most ends are of live ones."""
        return [self.runs[-1 - choice % len(self.runs)]] if self.runs else []

    def message(self, run: Fetched, **changes: Any) -> Any:
        lock = decode(run.msg or b"{}").unique_key
        return self.bench.message(run.task_id, retention=60, unique_key=lock, **changes)

    def lock(self, name: str) -> str:
        return self.queue.unique("mail:send", name)

    @rule(task_id=IDS, delay_ms=st.sampled_from([0, 0, 1, 60_000]))
    def enqueue(self, task_id: str, delay_ms: int) -> None:
        places = self.bench.look().places(task_id)
        new = self.bench.new(task_id, delay_ms=delay_ms, nonce=f"n{next(self.nonces)}", max_retry=3)
        (word,) = self.bench.run(enqueue.enqueue(self.queue, [new]))
        free = not places or places[0] in (State.ARCHIVED, State.COMPLETED)
        assert (word != "conflict") == free
        self.alive.add(task_id)
        assert self.bench.run(enqueue.enqueue(self.queue, [new])) == ["repeat" if free else "conflict"]

    @rule(task_id=IDS, name=LOCKS, delay_ms=st.sampled_from([0, 60_000]))
    def enqueue_unique(self, task_id: str, name: str, delay_ms: int) -> None:
        before = self.bench.look()
        lock = self.lock(name)
        new = self.bench.new(task_id, delay_ms=delay_ms, nonce=f"n{next(self.nonces)}", unique_key=lock)
        new = new._replace(lock=lock, lock_ms=3_600_000)
        (word,) = self.bench.run(enqueue.enqueue_unique(self.queue, [new]))
        if isinstance(word, Holder):
            assert before.places(word.task_id)[0] is word.state or word.state is State.PENDING
            assert word.task_id != task_id
            assert self.bench.look() == before
        elif word == "conflict":
            assert self.bench.look() == before
        else:
            self.alive.add(task_id)
            assert self.bench.run(enqueue.enqueue_unique(self.queue, [new])) == ["repeat"]

    @rule(consumer=CONSUMERS, count=st.integers(1, 3))
    def fetch(self, consumer: str, count: int) -> None:
        found = self.bench.deliver(consumer, count)
        assert found.gone == []
        self.runs += found.tasks

    @rule(consumer=CONSUMERS, count=st.integers(1, 3), most=st.integers(1, 3))
    def fetch_limited(self, consumer: str, count: int, most: int) -> None:
        found = self.bench.run(fetch_limited(self.queue, consumer, count, [], Limit(most)))
        assert found.gone == []
        self.runs += found.tasks
        assert len(found.tasks) <= count
        assert not found.tasks or len(self.bench.look().owned) <= most

    @rule(consumer=CONSUMERS, taken=st.booleans())
    def block(self, consumer: str, taken: bool) -> None:
        for _, entry in self.bench.run(consume.block([self.queue], consumer, 1)):
            if taken:
                self.runs += self.bench.fetch(consumer, 0, [entry])

    @rule(choice=st.integers(0, 5))
    def complete(self, choice: int) -> None:
        for run in self.pick(choice):
            done = Done(run.entry, run.task_id, self.message(run).unique_key)
            lost = self.bench.run(consume.complete(self.queue, [done]))
            if not lost:
                self.alive.remove(run.task_id)

    @rule(choice=st.integers(0, 5))
    def retain(self, choice: int) -> None:
        for run in self.pick(choice):
            self.bench.run(consume.retain(self.queue, [Kept(run.entry, self.message(run, completed_at=1))]))

    @rule(choice=st.integers(0, 5), delay_s=st.sampled_from([0.0, 0.001, 60.0]), retried=st.integers(0, 3))
    def retry(self, choice: int, delay_s: float, retried: int) -> None:
        for run in self.pick(choice):
            message = self.message(run, retried=retried, max_retry=3)
            self.bench.run(consume.retry(self.queue, [Again(run.entry, run.task_id, message, delay_s)]))

    @rule(choice=st.integers(0, 5))
    def archive(self, choice: int) -> None:
        for run in self.pick(choice):
            self.bench.run(consume.archive(self.queue, [Dead(run.entry, run.task_id, self.message(run))]))

    @rule(choice=st.integers(0, 5), counted=st.booleans())
    def release(self, choice: int, counted: bool) -> None:
        for run in self.pick(choice):
            field = "returned" if counted else ""
            self.bench.run(consume.release(self.queue, [(run.entry, run.task_id)], counted_in=field))

    @rule()
    def mark(self) -> None:
        self.bench.run(consume.mark_running(self.queue, [(run.entry, run.task_id) for run in self.runs]))

    @rule(state=st.sampled_from(WAITING_SETS), limit=st.integers(1, 3))
    def forward(self, state: State, limit: int) -> None:
        assert self.bench.run(sweep.forward(self.queue, state, limit)).dropped == 0

    @rule(consumer=CONSUMERS)
    def extend(self, consumer: str) -> None:
        owned = {entry for entry, (_, owner) in self.bench.look().owned.items() if owner == consumer}
        entries = list(dict.fromkeys(run.entry.decode() for run in self.runs))
        lost = self.bench.run(sweep.extend(self.queue, consumer, entries))
        assert set(lost) == set(entries) - owned

    @rule(consumer=CONSUMERS, fate=FATES, drop=st.booleans())
    def die(self, consumer: str, fate: Fate, drop: bool) -> None:
        steps = settle.settle({"q": self.queue}, consumer, {}, fate, Death("killed", consumer), POLICY)
        found = self.runner.drive(steps)
        assert not found.errors
        assert found.dropped == found.lost == found.discarded == 0
        if drop:
            assert self.bench.run(sweep.drop_consumer(self.queue, consumer)) in ("deleted", "absent")

    @rule(old=st.sets(st.integers(0, 5)), count=st.integers(1, 3))
    def recover(self, old: set[int], count: int) -> None:
        owned = list(self.bench.look().owned.items())
        for entry, (_, owner) in (owned[i] for i in old if i < len(owned)):
            self.redis.xclaim(self.queue.stream, GROUP, owner, 0, [entry], idle=60_000, justid=True)
        found = self.runner.drive(take_over(self.queue, "rec", 30, "0-0", {}, POLICY, count))
        assert not found.settled.errors
        assert found.settled.dropped == found.settled.lost == 0

    @rule(
        state=st.sampled_from([State.ARCHIVED, State.COMPLETED]), keep=st.integers(0, 2), aged=st.booleans()
    )
    def trim(self, state: State, keep: int, aged: bool) -> None:
        before = self.bench.look().sets[state]
        self.bench.run(sweep.trim(self.queue, state, -3600 if aged else None, keep))
        after = self.bench.look().sets[state]
        assert set(after) <= set(before)
        assert len(after) <= (0 if aged else keep or len(before))
        self.alive -= set(before) - set(after)

    @rule(task_id=IDS)
    def operator_deletes(self, task_id: str) -> None:
        before = self.bench.look()
        word = self.runner.drive(operate.delete_task(self.bench.namespace, self.queue, task_id))
        if word == "deleted":
            assert before.hashes[task_id]["state"] != "2"
            self.alive.remove(task_id)
        else:
            assert word == ("active" if task_id in before.hashes else "absent")
            assert self.bench.look() == before

    @rule(task_id=IDS)
    def operator_runs(self, task_id: str) -> None:
        before = self.bench.look()
        word = self.runner.drive(operate.run_task(self.queue, task_id))
        if word == "moved":
            assert before.places(task_id)[0] in SET_STATES
            assert self.bench.look().places(task_id) == [State.PENDING]
        else:
            assert self.bench.look() == before

    @rule(task_id=IDS, force=st.booleans())
    def somebody_cancels(self, task_id: str, force: bool) -> None:
        before = self.bench.look()
        done = self.runner.drive(cancel_task(self.bench.namespace, self.queue, task_id, force=force))
        if done is Cancellation.REMOVED:
            assert before.hashes[task_id]["state"] not in ("2", "3", "5")
            self.alive.remove(task_id)
        elif done is Cancellation.MARKED:
            assert before.hashes[task_id]["state"] == "2"
        else:
            assert self.bench.look() == before

    @rule()
    def go_forwards(self) -> None:
        self.go.forward()

    @rule()
    def go_recovers(self) -> None:
        self.go.recover()

    @rule(count=st.integers(1, 2), ends=st.sampled_from(["done", "retry", "archive", "dies", "dies early"]))
    def go_works(self, count: int, ends: str) -> None:
        for entry, message in self.go.dequeue(count, dies_before_active=ends == "dies early"):
            if ends == "done":
                self.alive.remove(message.id)
            if not ends.startswith("dies"):
                getattr(self.go, ends)(entry, message)

    @invariant()
    def every_task_is_in_exactly_one_place(self) -> None:
        found = self.bench.look()
        found.check()
        assert set(found.hashes) == self.alive
        for lock in map(self.lock, ("l1", "l2")):
            holders = [
                task_id
                for task_id, fields in found.hashes.items()
                if fields["state"] not in ("3", "5") and decode(fields["msg"].encode()).unique_key == lock
            ]
            assert len(holders) <= 1, f"{holders} have one unique lock"
            if holders:
                assert self.redis.get(lock) == holders[0].encode()

    def teardown(self) -> None:
        for key in self.redis.scan_iter(match=f"{self.bench.namespace.prefix}:*", count=1000):
            self.redis.delete(key)


def test_whatever_happens_a_task_is_in_exactly_one_place(bench: Bench) -> None:
    OnePlace.redis, OnePlace.runner = bench.redis, bench.runner
    run_state_machine_as_test(
        OnePlace,
        settings=settings(
            max_examples=40,
            stateful_step_count=40,
            deadline=None,
            # the server's clock and entry ids differ from run to run; a failure is replayed by its steps
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
