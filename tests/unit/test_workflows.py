"""Chains and groups as producers build them, what tasks find of earlier ones, and the recording clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from chronosd import Chain, Group, InvalidTask, Kind, PayloadTooLarge, SkipRetry, Task
from chronosd.broker.keys import Namespace
from chronosd.broker.message import Message, decode
from chronosd.broker.workflow import end_group, follow_ups, in_words, is_member_id, waiting
from chronosd.earlier import Earlier
from chronosd.errors import MessageError
from chronosd.submission import Drafter
from chronosd.testing import AsyncRecordingClient, RecordingClient, Succeeded, make_task, run
from chronosd.worker.complete import Dead, conclude
from chronosd.workflow_plan import ChainPlan, GroupPlan
from chronosd.workflows import MOST_MEMBERS

NAMESPACE = Namespace("ns")
DRAFTER = Drafter("ns", "1MiB")
DISCARDED = Kind("thrown:away", discard=True)
UNIQUE = Kind("only:one", unique="1h")


def chain_plan(chain: Chain) -> ChainPlan:
    return ChainPlan(DRAFTER, chain)


def group_plan(group: Group) -> GroupPlan:
    return GroupPlan(DRAFTER, group)


def in_a_week() -> float:
    return time.time() + 7 * 86400 + 60


def stage() -> Group:
    return Group().add("m").on_complete("cb")


def nested() -> Group:
    return Group().add_chain(Chain().then("a")).on_complete("cb")


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "an empty chain": (lambda: chain_plan(Chain()), "the chain is empty"),
    "an id": (lambda: Chain().then("a", task_id="x"), "step 0 of the chain: task_id: "),  # type: ignore[call-overload]
    "a lock": (lambda: Chain().then("a", unique="1h"), "step 0 of the chain: unique: "),  # type: ignore[call-overload]
    "a kind with a lock": (lambda: Chain().then(UNIQUE), "unique=False"),
    "an instant later on": (lambda: Chain().then("a").then("b", at=1), "step 1 of the chain: at: "),
    "discard in the middle": (
        lambda: chain_plan(Chain().then("a", discard=True).then("b")),
        "step 0: discard",
    ),
    "a kind that is discarded": (lambda: chain_plan(Chain().then(DISCARDED).then("b")), "discard=False"),
    "a stage first": (lambda: Chain().then_group(stage()), "a chain begins with a task"),
    "no group at all": (lambda: Chain().then("a").then_group("b"), "must be a Group"),  # type: ignore[arg-type]
    "a stage without members": (
        lambda: Chain().then("a").then_group(Group().on_complete("cb")),
        "step 1 of the chain: a group needs at least one member",
    ),
    "a stage without callback": (
        lambda: Chain().then("a").then_group(Group().add("m")),
        "step 1 of the chain: a group needs a callback",
    ),
    "a chain in a stage": (
        lambda: Chain().then("a").then_group(nested()),
        "member 0: a group within a chain",
    ),
    "an instant in a stage": (
        lambda: Chain().then("a").then_group(Group().add("m", at=1).on_complete("cb")),
        "member 0: at: ",
    ),
    "discard of a stage's callback in the middle": (
        lambda: chain_plan(
            Chain().then("a").then_group(Group().add("m").on_complete("cb", discard=True)).then("b")
        ),
        "step 1: discard",
    ),
    "a group without members": (lambda: group_plan(Group().on_complete("cb")), "at least one member"),
    "a group without callback": (lambda: group_plan(Group().add("m")), "needs a callback"),
    "two callbacks": (lambda: stage().on_complete("b"), "it has one already"),
    "a member that is discarded": (lambda: Group().add("m", discard=True), "member 0 of the group: discard"),
    "a member with a lock": (lambda: Group().add(UNIQUE), "member 0 of the group: unique"),
    "a member with an id": (lambda: Group().add("m", task_id="x"), "task_id"),  # type: ignore[call-overload]
    "a callback with an instant": (
        lambda: Group().on_complete("cb", at=1),
        "the callback of the group: at: ",
    ),
    "a delay of more than a week": (lambda: Group().add("m", delay="169h"), "7 days"),
    "an instant beyond a week": (lambda: Group().add("m", at=in_a_week()), "7 days"),
    "delays of a chain that add up": (
        lambda: Group().add_chain(Chain().then("a", delay="100h").then("b", delay="100h")),
        "7 days",
    ),
    "no chain at all": (lambda: Group().add_chain(stage()), "must be a Chain"),  # type: ignore[arg-type]
    "an empty member": (lambda: Group().add_chain(Chain()), "member 0 of the group is empty"),
    "a group in a member": (
        lambda: Group().add_chain(Chain().then("a").then_group(stage())),
        "a chain within a group may not hold a group",
    ),
    "discard at the end of a member": (
        lambda: Group().add_chain(Chain().then("a").then("b", discard=True)),
        "member 0 of the group, step 1: discard",
    ),
    "a number of retries that Redis would make a float of": (
        lambda: Group().add("m").on_complete("cb", max_retry=10**14),
        "the callback of the group: max_retry",
    ),
    "a queue that cannot be one": (lambda: Chain().then("a").then("b", queue="{x}"), "queue"),
    "what JSON cannot hold": (lambda: Chain().then("a", {"x": float("nan")}), "step 0 of the chain: args.x"),
}


@pytest.mark.parametrize(("build", "why"), REFUSED.values(), ids=REFUSED)
def test_what_a_chain_or_group_cannot_hold_is_refused_with_its_place(
    build: Callable[[], object], why: str
) -> None:
    with pytest.raises(InvalidTask) as caught:
        build()
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_group_of_more_than_the_most_members_is_refused() -> None:
    group = Group()
    for _ in range(MOST_MEMBERS):
        group.add("m")
    group.on_complete("cb")
    assert len(group_plan(group).members) == MOST_MEMBERS
    with pytest.raises(InvalidTask, match="at most 10000 members"):
        group_plan(group.add("m"))


def test_arguments_longer_than_the_clients_limit_are_refused_wherever_they_are() -> None:
    long = {"x": "y" * 200}
    small = Drafter("ns", 100)
    for chain in (Chain().then("a").then("b", long), Chain().then("a").then_group(stage_of(long))):
        with pytest.raises(PayloadTooLarge, match="at most 100"):
            ChainPlan(small, chain)
    for group in (stage_of(long), Group().add("m").on_complete("cb", long)):
        with pytest.raises(PayloadTooLarge, match="at most 100"):
            GroupPlan(small, group)


def stage_of(args: Any) -> Group:
    return Group().add("m", args).on_complete("cb")


def test_a_chain_that_is_too_long_as_a_whole_is_refused() -> None:
    chain = Chain()
    for _ in range(14):
        chain.then("a", {"x": "y" * 1_000_000})
    with pytest.raises(PayloadTooLarge, match="the chain is"):
        chain_plan(chain)


def test_options_and_defaults_of_kinds_hold_in_every_place() -> None:
    kind = Kind("mail:send", queue="mail", max_retry=3, retention="1h")
    chain = Chain().then(kind, {"n": 1}).then(kind, {"n": 2}, max_retry=0, delay=0.2, queue="other")
    message = decode(chain_plan(chain.then(DISCARDED)).draft.new.msg)
    assert (message.kind, message.queue, message.max_retry, message.retention) == (
        "mail:send",
        "mail",
        3,
        3600,
    )
    second, last = message.workflow["chain"]
    assert second == {
        "kind": "mail:send",
        "payload": "eyJuIjoyfQ==",
        "queue": "other",
        "max_retry": 0,
        "retention": 3600,
        "delay": 1,
    }
    assert last["no_archive"] is True


def test_a_delay_within_a_chain_is_rounded_up_so_that_nothing_starts_early() -> None:
    for delay, seconds in ((2.4, 3), (2, 2), (0.001, 1), (-5, None), (0, None)):
        message = decode(chain_plan(Chain().then("a").then("b", delay=delay)).draft.new.msg)
        assert message.workflow["chain"][0].get("delay") == seconds


def test_a_chain_may_begin_at_an_instant_and_so_may_a_member_of_a_group() -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    assert chain_plan(Chain().then("a", at=at)).draft.new.at_ms is not None
    (draft,) = group_plan(Group().add_chain(Chain().then("a", at=at).then("b")).on_complete("cb")).drafts
    assert draft.new.at_ms is not None


def test_a_chain_enqueued_twice_is_two_chains_and_arguments_are_those_of_the_call() -> None:
    args = {"n": 1}
    chain = Chain().then("a", args).then("b", args)
    args["n"] = 2
    first, second = chain_plan(chain), chain_plan(chain)
    assert first.id != second.id
    assert decode(first.draft.new.msg).payload == b'{"n":1}'
    assert repr(chain) == "Chain(a -> b)"
    assert repr(Chain().then("a").then_group(stage())) == "Chain(a -> Group(1 members -> cb))"


# -- what follows -----------------------------------------------------------------------------------------


def message(**workflow: Any) -> Message:
    return Message("c:0", "k", "q", b"{}", workflow=workflow)


LINK = {"kind": "k", "payload": "e30=", "queue": "q", "max_retry": 1}
SENSELESS = {
    "a chain without an id": {"chain": [LINK]},
    "a queue that cannot be one": {"chain": [{**LINK, "queue": "{x}"}], "chain_id": "c"},
    "a group without a callback": {"group_id": "g", "group_queue": "q"},
    "a callback in another queue": {"group_id": "g", "group_queue": "r", "group_callback": LINK},
    "a group without a queue": {"group_id": "g", "group_callback": {**LINK, "queue": ""}},
    "a group of a billion": {
        "group_id": "g",
        "group_queue": "q",
        "group_callback": LINK,
        "group_size": 10**9,
    },
}


@pytest.mark.parametrize("workflow", SENSELESS.values(), ids=SENSELESS)
def test_what_follows_makes_no_sense_so_the_task_is_archived_and_the_worker_lives(
    workflow: dict[str, Any],
) -> None:
    with pytest.raises((MessageError, InvalidTask)):
        follow_ups(NAMESPACE, message(**workflow), None)
    move = conclude(b"1-1", message(**workflow), Succeeded(b"1"), 1, 1)
    assert isinstance(move, Dead)
    assert move.message is not None
    assert move.message.last_err.startswith("what follows it cannot be enqueued: ")
    assert move.message.workflow == workflow, "nothing is lost of it"
    assert end_group(NAMESPACE, message(**workflow), "x") == []


def test_a_task_of_its_own_is_followed_by_nothing() -> None:
    for alone in (message(), message(prev_result="MQ=="), message(chain_id="c", chain_index=3)):
        assert follow_ups(NAMESPACE, alone, b"1") == []
        assert waiting(NAMESPACE, alone) == []
        assert end_group(NAMESPACE, alone, "x") == []
    assert waiting(NAMESPACE, message(group_id="g", group_queue="{")) == []


@pytest.mark.parametrize(
    ("task_id", "may_be"),
    [("g:m0", True), ("g:m12", True), ("g:m1:3", True), ("a:1:m2", True), ("g:cb", False), ("c:1", False)],
)
def test_members_are_known_by_their_ids(task_id: str, may_be: bool) -> None:
    assert is_member_id(task_id) is may_be
    assert not is_member_id(task_id + "x")
    assert not is_member_id(task_id + "\n")


def test_a_task_is_described_by_its_place_in_chain_and_group() -> None:
    first = message(chain=[LINK, {**LINK, "group": [LINK, LINK]}] + [LINK] * 5, chain_id="c")
    assert in_words(first) == [("chain", "step 0 of c, then k, a group of 2 and k, k, k, k, ...")]
    last = message(chain_id="g:m1", chain_index=2, group_id="g", group_size=3, group_index=1, group_queue="q")
    last.workflow["group_callback"] = LINK
    assert in_words(last) == [("chain", "step 2 of g:m1"), ("group", "member 1 of 3 of g, then k in q")]
    assert in_words(message(group_id="g")) == [("group", "member 0 of 0 of g, then ? in ")]
    assert in_words(message()) == []


# -- what a handler finds ---------------------------------------------------------------------------------


class Point(BaseModel):
    x: int


def test_results_are_validated_and_none_stays_none() -> None:
    task = make_task({}, prev_result={"x": 1}, group_results=[{"x": 1}, None, {"x": 3}])
    assert task.prev_result(Point) == Point(x=1)
    assert task.prev_result() == {"x": 1}
    assert task.group_results(Point) == [Point(x=1), None, Point(x=3)]
    assert task.group_results() == [{"x": 1}, None, {"x": 3}]
    assert task.prev_result(dict[str, int]) == {"x": 1}


def test_without_earlier_tasks_there_are_no_results() -> None:
    task = make_task({})
    assert task.prev_result(Point) is None
    assert task.group_results(Point) == []
    assert make_task({}, prev_result=1).group_results() == []


def test_the_null_that_a_go_handler_leaves_is_no_result() -> None:
    earlier = Earlier({"prev_result": "bnVsbA==", "group_results": ["bnVsbA==", None, "MQ=="]})
    assert earlier.prev_result(Point) is None
    assert earlier.group_results(int) == [None, None, 1]


@pytest.mark.parametrize("wanted", [int, Point, list[str], object()])
def test_a_result_of_another_type_is_no_reason_to_try_again(wanted: Any) -> None:
    task = make_task({}, prev_result={"y": "secret"}, group_results=[None, {"y": "secret"}])
    for call, name in (
        (task.prev_result, "the previous result"),
        (task.group_results, "result 1 of the group"),
    ):
        with pytest.raises(SkipRetry) as caught:
            call(wanted)
        assert "secret" not in str(caught.value)
        assert name in str(caught.value) or "of a type that" in str(caught.value)


def test_a_handler_under_test_is_given_results() -> None:
    async def double(task: Task[dict[str, Any]]) -> int:
        return (task.prev_result(int) or 0) * 2

    assert run(double, prev_result=21) == Succeeded(b"42")


# -- recording clients ------------------------------------------------------------------------------------


async def step(task: Task[dict[str, Any]]) -> list[Any]:
    before = task.prev_result(list[Any]) or []
    return [*before, task.args.get("n", task.id.rpartition(":")[2])]


async def merge(task: Task[dict[str, Any]]) -> list[Any]:
    return task.group_results()


HANDLERS = {"step": step, "merge": merge}


def flow() -> Chain:
    group = Group().add("step", {"n": 2}).add("step", {"n": 3}).on_complete("merge")
    return Chain().then("step", {"n": 1}).then_group(group).then("step", {"n": 4}, delay=5)


def test_a_recording_client_runs_a_chain_to_its_end_with_the_results_of_each_step() -> None:
    client = RecordingClient(inline=True, handlers=HANDLERS)
    info = client.enqueue_chain(flow())
    assert [one.id.removeprefix(info.id) for one in client.enqueued] == [
        ":0",
        ":1:m0",
        ":1:m1",
        ":1:cb",
        ":2",
    ]
    assert client.enqueued[-1].outcome == Succeeded(b"[[1,2],[1,3],4]")
    assert client.enqueued[-1].delay == 5
    assert info.first.id == f"{info.id}:0"


def test_a_recording_client_that_runs_nothing_keeps_what_is_ready_at_once() -> None:
    client = RecordingClient()
    client.enqueue_chain(flow())
    group = Group().add("a", {"n": 1}).add_chain(Chain().then("b").then("c")).on_complete("d")
    info = client.enqueue_group(group)
    assert [one.kind for one in client.enqueued] == ["step", "a", "b"]
    assert [one.id for one in info.members] == [f"{info.id}:m0", f"{info.id}:m1:0"]
    assert info.callback_id == f"{info.id}:cb"


def test_the_asynchronous_recording_client_does_the_same() -> None:
    async def main() -> None:
        client = AsyncRecordingClient(inline=True, handlers=HANDLERS)
        await client.enqueue_chain(flow())
        assert client.enqueued[-1].outcome == Succeeded(b"[[1,2],[1,3],4]")
        two = Group().add_chain(Chain().then("step").then("step")).add("step", {"n": 9}).on_complete("merge")
        await client.enqueue_group(two)
        assert client.enqueued[-1].outcome == Succeeded(b'[["0","1"],[9]]')

    asyncio.run(main())


def test_a_step_that_fails_in_a_recording_client_is_followed_by_nothing() -> None:
    async def fail(task: Task[dict[str, Any]]) -> None:
        raise SkipRetry("no")

    client = RecordingClient(inline=True, handlers={"step": step, "fail": fail, "merge": merge})
    client.enqueue_group(Group().add("step").add("fail").on_complete("merge"))
    client.enqueue_chain(Chain().then("fail").then("step"))
    assert [one.kind for one in client.enqueued] == ["step", "fail", "fail"]
