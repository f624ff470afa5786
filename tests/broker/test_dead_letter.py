"""``on_dead_letter``: the task that follows every dead letter, enqueued by the script that archives."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from chronosd import Client, Group, Inspector
from chronosd.broker import consume, settle
from chronosd.broker.consume import Dead
from chronosd.broker.dead_letter import DeadLetters
from chronosd.broker.keys import GROUP
from chronosd.broker.message import Message, decode
from chronosd.broker.recover import recover
from chronosd.broker.settle import Death, Fate, Policy
from chronosd.config.schema import DeadLetterConfig
from chronosd.states import State
from tests.support.bench import Bench

Bencher = Callable[[str], Bench]


@pytest.fixture
def alerts(bencher: Bencher) -> Bench:
    return bencher("alerts")


@pytest.fixture
def letters(alerts: Bench) -> DeadLetters:
    return DeadLetters(alerts.namespace, "alert:dead", alerts.queue)


def policy(letters: DeadLetters, *, max_crashes: int = 3) -> Policy:
    return Policy(max_crashes, lambda kind, retried: 0.001, letters)


def told(alerts: Bench) -> list[dict[str, Any]]:
    """The arguments of the tasks that followed, in order."""
    found = alerts.look()
    found.check()
    messages = [decode(found.hashes[task_id]["msg"].encode()) for task_id in found.waiting]
    assert all(message.kind == "alert:dead" for message in messages)
    return [json.loads(message.payload) for message in messages]


def test_it_says_what_died_of_what_and_is_enqueued_once(
    bench: Bench, alerts: Bench, letters: DeadLetters
) -> None:
    run = bench.take("a")
    message = bench.message("a", retried=3, last_err="boom")
    command = consume.archive(
        bench.queue, [letters.followed(Dead(run.entry, "a", message, crashes=2), bench.queue)]
    )
    assert bench.run(command) == []
    assert bench.run(command) == [run.entry], "nothing follows a repeat"
    (args,) = told(alerts)
    assert args.pop("died_at") == pytest.approx(time.time(), abs=10)
    assert args == {"id": "a", "kind": "mail:send", "queue": "q", "error": "boom", "retried": 3, "crashes": 2}
    assert bench.redis.smembers(bench.namespace.queues) == {b"alerts"}
    assert bench.look().places("a") == [State.ARCHIVED]


def test_it_may_go_to_the_queue_that_the_task_was_in(bench: Bench) -> None:
    run = bench.take("a")
    letters = DeadLetters(bench.namespace, "alert:dead", bench.queue)
    bench.run(
        consume.archive(
            bench.queue, [letters.followed(Dead(run.entry, "a", bench.message("a")), bench.queue)]
        )
    )
    found = bench.look()
    found.check()
    assert len(found.waiting) == 1


def test_nothing_follows_what_a_late_owner_wanted_dead(
    bench: Bench, alerts: Bench, letters: DeadLetters
) -> None:
    run = bench.take("a")
    bench.run(consume.release(bench.queue, [(run.entry, "a")]))
    bench.run(
        consume.archive(
            bench.queue, [letters.followed(Dead(run.entry, "a", bench.message("a")), bench.queue)]
        )
    )
    assert told(alerts) == []
    bench.look().check()


def test_nothing_follows_the_dead_letter_of_the_task_that_follows(
    bench: Bench, alerts: Bench, letters: DeadLetters
) -> None:
    """It failed itself, and called for another one, for ever."""
    run = bench.take("a", kind="alert:dead")
    message = bench.message("a", kind="alert:dead")
    bench.run(consume.archive(bench.queue, [letters.followed(Dead(run.entry, "a", message), bench.queue)]))
    huge = bench.take("b", kind="alert:dead")
    unread = Dead(huge.entry, "b", None, {"error": "too large"}, kind="alert:dead")
    bench.run(consume.archive(bench.queue, [letters.followed(unread, bench.queue)]))
    assert told(alerts) == []


def test_a_text_that_is_no_unicode_hinders_nothing(bench: Bench, letters: DeadLetters) -> None:
    """It raised where the worker's one loop puts its ends together."""
    dead = Dead(b"1-1", "a", None, {"error": "\ud800"}, kind="\udfff")
    (following,) = letters.followed(dead, bench.queue).follow
    assert json.loads(decode(following.words[-1]).payload)["error"] == "\\ud800"


def test_an_entry_that_names_no_task_is_followed_like_any_other(
    bench: Bench, alerts: Bench, letters: DeadLetters
) -> None:
    bench.group()
    bench.redis.xadd(bench.queue.stream, {"foo": "bar"})
    (odd,) = bench.fetch()
    record = consume.undecodable(bench.queue, odd.entry, odd.msg or b"")
    command = consume.bury(bench.queue, odd.entry, record, letters.following(record, bench.queue))
    assert (bench.run(command), bench.run(command)) == ([], [odd.entry])
    (args,) = told(alerts)
    assert (args["id"], args["kind"]) == (record.id, "chronosd:undecodable")
    assert "names no task" in args["error"]


def dead_owner(bench: Bench) -> dict[str, Message]:
    """What a dead worker may leave, each to be archived."""
    bench.group()
    bench.add("spent", max_retry=0)
    bench.add("poison", retried=2)
    bench.redis.hset(bench.queue.task("poison"), "crashes", "2")
    bench.add("broken")
    bench.redis.hset(bench.queue.task("broken"), "msg", "{")
    bench.redis.xadd(bench.queue.stream, {"foo": "bar"})
    bench.add("discarded", max_retry=0, no_archive=True)
    bench.add("fresh")
    runs = bench.fetch()
    bench.run(consume.mark_running(bench.queue, [(run.entry, run.task_id) for run in runs]))
    return {}


def check_told(alerts: Bench) -> None:
    by_id = {args["id"]: args for args in told(alerts)}
    odd = [task_id for task_id in by_id if task_id.startswith("undecodable-")]
    assert by_id.keys() == {"spent", "poison", "broken", *odd}
    assert len(odd) == 1
    assert (by_id["spent"]["crashes"], by_id["poison"]["crashes"]) == (1, 3)
    assert "max_crashes" in by_id["poison"]["error"]
    assert (by_id["broken"]["kind"], "undecodable" in by_id["broken"]["error"]) == ("", True)


def test_what_a_dead_worker_left_is_followed_by_its_settlement(
    bench: Bench, alerts: Bench, letters: DeadLetters
) -> None:
    dead_owner(bench)
    steps = settle.settle({"q": bench.queue}, "c1", {}, Fate.CHARGE, Death("killed", "c1"), policy(letters))
    assert bench.runner.drive(steps).archived == 4
    again = settle.settle({"q": bench.queue}, "c1", {}, Fate.CHARGE, Death("killed", "c1"), policy(letters))
    assert bench.runner.drive(again).total == 0
    check_told(alerts)


def test_what_a_lost_host_left_is_followed_by_its_recovery(
    bench: Bench, alerts: Bench, letters: DeadLetters
) -> None:
    """The recoverer dead-lettered without a word to anybody."""
    dead_owner(bench)
    for entry, (_, owner) in bench.look().owned.items():
        bench.redis.xclaim(bench.queue.stream, GROUP, owner, 0, [entry], idle=60_000, justid=True)
    bench.runner.drive(recover(bench.queue, "rec", 30, "0-0", {}, policy(letters)))
    check_told(alerts)


@pytest.mark.parametrize("way", ["delete", "purge", "cancel"])
def test_the_callback_of_a_group_that_an_operator_ended_is_followed_too(
    bench: Bench, alerts: Bench, bench_url: str, way: str
) -> None:
    namespace = bench.namespace.prefix
    group = Group().add("k", {"n": 1}, queue="q").add("k", {"n": 2}, queue="q")
    with Client(bench_url, namespace=namespace) as client:
        made = client.enqueue_group(group.on_complete("k", queue="q"))
    follow = DeadLetterConfig(kind="alert:dead", queue="alerts")
    with Inspector(bench_url, namespace=namespace, on_dead_letter=follow) as inspector:
        if way == "delete":
            inspector.delete_task(bench.look().waiting[0], "q")
        elif way == "cancel":
            inspector.cancel(bench.look().waiting[0])
        else:
            inspector.purge("q")
    (args,) = told(alerts)
    assert args["id"] == f"{made.id}:cb"
    assert ("was cancelled" if way == "cancel" else "deleted by an operator") in args["error"]
    assert bench.look().places(f"{made.id}:cb") == [State.ARCHIVED]
