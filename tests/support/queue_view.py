"""One queue as it stands in Redis: what a test looks at to learn what a daemon has left there."""

from __future__ import annotations

from collections.abc import Iterable

import redis as redis_py

from chronosd.broker.keys import GROUP, Namespace
from chronosd.states import State
from tests.support.waiting import wait_until

SETS = (State.SCHEDULED, State.RETRY, State.ARCHIVED, State.COMPLETED)


class QueueView:
    """Reads with a plain client, never through the code under test."""

    def __init__(self, client: redis_py.Redis, namespace: str, name: str = "default") -> None:
        self.redis = client
        self.keys = Namespace(namespace).queue(name)

    def entries(self) -> int:
        """Stream entries: ready and delivered."""
        return int(self.redis.xlen(self.keys.stream))

    def pending(self) -> int:
        """Entries delivered and not acknowledged, whoever owns them."""
        return int(self.redis.xpending(self.keys.stream, GROUP)["pending"])

    def owners(self) -> dict[str, int]:
        """Consumers of the group, each with how many entries are pending for it."""
        consumers = self.redis.xinfo_consumers(self.keys.stream, GROUP)
        return {consumer["name"].decode(): int(consumer["pending"]) for consumer in consumers}

    def size(self, state: State) -> int:
        """How many tasks the set of a state holds."""
        return int(self.redis.zcard(self.keys.set_of(state)))

    def ids(self, state: State) -> set[str]:
        """The ids in the set of a state."""
        return {one.decode() for one in self.redis.zrange(self.keys.set_of(state), 0, -1)}

    def bodies(self) -> set[str]:
        """The ids of all tasks that have a hash, wherever they are."""
        prefix = self.keys.task_prefix
        found = self.redis.scan_iter(match=prefix + "*", count=10_000)
        return {key.decode().removeprefix(prefix) for key in found}

    def field(self, task_id: str, name: str) -> bytes | None:
        """One field of a task's hash."""
        value: bytes | None = self.redis.hget(self.keys.task(task_id), name)
        return value

    def unfinished(self) -> int:
        """Tasks that have yet to run, or to run again: ready, delivered, scheduled, retrying."""
        pipeline = self.redis.pipeline(transaction=False)
        pipeline.xlen(self.keys.stream).zcard(self.keys.scheduled).zcard(self.keys.retry)
        return sum(pipeline.execute())

    def places(self, task_ids: Iterable[str]) -> dict[str, list[str]]:
        """Where each task is: the names of its places. Invariant 1 allows one, or none once it has ended."""
        found: dict[str, list[str]] = {task_id: [] for task_id in task_ids}
        for _, fields in self.redis.xrange(self.keys.stream):
            found.setdefault(fields[b"task_id"].decode(), []).append("stream")
        for state in SETS:
            for task_id in self.ids(state):
                found.setdefault(task_id, []).append(state.name.lower())
        return found

    def wait_finished(self, *, timeout_s: float = 30.0, what: str = "") -> None:
        """Waits until no task has anything left to do."""
        wait_until(lambda: self.unfinished() == 0, timeout_s=timeout_s, what=f"an empty queue {what}")
