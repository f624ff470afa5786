"""Cases of group B: recovery, and what runs twice because of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from chronosd import Client
from chronosd.broker import consume, settle
from chronosd.broker.commands import Steps
from chronosd.broker.consume import Fetched, Kept
from chronosd.broker.keys import GROUP
from chronosd.broker.recover import Recovered, recover
from chronosd.broker.settle import Death, Fate, Policy
from chronosd.states import State
from tests.support.bench import Bench
from tests.support.daemon import Daemon
from tests.support.queue_view import QueueView
from tests.support.waiting import wait_until

MakeDaemon = Callable[..., Daemon]
LEASES = {"recover_min_idle": "1s", "heartbeat_interval": "300ms", "recover_interval": "300ms"}
POLICY = Policy(max_crashes=3, backoff=lambda kind, retried: 0.0)


def taking_over(bench: Bench, recoverer: str, min_idle_s: float = 30) -> Steps[Recovered]:
    return recover(bench.queue, recoverer, min_idle_s, "0-0", {}, POLICY)


def abandon(bench: Bench, run: Fetched, consumer: str) -> None:
    """Nobody has renewed its lease for an hour."""
    bench.redis.xclaim(bench.queue.stream, GROUP, consumer, 0, [run.entry], idle=3_600_000, justid=True)


def test_b12_b18_a_slow_handler_runs_once_however_many_leases_it_takes_and_is_delivered_once(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    """By idle time alone a slow task looks like an abandoned one: a second copy was started every lease. And
    renewal by claiming counted as delivery, so that slow tasks were archived as poison."""
    both = [daemon(workers=workers, concurrency=4, **LEASES).start() for workers in (1, 4)]
    ids = Counter(info.id for info in client.enqueue_many([("count", {"sleep": 3.0})] * 4))
    starts: Callable[[], Counter[str]] = lambda: sum((one.ledger.starts() for one in both), Counter())  # noqa: E731
    ends: Callable[[], Counter[str]] = lambda: sum((one.ledger.ends() for one in both), Counter())  # noqa: E731
    wait_until(lambda: len(starts()) == 4, what="four running tasks")
    deliveries: Counter[str] = Counter()
    while len(ends()) < 4:
        for found in queue.redis.xpending_range(queue.keys.stream, GROUP, "-", "+", 10):
            deliveries[found["message_id"]] = max(deliveries[found["message_id"]], found["times_delivered"])
    assert starts() == ids
    assert sorted(deliveries.values()) == [1] * 4
    assert [one.stop() for one in both] == [0, 0]


def test_b15_a_recoverer_that_died_with_what_it_had_claimed_is_recovered_from_itself(bench: Bench) -> None:
    """A reclaim lock without an end: killed while it held it, a recoverer disabled recovery for ever. Here
    what it claims is pending for it like for anybody, and ages: there is no lock to leave behind."""
    run = bench.take("a")
    bench.run(consume.mark_running(bench.queue, [(run.entry, "a")]))
    abandon(bench, run, "c1")
    first = taking_over(bench, "first")
    bench.runner.run_many(next(first))  # it has claimed, and dies before it has moved anything
    assert bench.look().active == {"a": "first"}
    abandon(bench, run, "first")
    found = bench.runner.drive(taking_over(bench, "second"))
    assert found.settled.retried == 1
    look = bench.look()
    look.check()
    assert look.waiting == ["a"]


def test_b18_each_loss_is_one_crash_and_the_last_one_allowed_archives(bench: Bench) -> None:
    """Recovery that did not count: a task that kills its host was recovered for ever, from host to host."""
    bench.group()
    bench.add("a")
    for loss in (1, 2, 3):
        (run,) = bench.fetch(f"c{loss}")
        assert run.crashes == loss - 1
        bench.run(consume.mark_running(bench.queue, [(run.entry, "a")]))
        abandon(bench, run, f"c{loss}")
        bench.runner.drive(taking_over(bench, "rec"))
        if loss < 3:
            bench.forward(State.RETRY)
    look = bench.look()
    look.check()
    assert look.places("a") == [State.ARCHIVED]
    assert bench.hash("a")["crashes"] == "3"
    assert "max_crashes" in bench.stored("a").last_err


@pytest.mark.parametrize("meanwhile", ["finished", "claimed again"])
def test_b22_recovery_acts_on_what_is_and_not_on_what_it_had_seen(bench: Bench, meanwhile: str) -> None:
    """The rescuer looked, was slow, and put a task back that had finished in between, or that somebody else
    had rescued and was running."""
    run = bench.take("a")
    abandon(bench, run, "c1")
    steps = taking_over(bench, "slow")
    look_command = steps.send(bench.runner.run_many(next(steps)))
    move = steps.send(bench.runner.run_many(look_command))
    if meanwhile == "finished":
        assert bench.done(run) == []  # the owner was only late
    else:
        abandon(bench, run, "slow")
        bench.runner.drive(taking_over(bench, "fast"))
        (anew,) = bench.fetch("c2")
    before = bench.look()
    with pytest.raises(StopIteration) as end:
        steps.send(bench.runner.run_many(move))
    assert end.value.value.settled.lost == 1
    after = bench.look()
    assert after == before
    if meanwhile == "claimed again":
        assert after.active == {"a": "c2"}
        assert bench.done(anew) == []


@pytest.mark.parametrize("fate", [Fate.CHARGE, Fate.RETURN, Fate.ACKNOWLEDGE])
def test_b25_no_later_settlement_turns_a_success_into_anything_else(bench: Bench, fate: Fate) -> None:
    """The worker died after its acknowledgement, with a record left that the task was running: the clean-up
    found it and made a failure of the success."""
    run = bench.take("a", retention=3600)
    message = bench.message("a", retention=3600, completed_at=1, result=b"42")
    assert bench.run(consume.retain(bench.queue, [Kept(run.entry, message)])) == []
    before = bench.look()
    assert before.places("a") == [State.COMPLETED]
    fates = {("q", run.entry.decode()): fate}
    for _ in range(2):
        steps = settle.settle({"q": bench.queue}, "c1", fates, fate, Death("killed", "c1"), POLICY)
        assert bench.runner.drive(steps).total == 0
    bench.runner.drive(taking_over(bench, "rec", min_idle_s=0))
    assert bench.look() == before
