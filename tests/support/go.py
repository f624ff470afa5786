"""chronos-go 1.2 as seen from Redis: its operations, command for command."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from chronosd.broker.keys import GROUP
from chronosd.broker.message import Message, decode, encode
from chronosd.states import State
from tests.support.bench import Bench


class Go:
    """A Go process beside ours, on the same queue."""

    def __init__(self, bench: Bench, consumer: str = "go") -> None:
        self.bench = bench
        self.redis: Any = bench.redis
        self.queue = bench.queue
        self.consumer = consumer

    def enqueue(self, task_id: str, **changes: Any) -> None:
        """Stores a task whatever is there under its id."""
        with self.redis.pipeline(transaction=True) as pipe:
            msg = encode(self.bench.message(task_id, **changes), State.PENDING)
            pipe.hset(self.queue.task(task_id), mapping={"msg": msg, "state": 1})
            pipe.xadd(self.queue.stream, {"task_id": task_id})
            pipe.zrem(self.queue.completed, task_id)
            pipe.zrem(self.queue.archived, task_id)
            pipe.execute()

    def schedule(self, task_id: str, at: float, **changes: Any) -> None:
        with self.redis.pipeline(transaction=True) as pipe:
            msg = encode(self.bench.message(task_id, **changes), State.SCHEDULED)
            pipe.hset(self.queue.task(task_id), mapping={"msg": msg, "state": 6})
            pipe.zadd(self.queue.scheduled, {task_id: at})
            pipe.zrem(self.queue.completed, task_id)
            pipe.zrem(self.queue.archived, task_id)
            pipe.execute()

    def dequeue(self, count: int = 10, *, dies_before_active: bool = False) -> list[tuple[bytes, Message]]:
        read = self.redis.xreadgroup(GROUP, self.consumer, {self.queue.stream: ">"}, count=count)
        found = []
        for _, entries in read:
            for entry, fields in entries:
                task_id = fields[b"task_id"].decode()
                raw = self.redis.hget(self.queue.task(task_id), "msg")
                if raw is None:
                    self._acknowledge(entry)
                    continue
                found.append((entry, decode(raw)))
                if not dies_before_active:
                    self.redis.hset(self.queue.task(task_id), "state", 2)
        return found

    def done(self, entry: bytes, message: Message) -> None:
        self._acknowledge(entry)
        self.redis.delete(self.queue.task(message.id))

    def retry(self, entry: bytes, message: Message, at: float | None = None) -> None:
        message = replace(message, retried=message.retried + 1, last_err="boom")
        self._move(entry, message, State.RETRY, int(time.time() if at is None else at))

    def archive(self, entry: bytes, message: Message) -> None:
        self._move(entry, message, State.ARCHIVED, int(time.time()))

    def complete(self, entry: bytes, message: Message) -> None:
        now = int(time.time())
        message = replace(message, completed_at=now)
        self._move(entry, message, State.COMPLETED, now + message.retention)

    def recover(self) -> int:
        """Takes over every pending entry, whoever owns it, as after its idle time."""
        _, claimed, *_ = self.redis.xautoclaim(self.queue.stream, GROUP, self.consumer, 0, "0")
        for entry, fields in claimed:
            raw = self.redis.hget(self.queue.task(fields[b"task_id"].decode()), "msg")
            if raw is None:
                self._acknowledge(entry)
            elif (message := decode(raw)).retried >= message.max_retry:
                self.archive(entry, message)
            else:
                self.retry(entry, message)
        return len(claimed)

    def forward(self) -> int:
        moved = 0
        for state in (State.RETRY, State.SCHEDULED):
            for task_id in self.redis.zrangebyscore(self.queue.set_of(state), "-inf", time.time(), 0, 100):
                with self.redis.pipeline(transaction=True) as pipe:
                    pipe.xadd(self.queue.stream, {"task_id": task_id})
                    pipe.hset(self.queue.task(task_id.decode()), "state", 1)
                    pipe.zrem(self.queue.set_of(state), task_id)
                    pipe.execute()
                moved += 1
        return moved

    def requeue(self, entry: bytes, task_id: str) -> None:
        """What a shutdown does with a batch it had cut short."""
        self._acknowledge(entry)
        if self.redis.exists(self.queue.task(task_id)):
            self.redis.hset(self.queue.task(task_id), "state", 1)
            self.redis.xadd(self.queue.stream, {"task_id": task_id})

    def run_task(self, task_id: str) -> bool:
        removed = sum(self.redis.zrem(name, task_id) for name in self.queue.sets)
        if not removed or not self.redis.exists(self.queue.task(task_id)):
            return False
        self.redis.xadd(self.queue.stream, {"task_id": task_id})
        self.redis.hset(self.queue.task(task_id), "state", 1)
        return True

    def delete_task(self, task_id: str) -> None:
        with self.redis.pipeline(transaction=True) as pipe:
            for name in self.queue.sets:
                pipe.zrem(name, task_id)
            pipe.delete(self.queue.task(task_id))
            pipe.execute()

    def _move(self, entry: bytes, message: Message, state: State, score: int) -> None:
        self._acknowledge(entry)  # whether it was still its own is not asked
        key = self.queue.task(message.id)
        self.redis.hset(key, mapping={"msg": encode(message, state), "state": int(state)})
        self.redis.zadd(self.queue.set_of(state), {message.id: score})

    def _acknowledge(self, entry: bytes) -> None:
        self.redis.xack(self.queue.stream, GROUP, entry)
        self.redis.xdel(self.queue.stream, entry)
