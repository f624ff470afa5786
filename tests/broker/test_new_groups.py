"""Groups come into being (open_group.lua, stage_group.lua): as a whole or not at all."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis as redis_py

from chronosd import AsyncClient, BrokerUnavailable, Chain, Client, Group
from chronosd.broker.groups import STAGED_S, NewMember, new_group, open_group
from chronosd.errors import BrokerRefused
from chronosd.states import State
from chronosd.workflow_plan import GroupPlan
from tests.support.flow import Flow, group_of
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until


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


def test_both_clients_say_what_became_of_it(redis_url: str, redis: redis_py.Redis, namespace: str) -> None:
    async def make() -> None:
        async with AsyncClient(redis_url, namespace=namespace) as client:
            chain, group = await asyncio.gather(
                client.enqueue_chain(Chain().then("a").then("b")), client.enqueue_group(group_of(700))
            )
            assert chain.first.id == f"{chain.id}:0"
            assert [one.id for one in group.members] == [f"{group.id}:m{i}" for i in range(700)]

    asyncio.run(make())
    with Client(redis_url, namespace=namespace) as client:
        assert client.enqueue_chain(Chain().then("a", delay=60).then("b")).first.state is State.SCHEDULED
        group = client.enqueue_group(Group().add("a", delay=9).add_chain(Chain().then("b")).on_complete("c"))
        assert [one.state for one in group.members] == [State.SCHEDULED, State.PENDING]
    assert redis.xlen(f"{namespace}:{{default}}:stream") == 702
    assert redis.zcard(f"{namespace}:{{default}}:scheduled") == 2


@pytest.mark.parametrize("number", [2, 600])
def test_a_group_whose_reply_is_lost_is_stored_once(
    proxy: Proxy, namespace: str, redis: redis_py.Redis, number: int
) -> None:
    with Client(proxy.url, namespace=namespace, timeout=5) as client, ThreadPoolExecutor(1) as pool:
        client.enqueue("warm-up")
        proxy.mode = "swallow"
        call = pool.submit(client.enqueue_group, group_of(number))
        wait_until(lambda: redis.keys(f"{namespace}:{{cbq}}:group*"), what="the first request")
        proxy.mode = "reset"
        proxy.mode = "pass"
        group = call.result(10)
    assert redis.scard(f"{namespace}:{{cbq}}:group:{group.id}") == number
    assert redis.xlen(f"{namespace}:{{default}}:stream") == number + 1


def test_a_group_without_an_answer_may_be_there_only_if_its_last_request_was_sent(
    proxy: Proxy, namespace: str
) -> None:
    with Client(proxy.url, namespace=namespace, timeout=0.3) as client:
        client.enqueue("warm-up")
        for number, in_doubt in ((2, True), (600, False)):
            proxy.mode = "swallow"
            with pytest.raises(BrokerUnavailable) as caught:
                client.enqueue_group(group_of(number))
            assert caught.value.maybe_enqueued is in_doubt
            proxy.mode = "refuse"
            with pytest.raises(BrokerUnavailable) as caught:
                client.enqueue_group(group_of(number))
            assert not caught.value.maybe_enqueued
            proxy.mode = "pass"
