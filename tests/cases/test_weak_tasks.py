"""Weak spots of chronos-go that concern one task and its id: 3, 26, 27."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chronosd import Client, Inspector, TaskIdConflict
from chronosd.broker import consume
from chronosd.broker.consume import Again
from chronosd.states import State
from tests.support.bench import Bench


@pytest.fixture
def client(bench: Bench, bench_url: str) -> Iterator[Client]:
    with Client(bench_url, namespace=bench.namespace.prefix) as one:
        yield one


def test_weak_3_an_id_that_runs_is_refused_and_a_later_task_of_it_is_whole(
    bench: Bench, client: Client
) -> None:
    """A second task of the same id was stored over the running one; the end of the first deleted both."""
    run = bench.take("mine")
    before = bench.look()
    with pytest.raises(TaskIdConflict, match="mine"):
        client.enqueue("mail:send", {"n": 2}, queue="q", task_id="mine")
    assert bench.look() == before
    assert bench.done(run) == []
    client.enqueue("mail:send", {"n": 2}, queue="q", task_id="mine")
    assert bench.done(run) == [run.entry], "the end of the first, once more and late"
    found = bench.look()
    found.check()
    assert found.waiting == ["mine"]
    assert bench.stored("mine").payload == b'{"n":2}'


def test_weak_26_no_wait_ends_before_its_time(bench: Bench, client: Client) -> None:
    """Instants were cut to whole seconds: 2.6 seconds were 2.0."""
    (seconds, micros) = bench.redis.time()  # type: ignore[misc]
    now = seconds + micros / 1e6
    run = bench.take("a")
    bench.run(consume.retry(bench.queue, [Again(run.entry, "a", bench.message("a", retried=1), 2.6)]))
    later = client.enqueue("k", queue="q", delay=2.6).id
    found = bench.look()
    assert found.sets[State.RETRY]["a"] - now >= 2.6
    assert found.sets[State.SCHEDULED][later] - now >= 2.6
    for state in (State.RETRY, State.SCHEDULED):
        forwarded = bench.forward(state)
        assert forwarded.moved == 0
        assert forwarded.next_due_s == pytest.approx(2.6, abs=0.5)


def test_weak_27_a_task_is_shown_in_the_state_it_is_in_and_listed_there(bench: Bench, bench_url: str) -> None:
    """The state inside the message was shown, which is that of its last writing; what waited or ran could not
    be listed at all."""
    run = bench.take("a")
    bench.run(consume.retry(bench.queue, [Again(run.entry, "a", bench.message("a", retried=1), 0.001)]))
    with Inspector(bench_url, namespace=bench.namespace.prefix) as inspector:

        def shown() -> list[State | None]:
            listed = [s for s in State if [t.id for t in inspector.list_tasks("q", s).tasks] == ["a"]]
            return [inspector.show_task("q", "a").state, *listed]

        assert shown() == [State.RETRY, State.RETRY]
        bench.redis.zadd(bench.queue.retry, {"a": 1})
        bench.forward(State.RETRY)
        assert b'"state":4' in bench.redis.hget(bench.queue.task("a"), "msg"), "as it was written"
        assert shown() == [State.PENDING, State.PENDING]
        bench.fetch("c2")
        assert shown() == [State.ACTIVE, State.ACTIVE]
        (task,) = inspector.list_tasks("q", "active").tasks
        assert (task.consumer, task.kind, task.retried) == ("c2", "mail:send", 1)
