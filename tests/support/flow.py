"""Chains and groups on a real server without a worker: tasks are fetched and ended here, as a worker does."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import redis as redis_py

from chronosd.broker import consume
from chronosd.broker.commands import Command
from chronosd.broker.consume import Dead, Done, Fetched, Kept
from chronosd.broker.keys import Namespace, QueueKeys
from chronosd.broker.message import Message, decode
from chronosd.broker.runner import SyncRunner
from chronosd.broker.sweep import forward
from chronosd.client import Client
from chronosd.outcome import Succeeded
from chronosd.states import State
from chronosd.worker.complete import Move, conclude
from chronosd.workflows import Chain, Group

T = TypeVar("T")

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def chain_of(n: int) -> Chain:
    chain = Chain()
    for i in range(n):
        chain.then("step", {"i": i})
    return chain


def group_of(n: int, **options: Any) -> Group:
    """Members in the queue ``default``, and a callback in ``cbq``."""
    group = Group()
    for i in range(n):
        group.add("member", {"i": i}, **options)
    return group.on_complete("merge", {}, queue="cbq")


class Flow:
    """Queues of one namespace."""

    def __init__(self, url: str, redis: redis_py.Redis, runner: SyncRunner, namespace: str) -> None:
        self.redis: Any = redis
        self.runner = runner
        self.namespace = Namespace(namespace)
        self.client = Client(url, namespace=namespace)

    def run(self, command: Command[T]) -> T:
        return self.runner.run(command)

    def queue(self, name: str) -> QueueKeys:
        return self.namespace.queue(name)

    def chain(self, chain: Chain) -> str:
        return self.client.enqueue_chain(chain).id

    def group(self, group: Group) -> str:
        return self.client.enqueue_group(group).id

    def fetch(self, name: str = "default", count: int = 1, consumer: str = "c1") -> list[Fetched]:
        """Tasks that are ready."""
        self.run(consume.create_group(self.queue(name)))
        return self.run(consume.fetch(self.queue(name), consumer, count)).tasks

    def take(self, task_id: str, name: str = "default") -> Fetched:
        """The one ready task of a queue, which must be this one."""
        (run,) = self.fetch(name)
        assert run.task_id == task_id
        return run

    def move(self, run: Fetched, result: bytes | None = None) -> Move:
        """What a worker makes of a success."""
        message = decode(run.msg or b"")
        return conclude(run.entry, message, Succeeded(result), 1, 1, namespace=self.namespace.prefix)

    def kept(self, run: Fetched, result: bytes | None = None) -> Kept:
        """What a worker makes of the success of a task that something follows."""
        move = self.move(run, result)
        assert isinstance(move, Kept)
        return move

    def succeed(self, run: Fetched, result: bytes | None = None, name: str = "default") -> list[bytes]:
        """Ends a run well; returns it if it was lost."""
        move, queue = self.move(run, result), self.queue(name)
        if isinstance(move, Kept):
            return self.run(consume.retain(queue, [move]))
        assert isinstance(move, Done)
        return self.run(consume.complete(queue, [move]))

    def finish(self, task_id: str, result: bytes | None = None, name: str = "default") -> None:
        """Runs the one ready task of a queue to its good end."""
        assert self.succeed(self.take(task_id, name), result, name) == []

    def bury(self, run: Fetched, name: str = "default") -> None:
        """Dead-letters a run."""
        message = decode(run.msg or b"")
        message.last_err = "boom"
        assert self.run(consume.archive(self.queue(name), [Dead(run.entry, run.task_id, message)])) == []

    def revive(self, task_id: str, name: str = "default") -> None:
        """What `task run` does with a dead letter."""
        queue = self.queue(name)
        assert self.redis.zrem(queue.archived, task_id) == 1
        self.redis.hset(queue.task(task_id), "state", 1)
        self.redis.xadd(queue.stream, {"task_id": task_id})

    def hasten(self, task_id: str, name: str = "default") -> None:
        """Makes a scheduled task ready now."""
        queue = self.queue(name)
        assert self.redis.zadd(queue.scheduled, {task_id: 1}, xx=True, ch=True) == 1
        assert self.run(forward(queue, State.SCHEDULED)).moved == 1

    def message(self, task_id: str, name: str = "default") -> Message | None:
        raw = self.redis.hget(self.queue(name).task(task_id), "msg")
        return None if raw is None else decode(raw)

    def state(self, task_id: str, name: str = "default") -> State | None:
        raw = self.redis.hget(self.queue(name).task(task_id), "state")
        return None if raw is None else State(int(raw))

    def open_members(self, group_id: str, name: str = "default") -> set[str]:
        return {one.decode() for one in self.redis.smembers(self.queue(name).group(group_id))}

    def names(self) -> set[str]:
        prefix = self.namespace.prefix + ":"
        return {key.decode().removeprefix(prefix) for key in self.redis.scan_iter(f"{prefix}*", count=1000)}

    def dump(self) -> dict[str, Any]:
        """All that is there, in the form of the dumps in tests/data/wire."""
        prefix, found = self.namespace.prefix, {}
        for key in self.redis.scan_iter(f"{prefix}:*", count=1000):
            kind = self.redis.type(key).decode()
            value: dict[str, Any] = {"type": kind, "pttl_ms": self.redis.pttl(key)}
            if kind == "hash":
                value["fields"] = {k.decode(): v.decode() for k, v in self.redis.hgetall(key).items()}
            elif kind == "string":
                value["value"] = self.redis.get(key).decode()
            elif kind == "set":
                value["members"] = [one.decode() for one in self.redis.smembers(key)]
            elif kind == "zset":
                pairs = self.redis.zrange(key, 0, -1, withscores=True)
                value["members"] = [[one.decode(), score] for one, score in pairs]
            elif kind == "stream":
                value["entries"] = [
                    [entry.decode(), {k.decode(): v.decode() for k, v in fields.items()}]
                    for entry, fields in self.redis.xrange(key)
                ]
            found["chronos" + key.decode().removeprefix(prefix)] = value
        return found


def comparable(dump: dict[str, Any], now: float) -> dict[str, Any]:
    """A dump without what differs between two runs: random ids, instants (as seconds from `now`), entries."""
    found: dict[str, Any] = {}
    for key, value in dump.items():
        kind = value["type"]
        made: dict[str, Any] = {"type": kind, "ttl_h": round(value["pttl_ms"] / 3_600_000)}
        if kind == "hash":
            fields = {k: v for k, v in value["fields"].items() if k not in ("enqueued_at", "nonce")}
            if "msg" in fields:
                fields["msg"] = re.sub(r'"completed_at":\d+', '"completed_at":0', _anonymous(fields["msg"]))
            made["fields"] = fields
        elif kind == "set":
            made["members"] = sorted(map(_anonymous, value["members"]))
        elif kind == "zset":
            made["members"] = {_anonymous(one): (float(s) - now + 5) // 20 for one, s in value["members"]}
        elif kind == "string":
            made["value"] = _anonymous(value["value"])
        else:
            made["ids"] = [_anonymous(fields["task_id"]) for _, fields in value["entries"]]
        found[_anonymous(key)] = made
    return found


def _anonymous(text: str) -> str:
    return _UUID.sub("ID", text)
