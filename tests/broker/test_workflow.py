"""What follows a success (retain.lua, follow.lua): chains go on, groups count, and nothing happens twice."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest

from chronosd import Chain, Group
from chronosd.broker import consume
from chronosd.broker.consume import Fetched
from chronosd.broker.settle import Death, Fate, Policy, settle
from chronosd.states import State
from tests.support.flow import Flow, chain_of, group_of


def link(flow: Flow) -> tuple[str, Fetched]:
    chain_id = flow.chain(chain_of(2))
    return chain_id, flow.take(f"{chain_id}:0")


def member(flow: Flow) -> tuple[str, Fetched]:
    group_id = flow.group(group_of(1))
    return group_id, flow.take(f"{group_id}:m0")


def stage(flow: Flow) -> tuple[str, Fetched]:
    chain_id = flow.chain(Chain().then("step", {}).then_group(group_of(2, queue="gq")))
    return chain_id, flow.take(f"{chain_id}:0")


every_end = pytest.mark.parametrize("begin", [link, member, stage], ids=lambda begin: begin.__name__)
Begin = Callable[[Flow], tuple[str, Fetched]]


@every_end
def test_a_second_call_changes_nothing(flow: Flow, begin: Begin) -> None:
    _, run = begin(flow)
    assert flow.succeed(run, b"1") == []
    before = flow.dump()
    assert flow.succeed(run, b"1") == [run.entry]
    after = flow.dump()
    for key in before:  # its TTL runs on
        before[key].pop("pttl_ms"), after[key].pop("pttl_ms")
    assert after == before


@every_end
def test_an_owner_whose_entry_was_recovered_starts_nothing(flow: Flow, begin: Begin) -> None:
    _, run = begin(flow)
    flow.run(consume.release(flow.queue("default"), [(run.entry, run.task_id)]))
    (anew,) = flow.fetch(consumer="c2")
    before = flow.names()
    assert flow.succeed(run, b"1") == [run.entry]
    assert flow.names() == before
    assert flow.succeed(anew, b"1") == []
    assert flow.names() != before


def test_a_chain_ends_with_its_last_link_and_leaves_nothing(flow: Flow) -> None:
    chain_id = flow.chain(chain_of(3))
    for i in range(3):
        run = flow.take(f"{chain_id}:{i}")
        message = flow.message(run.task_id)
        assert message is not None
        assert message.workflow.get("prev_result") == (None if i == 0 else "MQ==")
        flow.succeed(run, b"1")
    assert not [name for name in flow.names() if ":t:" in name]


def test_results_come_in_the_order_of_the_members_whatever_the_order_of_their_ends(flow: Flow) -> None:
    group_id = flow.group(group_of(4))
    runs = {run.task_id: run for run in flow.fetch(count=4)}
    for i in (3, 0, 2, 1):
        assert flow.message(f"{group_id}:cb", "cbq") is None
        flow.succeed(runs[f"{group_id}:m{i}"], None if i == 2 else str(i).encode())
    callback = flow.message(f"{group_id}:cb", "cbq")
    assert callback is not None
    assert callback.workflow["group_results"] == ["MA==", "MQ==", None, "Mw=="]
    assert not [name for name in flow.names() if "group" in name]


def test_the_results_of_many_members_fit_into_one_callback(flow: Flow) -> None:
    group_id = flow.group(group_of(2500))
    for _ in range(5):
        runs = flow.fetch(count=500)
        kept = [flow.kept(run, run.task_id.rpartition("m")[2].encode()) for run in runs]
        assert flow.run(consume.retain(flow.queue("default"), kept)) == []
    callback = flow.message(f"{group_id}:cb", "cbq")
    assert callback is not None
    results = callback.workflow["group_results"]
    assert results == [base64.b64encode(str(i).encode()).decode() for i in range(2500)]


def test_a_member_that_runs_twice_counts_once(flow: Flow) -> None:
    """A counter went below zero and the callback ran twice, the first time before the others had ended."""
    group_id = flow.group(group_of(2))
    twice, other = sorted(flow.fetch(count=2), key=lambda run: run.task_id)
    queue = flow.queue("default")
    body = flow.redis.hgetall(queue.task(twice.task_id))
    for _ in range(3):
        flow.succeed(twice, b"1")
        assert flow.open_members(group_id, "cbq") == {other.task_id}
        assert flow.message(f"{group_id}:cb", "cbq") is None
        flow.redis.hset(queue.task(twice.task_id), mapping=body | {b"state": b"1", b"sid": b""})
        flow.redis.xadd(queue.stream, {"task_id": twice.task_id})
        twice = flow.take(twice.task_id)
    flow.succeed(other, b"2")
    flow.finish(f"{group_id}:cb", None, "cbq")
    flow.succeed(twice, b"1")
    assert flow.message(f"{group_id}:cb", "cbq") is None
    assert flow.redis.xlen(flow.queue("cbq").stream) == 0


def test_a_task_deleted_while_it_ran_tells_its_group_and_nothing_else(flow: Flow) -> None:
    group_id = flow.group(group_of(1))
    chain_id = flow.chain(chain_of(2))
    first, second = flow.fetch(count=2)
    for run in (first, second):
        flow.redis.delete(flow.queue("default").task(run.task_id))
    flow.succeed(first, b"1")
    flow.succeed(second, b"1")
    assert flow.state(f"{group_id}:cb", "cbq") is State.PENDING
    assert flow.message(f"{chain_id}:1") is None


def test_a_settlement_acknowledges_only_what_nothing_follows(flow: Flow) -> None:
    """The board of a dead worker says that both had succeeded; of one nobody has told its group."""
    group_id = flow.group(group_of(1))
    flow.chain(chain_of(1))
    followed, last = flow.fetch(count=2)
    fates = {("default", run.entry.decode()): Fate.ACKNOWLEDGE for run in (followed, last)}
    queues = {"default": flow.queue("default")}
    policy = Policy(3, lambda kind, retried: 1.0)
    steps = settle(queues, "c1", fates, Fate.RETURN, Death("killed", "c1"), policy)
    settled = flow.runner.drive(steps)
    assert (settled.acknowledged, settled.returned) == (1, 1)
    assert flow.state(last.task_id) is None
    flow.finish(followed.task_id, b"1")
    assert flow.state(f"{group_id}:cb", "cbq") is State.PENDING


# -- what cannot be followed ------------------------------------------------------------------------------


def spoil_stream(flow: Flow, begun: str) -> str:
    return flow.queue("next").stream


def spoil_task(flow: Flow, begun: str) -> str:
    return flow.queue("next").task(f"{begun}:1")


def test_a_link_whose_successor_cannot_be_enqueued_is_parked_and_goes_on_when_it_can(flow: Flow) -> None:
    for spoil in (spoil_stream, spoil_task):
        chain_id = flow.chain(Chain().then("step", {}).then("step", {}, queue="next"))
        flow.chain(Chain().then("step", {}, retention=60))
        run, neighbour = flow.fetch(count=2)
        key = spoil(flow, chain_id)
        flow.redis.set(key, "x")
        ends = [flow.kept(run, b"1"), flow.kept(neighbour)]
        ended = flow.run(consume.retain(flow.queue("default"), ends))
        assert ended == []
        ((task_id, why),) = ended.parked
        assert task_id == run.task_id
        assert "WRONGTYPE" in why
        assert key in why
        assert flow.state(neighbour.task_id) is State.COMPLETED
        assert flow.state(task_id) is State.ARCHIVED
        assert key.encode() in flow.redis.hget(flow.queue("default").task(task_id), "error")
        assert flow.redis.get(key) == b"x"
        assert spoil is spoil_task or flow.message(f"{chain_id}:1", "next") is None
        flow.redis.delete(key)
        flow.revive(task_id)
        flow.finish(task_id, b"1")
        flow.finish(f"{chain_id}:1", None, "next")


def test_a_delayed_successor_too(flow: Flow) -> None:
    chain_id = flow.chain(Chain().then("step", {}).then("step", {}, queue="next", delay=5))
    flow.redis.set(flow.queue("next").scheduled, "x")
    flow.finish(f"{chain_id}:0")
    assert flow.state(f"{chain_id}:0") is State.ARCHIVED
    assert flow.message(f"{chain_id}:1", "next") is None


@pytest.mark.parametrize("part", ["members", "results", "callback", "stream"])
def test_a_member_that_cannot_report_is_parked_and_the_group_ends_when_it_can(flow: Flow, part: str) -> None:
    group_id = flow.group(group_of(2))
    first, last = flow.fetch(count=2)
    queue = flow.queue("cbq")
    key = {
        "members": queue.group(group_id),
        "results": queue.group_results(group_id),
        "callback": queue.task(f"{group_id}:cb"),
        "stream": queue.stream,
    }[part]
    flow.succeed(first, b"1")
    kept = flow.redis.dump(key) if part in ("members", "results") else None
    flow.redis.set(key, "x")
    flow.succeed(last, b"2")
    assert flow.state(last.task_id) is State.ARCHIVED
    flow.redis.delete(key)
    if kept:
        flow.redis.restore(key, 0, kept)
    flow.revive(last.task_id)
    flow.finish(last.task_id, b"3")
    callback = flow.message(f"{group_id}:cb", "cbq")
    assert callback is not None
    assert callback.workflow["group_results"] == ["MQ==", "Mw=="]


def test_a_stage_that_came_into_being_in_part_is_completed_by_its_next_run(flow: Flow) -> None:
    group = Group().add("member", {}, queue="good").add("member", {}, queue="bad").on_complete("merge", {})
    chain_id = flow.chain(Chain().then("step", {}).then_group(group))
    flow.redis.set(flow.queue("bad").stream, "x")
    flow.finish(f"{chain_id}:0", b"1")
    assert flow.state(f"{chain_id}:0") is State.ARCHIVED
    flow.finish(f"{chain_id}:1:m0", b"2", "good")
    assert flow.open_members(f"{chain_id}:1") == {f"{chain_id}:1:m1"}
    flow.redis.delete(flow.queue("bad").stream)
    flow.revive(f"{chain_id}:0")
    flow.finish(f"{chain_id}:0", b"1")
    assert flow.message(f"{chain_id}:1:m0", "good") is None, "it has ended and is not run again"
    flow.finish(f"{chain_id}:1:m1", b"3", "bad")
    callback = flow.message(f"{chain_id}:1:cb")
    assert callback is not None
    assert callback.workflow["group_results"] == ["Mg==", "Mw=="]


def test_a_stage_begun_anew_has_members_that_are_kept_report_again(flow: Flow) -> None:
    """A link that chronos-go's worker ran, and another one again: the set of the first beginning is gone."""
    chain_id = flow.chain(Chain().then("step", {}).then_group(group_of(2, queue="gq", retention="1h")))
    run = flow.take(f"{chain_id}:0")
    body = flow.redis.hgetall(flow.queue("default").task(run.task_id))
    flow.succeed(run, b"1")
    for i, task in enumerate(flow.fetch("gq", 2)):
        flow.succeed(task, str(i).encode(), "gq")
    flow.finish(f"{chain_id}:1:cb", None, "cbq")
    flow.redis.hset(flow.queue("default").task(run.task_id), mapping=body | {b"state": b"1"})
    flow.redis.xadd(flow.queue("default").stream, {"task_id": run.task_id})
    flow.finish(run.task_id, b"1")
    callback = flow.message(f"{chain_id}:1:cb", "cbq")
    assert callback is not None
    assert callback.workflow["group_results"] == ["MA==", "MQ=="]


def test_a_successor_that_is_there_is_left_as_it_is(flow: Flow) -> None:
    """A Go worker had enqueued it and died before its acknowledgement."""
    chain_id = flow.chain(chain_of(2))
    run = flow.take(f"{chain_id}:0")
    key = flow.queue("default").task(f"{chain_id}:1")
    flow.redis.hset(key, mapping={"msg": "as it was", "state": "2"})
    flow.succeed(run)
    assert flow.redis.hgetall(key) == {b"msg": b"as it was", b"state": b"2"}
    assert flow.redis.xlen(flow.queue("default").stream) == 0
