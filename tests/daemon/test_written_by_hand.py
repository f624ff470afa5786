"""What others have put into Redis: tasks as chronos-go has them, and garbage of every sort."""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis as redis_py

from chronosd import Client
from chronosd.broker.keys import GROUP
from chronosd.states import State
from tests.support.daemon import Daemon
from tests.support.queue_view import QueueView
from tests.support.waiting import at_most, wait_until

MakeDaemon = Callable[..., Daemon]


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    with Client(redis_url, namespace=namespace) as one:
        yield one


@pytest.fixture
def queue(redis: redis_py.Redis, namespace: str) -> QueueView:
    return QueueView(redis, namespace)


def message(task_id: str, *, queue: str = "default", args: Any = None, **fields: Any) -> bytes:
    """A message with the fields that chronos-go always writes, in its order."""
    payload = base64.b64encode(json.dumps({} if args is None else args, separators=(",", ":")).encode())
    values: dict[str, Any] = {
        "id": task_id,
        "kind": "count",
        "queue": queue,
        "payload": payload.decode(),
        "state": 1,
        "retried": 0,
        "max_retry": 25,
        "no_archive": False,
        "unique_key": "",
        "group_index": 0,
    }
    return json.dumps({**values, **fields}, separators=(",", ":")).encode()


def put(queue: QueueView, task_id: str | bytes, msg: bytes, state: str = "1") -> str:
    """A ready task, as chronos-go enqueues it."""
    key = queue.keys.task_prefix.encode() + (task_id.encode() if isinstance(task_id, str) else task_id)
    queue.redis.hset(key, mapping={"msg": msg, "state": state})
    queue.redis.xadd(queue.keys.stream, {"task_id": task_id})
    return task_id if isinstance(task_id, str) else task_id.decode(errors="replace")


def test_tasks_written_before_any_daemon_had_made_the_group_run_from_every_place(
    daemon: MakeDaemon, queue: QueueView, namespace: str
) -> None:
    r, keys = queue.redis, queue.keys
    r.sadd(f"{namespace}:queues", "default")
    ready = [put(queue, str(uuid.uuid4()), message(f"ignored-{n}", args={"n": n})) for n in range(3)]
    sparse = put(queue, "sparse", b'{"kind":"count","payload":"e30=","chain":null,"extra":[1]}')
    soon, again = str(uuid.uuid4()), str(uuid.uuid4())
    r.hset(keys.task(soon), mapping={"msg": message(soon, state=6), "state": "6"})
    r.zadd(keys.scheduled, {soon: f"{time.time() + 0.5:.6f}"})
    r.hset(keys.task(again), mapping={"msg": message(again, state=4, retried=2, last_err="x"), "state": "4"})
    r.zadd(keys.retry, {again: int(time.time())})
    one = daemon().start()
    queue.wait_finished()
    assert set(one.ledger.ends()) == {*ready, sparse, soon, again}
    attempts = {entry.id: entry.attempt for entry in one.ledger.entries("start")}
    assert attempts[again] == 3
    assert queue.bodies() == set()
    assert one.stop() == 0


def test_what_a_dead_chronos_go_server_held_runs_here(daemon: MakeDaemon, queue: QueueView) -> None:
    """Its consumers are uuids on no board of ours, so only their age tells."""
    ids = {put(queue, str(uuid.uuid4()), message("x")) for _ in range(5)}
    queue.redis.xgroup_create(queue.keys.stream, GROUP, id="0")
    queue.redis.xreadgroup(GROUP, str(uuid.uuid4()), {queue.keys.stream: ">"}, count=3)
    one = daemon(recover_min_idle="1s", recover_interval="500ms", heartbeat_interval="400ms").start()
    queue.wait_finished(timeout_s=15)
    assert set(one.ledger.ends()) == ids
    assert queue.pending() == 0
    assert one.stop() == 0


def _garbage_bodies(queue: QueueView) -> int:
    """Ready tasks that nobody can run; returns how many must end in the archive."""
    bodies: dict[str | bytes, bytes] = {
        "not-json": b"\xff\xfe not json",
        "empty": b"",
        "number": b"17",
        "array": b"[]",
        "cut": message("cut")[:-20],
        "float": message("float", retried=1.5),
        "text-number": message("text-number", max_retry="3"),
        "not-base64": message("not-base64", payload="***"),
        "payload-not-json": message("payload-not-json", payload=base64.b64encode(b"{nope").decode()),
        "deep": message("deep", payload=base64.b64encode(b"[" * 200_000).decode()),
        "huge-number": message("huge-number", payload=base64.b64encode(b"1e400").decode()),
        "a b\nc\x00": b"{}}",
        b"\xff\xfe": b"\x00",
    }
    for task_id, msg in bodies.items():
        put(queue, task_id, msg)
    return len(bodies)


def _garbage_elsewhere(queue: QueueView) -> None:
    """Entries, hashes and members of sets that belong to no task."""
    r, keys = queue.redis, queue.keys
    r.xadd(keys.stream, {b"\xff\xfe": b"\x00"})
    r.xadd(keys.stream, {"task_id": ""})
    r.xadd(keys.stream, {"task_id": "no-body", "more": "fields"})
    r.set(keys.task("a-string"), "x")
    r.xadd(keys.stream, {"task_id": "a-string"})
    r.hset(keys.task("stateful"), "state", "2")
    for key in (keys.scheduled, keys.retry):
        r.zadd(key, {b"\xff\x00": 1, "no-body": 2, "stateful": "-inf", "x" * 100_000: 3, "later": "inf"})
        r.zadd(key, {f"nobody-{n}": n for n in range(1200)})
    r.zadd(keys.archived, {"no-body": 1})
    r.zadd(keys.completed, {"no-body": 1})


def test_garbage_in_streams_and_sets_ends_in_the_archive_and_stops_no_neighbour(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    before = [client.enqueue("count", {}).id for _ in range(10)]
    unreadable = _garbage_bodies(queue)
    _garbage_elsewhere(queue)
    after = [client.enqueue("count", {}).id for _ in range(10)]
    delayed = [client.enqueue("count", {}, delay=0.3).id for _ in range(10)]
    one = daemon(workers=2).start()
    healthy = {*before, *after, *delayed}
    wait_until(lambda: set(one.ledger.ends()) >= healthy, what="the healthy tasks")
    wait_until(lambda: queue.entries() == 0, what=f"nothing left in the stream:\n{one.log_tail()}")
    assert queue.pending() == 0
    assert queue.redis.zrange(queue.keys.scheduled, 0, -1) == [b"later"], "its time never comes"
    assert queue.redis.zrange(queue.keys.retry, 0, -1) == [b"later"]
    # the two entries without a task are kept there too, as records
    assert queue.size(State.ARCHIVED) >= unreadable + 2
    assert len(one.worker_pids()) == 2
    assert one.log_records("worker died") == []
    assert one.log_records("step failed") == []
    assert one.stop() == 0


ENDS_THERE: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "retry": ("count", {"fail": 1}, {}),
    "archived": ("wrong", {}, {}),
    "completed": ("count", {}, {"retention": 60}),
}
"""By key: a task whose end is to be written there."""


@pytest.mark.parametrize("broken", ["stream", "retry", "archived"])
def test_a_key_of_the_wrong_type_hinders_its_own_queue_alone_and_loses_nothing(
    daemon: MakeDaemon, redis: redis_py.Redis, client: Client, namespace: str, broken: str
) -> None:
    """From the first second on: one bad queue once kept a daemon from starting, and from stopping in time.
    A task that was to go there had left the stream before the error came: it was lost."""
    sick, well = QueueView(redis, namespace, "sick"), QueueView(redis, namespace, "well")
    redis.set(getattr(sick.keys, broken), "garbage")
    one = daemon(workers=1, queues={"sick": 1, "well": 1}, retry={"base": "100ms", "cap": "200ms"}).start()
    if broken in ENDS_THERE:
        kind, args, options = ENDS_THERE[broken]
        stuck = client.enqueue(kind, args, queue="sick", **options).id
        wait_until(lambda: one.ledger.starts()[stuck] == 1, what="its run")
    ids = {client.enqueue("count", {"fail": 1}, queue="well", delay=delay).id for delay in (None, 0.2)}
    wait_until(lambda: set(one.ledger.ends()) >= ids, what=f"the neighbour's tasks:\n{one.log_tail()}")
    well.wait_finished()
    hindered = Counter(record["step"] for record in one.log_records("step hindered"))
    assert max(hindered.values(), default=0) <= 2, f"logged over and over: {hindered}"
    asked_at = time.monotonic()
    assert one.stop() == 0
    assert time.monotonic() - asked_at < at_most(5), f"a slow stop:\n{one.log_tail()}"

    one.start()
    redis.delete(getattr(sick.keys, broken))
    cured = {client.enqueue("count", {}, queue="sick", delay=delay).id for delay in (None, 0.2)}
    wait_until(lambda: set(one.ledger.ends()) >= cured, what=f"the cured queue's tasks:\n{one.log_tail()}")
    sick.wait_finished()
    if broken == "retry":
        assert one.ledger.ends()[stuck] == 1
    kept = {stuck} if broken in ("archived", "completed") else set()
    assert sick.ids(State.ARCHIVED) | sick.ids(State.COMPLETED) == kept
    assert sick.bodies() == kept, "a task in no place"
    assert one.stop() == 0
