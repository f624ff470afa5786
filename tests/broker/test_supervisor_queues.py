"""What the supervisor asks of Redis about paused and limited queues, and tells the workers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis as redis_py

from chronosd import Client
from chronosd.board import Board, Cell
from chronosd.broker.cancel import Cancellation, mark
from chronosd.broker.consume import create_group, fetch
from chronosd.broker.keys import GROUP, Namespace
from chronosd.broker.limit import Limit
from chronosd.broker.runner import SyncRunner
from chronosd.config.load import parse
from chronosd.errors import Trouble
from chronosd.link import Link, WorkerSpec
from chronosd.supervisor.burst import Burst
from chronosd.supervisor.cancels import Cancels
from chronosd.supervisor.limits import Limits
from chronosd.supervisor.pauses import Pauses
from chronosd.supervisor.process import Child
from chronosd.supervisor.stacks import Stacks
from chronosd.supervisor.steps import Done, Work
from chronosd.supervisor.worker import Phase, Worker

CONFIG = "queues: [default]\nhandlers: {k: tests.support.jobs:noop}\n"


@pytest.fixture
def client(redis_url: str, namespace: str) -> Client:
    return Client(redis_url, namespace=namespace)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Callable[[], Worker]]:
    """Makes the supervisor's side of workers; the process behind each is this one."""
    made: list[Worker] = []

    def make() -> Worker:
        config = parse(CONFIG, source="chronos.yaml", base=tmp_path)
        board = Board.create(tmp_path / f"board{len(made)}", 8, consumer="w", queues=("default",))
        board.cells[Cell.LOOP_BEAT] = time.monotonic_ns()
        ours, theirs = Link.pair()
        spec = WorkerSpec(len(made), 1, "w", config, board, theirs, "")
        one = Worker(
            spec, Child(os.getpid(), -1), ours, Stacks.create("test"), started_at=0.0, phase=Phase.RUNNING
        )
        made.append(one)
        return one

    yield make
    for one in made:
        one.abandon()
        one.spec.link.close()


def once(runner: SyncRunner, work: Work) -> Done:
    return runner.drive(work.run_once())


# -- pauses -------------------------------------------------------------------------------------------


def test_a_pause_and_its_end_are_told_once_and_only_of_the_queues_that_are_served(
    runner: SyncRunner, redis: redis_py.Redis, ns: Namespace
) -> None:
    told: list[frozenset[str]] = []
    pauses = Pauses(ns, ["mail", "low"], told.append)
    assert not pauses.known
    once(runner, pauses)
    assert pauses.known == {"mail", "low"}
    redis.sadd(ns.paused, "mail", "of somebody else")
    once(runner, pauses)
    once(runner, pauses)
    assert pauses.paused == {"mail"}
    redis.srem(ns.paused, "mail")
    once(runner, pauses)
    assert told == [{"mail"}, set()]
    assert pauses.interval_s <= 0.5, "with all that comes on top it is to hold within a second"


def test_what_was_known_stays_so_while_redis_is_away_or_refuses(
    runner: SyncRunner, redis: redis_py.Redis, ns: Namespace
) -> None:
    told: list[frozenset[str]] = []
    pauses = Pauses(ns, ["mail"], told.append)
    redis.sadd(ns.paused, "mail")
    once(runner, pauses)
    redis.delete(ns.paused)
    redis.set(ns.paused, "no set")
    done = once(runner, pauses)
    assert [error.trouble for error in done.errors.values()] == [Trouble.OPERATOR]
    assert pauses.paused == {"mail"}
    assert told == [{"mail"}]


def test_a_key_of_the_wrong_type_does_not_keep_the_daemon_from_starting(
    runner: SyncRunner, redis: redis_py.Redis, ns: Namespace
) -> None:
    redis.set(ns.paused, "no set")
    pauses = Pauses(ns, ["mail"], lambda paused: None)
    assert once(runner, pauses).errors
    assert pauses.known == {"mail"}


def test_a_queue_of_the_next_configuration_is_not_known_before_it_was_asked_about(
    runner: SyncRunner, ns: Namespace
) -> None:
    pauses = Pauses(ns, ["mail"], lambda paused: None)
    once(runner, pauses)
    pauses.look_after(["mail", "new"])
    assert pauses.known == {"mail"}
    once(runner, pauses)
    assert pauses.known == {"mail", "new"}


def test_a_burst_does_not_wait_for_what_is_paused(runner: SyncRunner, ns: Namespace, client: Client) -> None:
    paused: set[str] = set()
    burst = Burst([ns.queue("mail"), ns.queue("low")], lambda: frozenset(paused))
    client.enqueue("k", {}, queue="mail")
    for _ in range(2):
        once(runner, burst)
    assert not burst.is_drained
    paused.add("mail")
    for _ in range(2):
        once(runner, burst)
    assert burst.is_drained
    paused.add("low")
    once(runner, burst)
    assert burst.is_drained


# -- cancellations ------------------------------------------------------------------------------------


def test_the_newest_cancellation_is_told_however_many_earlier_ones_go_on(
    runner: SyncRunner, redis: redis_py.Redis, ns: Namespace, client: Client, worker: Callable[[], Worker]
) -> None:
    """Marks were read oldest first, up to 500 of them: a few hundred sync tasks that nothing but time could
    end hid each later one until enough of them had ended."""
    one, queue = worker(), ns.queue("default")
    runner.run(create_group(queue))
    ids = [info.id for info in client.enqueue_many([("k", {})] * 1100)]
    runs = [run for _ in range(3) for run in runner.run(fetch(queue, "w", 500)).tasks]
    assert {run.task_id for run in runs} == set(ids)
    asked = Cancels(ns, lambda: [one])
    for some in (runs[:-1], runs[-1:]):
        assert set(runner.run_many([mark(queue, run.task_id) for run in some])) == {Cancellation.MARKED}
    newest = runs[-1].entry
    one.board.claim(0, newest, 0, 1)
    one.board.start(0, 1, 0)
    assert once(runner, asked).counts == {"cancelled": 1}
    assert one.spec.link.receive() == [{"t": "cancel", "entries": [["default", newest.decode()]]}]
    assert once(runner, asked).counts == {"cancelled": 0}, "it is told once"


# -- limits -------------------------------------------------------------------------------------------


def limits(ns: Namespace, workers: list[Worker], paused: set[str] | None = None) -> Limits:
    queues = {ns.queue("ten"): Limit(max_in_flight=10), ns.queue("one"): Limit(interval_us=60e6)}
    return Limits(queues, lambda: workers, lambda: frozenset(paused or ()))


@pytest.fixture
def groups(runner: SyncRunner, ns: Namespace) -> None:
    runner.run_many([create_group(ns.queue(name)) for name in ("ten", "one")])


@pytest.mark.usefixtures("groups")
def test_every_worker_is_told_its_part_of_what_may_start(
    runner: SyncRunner, ns: Namespace, client: Client, worker: Callable[[], Worker]
) -> None:
    workers = [worker() for _ in range(3)]
    asked = limits(ns, workers)
    assert once(runner, asked).next_in_s is None, "nothing to do: the longer interval"
    client.enqueue_many([("k", {}, {"queue": "ten"})] * 100)
    client.enqueue_many([("k", {}, {"queue": "one"})] * 5)
    done = once(runner, asked)
    assert done.next_in_s is not None
    assert done.next_in_s < asked.interval_s
    for one in workers:
        assert one.spec.link.receive() == [{"t": "offer", "queues": {"ten": 4, "one": 1}}]


@pytest.mark.usefixtures("groups")
def test_a_full_queue_and_a_paused_one_are_not_offered(
    runner: SyncRunner, redis: redis_py.Redis, ns: Namespace, client: Client, worker: Callable[[], Worker]
) -> None:
    one, paused = worker(), {"one"}
    asked = limits(ns, [one], paused)
    client.enqueue_many([("k", {}, {"queue": "ten"})] * 20)
    client.enqueue("k", {}, queue="one")
    redis.xreadgroup(GROUP, "somebody", {ns.queue("ten").stream: ">"}, count=10)
    once(runner, asked)
    assert one.spec.link.receive() == []
    paused.clear()
    once(runner, asked)
    assert one.spec.link.receive() == [{"t": "offer", "queues": {"one": 1}}]


@pytest.mark.usefixtures("groups")
def test_a_worker_that_does_not_read_or_does_not_run_is_not_told(
    runner: SyncRunner, ns: Namespace, client: Client, worker: Callable[[], Worker]
) -> None:
    """Its link would fill up, and what matters (a lost lease) would find no room."""
    stuck, draining, well = worker(), worker(), worker()
    stuck.board.cells[Cell.LOOP_BEAT] = time.monotonic_ns() - 5_000_000_000
    draining.phase = Phase.STOPPING
    client.enqueue("k", {}, queue="ten")
    once(runner, limits(ns, [stuck, draining, well]))
    assert (stuck.spec.link.receive(), draining.spec.link.receive()) == ([], [])
    assert well.spec.link.receive() == [{"t": "offer", "queues": {"ten": 1}}]
    once(runner, limits(ns, [stuck]))


@pytest.mark.usefixtures("groups")
def test_a_queue_that_cannot_be_asked_does_not_hold_up_the_others(
    runner: SyncRunner, redis: redis_py.Redis, ns: Namespace, client: Client, worker: Callable[[], Worker]
) -> None:
    one = worker()
    redis.delete(ns.queue("one").stream)
    redis.set(ns.queue("one").stream, "no stream")
    client.enqueue("k", {}, queue="ten")
    once(runner, limits(ns, [one]))
    assert one.spec.link.receive() == [{"t": "offer", "queues": {"ten": 1}}]


def test_without_limits_nothing_is_asked(ns: Namespace) -> None:
    nothing = Limits({}, list, frozenset)
    with pytest.raises(StopIteration):
        next(nothing.run_once())
    assert nothing.interval_s >= 10
