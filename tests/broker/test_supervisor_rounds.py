"""The supervisor's rounds against a real server, each driven by hand, with the clock in the test's hand."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis as redis_py

from chronosd import Client
from chronosd.board import Board, Cell, SlotState
from chronosd.broker.keys import GROUP, Namespace, QueueKeys
from chronosd.broker.runner import SyncRunner
from chronosd.broker.settle import Fate, Policy
from chronosd.config.load import parse
from chronosd.config.schema import JanitorConfig
from chronosd.embedded import EmbeddedServer
from chronosd.link import Link, WorkerSpec
from chronosd.supervisor.forwarder import Forwarder
from chronosd.supervisor.groundwork import Groundwork
from chronosd.supervisor.janitor import Janitor
from chronosd.supervisor.lease import Lease
from chronosd.supervisor.process import Child
from chronosd.supervisor.recoverer import Grace, Recoverer
from chronosd.supervisor.recovery import Recovery
from chronosd.supervisor.stacks import Stacks
from chronosd.supervisor.steps import Done, Work
from chronosd.supervisor.strays import Strays
from chronosd.supervisor.verdict import Verdict
from chronosd.supervisor.worker import Phase, Worker
from tests.conftest import connect

POLICY = Policy(3, lambda _kind, _retried: 1.0)
CONFIG = "queues: [default]\nhandlers: {k: tests.support.jobs:noop}\n"


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(ns: Namespace, redis: redis_py.Redis) -> QueueKeys:
    keys = ns.queue("default")
    redis.xgroup_create(keys.stream, GROUP, "0", mkstream=True)
    return keys


@pytest.fixture
def client(redis_url: str, namespace: str) -> Client:
    return Client(redis_url, namespace=namespace)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    """The supervisor's side of a worker; the process behind it is this one."""
    config = parse(CONFIG, source="chronos.yaml", base=tmp_path)
    board = Board.create(tmp_path / "board", 8, consumer="w", queues=("default",))
    ours, theirs = Link.pair()
    spec = WorkerSpec(0, 1, "w", config, board, theirs, "")
    board.cells[Cell.LOOP_BEAT] = time.monotonic_ns()
    one = Worker(
        spec, Child(os.getpid(), -1), ours, Stacks.create("test"), started_at=0.0, phase=Phase.RUNNING
    )
    yield one
    one.abandon()
    theirs.close()


def once(runner: SyncRunner, work: Work) -> Done:
    return runner.drive(work.run_once())


def deliver(redis: redis_py.Redis, queue: QueueKeys, consumer: str = "w", count: int = 1) -> list[bytes]:
    """Delivers ready entries to a consumer; returns them."""
    ((_, entries),) = redis.xreadgroup(GROUP, consumer, {queue.stream: ">"}, count=count)
    return [entry for entry, _ in entries]


def idle_ms(redis: redis_py.Redis, queue: QueueKeys) -> list[int]:
    return [row["time_since_delivered"] for row in redis.xpending_range(queue.stream, GROUP, "-", "+", 100)]


# -- leases -------------------------------------------------------------------------------------------


def test_what_is_on_a_board_stays_fresh_and_is_not_counted_as_redelivered(
    runner: SyncRunner, redis: redis_py.Redis, ns: Namespace, queue: QueueKeys, client: Client, worker: Worker
) -> None:
    client.enqueue("k", {})
    (entry,) = deliver(redis, queue)
    worker.board.claim(0, entry, 0, 1)
    redis.xclaim(queue.stream, GROUP, "w", 0, [entry], idle=60_000, justid=True)
    done = once(runner, Lease(ns, lambda: [worker], 10.0, Grace(30.0)))
    assert done.counts == {"leases_renewed": 1, "leases_lost": 0}
    (row,) = redis.xpending_range(queue.stream, GROUP, "-", "+", 10)
    assert row["time_since_delivered"] < 30_000
    assert row["times_delivered"] == 1


def test_a_lost_lease_is_told_at_the_second_look(
    runner: SyncRunner, redis: redis_py.Redis, ns: Namespace, queue: QueueKeys, client: Client, worker: Worker
) -> None:
    client.enqueue("k", {})
    (entry,) = deliver(redis, queue, "somebody-else")
    worker.board.claim(0, entry, 0, 1)
    worker.board.start(0, 1, 0)
    lease = Lease(ns, lambda: [worker], 10.0, Grace(30.0))
    first = once(runner, lease)
    assert first.counts["leases_lost"] == 0
    assert first.next_in_s is not None
    assert first.next_in_s < 1.0
    assert worker.spec.link.receive() == []
    assert once(runner, lease).counts["leases_lost"] == 1
    assert worker.spec.link.receive() == [{"t": "lost", "entries": [["default", entry.decode()]]}]
    row = redis.xpending_range(queue.stream, GROUP, "-", "+", 10)[0]
    assert row["consumer"] == b"somebody-else", "and is not taken back"


def test_a_task_that_has_just_been_completed_is_not_lost(
    runner: SyncRunner, redis: redis_py.Redis, ns: Namespace, queue: QueueKeys, client: Client, worker: Worker
) -> None:
    # Its completion is done, but the reply has not reached the worker: the slot is not free yet.
    client.enqueue("k", {})
    (entry,) = deliver(redis, queue)
    worker.board.claim(0, entry, 0, 1)
    redis.xack(queue.stream, GROUP, entry)
    lease = Lease(ns, lambda: [worker], 10.0, Grace(30.0))
    once(runner, lease)
    worker.board.free(0)
    assert once(runner, lease).counts["leases_lost"] == 0
    assert worker.spec.link.receive() == []


def test_a_renewal_ends_the_first_half_of_the_grace(runner: SyncRunner, ns: Namespace, clock: Clock) -> None:
    grace = Grace(30.0)
    grace.begin("a test", clock.now)
    once(runner, Lease(ns, list, 10.0, grace, clock))
    assert not grace.is_over(clock.now + 29.0)
    assert grace.is_over(clock.now + 30.0)


# -- strays -------------------------------------------------------------------------------------------


def test_an_entry_pending_for_a_live_worker_and_not_on_its_board_goes_back_after_5_s(
    runner: SyncRunner,
    redis: redis_py.Redis,
    ns: Namespace,
    queue: QueueKeys,
    client: Client,
    worker: Worker,
    clock: Clock,
) -> None:
    client.enqueue("k", {})
    deliver(redis, queue)
    strays = Strays(ns, lambda: [worker], 1.0, clock)
    for moved in (0.0, 2.0, 2.0):
        clock.now += moved
        worker.board.cells[Cell.LOOP_BEAT] = round(clock.now * 1e9)
        once(runner, strays)
        assert redis.xpending(queue.stream, GROUP)["pending"] == 1
    clock.now += 1.0
    worker.board.cells[Cell.LOOP_BEAT] = round(clock.now * 1e9)
    assert once(runner, strays).counts == {"handed_back": 1}
    assert redis.xpending(queue.stream, GROUP)["pending"] == 0
    assert len(deliver(redis, queue, "another")) == 1


def test_what_waits_behind_a_blocked_loop_goes_back_and_what_runs_there_stays(
    runner: SyncRunner,
    redis: redis_py.Redis,
    ns: Namespace,
    queue: QueueKeys,
    client: Client,
    worker: Worker,
    clock: Clock,
) -> None:
    client.enqueue_many([("k", {}), ("k", {})])
    running, waiting = deliver(redis, queue, count=2)
    worker.board.claim(0, running, 0, 1)
    worker.board.start(0, 1, 0)
    worker.board.claim(1, waiting, 0, 1)
    worker.board.cells[Cell.LOOP_BEAT] = round((clock.now - 2.5) * 1e9)
    strays = Strays(ns, lambda: [worker], 1.0, clock)
    assert once(runner, strays).counts == {"handed_back": 1}
    (row,) = redis.xpending_range(queue.stream, GROUP, "-", "+", 10)
    assert row["message_id"] == running
    assert once(runner, strays).counts == {}, "once is enough"


# -- the dead -------------------------------------------------------------------------------------------


def test_an_estate_is_settled_again_and_again_and_the_consumer_deleted_at_the_last(
    runner: SyncRunner, redis: redis_py.Redis, ns: Namespace, queue: QueueKeys, client: Client, clock: Clock
) -> None:
    client.enqueue_many([("k", {}), ("k", {})])
    (entry,) = deliver(redis, queue, "dead")
    recovery = Recovery(ns, 30.0, POLICY, clock)
    closed: list[str] = []
    recovery.add(
        consumer="dead",
        queues=["default"],
        verdict=Verdict("killed", {("default", entry.decode()): Fate.RETURN}, Fate.RETURN, {}),
        on_closed=lambda: closed.append("dead"),
    )
    assert once(runner, recovery).counts["returned"] == 1
    late = deliver(redis, queue, "dead")  # a fetch that it had sent is executed only now
    assert late
    seen = []
    for _ in range(4):
        assert not closed
        clock.now = recovery.due_at
        seen.append(once(runner, recovery).counts["returned"])
    assert seen == [1, 0, 0, 0]
    assert clock.now == pytest.approx(1000.0 + 0.05 + 1.0 + 5.0 + 30.0)
    assert closed == ["dead"]
    assert redis.xinfo_consumers(queue.stream, GROUP) == []
    assert recovery.open == 0


def test_a_first_settlement_waits_for_no_repeats(
    runner: SyncRunner, redis: redis_py.Redis, ns: Namespace, queue: QueueKeys, client: Client, clock: Clock
) -> None:
    """Where workers died by the hundred the repeats of their settlements took all the time there was, in the
    order in which they were due: the tasks of one that had just died waited for a minute."""
    recovery = Recovery(ns, 30.0, POLICY, clock)
    for n in range(20):
        recovery.add(consumer=f"old{n}", queues=["default"], verdict=Verdict("killed", {}, Fate.RETURN, {}))
        once(runner, recovery)
    clock.now += 1.0  # all their repeats are due
    client.enqueue("k", {})
    deliver(redis, queue, "new")
    recovery.add(consumer="new", queues=["default"], verdict=Verdict("killed", {}, Fate.RETURN, {}))
    assert once(runner, recovery).counts["returned"] == 1


def test_a_stop_leaves_one_last_settlement(
    runner: SyncRunner, ns: Namespace, queue: QueueKeys, clock: Clock
) -> None:
    recovery = Recovery(ns, 30.0, POLICY, clock)
    for name in ("a", "b"):
        recovery.add(consumer=name, queues=["default"], verdict=Verdict("stopped", {}, Fate.RESTORE, {}))
        if name == "a":
            once(runner, recovery)
    recovery.hasten()
    while recovery.open:
        clock.now = max(clock.now, recovery.due_at)
        once(runner, recovery)
    assert clock.now <= 1000.2


def test_a_stop_brings_a_last_settlement_forward_that_is_half_a_minute_away(
    runner: SyncRunner, ns: Namespace, queue: QueueKeys, clock: Clock
) -> None:
    """It had no repeats left to give up, and stayed: every stop within half a minute of a death waited for
    all of shutdown_timeout, and then blamed Redis."""
    recovery = Recovery(ns, 30.0, POLICY, clock)
    recovery.add(consumer="a", queues=["default"], verdict=Verdict("killed", {}, Fate.RETURN, {}))
    for _ in range(4):
        clock.now = recovery.due_at
        once(runner, recovery)
    assert recovery.due_at == clock.now + 30.0
    recovery.hasten()
    clock.now = recovery.due_at
    once(runner, recovery)
    assert clock.now <= 1000.2 + 6.05
    assert recovery.open == 0


def test_another_hosts_dead_are_recovered_behind_many_live_entries(
    runner: SyncRunner, redis: redis_py.Redis, ns: Namespace, queue: QueueKeys, client: Client, clock: Clock
) -> None:
    # The server looks at ten times COUNT entries per call: without the cursor these are never reached.
    client.enqueue_many([("k", {})] * 1505)
    own = [entry.decode() for entry in deliver(redis, queue, "ours", count=1500)]
    orphans = deliver(redis, queue, "dead", count=5)
    redis.xclaim(queue.stream, GROUP, "dead", 0, orphans, idle=60_000, justid=True)
    recoverer = Recoverer(
        [queue],
        consumer="r",
        min_idle_s=30.0,
        interval_s=15.0,
        policy=POLICY,
        grace=Grace(30.0),
        own_entries=lambda: {"default": dict.fromkeys(own, "ours")},
        clock=clock,
    )
    recovered, passes = 0, 0
    while True:
        done = once(runner, recoverer)
        recovered += done.counts["recovered"]
        passes += 1
        if done.next_in_s is None:
            break
    assert recovered == 5
    assert passes > 1
    assert redis.xpending(queue.stream, GROUP)["pending"] == 1500


def test_own_entries_are_never_taken_over_however_old_they_look(
    runner: SyncRunner, redis: redis_py.Redis, queue: QueueKeys, client: Client, clock: Clock
) -> None:
    client.enqueue("k", {})
    (entry,) = deliver(redis, queue, "ours")
    redis.xclaim(queue.stream, GROUP, "ours", 0, [entry], idle=60_000, justid=True)
    recoverer = Recoverer(
        [queue],
        consumer="r",
        min_idle_s=30.0,
        interval_s=15.0,
        policy=POLICY,
        grace=Grace(30.0),
        own_entries=lambda: {"default": {entry.decode(): "ours"}},
        clock=clock,
    )
    assert once(runner, recoverer).counts["recovered"] == 0
    (row,) = redis.xpending_range(queue.stream, GROUP, "-", "+", 10)
    assert (row["message_id"], row["consumer"]) == (entry, b"ours")


def test_nothing_is_taken_over_in_the_grace(runner: SyncRunner, queue: QueueKeys, clock: Clock) -> None:
    grace = Grace(30.0)
    grace.begin("a test", clock.now)
    recoverer = Recoverer(
        [queue],
        consumer="r",
        min_idle_s=30.0,
        interval_s=15.0,
        policy=POLICY,
        grace=grace,
        own_entries=dict,
        clock=clock,
    )
    assert once(runner, recoverer).counts == {}


# -- waiting and finished tasks -----------------------------------------------------------------------------


def test_due_tasks_move_in_batches_until_none_is_due_and_the_next_pass_is_when_the_next_is(
    runner: SyncRunner, redis: redis_py.Redis, queue: QueueKeys, client: Client
) -> None:
    client.enqueue_many([("k", {}, {"delay": 0.001})] * 600)
    client.enqueue("k", {}, delay=3600)
    forwarder = Forwarder([queue], 0.1)
    time.sleep(0.01)
    moved, waits = 0, []
    for _ in range(4):
        done = once(runner, forwarder)
        moved += done.counts["forwarded"]
        waits.append(done.next_in_s)
    assert moved == 600
    assert waits == [0.0, 0.0, None, None], "None: after the interval"
    client.enqueue("k", {}, delay=0.05)
    (wait,) = [once(runner, forwarder).next_in_s]
    assert wait is not None
    assert 0 < wait <= 0.05


def test_the_janitor_deletes_until_the_limits_are_met(
    runner: SyncRunner, redis: redis_py.Redis, queue: QueueKeys
) -> None:
    now = time.time()
    for number in range(1200):
        redis.hset(queue.task(f"a{number}"), mapping={"msg": "x", "state": 5})
    redis.zadd(queue.archived, {f"a{number}": now - number for number in range(1200)})
    limits = JanitorConfig(interval="1m", archived_retention="10m", max_archived=100, max_completed=0)
    done = once(runner, Janitor([queue], limits))
    assert redis.zcard(queue.archived) == 100
    assert sum(done.counts.values()) == 1100
    assert done.counts["expired"] >= 600
    assert redis.exists(*(queue.task(f"a{number}") for number in range(1200))) == 100


# -- groundwork -----------------------------------------------------------------------------------------


def test_groups_and_queue_names_are_made_and_made_again(
    runner: SyncRunner, redis: redis_py.Redis, ns: Namespace, clock: Clock
) -> None:
    queues = [ns.queue("a"), ns.queue("b")]
    ground = Groundwork(ns, queues, Grace(30.0), clock)
    assert not ground.is_laid
    assert once(runner, ground).counts == {"groups_created": 2}
    assert ground.is_laid
    assert redis.smembers(ns.queues) == {b"a", b"b"}
    redis.delete(queues[1].stream)
    assert once(runner, ground).counts == {"groups_created": 1}
    (group,) = redis.xinfo_groups(queues[1].stream)
    assert group["last-delivered-id"] == b"0-0", "what was added meanwhile is delivered"


def test_one_queue_whose_key_is_of_another_type_does_not_hold_up_the_others(
    runner: SyncRunner, redis: redis_py.Redis, ns: Namespace, clock: Clock
) -> None:
    good, bad = ns.queue("good"), ns.queue("bad")
    redis.set(bad.stream, "not a stream")
    ground = Groundwork(ns, [bad, good], Grace(30.0), clock)
    done = once(runner, ground)
    assert set(done.errors) == {"bad"}
    assert redis.xinfo_groups(good.stream)
    assert ground.is_laid, "one queue is enough to start"
    redis.delete(ns.queues)
    redis.set(ns.queues, "no set")
    done = once(runner, ground)
    assert set(done.errors) == {"", "bad"}
    assert ground.refusal == "", "a key of the wrong type is no refusal of all writes"


def test_a_user_that_may_write_nothing_is_refused_until_it_may(
    fresh_server: EmbeddedServer, ns: Namespace, clock: Clock
) -> None:
    with connect(fresh_server.url) as redis, contextlib.closing(SyncRunner(fresh_server.url)) as runner:
        ground = Groundwork(ns, [ns.queue("a"), ns.queue("b")], Grace(30.0), clock)
        redis.execute_command("ACL", "SETUSER", "default", "-sadd")
        once(runner, ground)
        assert ground.refusal == "", "the queues can be worked on"
        redis.execute_command("ACL", "SETUSER", "default", "-@write")
        once(runner, ground)
        assert ground.refusal.startswith("NOPERM ")
        redis.execute_command("ACL", "SETUSER", "default", "+@write")
        assert not once(runner, ground).errors
        assert ground.refusal == ""


@pytest.mark.parametrize(("drift", "is_over"), [(0.0, True), (40.0, False), (-40.0, False)])
def test_a_jump_of_the_servers_clock_begins_a_grace(
    runner: SyncRunner, ns: Namespace, clock: Clock, drift: float, is_over: bool
) -> None:
    # Seen from the other side: the test moves its own clock, and the server's stays.
    grace = Grace(30.0)
    ground = Groundwork(ns, [ns.queue("a")], grace, clock)
    ground.is_connection_new = False
    once(runner, ground)
    clock.now += drift
    once(runner, ground)
    assert grace.is_over(clock.now) is is_over


def test_slots_of_every_state_are_renewed(
    runner: SyncRunner, redis: redis_py.Redis, ns: Namespace, queue: QueueKeys, client: Client, worker: Worker
) -> None:
    client.enqueue_many([("k", {})] * 4)
    changes: list[Callable[[int], None]] = [
        lambda index: None,
        lambda index: worker.board.start(index, 1, 0),
        worker.board.succeed,
        worker.board.finish,
    ]
    for index, entry in enumerate(deliver(redis, queue, count=4)):
        worker.board.claim(index, entry, 0, 1)
        changes[index](index)
    assert {slot.state for slot in worker.board.read()} == set(SlotState) - {SlotState.FREE}
    assert once(runner, Lease(ns, lambda: [worker], 10.0, Grace(30.0))).counts["leases_renewed"] == 4
