"""A task's trace context stays with it whatever becomes of it, and goes on to what follows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from chronosd import Client
from chronosd.broker import consume
from chronosd.broker.consume import Again, Dead, Fetched, Kept
from chronosd.broker.enqueue import NewTask, enqueue
from chronosd.broker.follow import NextTask, Place
from chronosd.broker.message import encode
from chronosd.broker.operate import run_task
from chronosd.broker.settle import Death, Fate, Policy, settle
from chronosd.states import State
from chronosd.workflows import Chain, Group
from tests.support.bench import Bench

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACE = f"{PARENT} congo=t61rcWkgMzE"


def put(bench: Bench, task_id: str = "a", trace: str = TRACE, *, delay_ms: int = 0) -> NewTask:
    new = bench.new(task_id, delay_ms=delay_ms)._replace(trace=trace)
    bench.group()
    bench.run(enqueue(bench.queue, [new]))
    return new


@pytest.fixture
def fetched(bench: Bench) -> Fetched:
    """A running task with a trace."""
    put(bench)
    (found,) = bench.fetch()
    return found


def test_it_is_stored_beside_the_message_and_delivered_with_it(bench: Bench) -> None:
    put(bench)
    assert (bench.hash()["traceparent"], bench.hash()["tracestate"]) == tuple(TRACE.split(" "))
    put(bench, "b", PARENT)
    assert "tracestate" not in bench.hash("b")
    put(bench, "c", "")
    assert not {"traceparent", "tracestate"} & set(bench.hash("c"))
    assert {one.task_id: one.trace for one in bench.fetch()} == {"a": TRACE, "b": PARENT, "c": ""}


def test_it_waits_with_its_task(bench: Bench) -> None:
    put(bench, delay_ms=1)
    while not bench.forward().moved:
        pass
    (found,) = bench.fetch()
    assert found.trace == TRACE


def test_a_blocking_read_brings_it_too(bench: Bench) -> None:
    put(bench)
    (found,) = bench.fetch(count=0, delivered=[bench.block()])
    assert found.trace == TRACE


Move = Callable[[Bench, Fetched], object]


def retried(bench: Bench, run: Fetched) -> None:
    bench.run(consume.retry(bench.queue, [Again(run.entry, run.task_id, bench.stored(), 0.0)]))


def released(bench: Bench, run: Fetched) -> None:
    bench.run(consume.release(bench.queue, [(run.entry, run.task_id)]))


def crashed(bench: Bench, run: Fetched) -> None:
    steps = settle(
        {"q": bench.queue},
        "c1",
        {},
        Fate.CHARGE,
        Death("killed", "c1"),
        Policy(3, lambda kind, retried: 0.0),
    )
    settled = bench.runner.drive(steps)
    assert [(end.task_id, end.how, end.trace) for end in settled.ends] == [("a", "crashed", PARENT)]


def archived_and_run_again(bench: Bench, run: Fetched) -> None:
    bench.run(consume.archive(bench.queue, [Dead(run.entry, run.task_id, bench.stored())]))
    assert bench.runner.drive(run_task(bench.queue, "a")) == "moved"


@pytest.mark.parametrize("move", [retried, released, crashed, archived_and_run_again])
def test_it_is_the_same_for_every_further_run(bench: Bench, fetched: Fetched, move: Move) -> None:
    assert fetched.trace == TRACE
    move(bench, fetched)
    (again,) = bench.fetch()
    assert again.trace == TRACE


def test_it_is_kept_with_what_was_dead_lettered_or_completed(bench: Bench, fetched: Fetched) -> None:
    bench.run(consume.archive(bench.queue, [Dead(fetched.entry, "a", bench.stored())]))
    assert bench.hash()["traceparent"] == PARENT
    put(bench, "b")
    (other,) = bench.fetch()
    kept = replace(bench.stored("b"), retention=60)
    bench.run(consume.retain(bench.queue, [Kept(other.entry, kept)]))
    assert bench.hash("b")["traceparent"] == PARENT


@pytest.mark.parametrize("end", ["success", "dead letter"])
def test_what_follows_a_task_belongs_to_its_trace(bench: Bench, fetched: Fetched, end: str) -> None:
    message = bench.message("next")
    place = Place(bench.namespace, bench.queue, "next")
    follow = [NextTask(place, encode(message, State.PENDING))]
    if end == "success":
        bench.run(consume.retain(bench.queue, [Kept(fetched.entry, bench.stored(), follow)]))
    else:
        bench.run(consume.archive(bench.queue, [Dead(fetched.entry, "a", bench.stored(), follow=follow)]))
    (successor,) = bench.fetch()
    assert (successor.task_id, successor.trace) == ("next", TRACE)


def test_the_trace_of_one_task_does_not_go_on_to_the_next_in_the_same_call(bench: Bench) -> None:
    put(bench, "a")
    put(bench, "b", "")
    runs = {one.task_id: one for one in bench.fetch()}
    kept = []
    for task_id in ("a", "b"):
        place = Place(bench.namespace, bench.queue, f"after-{task_id}")
        follow = [NextTask(place, encode(bench.message(f"after-{task_id}"), State.PENDING))]
        kept.append(Kept(runs[task_id].entry, bench.stored(task_id), follow))
    bench.run(consume.retain(bench.queue, kept))
    assert {one.task_id: one.trace for one in bench.fetch()} == {"after-a": TRACE, "after-b": ""}


def test_chains_and_groups_take_the_trace_they_were_enqueued_in(bench: Bench, bench_url: str) -> None:
    from chronosd import trace

    bench.group()
    with Client(bench_url, namespace=bench.namespace.prefix) as client, trace.use(*TRACE.split(" ")):
        client.enqueue_chain(Chain().then("x", queue="q").then("y", queue="q"))
        client.enqueue_group(Group().add("x", queue="q").add("x", queue="q").on_complete("z", queue="q"))
    found = bench.fetch()
    assert [one.trace for one in found] == [TRACE] * 3


@pytest.mark.parametrize("nonsense", [b"", b" ", b"\n", b"\x00", b" 00-zz"])
@pytest.mark.parametrize("end", ["success", "dead letter"])
def test_nonsense_there_keeps_nothing_from_following(
    bench: Bench, fetched: Fetched, end: str, nonsense: bytes
) -> None:
    """The script had acknowledged the task when it failed: nobody had the task any more."""
    bench.redis.hset(bench.queue.task("a"), "traceparent", nonsense)
    follow = [
        NextTask(Place(bench.namespace, bench.queue, "next"), encode(bench.message("next"), State.PENDING))
    ]
    if end == "success":
        bench.run(consume.retain(bench.queue, [Kept(fetched.entry, bench.stored(), follow)]))
    else:
        bench.run(consume.archive(bench.queue, [Dead(fetched.entry, "a", bench.stored(), follow=follow)]))
    assert [one.task_id for one in bench.fetch()] == ["next"]


@pytest.mark.parametrize("nonsense", [b"\xff\xfe", b"00-zz", b"x" * 100_000])
def test_what_somebody_else_wrote_there_hinders_nothing(bench: Bench, nonsense: bytes) -> None:
    put(bench, trace="")
    bench.redis.hset(bench.queue.task("a"), "traceparent", nonsense)
    (found,) = bench.fetch()
    assert found.trace == ""
