"""Groups come into being (open_group.lua, stage_group.lua): as a whole or not at all."""

from __future__ import annotations

import time

import pytest

from chronosd import Group
from chronosd.broker.groups import STAGED_S, NewMember, new_group, open_group
from chronosd.errors import BrokerRefused
from chronosd.states import State
from chronosd.workflow_plan import GroupPlan
from tests.support.flow import Flow, group_of


def plan(flow: Flow, group: Group) -> GroupPlan:
    return GroupPlan(flow.client._drafter, group)


def test_a_group_that_is_sent_twice_is_stored_once(flow: Flow) -> None:
    made = plan(flow, group_of(2))
    (command,) = made.commands
    assert flow.run(command) == "opened"
    assert flow.run(command) == "repeat"
    runs = flow.fetch(count=10)
    assert len(runs) == 2
    for run in runs:
        flow.succeed(run)
    assert flow.run(command) == "repeat", "its callback is there"
    assert flow.fetch(count=10) == []


@pytest.mark.parametrize("number", [3, 1200])
def test_a_group_that_cannot_be_stored_as_a_whole_is_not_stored_at_all(flow: Flow, number: int) -> None:
    flow.redis.set(flow.queue("bad").scheduled, "x")
    with pytest.raises(BrokerRefused, match="WRONGTYPE"):
        flow.group(group_of(number).add("member", {}, queue="bad", delay=5))
    assert {name.partition(":groupnew:")[0] for name in flow.names()} <= {"{bad}:scheduled", "{cbq}"}


def test_of_a_group_whose_producer_died_halfway_nothing_runs_and_nothing_stays(flow: Flow) -> None:
    """Its first members ran, the others were never enqueued, the callback waited for ever."""
    made = plan(flow, group_of(1200))
    *staging, opening = made.commands
    assert len(staging) == 3
    for command in staging[:2]:
        flow.run(command)
    assert flow.names() == {f"{{cbq}}:groupnew:{made.id}"}
    assert 0 < flow.redis.ttl(flow.queue("cbq").group_bodies(made.id)) <= STAGED_S
    assert flow.run(opening) == "expired", "not all of them were put down"
    assert flow.names() == {f"{{cbq}}:groupnew:{made.id}"}
    for command in staging:
        flow.run(command)
    assert flow.run(opening) == "opened"
    assert flow.redis.scard(flow.queue("cbq").group(made.id)) == 1200
    assert flow.redis.xlen(flow.queue("default").stream) == 1200
    assert flow.redis.exists(flow.queue("cbq").group_bodies(made.id)) == 0


def test_a_member_is_in_its_place_and_has_its_message_however_it_came_there(flow: Flow) -> None:
    group = group_of(2).add("member", {"late": True}, delay=60).add("member", {"at": 1}, at=time.time() - 9)
    made = plan(flow, group)
    namespace, queue = flow.namespace, flow.queue("cbq")
    flow.run(open_group(namespace, queue, made.id, made.members))
    (stored,) = [flow.dump()]
    flow.redis.delete(*flow.redis.keys(f"{namespace.prefix}:*"))
    many = [*made.members, *[extra(flow, made.id, i) for i in range(600)]]
    for command in new_group(namespace, queue, made.id, many):
        flow.run(command)
    for new in made.members:
        key = f"chronos:{{default}}:t:{new.task.id}"
        fields = flow.dump()[key]["fields"]
        assert fields["msg"] == stored[key]["fields"]["msg"]
        assert fields["state"] == stored[key]["fields"]["state"]
    late = f"{made.id}:m2"
    assert flow.redis.zscore(flow.queue("default").scheduled, late) == pytest.approx(time.time() + 60, abs=10)
    assert [flow.state(f"{made.id}:m{i}") for i in range(4)] == [
        State.PENDING,
        State.PENDING,
        State.SCHEDULED,
        State.PENDING,
    ]


def extra(flow: Flow, group_id: str, i: int) -> NewMember:
    (one,) = plan(flow, group_of(1)).members
    return NewMember(f"{group_id}:x{i}", one.queue, one.task)
