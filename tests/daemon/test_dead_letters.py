"""``on_dead_letter`` in a running daemon: whoever archives, somebody is told."""

from __future__ import annotations

import base64
import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import redis as redis_py

from chronosd import Client
from chronosd.states import State
from tests.support.daemon import Daemon
from tests.support.queue_view import QueueView
from tests.support.waiting import wait_until

MakeDaemon = Callable[..., Daemon]


def test_every_way_into_the_dead_letters_is_followed_and_a_reload_changes_by_what(
    daemon: MakeDaemon, client: Client, redis: redis_py.Redis, queue: QueueView, namespace: str
) -> None:
    """Workers told of their own dead letters, and nobody of those that a crash or a recovery made."""
    alerts = QueueView(redis, namespace, "alerts")

    def told(kind: str) -> list[dict[str, Any]]:
        messages = [json.loads(alerts.field(one, "msg") or b"{}") for one in alerts.bodies()]
        return [json.loads(base64.b64decode(m["payload"])) for m in messages if m["kind"] == kind]

    def settings(follow: dict[str, str] | None) -> dict[str, Any]:
        return {
            "retry": {"base": "50ms", "cap": "50ms"},
            "max_payload": "10KiB",
            "on_dead_letter": follow,
        }

    one = daemon(workers=2, config=settings({"kind": "alert:dead", "queue": "alerts"}))
    ids = {
        "spent": client.enqueue("count", {"fail": 9}, max_retry=1).id,
        "skipped": client.enqueue("wrong", {}).id,
        "killed": client.enqueue("die", {}, max_retry=0).id,
        "poison": client.enqueue("die", {}).id,
        "too large": client.enqueue("count", {"text": "x" * 20_000}).id,
        "unknown": client.enqueue("nobody:knows", {}).id,
        "undecodable": client.enqueue("count", {}).id,
    }
    client.enqueue("count", {"fail": 9}, max_retry=0, discard=True)
    client.enqueue("count", {"text": "x" * 20_000}, discard=True)
    queue.redis.hset(queue.keys.task(ids["unknown"]), "unknown_since", str(time.time() - 90_000))
    queue.redis.hset(queue.keys.task(ids["undecodable"]), "msg", "{")
    queue.redis.xadd(queue.keys.stream, {"foo": "bar"})
    one.start()
    queue.wait_finished(timeout_s=60)
    found = {args["id"]: args for args in told("alert:dead")}
    assert set(found) == queue.ids(State.ARCHIVED)
    assert Counter(map(len, (found, ids))) == Counter([8, 7]), "and the entry that names no task"
    assert (found[ids["poison"]]["crashes"], found[ids["spent"]]["retried"]) == (3, 1)
    assert "killed by signal 9" in found[ids["killed"]]["error"]

    one.write_config(settings({"kind": "alert:other", "queue": "alerts"}))
    assert one.ask("reload", wait=True)["ok"]
    after = {client.enqueue("wrong", {}).id, client.enqueue("die", {}, max_retry=0).id}
    wait_until(lambda: {args["id"] for args in told("alert:other")} == after, what="both under the new kind")
    one.write_config(settings(None))
    assert one.ask("reload", wait=True)["ok"]
    last = client.enqueue("wrong", {}).id
    wait_until(lambda: last in queue.ids(State.ARCHIVED), what="a dead letter that nobody asked about")
    assert len(alerts.bodies()) == len(found) + len(after)
    assert one.stop() == 0


def test_the_task_that_follows_may_fail_as_often_as_it_likes_and_is_followed_by_nothing(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    one = daemon(workers=1, config={"on_dead_letter": {"kind": "wrong"}}).start()
    client.enqueue("count", {"fail": 9}, max_retry=0)
    wait_until(lambda: queue.size(State.ARCHIVED) == 2, what="the task, and the one that followed it")
    queue.wait_finished()
    assert queue.size(State.ARCHIVED) == 2
    assert one.stop() == 0
