"""Beside dumps of a real chronos-go: the same operation here leaves the same keys, types, fields, and ids.

Random ids and instants aside; chains and groups are in test_workflow_wire. Where chronosd differs on purpose,
the test says so and why.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from chronosd import TaskIdConflict
from chronosd.broker import consume, settle, sweep
from chronosd.broker.consume import Again, Dead, Done, Fetched, Kept
from chronosd.broker.keys import GROUP, QueueKeys
from chronosd.broker.message import Message, decode
from chronosd.broker.recover import recover
from chronosd.broker.schedule import Schedule, attend, fire, retire
from chronosd.broker.settle import Policy
from chronosd.cron import parse
from chronosd.inspector import Inspector
from chronosd.outcome import Failed, Outcome, Rejected, Succeeded
from chronosd.states import State
from chronosd.worker.complete import conclude
from tests.support.flow import Flow
from tests.support.golden import NAMES, dump, essence, go

ERROR = "boom <&> é"


@pytest.fixture
def queue(flow: Flow) -> QueueKeys:
    return flow.queue("default")


@pytest.fixture
def inspector(bench_url: str, namespace: str) -> Inspector:
    return Inspector(bench_url, namespace=namespace)


def same(flow: Flow, name: str) -> None:
    """Fails unless all that is in Redis is as in a dump."""
    assert ours(flow) == go(name)


def ours(flow: Flow) -> dict[str, Any]:
    return essence(flow.dump(), time.time())


def end(flow: Flow, run: Fetched, outcome: Outcome) -> None:
    """Ends a run as a worker does."""
    queue = flow.queue("default")
    move = conclude(run.entry, decode(run.msg or b""), outcome, 5, 900, namespace=flow.namespace.prefix)
    match move:
        case Done():
            lost = flow.run(consume.complete(queue, [move]))
        case Kept():
            lost = flow.run(consume.retain(queue, [move]))
        case Again():
            lost = flow.run(consume.retry(queue, [move]))
        case Dead():
            lost = flow.run(consume.archive(queue, [move]))
    assert lost == []


def ttl_ms(flow: Flow) -> float:
    """How long the one unique lock that there is lives on."""
    (name,) = (name for name in flow.names() if ":unique:" in name)
    return float(flow.redis.pttl(f"{flow.namespace.prefix}:{name}"))


def go_ttl_ms(name: str) -> float:
    (value,) = (value for key, value in dump(name).items() if ":unique:" in key)
    return float(value["pttl_ms"])


def test_every_dump_is_compared_with() -> None:
    """By its name, in a test here or with the chains and groups."""
    files = ("test_golden", "test_workflow_wire")
    text = "".join((Path(__file__).parent / f"{file}.py").read_text() for file in files)
    assert [name for name in NAMES if f'"{name}"' not in text] == []


# -- enqueueing ---------------------------------------------------------------------------------------


@dataclass
class Mail:
    """As the Go producer's struct: its fields are sent in their order."""

    to: str
    n: int


@dataclass
class Step:
    name: str


@dataclass
class Slow:
    ms: int


def test_plain(flow: Flow) -> None:
    flow.client.enqueue("mail:send", Mail("a@b.c", 1))
    same(flow, "plain")


def test_options(flow: Flow) -> None:
    flow.client.enqueue("mail:send", Mail("ret", 1), retention="1h")
    flow.client.enqueue("mail:send", Mail("mr", 2), max_retry=3)
    flow.client.enqueue("mail:send", Mail("dld", 3), discard=True)
    flow.client.enqueue("mail:send", Mail("id", 4), task_id="custom-id-1")
    flow.client.enqueue("mail:send", Mail("q", 5), queue="mail")
    flow.client.enqueue("mail:send", Mail("subsec", 6), retention=0.5, max_retry=0)
    flow.client.enqueue("mail:send", Mail("1.9s", 7), retention=1.9)
    same(flow, "options")


def test_namespace(flow: Flow) -> None:
    flow.client.enqueue("mail:send", Mail("ns", 1), unique="60s")
    same(flow, "namespace")


def test_delayed(flow: Flow) -> None:
    flow.client.enqueue("mail:send", Mail("in", 1), delay=90.5)
    flow.client.enqueue("mail:send", Mail("at", 2), at=time.time() + 3600)
    flow.client.enqueue("mail:send", Mail("past", 3), at=time.time() - 3600)
    same(flow, "delayed")


def test_unique(flow: Flow) -> None:
    flow.client.enqueue("mail:send", Mail("<u>&é\u2028"[:4] + "é ", 1), unique="10m")
    same(flow, "unique")
    assert ttl_ms(flow) == pytest.approx(go_ttl_ms("unique"), abs=5000)


def test_unique_delayed(flow: Flow) -> None:
    flow.client.enqueue("mail:send", Mail("u", 1), unique="10m", delay="1h")
    same(flow, "unique_delayed")
    assert ttl_ms(flow) == pytest.approx(go_ttl_ms("unique_delayed"), abs=5000)


def test_same_id_twice(flow: Flow) -> None:
    """Go overwrites the first and puts a second entry into the stream; here the second is refused, and one of
    Go's runs once with its newest message."""
    flow.client.enqueue("mail:send", Mail("first", 1), task_id="dup")
    with pytest.raises(TaskIdConflict):
        flow.client.enqueue("mail:send", Mail("second", 2), task_id="dup")
    mine, its = ours(flow), go("same_id_twice")
    assert mine["chronos:{default}:stream"]["ids"] == ["dup"]
    assert its["chronos:{default}:stream"]["ids"] == ["dup", "dup"]
    for dumped in (mine, its):
        del dumped["chronos:{default}:stream"]
        dumped["chronos:{default}:t:dup"]["fields"].pop("msg")
    assert mine == its


def test_pause(flow: Flow, inspector: Inspector) -> None:
    for name in ("b", "default"):
        flow.run(consume.create_group(flow.queue(name)))
    flow.client.enqueue("mail:send", Mail("p", 1))
    assert inspector.pause("default")
    assert inspector.pause("ghost"), "a name that no queue has is none of the set's business"
    assert inspector.pause("b")
    assert inspector.resume("b")
    same(flow, "pause")


# -- running ------------------------------------------------------------------------------------------


def test_active(flow: Flow, queue: QueueKeys) -> None:
    flow.client.enqueue("job:slow", Slow(6000), task_id="a1", unique="1h")
    flow.client.enqueue("job:slow", Slow(6000), task_id="a2", max_retry=3)
    (run,) = flow.fetch()
    same(flow, "active_0")
    (group,) = dump("active_0")["chronos:{default}:stream"]["groups"]
    pending = flow.redis.xpending_range(queue.stream, GROUP, "-", "+", 10)
    assert [(one["message_id"], one["times_delivered"]) for one in pending] == [
        (run.entry, group["pel"][0]["times_delivered"])
    ]
    assert ttl_ms(flow) == pytest.approx(go_ttl_ms("active_0"), abs=60_000)
    assert flow.run(sweep.extend(queue, "c1", [run.entry.decode()], lock_s=60)) == []
    mine, its = ours(flow), go("active_1_after_heartbeat")
    for dumped in (mine, its):
        next(value for key, value in dumped.items() if ":unique:" in key).pop("ttl_h")
    assert mine == its
    assert go_ttl_ms("active_1_after_heartbeat") < 60_000, "Go's heartbeat shortens a long lock"
    assert ttl_ms(flow) > 3_000_000, "ours does not"


def test_completed(flow: Flow) -> None:
    flow.client.enqueue("wf:step", Step("kept"), task_id="k1", retention=3600, unique="1h")
    flow.client.enqueue("mail:send", Mail("kept-nores", 1), task_id="k2", retention=3600)
    flow.client.enqueue("mail:send", Mail("gone", 1))
    kept, no_result, gone = flow.fetch(count=3)
    end(flow, kept, Succeeded(b'{"who":"kept","sq":4}'))
    end(flow, no_result, Succeeded(None))
    end(flow, gone, Succeeded(None))
    same(flow, "completed")


@dataclass
class Odd:
    N: int


def test_failed_rejected_and_discarded(flow: Flow, inspector: Inspector) -> None:
    flow.client.enqueue("job:fail", {"n": 1}, task_id="f1", max_retry=1, unique="1h")
    flow.client.enqueue("job:skip", Odd(2), task_id="skip1")
    flow.client.enqueue("job:fail", {"n": 3}, task_id="f2", max_retry=0, discard=True)
    failed, skipped, discarded = flow.fetch(count=3)
    end(flow, failed, Failed(ERROR))
    end(flow, skipped, Rejected("never again"))
    end(flow, discarded, Failed(ERROR))
    name = "fail_0_retry_and_skip_archived_and_discarded"
    same(flow, name)
    assert ttl_ms(flow) == pytest.approx(go_ttl_ms(name), abs=60_000), "it is kept while the task waits"
    flow.redis.zadd(flow.queue("default").retry, {"f1": 1})
    assert flow.run(sweep.forward(flow.queue("default"), State.RETRY)).moved == 1
    end(flow, flow.take("f1"), Failed(ERROR))
    same(flow, "fail_1_archived")
    assert inspector.run_task("f1")
    same_but_for_a_fresh_start(flow, "fail_2_run_task")
    inspector.delete_task("skip1")
    same_but_for_a_fresh_start(flow, "fail_3_delete_task")


def same_but_for_a_fresh_start(flow: Flow, name: str) -> None:
    """Go leaves message and lock as they are: the task has no retries left, its message says archived for
    ever, and a twin may be enqueued beside it. Here it begins anew, with its lock."""
    mine, its = ours(flow), go(name)
    lock = next(key for key in mine if ":unique:" in key)
    assert mine.pop(lock)["value"] == "f1"
    stored, gos = (dumped["chronos:{default}:t:f1"]["fields"].pop("msg") for dumped in (mine, its))
    assert stored == gos.replace('"state":5,"retried":1', '"state":1,"retried":0')
    assert mine == its


def test_recovered(flow: Flow, queue: QueueKeys) -> None:
    """Go charges every entry of a dead worker, also those that it had not begun; it archives without a
    reason, also a task that is to be discarded. Here who had not begun goes back, and the rest ends as it
    should."""
    flow.client.enqueue("mail:send", Mail("crash", 1), task_id="r1", max_retry=2)
    flow.client.enqueue("mail:send", Mail("crash0", 2), task_id="r0", max_retry=0)
    flow.client.enqueue("mail:send", Mail("crashD", 3), task_id="rd", max_retry=0, discard=True)
    flow.run(consume.create_group(queue))
    flow.redis.xreadgroup(GROUP, "dead-worker", {queue.stream: ">"}, count=3)
    same(flow, "recover_0_crashed")
    done = recovered(flow, queue)
    assert done.returned == 3
    assert [run.task_id for run in flow.fetch(count=3, consumer="dead-worker")] == ["r1", "r0", "rd"]
    for one in ("r1", "r0", "rd"):
        # it outlived the cycle in which it was fetched: it had begun
        flow.redis.hset(queue.task(one), "run", flow.redis.hget(queue.task(one), "sid"))
    done = recovered(flow, queue)
    assert (done.retried, done.discarded, done.archived_ids) == (1, 1, ["r0"])
    mine, its = ours(flow), go("recover_1_recovered")
    assert "chronos:{default}:t:rd" not in mine
    assert its["chronos:{default}:archived"]["members"] == ["r0", "rd"]
    assert mine["chronos:{default}:archived"]["members"] == ["r0"]
    for task_id in ("r0", "r1"):
        stored, gos = (decode_of(dumped, task_id) for dumped in (mine, its))
        assert stored.last_err, "it says why"
        assert (gos.last_err, stored.retried, stored.max_retry) == ("", gos.retried, gos.max_retry)


def decode_of(dumped: dict[str, Any], task_id: str) -> Message:
    return decode(dumped[f"chronos:{{default}}:t:{task_id}"]["fields"]["msg"].encode())


def recovered(flow: Flow, queue: QueueKeys) -> settle.Settled:
    """A recovery of everything, however fresh."""
    pending = [one["message_id"] for one in flow.redis.xpending_range(queue.stream, GROUP, "-", "+", 10)]
    flow.redis.xclaim(queue.stream, GROUP, "dead-worker", 0, pending, idle=60_000, justid=True)
    policy = Policy(max_crashes=3, backoff=lambda kind, retried: 60.0)
    return flow.runner.drive(recover(queue, "rec", 30, "0-0", {}, policy)).settled


# -- schedules ----------------------------------------------------------------------------------------

TICK = Schedule("tick", "mail:send", "sq", parse("@every 2s"), b'{"to":"tick","n":1}', "skip")
CRON = Schedule("cron", "mail:send", "default", parse("*/5 * * * 1-5"), b'{"to":"cron","n":2}', "skip")


def test_schedules(flow: Flow) -> None:
    """chronosd leaves Go's leader and its lease alone, and has a lease per schedule and what it fired last;
    its file has no retention or retries for scheduled tasks. The rest is the same."""
    both, namespace = (TICK, CRON), flow.namespace
    flow.run(attend(namespace, "me", [(one, None) for one in both], by="host:file", refresh=True))
    assert registry(flow.dump(), both) == registry(dump("schedule_0_started"), both)
    now = int(flow.redis.time()[0])
    flow.redis.set(namespace.schedule(TICK.id).last, now - 5)
    triggers = [now - 3, now - 1]
    for trigger in triggers:
        assert flow.run(fire(namespace, TICK, trigger, 0)).word == "fired"
    assert triggered(flow, triggers) == triggered_by_go("schedule_1_fired", both)
    # it resigns
    flow.run(retire(namespace, "me", [one.id for one in both], forget=False))
    assert triggered(flow, triggers) == triggered_by_go("schedule_2_resigned", both)
    assert registry(flow.dump(), both) == registry(dump("schedule_2_resigned"), both)
    assert not [name for name in flow.names() if name.endswith(":lease")]


def registry(dumped: dict[str, Any], schedules: Sequence[Schedule]) -> dict[str, Any]:
    """What the registry says of schedules: Go's fields in their order, and no instants."""
    found = {}
    for one in schedules:
        fields = list(json.loads(dumped["chronos:schedules"]["fields"][one.id]).items())[:5]
        assert all(isinstance(value, int) for _, value in fields[3:])
        found[one.id] = [*fields[:3], *(name for name, _ in fields[3:])]
    return found


def triggered(flow: Flow, triggers: Sequence[int]) -> dict[str, Any]:
    return _triggers(flow.dump(), time.time(), triggers)


def triggered_by_go(name: str, schedules: Sequence[Schedule]) -> dict[str, Any]:
    dumped = dump(name)
    ids = [one.id for one in schedules]
    kept = {k: v for k, v in dumped.items() if ":sched:" not in k or any(one in k for one in ids)}
    for value in kept.values():
        if "msg" in value.get("fields", {}):
            msg = value["fields"]["msg"].replace('"max_retry":4', '"max_retry":25')
            value["fields"]["msg"] = msg.replace('"retention":60,', "")
    return _triggers(kept, 0, [1796014026, 1796014028])


def _triggers(dumped: dict[str, Any], now: float, triggers: Sequence[int]) -> dict[str, Any]:
    """All but the registry, the leader and what is ours, with the triggers by their number."""
    ours_alone = (":schedules", ":leader", ":lease", ":fired")
    text = json.dumps({key: value for key, value in dumped.items() if not key.endswith(ours_alone)})
    for number, trigger in enumerate(triggers):
        text = text.replace(str(trigger), f"T{number}")
    found = essence(json.loads(text), now)
    for key, value in found.items():
        if key.endswith(":last") and not value["value"].startswith("T"):
            value["value"] = "when it was first seen"
    return found
