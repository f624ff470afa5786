"""Dumps of a real chronos-go (tests/data/wire): to compare with, and to load into a server."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import redis as redis_py

from chronosd.broker.keys import GROUP, Field
from tests.support.flow import comparable

WIRE = Path(__file__).parent.parent / "data" / "wire"
NAMES = tuple(sorted(path.stem for path in WIRE.glob("*.json")))

OURS = {name for key, name in vars(Field).items() if key.isupper()} - {Field.MSG, Field.STATE}
"""Hash fields of ours beyond those that `comparable` leaves out; Go leaves them alone."""

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_IN_MSG = re.compile(r'"(queue|group_queue)":"([^"]*)"')


def dump(name: str) -> dict[str, Any]:
    """One dump, by the name of its file."""
    found: dict[str, Any] = json.loads((WIRE / f"{name}.json").read_text())
    return found


def taken_at(dumped: dict[str, Any]) -> float:
    """When a dump was taken, about; unix seconds."""
    streams = [value for value in dumped.values() if value["type"] == "stream"]
    if not streams:  # a task that was delayed by an hour, and nothing else
        return max(score for value in dumped.values() for _, score in _scores(value)) - 3600
    return max(int(value["last_generated_id"].partition("-")[0]) for value in streams) / 1000


def _scores(value: dict[str, Any]) -> list[tuple[str, float]]:
    return [(one, float(score)) for one, score in value["members"]] if value["type"] == "zset" else []


def essence(dumped: dict[str, Any], now: float) -> dict[str, Any]:
    """A dump without what differs between two runs, nor what is ours alone.

    Random ids of single tasks become their payloads, so that each can be told from the others.
    """
    text, prefix = json.dumps(dumped), next(iter(dumped)).partition(":")[0]
    text = re.sub(rf'"{prefix}:', '"chronos:', text)
    text = re.sub(r'\\"unique_key\\":\\"[^:"]+:', r'\\"unique_key\\":\\"chronos:', text)
    for key, value in dumped.items():
        task_id = key.rpartition(":t:")[2]
        if _UUID.fullmatch(task_id):
            text = text.replace(task_id, f"ID-{json.loads(value['fields']['msg'])['payload']}")
    found = comparable(json.loads(text), now)
    for key, value in found.items():
        for field in OURS:
            value.get("fields", {}).pop(field, None)
        if key.endswith(":archived"):  # they stay, and so are of any age
            value["members"] = sorted(value["members"])
    return found


def go(name: str) -> dict[str, Any]:
    """The essence of a dump."""
    dumped = dump(name)
    return essence(dumped, taken_at(dumped))


# -- loading ------------------------------------------------------------------------------------------


class Loaded:
    """A dump in a server, in a namespace, its queues under names of their own (``label.name``): so that
    several are beside each other.

    What waits for a time is due, what is kept is kept on. What was pending is so, for a consumer that has
    been silent for a minute.
    """

    def __init__(self, redis: redis_py.Redis, name: str, namespace: str, label: str = "") -> None:
        self.redis: Any = redis
        self.name = name
        self.namespace = namespace
        self._label = f"{label}." if label else ""
        self._dump = dump(name)
        self._prefix = next(iter(self._dump)).partition(":")[0]
        named = {key.partition("{")[2].partition("}")[0] for key in self._dump}
        named |= {name for _, name in _IN_MSG.findall(json.dumps(self._dump).replace('\\"', '"'))}
        self.queues = sorted(self._label + name for name in named if name)
        for key, value in self._dump.items():
            getattr(self, f"_load_{value['type']}")(self.key(key), value)

    def key(self, key: str) -> str:
        """The key that one of the dump's has become."""
        rest = key.removeprefix(self._prefix)
        return self.namespace + rest.replace("{", "{" + self._label, 1)

    def text(self, value: str) -> str:
        """A message, with the queues that it names and the lock that it has as they are called here."""
        value = _IN_MSG.sub(lambda m: f'"{m[1]}":"{self._label}{m[2]}"' if m[2] else m[0], value)
        return value.replace(
            f'"unique_key":"{self._prefix}:{{', f'"unique_key":"{self.namespace}:{{{self._label}'
        )

    def _load_string(self, key: str, value: dict[str, Any]) -> None:
        self.redis.set(key, value["value"], px=value["pttl_ms"] if value["pttl_ms"] > 0 else None)

    def _load_set(self, key: str, value: dict[str, Any]) -> None:
        is_names = key in (f"{self.namespace}:queues", f"{self.namespace}:paused")
        self.redis.sadd(key, *((self._label if is_names else "") + one for one in value["members"]))
        if value["pttl_ms"] > 0:
            self.redis.pexpire(key, value["pttl_ms"])

    def _load_zset(self, key: str, value: dict[str, Any]) -> None:
        at = {"scheduled": 1, "retry": 1, "completed": time.time() + 3600}.get(key.rpartition(":")[2])
        self.redis.zadd(key, {one: at or float(score) for one, score in value["members"]})

    def _load_hash(self, key: str, value: dict[str, Any]) -> None:
        self.redis.hset(key, mapping={name: self.text(one) for name, one in value["fields"].items()})
        if value["pttl_ms"] > 0:
            self.redis.pexpire(key, value["pttl_ms"])

    def _load_stream(self, key: str, value: dict[str, Any]) -> None:
        for entry, fields in value["entries"]:
            self.redis.xadd(key, fields, id=entry)
        for group in value["groups"]:
            self.redis.xgroup_create(key, GROUP, "0", mkstream=True)
            for one in group["pel"]:
                self.redis.xclaim(
                    key, GROUP, one["consumer"], 0, [one["message_id"]], idle=60_000, force=True, justid=True
                )
            self.redis.xgroup_setid(key, GROUP, group["last-delivered-id"])
