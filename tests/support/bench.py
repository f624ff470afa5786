"""One queue on a real server, driven by the broker's own commands and looked at from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import redis as redis_py

from chronosd.broker import consume, enqueue, sweep
from chronosd.broker.commands import Command
from chronosd.broker.consume import Delivery, Done, Fetched
from chronosd.broker.enqueue import NewTask
from chronosd.broker.keys import GROUP, Namespace, QueueKeys
from chronosd.broker.message import Message, decode, encode
from chronosd.broker.runner import SyncRunner
from chronosd.states import SET_STATES, State

T = TypeVar("T")


@dataclass
class Snapshot:
    """Where every id of a queue is, and what is stored of it."""

    waiting: list[str] = field(default_factory=list)
    """Ids of undelivered entries, oldest first."""
    owned: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Pending entries: entry -> (id, consumer); id "" for a deleted entry or one that names no task."""
    settled: list[str] = field(default_factory=list)
    """Entries that were acknowledged and left in the stream: there should be none."""
    sets: dict[State, dict[str, float]] = field(default_factory=dict)
    hashes: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def active(self) -> dict[str, str]:
        """Ids of pending entries and their consumers."""
        return dict(self.owned.values())

    def places(self, task_id: str) -> list[State]:
        """Every place in which an id is found."""
        found = [State.PENDING] * self.waiting.count(task_id)
        found += [State.ACTIVE for owned_id, _ in self.owned.values() if owned_id == task_id]
        return found + [state for state in SET_STATES if task_id in self.sets[state]]

    def check(self) -> None:
        """Fails unless every task is in exactly one place, and its state says which (invariant 1)."""
        assert not self.settled, f"acknowledged entries left in the stream: {self.settled}"
        tasks = {task_id for task_id, stored in self.hashes.items() if "msg" in stored}
        assert tasks == set(self.hashes), f"zombies: {set(self.hashes) - tasks}"
        for task_id in tasks:
            places = self.places(task_id)
            assert len(places) == 1, f"{task_id} is in {[p.label for p in places]}"
            state = int(self.hashes[task_id]["state"])
            # an entry that a blocking read has delivered is marked active by the fetch that takes it in
            allowed = {State.PENDING, State.ACTIVE} if places == [State.ACTIVE] else set(places)
            assert state in allowed, f"{task_id} is {places[0].label}, its state says {state}"
        named = Counter(self.waiting) + Counter(task_id for task_id, _ in self.owned.values())
        for members in self.sets.values():
            named += Counter(members)
        assert set(named) <= tasks, f"ids without a task: {set(named) - tasks}"


class Bench:
    """A queue. ``run`` sends commands; the rest are shorthands for what tests do again and again."""

    def __init__(self, redis: redis_py.Redis, runner: SyncRunner, namespace: str, name: str = "q") -> None:
        self.redis = redis
        self.runner = runner
        self.namespace = Namespace(namespace)
        self.queue: QueueKeys = self.namespace.queue(name)

    def run(self, command: Command[T]) -> T:
        return self.runner.run(command)

    def group(self) -> None:
        self.run(consume.create_group(self.queue))

    def message(self, task_id: str, **changes: Any) -> Message:
        values: dict[str, Any] = {"kind": "mail:send", "payload": b'{"n":1}', "queue": self.queue.name}
        return Message(task_id, **(values | changes))

    def new(self, task_id: str, *, delay_ms: int = 0, nonce: str = "", **changes: Any) -> NewTask:
        state = State.SCHEDULED if delay_ms else State.PENDING
        return NewTask(task_id, encode(self.message(task_id, **changes), state), delay_ms, None, nonce)

    def add(self, *ids: str, **changes: Any) -> None:
        """Enqueues tasks."""
        words = self.run(enqueue.enqueue(self.queue, [self.new(i, **changes) for i in ids]))
        assert set(words) <= {"pending", "scheduled"}, words

    def fetch(self, consumer: str = "c1", count: int = 10, delivered: Iterable[bytes] = ()) -> list[Fetched]:
        return self.deliver(consumer, count, delivered).tasks

    def deliver(self, consumer: str = "c1", count: int = 10, delivered: Iterable[bytes] = ()) -> Delivery:
        return self.run(consume.fetch(self.queue, consumer, count, list(delivered)))

    def take(self, task_id: str = "a", consumer: str = "c1", **changes: Any) -> Fetched:
        """Enqueues a task and has a consumer fetch it."""
        self.group()
        self.add(task_id, **changes)
        (found,) = self.fetch(consumer)
        return found

    def block(self, consumer: str = "c1") -> bytes:
        """The entry that a blocking read delivers, which no fetch has taken in yet."""
        ((_, entry),) = self.run(consume.block([self.queue], consumer, 1000))
        return entry

    def done(self, *runs: Fetched) -> list[bytes]:
        return self.run(consume.complete(self.queue, [Done(run.entry, run.task_id) for run in runs]))

    def forward(self, state: State = State.SCHEDULED) -> sweep.Forwarded:
        return self.run(sweep.forward(self.queue, state))

    def hash(self, task_id: str = "a") -> dict[str, str]:
        found: dict[bytes, bytes] = self.redis.hgetall(self.queue.task(task_id))  # type: ignore[assignment]
        return {k.decode(): v.decode("utf-8", "backslashreplace") for k, v in found.items()}

    def stored(self, task_id: str = "a") -> Message:
        raw: bytes = self.redis.hget(self.queue.task(task_id), "msg")  # type: ignore[assignment]
        return decode(raw)

    def look(self) -> Snapshot:
        """Everything the queue holds."""
        redis: Any = self.redis
        queue, found = self.queue, Snapshot()
        entries = {
            entry.decode(): values.get(b"task_id", b"").decode()
            for entry, values in redis.xrange(queue.stream)
        }
        groups = redis.xinfo_groups(queue.stream) if redis.exists(queue.stream) else []
        last = next((g["last-delivered-id"].decode() for g in groups if g["name"] == GROUP.encode()), "0-0")
        if groups:
            for item in redis.xpending_range(queue.stream, GROUP, "-", "+", 10_000):
                entry = item["message_id"].decode()
                found.owned[entry] = (entries.get(entry, ""), item["consumer"].decode())
        for entry, task_id in entries.items():
            if _entry(entry) > _entry(last):
                found.waiting.append(task_id)
            elif entry not in found.owned:
                found.settled.append(entry)
        for state in SET_STATES:
            members = redis.zrange(queue.set_of(state), 0, -1, withscores=True)
            found.sets[state] = {member.decode(): score for member, score in members}
        for key in redis.scan_iter(match=queue.task_prefix.replace("[", "\\[") + "*", count=1000):
            if redis.type(key) == b"hash":
                task_id = key.decode("utf-8", "backslashreplace").removeprefix(queue.task_prefix)
                found.hashes[task_id] = self.hash(task_id)
        return found


def _entry(text: str) -> tuple[int, int]:
    ms, _, count = text.partition("-")
    return int(ms), int(count)
