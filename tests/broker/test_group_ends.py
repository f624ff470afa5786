"""Members of groups that fail for good: the group waits for them, and ends with the last word about them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from chronosd import Chain, Group
from chronosd.broker.follow import NextTask, Place
from chronosd.broker.keys import QueueKeys
from chronosd.broker.members import trim_members
from chronosd.broker.message import Message, encode
from chronosd.broker.sweep import Trimmed, trim
from chronosd.broker.workflow import nothing_more
from chronosd.states import State
from tests.support.flow import Flow, chain_of, group_of

WEEK_S = 7 * 24 * 3600


def test_a_group_waits_for_a_dead_letter_for_longer_than_a_week(flow: Flow) -> None:
    """Its set expired after seven days: run again later, and successful, the member told nobody."""
    group_id = flow.group(group_of(3))
    first, second, dead = flow.fetch(count=3)
    keys = (flow.queue("cbq").group(group_id), flow.queue("cbq").group_results(group_id))
    flow.succeed(first, b"1")
    flow.redis.expire(keys[0], 5)
    flow.bury(dead)
    assert all(flow.redis.ttl(key) > 20 * WEEK_S for key in keys)
    flow.succeed(second, b"2")
    assert all(flow.redis.ttl(key) > 20 * WEEK_S for key in keys), "the report of another does not shorten it"
    flow.revive(dead.task_id)
    flow.finish(dead.task_id, b"3")
    assert flow.state(f"{group_id}:cb", "cbq") is State.PENDING


def test_a_chain_parks_with_a_failed_link_and_goes_on_from_there(flow: Flow) -> None:
    chain_id = flow.chain(chain_of(3))
    flow.finish(f"{chain_id}:0", b"1")
    flow.bury(flow.take(f"{chain_id}:1"))
    assert flow.message(f"{chain_id}:2") is None
    flow.revive(f"{chain_id}:1")
    flow.finish(f"{chain_id}:1", b"2")
    flow.finish(f"{chain_id}:2")


def follower(flow: Flow) -> Callable[[Message, QueueKeys], list[NextTask]]:
    def then(record: Message, queue: QueueKeys) -> list[NextTask]:
        place = Place(flow.namespace, flow.queue("alerts"), "alert")
        text = f"{record.id} in {queue.name}: {record.last_err}"
        return [NextTask(place, encode(Message("alert", "alert", "alerts", text.encode()), State.PENDING))]

    return then


def trim_all(flow: Flow, name: str = "default", then: Any = nothing_more) -> int:
    queue = flow.queue(name)
    found = flow.run(trim(queue, State.ARCHIVED, -3600, 0))
    assert found.over_members == ()
    return found.aged + flow.runner.drive(trim_members(queue, found.aged_members, then))


def test_the_trimming_of_a_member_ends_its_group_with_a_dead_letter(flow: Flow) -> None:
    """The callback never ran and nobody was told; the set of members lingered for a week."""
    group_id = flow.group(group_of(3))
    first, dead, late = flow.fetch(count=3)
    flow.succeed(first, b"1")
    flow.bury(dead)
    assert trim_all(flow, then=follower(flow)) == 1
    assert flow.state(dead.task_id) is None
    assert flow.state(f"{group_id}:cb", "cbq") is State.ARCHIVED
    callback = flow.message(f"{group_id}:cb", "cbq")
    assert callback is not None
    assert dead.task_id in callback.last_err
    assert callback.workflow == {"group_results": ["MQ==", None, None]}
    assert flow.redis.zscore(flow.queue("cbq").archived, f"{group_id}:cb") == pytest.approx(
        time.time(), abs=10
    )
    assert not [name for name in flow.names() if ":group" in name]
    alert = flow.message("alert", "alerts")
    assert alert is not None
    assert alert.payload.decode() == f"{group_id}:cb in cbq: {callback.last_err}"
    flow.redis.delete(flow.queue("alerts").task("alert"))
    flow.succeed(late, b"3")
    assert flow.state(f"{group_id}:cb", "cbq") is State.ARCHIVED, "a late success does not fire it"
    flow.revive(f"{group_id}:cb", "cbq")
    flow.finish(f"{group_id}:cb", None, "cbq")


def test_the_second_member_that_is_trimmed_tells_nobody_again(flow: Flow) -> None:
    group_id = flow.group(group_of(2))
    for run in flow.fetch(count=2):
        flow.bury(run)
    assert trim_all(flow, then=follower(flow)) == 2
    assert flow.redis.xlen(flow.queue("alerts").stream) == 1
    assert flow.redis.zcard(flow.queue("cbq").archived) == 1
    assert flow.state(f"{group_id}:cb", "cbq") is State.ARCHIVED


def test_a_link_of_a_chain_within_a_group_ends_the_group_too(flow: Flow) -> None:
    group_id = flow.group(Group().add_chain(chain_of(2)).on_complete("merge", {}))
    flow.finish(f"{group_id}:m0:0", b"1")
    flow.bury(flow.take(f"{group_id}:m0:1"))
    assert trim_all(flow) == 1
    assert flow.state(f"{group_id}:cb") is State.ARCHIVED


def test_the_callback_of_a_stage_that_ended_goes_on_with_its_chain(flow: Flow) -> None:
    chain = Chain().then("step", {}).then_group(group_of(1, queue="gq")).then("step", {})
    chain_id = flow.chain(chain)
    flow.finish(f"{chain_id}:0", b"1")
    flow.bury(flow.take(f"{chain_id}:1:m0", "gq"), "gq")
    assert trim_all(flow, "gq") == 1
    flow.revive(f"{chain_id}:1:cb", "cbq")
    flow.finish(f"{chain_id}:1:cb", b"2", "cbq")
    assert flow.state(f"{chain_id}:2") is State.PENDING


def test_what_only_looks_like_a_member_is_trimmed_like_anything_else(flow: Flow) -> None:
    queue = flow.queue("default")
    odd = {"x:m1": "no message", "y:m2:3": encode(Message("y:m2:3", "k", "default", b"{}"), State.ARCHIVED)}
    for task_id, msg in odd.items():
        flow.redis.hset(queue.task(task_id), mapping={"msg": msg, "state": 5})
        flow.redis.zadd(queue.archived, {task_id: 1})
    flow.redis.hset(queue.task("alive:m0"), mapping={"msg": "{}", "state": 1})
    flow.redis.zadd(queue.archived, {"alive:m0": 2, "gone:m0": 3})
    assert flow.run(trim(queue, State.ARCHIVED, 0, 0)) == Trimmed(2, 0, ("x:m1", "y:m2:3"))
    assert flow.runner.drive(trim_members(queue, ("x:m1", "y:m2:3"), nothing_more)) == 2
    assert flow.redis.zcard(queue.archived) == 0
    assert flow.names() == {"{default}:t:alive:m0"}


def test_a_member_that_came_to_life_while_the_janitor_looked_only_leaves_the_set(flow: Flow) -> None:
    group_id = flow.group(group_of(1))
    run = flow.take(f"{group_id}:m0")
    flow.bury(run)
    queue = flow.queue("default")
    found = flow.run(trim(queue, State.ARCHIVED, -3600, 0))
    flow.revive(run.task_id)
    flow.redis.zadd(queue.archived, {run.task_id: 1})
    assert flow.runner.drive(trim_members(queue, found.aged_members, nothing_more)) == 0
    assert flow.redis.zcard(queue.archived) == 0
    flow.finish(run.task_id, b"1")
    assert flow.state(f"{group_id}:cb", "cbq") is State.PENDING


def test_members_above_the_number_are_counted_once_behind_those_past_their_age(flow: Flow) -> None:
    queue = flow.queue("default")
    group_id = flow.group(group_of(5))
    for age, run in enumerate(flow.fetch(count=5)):
        flow.bury(run)
        flow.redis.zadd(queue.archived, {run.task_id: time.time() - 1000 * (5 - age)})
    names = [f"{group_id}:m{i}" for i in range(5)]
    assert flow.run(trim(queue, State.ARCHIVED, 3500, 2)) == Trimmed(
        0, 0, aged_members=tuple(names[:2]), over_members=(names[2],)
    )


# -- how long a group is there ----------------------------------------------------------------------------


def test_a_group_outlives_the_delays_of_its_members_by_a_week(flow: Flow) -> None:
    """Its set lived for seven days: a member that was delayed for as long came too late to tell anybody."""
    slow = Chain().then("a", delay="72h").then("b", delay="72h")
    group_id = flow.group(group_of(1).add_chain(slow))
    assert flow.redis.ttl(flow.queue("cbq").group(group_id)) == pytest.approx(WEEK_S + 6 * 86400, abs=20)
    late = Group().add("m", queue="gq").add("m", delay="100h", queue="gq").on_complete("merge")
    chain_id = flow.chain(Chain().then("a").then_group(late))
    flow.finish(f"{group_id}:m0")
    flow.finish(f"{chain_id}:0")
    assert flow.redis.ttl(flow.queue("default").group(f"{chain_id}:1")) == pytest.approx(
        WEEK_S + 360_000, abs=20
    )


def test_every_link_of_a_chain_within_a_group_renews_the_group(flow: Flow) -> None:
    """Only the last one reports: a chain of links that took days each outlived its group."""
    group_id = flow.group(Group().add_chain(Chain().then("a").then("b", delay=3600)).on_complete("merge"))
    key = flow.queue("default").group(group_id)
    flow.redis.expire(key, 5)
    flow.finish(f"{group_id}:m0:0")
    assert flow.redis.ttl(key) == pytest.approx(WEEK_S + 3600, abs=20)
    flow.hasten(f"{group_id}:m0:1")
    flow.redis.delete(key)
    flow.finish(f"{group_id}:m0:1")
    assert flow.redis.exists(key) == 0, "a group that is over does not come back"
