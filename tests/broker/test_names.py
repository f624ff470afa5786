"""Which task an entry is, looked up for a report."""

from __future__ import annotations

import pytest

from chronosd.broker import consume, inspect
from chronosd.errors import BrokerError
from chronosd.supervisor.names import Names
from tests.support.bench import Bench


def test_what_was_asked_for_is_known_after_a_pass_and_nothing_else(bench: Bench) -> None:
    run = bench.take("a", kind="mail:send")
    names = Names(bench.namespace)
    woken: list[bool] = []
    names.on_asked = lambda: woken.append(True)
    entry, missing = ("q", run.entry.decode()), ("q", "1-1")
    names.ask([entry, missing])
    assert woken
    assert names.of(entry) is None
    bench.runner.drive(names.run_once())
    assert names.of(entry) == ("a", "mail:send")
    assert names.of(missing) is None
    assert names.describe([entry, missing]) == ["q 1-1", "mail:send a"]
    woken.clear()
    names.ask([entry])
    assert not woken, "it is known already"
    assert bench.runner.drive(names.run_once()).errors == {}


def test_a_message_that_cannot_be_read_has_an_id_all_the_same(bench: Bench) -> None:
    run = bench.take("a")
    bench.redis.hset(bench.queue.task("a"), "msg", b"{")
    names = Names(bench.namespace)
    names.ask([("q", run.entry.decode())])
    bench.runner.drive(names.run_once())
    assert names.describe([("q", run.entry.decode())]) == ["a"]


def test_a_queue_that_cannot_be_asked_is_told_and_hinders_no_other(bench: Bench, other: Bench) -> None:
    run = bench.take("a")
    other.redis.set(other.queue.stream, "no stream")
    names = Names(bench.namespace)
    names.ask([("q", run.entry.decode()), ("other", "1-1")])
    done = bench.runner.drive(names.run_once())
    assert isinstance(done.errors["other"], BrokerError)
    assert names.of(("q", run.entry.decode())) == ("a", "mail:send")


@pytest.mark.parametrize("count", [1500])
def test_what_it_keeps_is_bounded(bench: Bench, count: int) -> None:
    names = Names(bench.namespace)
    names._known = {("q", f"{i}-0"): ("id", "kind") for i in range(count)}
    bench.runner.drive(names.run_once())
    assert len(names._known) == 1000


def test_a_report_is_kept_with_the_task_while_its_run_owns_it(bench: Bench) -> None:
    bench.group()
    bench.add("running", "over")
    running, over = bench.fetch()
    names = Names(bench.namespace)
    entries = [("q", run.entry.decode()) for run in (running, over)]
    names.ask(entries)
    bench.runner.drive(names.run_once())
    bench.run(consume.release(bench.queue, [(over.entry, "over")]))
    for entry in (*entries, ("q", "9-9")):
        names.note_blocked(entry, {"at": 1.5, "seconds": 6.0, "worker": "w", "stack": "in block"})
    bench.runner.drive(names.run_once())
    found = bench.run(inspect.show_task(bench.queue, "running"))
    assert found is not None
    assert found.blocked == {"at": 1.5, "seconds": 6.0, "worker": "w", "stack": "in block"}
    assert "blocked" not in bench.hash("over")
    bench.look().check()


@pytest.mark.parametrize("stored", [b"{", b"[]", b"7", b"\xff"])
def test_a_broken_report_is_none(bench: Bench, stored: bytes) -> None:
    bench.take("a")
    bench.redis.hset(bench.queue.task("a"), "blocked", stored)
    found = bench.run(inspect.show_task(bench.queue, "a"))
    assert found is not None
    assert found.blocked == {}
