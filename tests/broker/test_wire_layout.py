"""Every key, its type and what its score means, held to dumps of a real chronos-go (tests/data/wire)."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from chronosd import Client
from chronosd.broker import consume
from chronosd.broker.consume import Again, Dead, Kept
from chronosd.broker.keys import GROUP, Namespace
from chronosd.broker.message import Message, decode, encode
from chronosd.broker.payload import decode_args
from chronosd.states import State
from tests.broker.conftest import Bencher
from tests.support.bench import Bench

WIRE = Path(__file__).parent.parent / "data" / "wire"
DUMPS = {path.stem: json.loads(path.read_text()) for path in sorted(WIRE.glob("*.json"))}

# The leader of Go's schedulers, who looks after Go's schedules only.
GOS_ALONE = re.compile(r".*:leader")
OURS = {"enqueued_at", "nonce"}
"""Hash fields beside msg and state of a task that was enqueued here."""


def test_the_keys_are_frozen() -> None:
    namespace = Namespace("ns")
    queue = namespace.queue("q")
    assert {
        "queues": namespace.queues,
        "paused": namespace.paused,
        "daemons": namespace.daemons,
        "schedules": namespace.schedules,
        "schedule": [getattr(namespace.schedule("id"), name) for name in ("last", "fired", "lease")],
        "unique": queue.unique("k", "ab"),
        "rate": queue.rate,
        "cancelled": queue.cancelled,
        "group": [queue.group("g"), queue.group_results("g")],
        "trigger": queue.trigger("id:7"),
        "stream": queue.stream,
        "task": queue.task("id"),
        "sets": queue.sets,
        "states": [queue.set_of(s) for s in (State.SCHEDULED, State.RETRY, State.ARCHIVED, State.COMPLETED)],
        "consumer group": GROUP,
    } == {
        "queues": "ns:queues",
        "paused": "ns:paused",
        "daemons": "ns:daemons",
        "schedules": "ns:schedules",
        "schedule": ["ns:sched:id:last", "ns:sched:id:fired", "ns:sched:id:lease"],
        "unique": "ns:{q}:unique:k:ab",
        "rate": "ns:{q}:rate",
        "cancelled": "ns:{q}:cancelled",
        "group": ["ns:{q}:group:g", "ns:{q}:groupresult:g"],
        "trigger": "ns:{q}:pdedup:id:7",
        "stream": "ns:{q}:stream",
        "task": "ns:{q}:t:id",
        "sets": ("ns:{q}:scheduled", "ns:{q}:retry", "ns:{q}:archived", "ns:{q}:completed"),
        "states": ["ns:{q}:scheduled", "ns:{q}:retry", "ns:{q}:archived", "ns:{q}:completed"],
        "consumer group": "chronos",
    }
    assert {state.label: int(state) for state in State} == {
        "pending": 1,
        "active": 2,
        "completed": 3,
        "retry": 4,
        "archived": 5,
        "scheduled": 6,
    }


@pytest.mark.parametrize("name", DUMPS)
def test_every_key_of_go_is_one_that_is_known_here_with_its_type(name: str) -> None:
    dump = DUMPS[name]
    namespace = Namespace("myapp" if name == "namespace" else "chronos")
    known = {namespace.queues: "set", namespace.paused: "set", namespace.schedules: "hash"}
    for schedule_id in dump.get(namespace.schedules, {"fields": ()})["fields"]:
        known[namespace.schedule(schedule_id).last] = "string"
    for queue_name in set(re.findall(r"\{(.*?)\}", " ".join(dump))):
        queue = namespace.queue(queue_name)
        known |= {queue.stream: "stream"} | dict.fromkeys(queue.sets, "zset")
        known |= {key: "hash" for key in dump if key.startswith(queue.task_prefix)}
        unique = queue.stream.removesuffix("stream") + "unique:"
        known |= {key: "string" for key in dump if key.startswith(unique)}
        for key in dump:
            owner = key.partition("}:")[2].partition(":")[2]
            known |= {
                queue.group(owner): "set",
                queue.group_results(owner): "hash",
                queue.trigger(owner): "string",
            }
    for key, value in dump.items():
        if not GOS_ALONE.fullmatch(key):
            assert known.get(key) == value["type"], key
        if value["type"] == "stream":
            assert all(list(fields) == ["task_id"] for _, fields in value["entries"])
            assert {group["name"] for group in value.get("groups", ())} <= {GROUP}


@pytest.mark.parametrize("name", DUMPS)
def test_scores_in_gos_dumps_mean_what_they_mean_here(name: str) -> None:
    dump = DUMPS[name]
    for key, value in dump.items():
        if value["type"] != "zset":
            continue
        prefix, _, which = key.rpartition(":")
        for task_id, score in value["members"]:
            stored = dump[f"{prefix}:t:{task_id}"]["fields"]
            assert State(int(stored["state"])).label == which
            message = decode(stored["msg"].encode())
            assert float(score) > 1.7e9, "unix seconds"
            if which == "completed":
                assert float(score) == message.completed_at + message.retention


def dumped(name: str) -> list[Any]:
    return [
        pytest.param(value["fields"], id=f"{name}-{key.rpartition(':t:')[2]}")
        for key, value in DUMPS[name].items()
        if value["type"] == "hash" and "msg" in value["fields"]
    ]


PRODUCED = dumped("plain") + dumped("options") + dumped("delayed")


@pytest.mark.parametrize("fields", PRODUCED)
def test_a_task_enqueued_here_has_exactly_the_keys_and_the_message_of_gos(
    redis_url: str, redis: redis_py.Redis, namespace: str, fields: dict[str, str]
) -> None:
    expected = decode(fields["msg"].encode())
    state = State(int(fields["state"]))
    with Client(redis_url, namespace=namespace) as client:
        info = client.enqueue(
            expected.kind,
            decode_args(expected.payload),
            queue=expected.queue,
            max_retry=expected.max_retry,
            retention=expected.retention or None,
            task_id=expected.id,
            discard=expected.no_archive,
            delay=3600 if state is State.SCHEDULED else None,
        )
    assert info.state is state
    queue = Namespace(namespace).queue(expected.queue)
    held = queue.scheduled if state is State.SCHEDULED else queue.stream
    keys = {key.decode() for key in redis.scan_iter(match=f"{namespace}:*", count=1000)}
    assert keys == {f"{namespace}:queues", held, queue.task(expected.id)}
    assert all(redis.pttl(key) == -1 for key in keys)
    assert redis.smembers(f"{namespace}:queues") == {expected.queue.encode()}
    stored: Any = redis.hgetall(queue.task(expected.id))
    assert _sorted_payload(stored[b"msg"].decode()) == _sorted_payload(fields["msg"])
    assert stored[b"state"].decode() == fields["state"]
    assert {name.decode() for name in stored} - {"msg", "state"} == OURS
    if state is State.SCHEDULED:
        ((member, score),) = redis.zrange(held, 0, -1, withscores=True)
        assert member.decode() == expected.id
        assert score == pytest.approx(time.time() + 3600, abs=10)
    else:
        ((_, entry),) = redis.xrange(held)
        assert entry == {b"task_id": expected.id.encode()}


def _sorted_payload(msg: str) -> str:
    """The message with the keys of its arguments sorted: Go writes a struct's in the struct's order."""
    payload = json.loads(msg)["payload"]
    values = decode_args(decode(msg.encode()).payload)
    return msg.replace(payload, json.dumps(values, sort_keys=True))


def run_of(bench: Bench, message: Message) -> consume.Fetched:
    """The message of a dump, stored and fetched here as it was before the operation that the dump shows."""
    bench.group()
    msg = encode(message, State.PENDING)
    bench.redis.hset(bench.queue.task(message.id), mapping={"msg": msg, "state": 1})
    bench.redis.xadd(bench.queue.stream, {"task_id": message.id})
    (run,) = bench.fetch()
    return run


@pytest.mark.parametrize(
    "fields", dumped("completed") + dumped("fail_0_retry_and_skip_archived_and_discarded")
)
def test_a_task_that_ended_here_has_exactly_the_message_and_state_of_gos(
    bench: Bench, fields: dict[str, str]
) -> None:
    after = decode(fields["msg"].encode())
    run = run_of(bench, after)
    state = State(int(fields["state"]))
    if state is State.COMPLETED:
        bench.run(consume.retain(bench.queue, [Kept(run.entry, after)]))
        due = after.retention
    elif state is State.RETRY:
        bench.run(consume.retry(bench.queue, [Again(run.entry, after.id, after, 30)]))
        due = 30
    else:
        bench.run(consume.archive(bench.queue, [Dead(run.entry, after.id, after)]))
        due = 0
    found = bench.look()
    found.check()
    stored = found.hashes[after.id]
    assert stored["msg"] == fields["msg"]
    assert stored["state"] == fields["state"]
    assert set(stored) - {"msg", "state"} <= {"sid"}
    assert found.sets[state] == {after.id: pytest.approx(time.time() + due, abs=10)}


@pytest.mark.parametrize("name", DUMPS)
def test_every_task_that_go_left_in_a_stream_is_fetched_here(bencher: Bencher, name: str) -> None:
    for key, value in DUMPS[name].items():
        if value["type"] != "stream":
            continue
        prefix = key.removesuffix("stream")
        queue = bencher(key.split("{")[1].split("}")[0])
        for _, entry in value["entries"]:
            stored = DUMPS[name][f"{prefix}t:{entry['task_id']}"]["fields"]
            queue.redis.hset(queue.queue.task(entry["task_id"]), mapping=stored)
            queue.redis.xadd(queue.queue.stream, entry)
        queue.group()
        runs = queue.fetch(count=100)
        assert {run.task_id for run in runs} == {entry["task_id"] for _, entry in value["entries"]}
        assert all(decode(run.msg or b"").id == run.task_id for run in runs)
        queue.look().check()
        assert queue.done(*runs) == []
        assert queue.look().hashes == {}


def test_all_keys_of_a_queue_share_a_cluster_slot_whatever_the_task_is_called() -> None:
    queue = Namespace("ns").queue("q")
    keys = [queue.stream, *queue.sets, queue.task("{x}"), queue.task("a")]
    assert {key.partition("{")[2].partition("}")[0] for key in keys} == {"q"}
