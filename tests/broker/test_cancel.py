"""Cancelling: what waits is taken away, what runs is marked, and no way leads back to another run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chronosd import Group
from chronosd.broker import consume, settle
from chronosd.broker.cancel import FIRST, Cancellation, Mark, cancelled, mark
from chronosd.broker.cancelling import cancel_task
from chronosd.broker.commands import BATCH
from chronosd.broker.consume import Again, Done, Fetched
from chronosd.broker.fates import Death, Fate, Policy
from chronosd.broker.message import decode
from chronosd.broker.recover import recover
from chronosd.broker.workflow import HELD_S
from chronosd.states import State
from tests.support.bench import Bench
from tests.support.flow import Flow, chain_of, group_of

POLICY = Policy(3, lambda kind, retried: 60.0)
DEATH = Death("worker killed by signal 9", "c1")


def cancels(bench: Bench, task_id: str = "a", *, force: bool = False) -> Cancellation:
    return bench.runner.drive(cancel_task(bench.namespace, bench.queue, task_id, force=force))


def marks(bench: Bench) -> list[Mark]:
    found = bench.run(cancelled(bench.queue))
    assert found.cursor == FIRST, "few fit on one page"
    return found.marks


def lock(bench: Bench, task_id: str = "a") -> str:
    key = bench.queue.unique("mail:send", "0" * 64)
    bench.redis.set(key, task_id, px=60_000)
    return key


@pytest.mark.parametrize("delay_ms", [0, 60_000])
def test_a_task_that_waits_is_deleted_and_its_lock_released(bench: Bench, delay_ms: int) -> None:
    bench.group()
    key = lock(bench)
    bench.add("a", delay_ms=delay_ms, unique_key=key)
    bench.add("b")
    assert cancels(bench) is Cancellation.REMOVED
    assert bench.hash("a") == {}
    assert not bench.redis.exists(key)
    assert [run.task_id for run in bench.fetch()] == ["b"]
    assert cancels(bench) is Cancellation.ABSENT
    bench.look().check()


def test_a_task_that_waits_for_its_next_attempt_is_deleted(bench: Bench) -> None:
    run = bench.take("a")
    bench.run(consume.retry(bench.queue, [Again(run.entry, "a", bench.message("a"), 60)]))
    assert cancels(bench) is Cancellation.REMOVED
    assert bench.look().places("a") == []
    assert bench.hash("a") == {}


def test_the_entry_of_one_that_waits_far_behind_is_left_for_a_fetch_to_drop(bench: Bench) -> None:
    bench.group()
    bench.add(*(f"t{i}" for i in range(1200)))
    assert cancels(bench, "t1199") is Cancellation.REMOVED
    for _ in range(3):
        delivery = bench.deliver(count=500)
        bench.done(*delivery.tasks)
    assert delivery.gone == ["t1199"]


@pytest.mark.parametrize("state", ["completed", "archived"])
def test_what_has_ended_is_left_alone(bench: Bench, state: str) -> None:
    run = bench.take("a", retention=60)
    if state == "completed":
        bench.run(consume.retain(bench.queue, [consume.Kept(run.entry, bench.message("a", retention=60))]))
    else:
        bench.run(consume.archive(bench.queue, [consume.Dead(run.entry, "a", bench.message("a"))]))
    before = bench.hash("a")
    assert cancels(bench) is Cancellation.ENDED
    assert bench.hash("a") == before


def test_a_run_of_chronos_go_cannot_be_cancelled(bench: Bench) -> None:
    bench.add("a")
    bench.group()
    bench.block("go")
    bench.redis.hset(bench.queue.task("a"), "state", 2)
    before = bench.hash("a")
    assert cancels(bench) is Cancellation.FOREIGN
    assert bench.hash("a") == before


def test_a_mark_names_the_run_and_is_forgotten_with_it(bench: Bench) -> None:
    run = bench.take("a")
    entry = run.entry.decode()
    assert marks(bench) == []
    assert cancels(bench) is Cancellation.MARKED
    assert cancels(bench) is Cancellation.MARKED
    assert marks(bench) == [Mark(entry, "c1", False, "a")]
    assert cancels(bench, force=True) is Cancellation.MARKED
    assert marks(bench) == [Mark(entry, "c1", True, "a")]
    assert bench.hash("a")["cancel"] == entry
    bench.run(consume.complete(bench.queue, [Done(run.entry, "a")]))
    assert marks(bench) == []
    assert not bench.redis.exists(bench.queue.cancelled)


def test_marks_of_many_are_told_page_by_page_and_none_is_missed_for_what_ends_meanwhile(bench: Bench) -> None:
    bench.group()
    bench.add(*(f"t{i}" for i in range(1500)))
    runs = [run for _ in range(3) for run in bench.fetch(count=500)]
    found = bench.runner.run_many([mark(bench.queue, run.task_id) for run in runs])
    assert set(found) == {Cancellation.MARKED}
    seen: list[str] = []
    cursor, pages = FIRST, 0
    while not pages or cursor != FIRST:
        page = bench.run(cancelled(bench.queue, cursor))
        assert len(page.marks) <= 2 * BATCH
        seen += [one.task_id for one in page.marks]
        if not pages:
            bench.done(*runs[:700])
        cursor, pages = page.cursor, pages + 1
    assert pages > 1
    assert {run.task_id for run in runs[700:]} <= set(seen)
    left = bench.redis.zcard(bench.queue.cancelled)
    assert 800 <= left < 1500, "those that had ended are forgotten"


Ends = Callable[[Bench, Any], None]


def fails(bench: Bench, run: Any) -> None:
    assert bench.run(consume.retry(bench.queue, [Again(run.entry, "a", bench.message("a"), 60)])) == []


def fails_at_once(bench: Bench, run: Any) -> None:
    assert bench.run(consume.retry(bench.queue, [Again(run.entry, "a", bench.message("a"), 0)])) == []


def is_handed_back(bench: Bench, run: Any) -> None:
    assert bench.run(consume.release(bench.queue, [(run.entry, "a")])) == []


def dies_running(bench: Bench, run: Any) -> None:
    settled(bench, {("q", run.entry.decode()): Fate.CHARGE})


def dies_unstarted(bench: Bench, run: Any) -> None:
    settled(bench, {})


def is_stopped(bench: Bench, run: Any) -> None:
    settled(bench, {("q", run.entry.decode()): Fate.RESTORE})


def is_lost(bench: Bench, run: Any) -> None:
    bench.run(consume.mark_running(bench.queue, [(run.entry, "a")]))
    found = bench.runner.drive(recover(bench.queue, "rec", 0, "0-0", {}, POLICY))
    assert found.settled.archived + found.settled.discarded == 1


def settled(bench: Bench, fates: dict[tuple[str, str], Fate]) -> None:
    found = bench.runner.drive(settle.settle({"q": bench.queue}, "c1", fates, Fate.RETURN, DEATH, POLICY))
    assert (found.archived + found.discarded, found.retried, found.returned) == (1, 0, 0)


every_end = pytest.mark.parametrize(
    "end",
    [fails, fails_at_once, is_handed_back, dies_running, dies_unstarted, is_stopped, is_lost],
    ids=lambda end: end.__name__,
)


@every_end
def test_a_cancelled_run_is_the_last_one_whatever_ends_it(bench: Bench, end: Ends) -> None:
    key = lock(bench)
    run = bench.take("a", unique_key=key)
    cancels(bench)
    end(bench, run)
    assert bench.look().places("a") == [State.ARCHIVED]
    stored = bench.hash("a")
    assert "cancelled" in (stored.get("error"), bench.stored("a").last_err)
    assert not bench.redis.exists(key)
    assert bench.fetch() == []
    assert marks(bench) == []
    bench.look().check()


@pytest.mark.parametrize("how", ["retry", "release"])
def test_who_would_have_a_task_run_again_is_told_that_it_was_cancelled(bench: Bench, how: str) -> None:
    bench.group()
    bench.add("a", "b", "c")
    runs = bench.fetch()
    cancels(bench, "b")
    bench.done(runs[2])
    if how == "retry":
        again = [Again(run.entry, run.task_id, bench.message(run.task_id), 60) for run in runs]
        found = bench.run(consume.retry(bench.queue, again))
    else:
        found = bench.run(consume.release(bench.queue, [(run.entry, run.task_id) for run in runs]))
    assert (found, found.cancelled) == ([runs[2].entry], (runs[1].entry,))


@every_end
def test_one_that_asked_for_no_dead_letter_is_gone(bench: Bench, end: Ends) -> None:
    run = bench.take("a", no_archive=True)
    cancels(bench)
    end(bench, run)
    assert bench.hash("a") == {}
    bench.look().check()


@every_end
def test_a_mark_of_an_earlier_run_is_none(bench: Bench, end: Ends) -> None:
    """An operator runs the task again, or chronos-go stores another under its id: the mark stays."""
    run = bench.take("a")
    cancels(bench)
    bench.redis.hset(bench.queue.task("a"), "cancel", "1-1")
    if end is is_lost:
        bench.run(consume.mark_running(bench.queue, [(run.entry, "a")]))
        assert bench.runner.drive(recover(bench.queue, "rec", 0, "0-0", {}, POLICY)).settled.retried == 1
    elif end in (fails, fails_at_once, is_handed_back):
        end(bench, run)
    else:
        fate = Fate.CHARGE if end is dies_running else Fate.RETURN
        fates = {("q", run.entry.decode()): fate}
        bench.runner.drive(settle.settle({"q": bench.queue}, "c1", fates, Fate.RETURN, DEATH, POLICY))
    assert State.ARCHIVED not in bench.look().places("a")
    assert "error" not in bench.hash("a")


def test_a_success_before_the_worker_was_told_stands(bench: Bench) -> None:
    run = bench.take("a")
    cancels(bench)
    found = bench.runner.drive(
        settle.settle(
            {"q": bench.queue},
            "c1",
            {("q", run.entry.decode()): Fate.ACKNOWLEDGE},
            Fate.RETURN,
            DEATH,
            POLICY,
        )
    )
    assert found.acknowledged == 1
    assert bench.hash("a") == {}


def test_a_cancelled_task_is_not_lost_where_the_dead_letters_are_no_set(bench: Bench) -> None:
    run = bench.take("a")
    cancels(bench)
    bench.redis.set(bench.queue.archived, "x")
    is_handed_back(bench, run)
    assert [again.task_id for again in bench.fetch()] == ["a"]


def test_a_member_that_waits_takes_its_group_with_it(flow: Flow) -> None:
    """Its callback would wait for it until the set expires, and nobody would be told."""
    group_id = flow.group(group_of(2))
    queue = flow.queue("default")
    first = f"{group_id}:m0"
    assert flow.runner.drive(cancel_task(flow.namespace, queue, first)) is Cancellation.REMOVED
    assert flow.state(first) is None
    assert flow.state(f"{group_id}:cb", "cbq") is State.ARCHIVED
    callback = flow.message(f"{group_id}:cb", "cbq")
    assert callback is not None
    assert callback.last_err == f"group member {first} was cancelled"


def is_released(flow: Flow, run: Fetched) -> None:
    assert flow.run(consume.release(flow.queue("default"), [(run.entry, run.task_id)])) == []


def is_retried(flow: Flow, run: Fetched) -> None:
    again = Again(run.entry, run.task_id, decode(run.msg or b""), 60)
    assert flow.run(consume.retry(flow.queue("default"), [again])) == []


@pytest.mark.parametrize("end", [is_released, is_retried], ids=lambda end: end.__name__)
@pytest.mark.parametrize("blank", [b"", b" "], ids=["as everybody writes", "with blanks"])
@pytest.mark.parametrize("queue", ["cbq", "<über>&co"])
def test_the_group_of_a_cancelled_member_waits_as_it_does_for_any_dead_letter(
    flow: Flow, end: Callable[[Flow, Fetched], None], blank: bytes, queue: str
) -> None:
    """It kept its seven days: run again later, and successful, the member told nobody."""
    group = Group().add("group_id", {"group_id": 1}).add_chain(chain_of(2)).add("member", {})
    group_id = flow.group(group.on_complete("merge", {}, queue=queue))
    *cancelled_ones, last = flow.fetch(count=3)
    flow.succeed(last, b"1")
    keys = (flow.queue(queue).group(group_id), flow.queue(queue).group_results(group_id))
    for run in cancelled_ones:
        for key in keys:
            flow.redis.expire(key, 5)
        msg = (run.msg or b"").replace(b'":', b'"%s:%s' % (blank, blank))
        flow.redis.hset(flow.queue("default").task(run.task_id), "msg", msg)
        marked = flow.runner.drive(cancel_task(flow.namespace, flow.queue("default"), run.task_id))
        assert marked is Cancellation.MARKED
        end(flow, run)
        assert flow.state(run.task_id) is State.ARCHIVED
        for key in keys:
            assert flow.redis.ttl(key) == pytest.approx(HELD_S, abs=20)


@pytest.mark.parametrize(
    "fields",
    [
        b'"group_id":"x","group_queue":"q}:t:b"',
        b'"group_id":"","group_queue":"q"',
        b'"last_err":"\\"group_id\\":\\"y\\"","group_queue":"q"',
        b'"kind":"group_id","queue":"y","group_queue":"q"',
    ],
)
def test_what_is_no_group_of_a_cancelled_task_is_left_alone(bench: Bench, fields: bytes) -> None:
    run = bench.take("a")
    bystander = bench.queue.task("b}:group:x")
    bench.redis.hset(bystander, "msg", "{}")
    others = (bench.queue.group(""), bench.queue.group("y"))
    for key in others:
        bench.redis.set(key, "", ex=60)
    bench.redis.hset(bench.queue.task("a"), "msg", b"{%s}" % fields)
    cancels(bench)
    is_handed_back(bench, run)
    assert bench.look().places("a") == [State.ARCHIVED]
    assert bench.redis.ttl(bystander) == -1
    assert all(bench.redis.ttl(key) <= 60 for key in others)


def test_a_member_that_runs_parks_its_group_until_it_is_run_again(flow: Flow) -> None:
    group_id = flow.group(group_of(2))
    queue = flow.queue("default")
    first, second = flow.fetch(count=2)
    assert flow.runner.drive(cancel_task(flow.namespace, queue, first.task_id)) is Cancellation.MARKED
    flow.run(consume.release(queue, [(first.entry, first.task_id)]))
    flow.succeed(second, b"2")
    assert flow.state(first.task_id) is State.ARCHIVED
    assert flow.state(f"{group_id}:cb", "cbq") is None
    flow.revive(first.task_id)
    flow.finish(first.task_id, b"1")
    assert flow.state(f"{group_id}:cb", "cbq") is State.PENDING
