"""Chains and groups beside dumps of a real chronos-go: the same operations leave the same keys here."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from chronosd import Chain, Group
from tests.support.flow import Flow, comparable

WIRE = Path(__file__).parent.parent / "data" / "wire"


def _go(name: str) -> dict[str, Any]:
    dump = json.loads((WIRE / f"{name}.json").read_text())
    entries = [entry for value in dump.values() for entry, _ in value.get("entries", ())]
    made = [value["last_generated_id"] for value in dump.values() if value["type"] == "stream"]
    return comparable(dump, max(int(one.partition("-")[0]) for one in entries + made) / 1000)


def _same(flow: Flow, name: str, *, reordered: str = "") -> None:
    """Fails unless all is as in a dump; a callback that Go has encoded in Redis is in no order there."""
    ours, gos = comparable(flow.dump(), time.time()), _go(name)
    if reordered:
        mine, its = (dump[reordered]["fields"] for dump in (ours, gos))
        assert json.loads(mine.pop("msg")) == json.loads(its.pop("msg"))
    assert ours == gos


def test_a_chain_leaves_what_gos_does(flow: Flow) -> None:
    chain_id = flow.chain(
        Chain()
        .then("wf:step", {"name": "one"})
        .then("wf:step", {"name": "two"}, max_retry=2, retention=3600, delay=30)
        .then("wf:step", {"name": "three"}, queue="other", discard=True)
    )
    _same(flow, "chain_0_enqueued")
    flow.finish(f"{chain_id}:0", b'{"who":"one","sq":3}')
    _same(flow, "chain_1_link1_scheduled")
    flow.hasten(f"{chain_id}:1")
    flow.finish(f"{chain_id}:1", b'{"who":"two","sq":3}')
    _same(flow, "chain_2_link2_pending_link1_retained")


def test_a_group_leaves_what_gos_does(flow: Flow) -> None:
    group_id = flow.group(
        Group()
        .add("wf:step", {"name": "m-zero"})
        .add("wf:nores", {"name": "m-one"}, queue="q1")
        .add("wf:step", {"name": "m-two"}, queue="q2", retention="1h", delay=20)
        .on_complete("wf:merge", {"tag": "cb/<x>"}, queue="cbq", max_retry=7, retention=60)
    )
    _same(flow, "group_0_enqueued")
    flow.finish(f"{group_id}:m0", b'{"who":"m-zero","sq":6}')
    _same(flow, "group_1_member0_done")
    flow.finish(f"{group_id}:m1", None, "q1")
    flow.hasten(f"{group_id}:m2", "q2")
    flow.finish(f"{group_id}:m2", b'{"who":"m-two","sq":5}', "q2")
    _same(flow, "group_2_callback_pending", reordered="chronos:{cbq}:t:ID:cb")
    flow.finish(f"{group_id}:cb", b'"merged:cb/\\u003cx\\u003e"', "cbq")
    _same(flow, "group_3_callback_done_retained")


def test_a_chain_within_a_group_leaves_what_gos_does(flow: Flow) -> None:
    group_id = flow.group(
        Group()
        .add_chain(Chain().then("wf:step", {"name": "c0"}).then("wf:step", {"name": "c1"}, queue="q1"))
        .add("wf:step", {"name": "flat"}, queue="q2")
        .on_complete("wf:merge", {"tag": "gc"}, queue="cbq")
    )
    _same(flow, "group_addchain_0_enqueued")
    flow.finish(f"{group_id}:m0:0", b'{"who":"c0","sq":2}')
    _same(flow, "group_addchain_1_chain_link1_pending")
    flow.finish(f"{group_id}:m0:1", b'{"who":"c1","sq":2}', "q1")
    flow.finish(f"{group_id}:m1", b'{"who":"flat","sq":4}', "q2")
    _same(flow, "group_addchain_2_callback_pending", reordered="chronos:{cbq}:t:ID:cb")


def test_a_group_without_results_and_with_a_delayed_callback_leaves_what_gos_does(flow: Flow) -> None:
    group_id = flow.group(
        Group().add("wf:nores", {}).on_complete("wf:merge", {"tag": "d"}, queue="cbq", delay=45)
    )
    flow.finish(f"{group_id}:m0")
    _same(flow, "group_nores_callback_scheduled")


def test_a_group_within_a_chain_leaves_what_gos_does(flow: Flow) -> None:
    group = Group().add("wf:step", {"name": "ga"}, queue="gq")
    group.add("wf:step", {"name": "gb"}, queue="gq", retention=3600)
    group.on_complete("wf:merge", {"tag": "mid"}, queue="cbq")
    chain = Chain().then("wf:step", {"name": "head"}).then_group(group)
    chain_id = flow.chain(chain.then("wf:step", {"name": "tail"}, queue="tailq"))
    _same(flow, "thengroup_0_enqueued")
    flow.finish(f"{chain_id}:0", b'{"who":"head","sq":4}')
    _same(flow, "thengroup_1_stage_members_pending")
    flow.finish(f"{chain_id}:1:m0", b'{"who":"ga","sq":2}', "gq")
    flow.finish(f"{chain_id}:1:m1", b'{"who":"gb","sq":2}', "gq")
    _same(flow, "thengroup_2_stage_callback_pending", reordered="chronos:{cbq}:t:ID:1:cb")
    flow.finish(f"{chain_id}:1:cb", b'"merged:mid"', "cbq")
    _same(flow, "thengroup_3_tail_pending")
    flow.finish(f"{chain_id}:2", None, "tailq")
    assert not [key for key in flow.names() if ":t:" in key and not key.endswith(":1:m1")]
