"""Schedules of whole daemons: several on one server, killed, with wrong clocks, reloaded and stopped."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from chronosd import Client
from tests.support.clocks import Clock
from tests.support.daemon import Daemon
from tests.support.queue_view import QueueView
from tests.support.waiting import wait_until

MakeDaemon = Callable[..., Daemon]

SECONDS = float(os.environ.get("CHRONOSD_TEST_SCHEDULE_S", "10"))
"""How long leaders are killed; 300 is what is promised."""
KILL_EVERY_S = 7.0

TICK = """
    import asyncio

    from tests.support.ledger import Ledger

    ledger = Ledger.of_environment()

    async def tick(task):
        # the id has blanks, and ends in the second that fired
        with ledger.run(task.id.rpartition(":")[2], task.attempt):
            await asyncio.sleep(task.args.get("sleep", 0) if task.args else 0)
"""
HANDLERS = {"tick": "handlers:tick"}


def every(interval: str = "1s", **options: Any) -> dict[str, Any]:
    return {"every": interval, "kind": "tick", **options}


def registered(redis: redis_py.Redis, namespace: str) -> dict[str, dict[str, Any]]:
    """By the specs in the registry."""
    entries: Any = redis.hgetall(f"{namespace}:schedules")
    found = [json.loads(value) for value in entries.values()]
    assert len({one["spec"] for one in found}) == len(found)
    return {one["spec"]: one for one in found}


def only(redis: redis_py.Redis, pattern: str) -> bytes:
    """The value of the key of that pattern, empty while there is none."""
    names = list(redis.scan_iter(match=pattern, count=1000))
    assert len(names) <= 1, names
    value: Any = redis.get(names[0]) if names else None
    return value or b""


def runs(one: Daemon) -> set[str]:
    """The directories of its runs, each named after the token in what it owns."""
    return {path.name for path in one.runtime_dir.glob("run-*")}


def ticks(one: Daemon) -> set[int]:
    return {int(second) for second in one.ledger.starts()}


@pytest.mark.timeout(SECONDS + 120)
def test_with_leaders_killed_and_a_clock_that_is_wrong_every_second_fires_once(
    daemon: MakeDaemon, redis: redis_py.Redis, namespace: str, queue: QueueView, tmp_path: Path
) -> None:
    """Three daemons, a schedule every second, its leader killed every 7 s, one host's clock 2 s ahead."""
    wrong = Clock(tmp_path / "clock", 2.0)
    keys: dict[str, Any] = {"handlers": TICK, "config": {"handlers": HANDLERS}, "schedules": {"s": every()}}
    three = [daemon(env=env, **keys).start(wait=False) for env in (None, None, wrong.environment)]
    for one in three:
        one.wait_notified("READY=1")

    def leader() -> Daemon | None:
        token = only(redis, f"{namespace}:sched:*:lease").decode().rpartition("-")[2]
        return next((one for one in three if f"run-{token}" in runs(one)), None)

    until, kills, next_at = time.monotonic() + SECONDS, 0, time.monotonic() + 1.5
    while time.monotonic() < until:
        victim = leader() if time.monotonic() >= next_at else None
        if victim is not None:
            victim.kill()
            # The others are there meanwhile: on a slow machine a start takes longer than the time between
            # kills, and with all of them away at once times are missed by right.
            victim.start(timeout_s=60)
            kills, next_at = kills + 1, max(next_at + KILL_EVERY_S, time.monotonic() + 1)
        time.sleep(0.05)
    mark = int(only(redis, f"{namespace}:sched:*:last"))
    wait_until(lambda: max(set().union(*map(ticks, three))) > mark)
    for one in three:
        one.send(signal.SIGTERM)
    assert [one.wait() for one in three] == [0, 0, 0]

    said = [record for one in three for record in one.log_records("schedule fired")]
    fired = Counter(record["trigger"] for record in said)
    assert set(fired.values()) == {1}, "one of them twice"
    ran = sorted(set().union(*map(ticks, three)))
    end = int(only(redis, f"{namespace}:sched:*:last"))
    left = {int(task_id.rpartition(":")[2]) for task_id in queue.bodies()}
    assert sorted(left | set(ran)) == list(range(ran[0], end + 1)), "a second that did not fire"
    late = sorted(record["late_s"] for record in said)
    firsts = Counter(e.id for one in three for e in one.ledger.entries("start") if e.attempt == 1)
    print(
        f"{len(ran)} seconds, {kills} leaders killed, late by {late[len(late) // 2] * 1000:.0f} ms (p50),"
        f" {late[int(len(late) * 0.99)] * 1000:.0f} ms (p99), {late[-1] * 1000:.0f} ms (most);"
        f" started more than once: {sum(count > 1 for count in firsts.values())}"
    )
    assert kills >= 1
    assert all(record["late_s"] >= 0 for record in said), "before its time, by the server's clock"


def test_reloads_change_rename_and_remove_schedules_and_none_of_that_fires(
    daemon: MakeDaemon, redis: redis_py.Redis, namespace: str
) -> None:
    """Case 45."""
    keys: dict[str, Any] = {"handlers": HANDLERS, "log": {"level": "debug", "format": "json"}}
    one = daemon(handlers=TICK, config=keys, schedules={"s": every()}).start()
    wait_until(lambda: ticks(one), timeout_s=30)

    def reload(**schedules: dict[str, Any]) -> dict[str, dict[str, Any]]:
        one.write_config({**keys, "schedules": schedules})
        answer = one.ask("reload", wait=True)
        assert answer.get("ok"), answer
        wanted = {name for name in schedules}
        wait_until(lambda: {e["name"] for e in registered(redis, namespace).values()} == wanted)
        return registered(redis, namespace)

    assert list(reload(s=every("1h"))) == ["@every 1h0m0s"], "one live rule"
    before = ticks(one)
    mark = only(redis, f"{namespace}:sched:*:last")
    shown = reload(renamed=every("1h"))
    assert [entry["name"] for entry in shown.values()] == ["renamed"]
    assert only(redis, f"{namespace}:sched:*:last") == mark, "a new name changes nothing"
    reload(renamed=every("1h", args={"sleep": 0}))
    reload()
    assert list(redis.scan_iter(match=f"{namespace}:sched:*")) == []
    began = reload(again=every("1s", args={"n": 1}))["@every 1s"]["registered_at"]
    wait_until(lambda: ticks(one) > before)
    assert one.stop() == 0
    fired = [(record["schedule"], record["trigger"]) for record in one.log_records("schedule fired")]
    assert {name for name, _ in fired} == {"s", "again"}
    assert max(trigger for name, trigger in fired if name == "s") <= max(before), "it was removed"
    assert min(trigger for name, trigger in fired if name == "again") > began, "an edit fires nothing itself"


def test_a_long_drain_lets_no_time_pass_unseen_and_then_gives_the_lease_back(
    daemon: MakeDaemon, client: Client, redis: redis_py.Redis, namespace: str, queue: QueueView
) -> None:
    one = daemon(
        handlers=TICK, config={"handlers": HANDLERS}, queues=["default", "later"],
        schedules={"s": every(queue="later")},
    ).start()  # fmt: skip
    client.enqueue("tick", {"sleep": 2.5})
    wait_until(lambda: len(one.ledger.starts()) >= 2)
    one.send(signal.SIGTERM)
    one.wait_notified("STOPPING=1")
    began = int(only(redis, f"{namespace}:sched:*:last"))
    wait_until(lambda: int(only(redis, f"{namespace}:sched:*:last")) > began)
    assert only(redis, f"{namespace}:sched:*:lease") != b""
    assert one.wait() == 0
    assert only(redis, f"{namespace}:sched:*:lease") == b""
    assert only(redis, f"{namespace}:sched:*:last") != b"", "it goes on from there at the next start"


def test_a_burst_fires_no_schedule_for_it_would_have_no_end(
    daemon: MakeDaemon, client: Client, redis: redis_py.Redis, namespace: str
) -> None:
    one = daemon(handlers=TICK, config={"handlers": HANDLERS}, schedules={"s": every()}, args=["--burst"])
    client.enqueue("tick")
    one.start()
    assert one.wait(20) == 0
    assert list(redis.scan_iter(match=f"{namespace}:sched*")) == []


def test_the_schedules_of_a_daemon_are_listed(daemon: MakeDaemon) -> None:
    one = daemon(
        handlers=TICK,
        config={"handlers": HANDLERS},
        schedules={
            "often": every("1s"),
            "nightly": {"cron": "0 3 * * *", "timezone": "Europe/Berlin", "kind": "tick"},
        },
    ).start()
    wait_until(lambda: ticks(one), timeout_s=30)
    listed = one.run_command("schedule", "ls", "--json")
    assert listed.returncode == 0, listed.stderr
    nightly, often = json.loads(listed.stdout)
    assert (nightly["name"], nightly["spec"], nightly["timezone"]) == (
        "nightly",
        "0 3 * * *",
        "Europe/Berlin",
    )
    assert [text[10:19] for text in nightly["next_times_iso"]] == ["T03:00:00"] * 5
    assert nightly["last_fired"] is None
    assert often["last_fired"] in ticks(one) | {max(ticks(one)) + 1}
    assert often["leader"] == nightly["leader"] != ""
    table = one.run_command("schedule", "ls")
    assert table.returncode == 0
    assert "no daemon" not in table.stdout
    one.kill()
    one.redis_url = "redis://127.0.0.1:1/0"
    one.write_config({"handlers": HANDLERS, "schedules": {"n": {"cron": "@hourly", "kind": "tick"}}})
    alone = one.run_command("schedule", "ls")
    assert alone.returncode == 0
    assert alone.stderr.startswith("from the configuration alone: ")
    assert alone.stdout.count(":00:00+00:00") == 5
