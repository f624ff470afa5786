"""Cases of group G: workflows; and the weak spots of chronos-go's chains and groups."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import redis as redis_py

from chronosd import Chain, Client, Group, Inspector
from chronosd.broker.keys import Namespace
from chronosd.states import State
from tests.support.daemon import ROOT, Daemon
from tests.support.proxy import Proxy
from tests.support.queue_view import QueueView
from tests.support.waiting import wait_until

MakeDaemon = Callable[..., Daemon]

HANDLERS = """
    from __future__ import annotations
    import asyncio
    import json
    from chronosd import SkipRetry, Task
    from tests.support.ledger import Ledger

    ledger = Ledger.of_environment()


    async def step(task: Task[dict]) -> int:
        with ledger.run(task.id, task.attempt):
            await asyncio.sleep(task.args.get("sleep", 0))
            while task.args.get("wait") and not ledger.ends()["go"]:
                await asyncio.sleep(0.02)
            if task.args.get("wrong") and task.attempt == 1 and not ledger.ends()[task.id + ":mended"]:
                raise SkipRetry("wrong")
            return task.args.get("n", 0)


    async def merge(task: Task[dict]) -> None:
        with ledger.run(task.id, task.attempt):
            ledger.write("results", task.id, task.attempt, json.dumps(task.group_results()))
"""


def flows(daemon: MakeDaemon, **keys: Any) -> Daemon:
    handlers = {"step": "handlers:step", "merge": "handlers:merge"}
    return daemon(handlers=HANDLERS, config={"handlers": handlers}, **keys)


def results(one: Daemon) -> list[Any]:
    """What every run of a callback found."""
    return [json.loads(entry.note) for entry in one.ledger.entries("results")]


def group_of(*members: dict[str, Any]) -> Group:
    group = Group()
    for number, args in enumerate(members):
        group.add("step", {"n": number, **args.pop("args", {})}, **args)
    return group.on_complete("merge")


def nothing_left(redis: redis_py.Redis, namespace: str) -> bool:
    return not list(redis.scan_iter(match=f"{namespace}:*}}:[gt]*", count=10_000))


def test_g75_a_chain_whose_acknowledgement_is_lost_in_a_stop_goes_on_once(
    daemon: MakeDaemon, client: Client, queue: QueueView, proxy: Proxy, redis: redis_py.Redis, namespace: str
) -> None:
    """The step had sent the next one, its own acknowledgement was lost, and the whole tail ran twice."""
    one = flows(daemon, redis_url=proxy.url, workers=1).start()
    chain = Chain().then("step", {}, max_retry=0).then("step", {"wait": True}, max_retry=0)
    chain_id = client.enqueue_chain(chain.then("step", {}, max_retry=0).then("step", {}, max_retry=0)).id
    wait_until(lambda: one.ledger.starts()[f"{chain_id}:1"] == 1, what="the second step")
    one.send(signal.SIGTERM)
    wait_until(lambda: not any("b" in one["flags"] for one in redis.client_list()), what="no blocking read")
    time.sleep(0.1)  # for the cycle behind it
    proxy.mode = "swallow"
    one.ledger.write("end", "go")
    wait_until(lambda: queue.bodies() == {f"{chain_id}:2"}, what="its end, which nobody hears of")
    proxy.mode = "reset"  # it is sent again
    proxy.mode = "pass"
    assert one.wait() == 0
    one.start()
    wait_until(lambda: one.ledger.ends()[f"{chain_id}:3"] == 1, what="the end of the chain")
    queue.wait_finished()
    assert one.ledger.starts() == Counter(f"{chain_id}:{i}" for i in range(4))
    assert one.stop() == 0
    assert nothing_left(redis, namespace)


def test_g76_members_that_run_twice_neither_fire_early_nor_twice(
    daemon: MakeDaemon, client: Client, queue: QueueView, redis: redis_py.Redis, namespace: str
) -> None:
    """A counter was decremented by every run: it went below zero, and the callback fired early and twice."""
    one = flows(daemon, workers=1, concurrency=16).start()
    members: list[dict[str, Any]] = [{"queue": "default"} for _ in range(10)]
    members[4] = {"args": {"sleep": 1.5}}
    group_id = client.enqueue_group(group_of(*members)).id
    others = [f"{group_id}:m{i}" for i in range(10) if i != 4]
    wait_until(lambda: set(one.ledger.ends()) == set(others), what="all but one")
    wait_until(lambda: queue.bodies() == {f"{group_id}:m4"}, what="their ends")

    def again(number: int) -> None:
        # what a Go producer does: it stores the task anew under the id
        task = {"id": f"{group_id}:m{number}", "kind": "step", "queue": "default", "payload": "e30="}
        fields = {"group_id": group_id, "group_queue": "default", "group_index": number, "group_size": 10}
        callback = {"kind": "merge", "payload": "e30=", "queue": "default", "max_retry": 25}
        msg = json.dumps({**task, **fields, "group_callback": callback})
        redis.hset(queue.keys.task(task["id"]), mapping={"msg": msg, "state": 1})
        redis.xadd(queue.keys.stream, {"task_id": task["id"]})

    for number, times in ((9, 2), (2, 2), (9, 3)):
        again(number)
        wait_until(
            lambda n=number, t=times: one.ledger.ends()[f"{group_id}:m{n}"] == t, what="its second run"
        )  # type: ignore[misc]
        assert results(one) == []
    wait_until(lambda: results(one), what="the callback")
    again(2)
    wait_until(lambda: one.ledger.ends()[f"{group_id}:m2"] == 3, what="one more")
    queue.wait_finished()
    assert results(one) == [list(range(10))]
    slow = next(e for e in one.ledger.entries("end") if e.id == f"{group_id}:m4")
    assert one.ledger.entries("results")[0].at_ns > slow.at_ns
    assert one.stop() == 0
    assert nothing_left(redis, namespace)


def test_g78_members_whose_retention_ends_leave_their_results_to_the_group(
    daemon: MakeDaemon, client: Client, queue: QueueView, redis: redis_py.Redis, namespace: str
) -> None:
    """The state of a workflow that goes on is not subject to anybody's retention."""
    one = flows(daemon, workers=1, janitor={"interval": "200ms", "max_completed": 1}).start()
    group_id = client.enqueue_group(
        group_of({"retention": 1}, {"retention": "1h"}, {"retention": "1h"}, {"delay": 2.5})
    ).id
    wait_until(lambda: queue.unfinished() == 1, what="three of four")
    wait_until(lambda: len(queue.bodies()) <= 2, what="one kept, one waiting")
    wait_until(lambda: results(one), what="the callback")
    assert results(one) == [[0, 1, 2, 3]]
    assert one.ledger.starts() == Counter([f"{group_id}:cb", *(f"{group_id}:m{i}" for i in range(4))])
    assert one.stop() == 0


def test_g78_a_member_that_an_operator_deletes_ends_the_group_and_says_so(
    daemon: MakeDaemon,
    client: Client,
    queue: QueueView,
    redis: redis_py.Redis,
    redis_url: str,
    namespace: str,
) -> None:
    """The parent waited for a member that was no more. Run by hand, its callback has what there is."""
    one = flows(daemon, workers=1).start()
    late = {"delay": 3600}
    removed = client.enqueue_group(group_of({}, dict(late), dict(late))).id
    purged = client.enqueue_group(group_of({}, {"delay": 3600, "queue": "low"})).id
    wait_until(lambda: set(one.ledger.ends()) == {f"{removed}:m0", f"{purged}:m0"}, what="the others")
    config = ("-c", str(one.config_path))
    told = one.run_command("task", "rm", "default", f"{removed}:m1", "--yes", *config)
    assert told.returncode == 0, told.stderr
    told = one.run_command("queue", "purge", "low", "--yes", *config)
    assert told.returncode == 0, told.stderr
    assert queue.ids(State.ARCHIVED) == {f"{removed}:cb", f"{purged}:cb"}
    shown = one.run_command("task", "show", "default", f"{removed}:cb", *config).stdout
    assert f"{removed}:m1 was deleted" in " ".join(shown.split())
    # the member that is left succeeds, and that changes nothing any more
    inspector = Inspector(redis_url, namespace=namespace)
    assert inspector.run_task(f"{removed}:m2", "default")
    wait_until(lambda: one.ledger.ends()[f"{removed}:m2"] == 1, what="the last member")
    queue.wait_finished()
    assert queue.ids(State.ARCHIVED) == {f"{removed}:cb", f"{purged}:cb"}
    assert results(one) == []
    for callback in (f"{removed}:cb", f"{purged}:cb"):
        assert inspector.run_task(callback)
    wait_until(lambda: len(results(one)) == 2, what="the callbacks")
    assert sorted(results(one), key=len) == [[0, None], [0, None, None]]
    inspector.close()
    assert one.stop() == 0
    assert nothing_left(redis, namespace)


def test_g78_a_dead_letter_that_succeeds_when_its_group_is_over_fires_nothing(
    daemon: MakeDaemon,
    client: Client,
    queue: QueueView,
    redis: redis_py.Redis,
    redis_url: str,
    namespace: str,
) -> None:
    one = flows(daemon, workers=1).start()
    wrong = {"args": {"wrong": True}}
    group_id = client.enqueue_group(group_of(dict(wrong), dict(wrong), {})).id
    dead = {f"{group_id}:m0", f"{group_id}:m1"}
    wait_until(lambda: queue.ids(State.ARCHIVED) == dead, what="two dead letters")
    for task_id in dead:
        one.ledger.write("end", f"{task_id}:mended")
    with Inspector(redis_url, namespace=namespace) as inspector:
        inspector.delete_task(f"{group_id}:m0")
        assert inspector.run_task(f"{group_id}:m1")
    wait_until(lambda: one.ledger.ends()[f"{group_id}:m1"] == 1, what="its success")
    queue.wait_finished()
    assert queue.ids(State.ARCHIVED) == {f"{group_id}:cb"}
    assert results(one) == []
    assert one.stop() == 0


def test_g79_a_member_cut_by_two_signals_completes_the_group_in_its_next_run(
    daemon: MakeDaemon, client: Client, queue: QueueView, redis: redis_py.Redis, namespace: str
) -> None:
    """The batch never completed when the last member died in a shutdown."""
    one = flows(daemon, workers=2).start()
    group_id = client.enqueue_group(group_of({}, {}, {"args": {"sleep": 1.2}})).id
    last = f"{group_id}:m2"
    wait_until(lambda: one.ledger.starts()[last] == 1 and len(one.ledger.ends()) == 2, what="the last member")
    one.send(signal.SIGINT)
    time.sleep(0.2)
    one.kill()
    one.start()
    wait_until(lambda: results(one), what="the callback")
    assert results(one) == [[0, 1, 2]]
    assert one.ledger.starts()[last] == 2
    queue.wait_finished()
    assert one.stop() == 0
    assert nothing_left(redis, namespace)


PRODUCER = """
import sys
from chronosd import Client, Group
group = Group()
for number in range(int(sys.argv[3])):
    group.add("step", {"n": number, "text": "x" * 200}, queue=f"q{number % 3}")
group.on_complete("merge", queue="cb")
client = Client(sys.argv[1], namespace=sys.argv[2], timeout=10)
client.enqueue("ready")
print("ready", flush=True)
sys.stdin.readline()
client.enqueue_group(group)
print("done", flush=True)
"""


def test_g79_a_producer_killed_halfway_leaves_a_whole_group_or_none(
    redis_url: str, redis: redis_py.Redis, namespace: str
) -> None:
    """Half of the members were there and ran; the callback waited for the others for ever."""
    number, whole = 3000, 0
    for attempt in range(4):
        name = f"{namespace}{attempt}"
        command = [sys.executable, "-c", PRODUCER, redis_url, name, str(number)]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            text=True,
        ) as producer:
            assert producer.stdin is not None
            assert producer.stdout is not None
            assert producer.stdout.readline() == "ready\n"
            producer.stdin.write("go\n")
            producer.stdin.flush()
            if attempt == 0:  # once to its end, to know that it has one
                assert producer.stdout.readline() == "done\n"
            else:
                keys = Namespace(name).queue("cb").group_bodies("*")
                wait_until(lambda k=keys: redis.keys(k), what="its beginning")  # type: ignore[misc]
                time.sleep(random.uniform(0, 0.1))
            producer.kill()
        present = [redis.xlen(Namespace(name).queue(f"q{i}").stream) for i in range(3)]
        groups = redis.keys(Namespace(name).queue("cb").group("*"))
        if groups:
            whole += 1
            assert sum(present) == redis.scard(groups[0]) == number
        else:
            assert sum(present) == 0
        staged = redis.keys(Namespace(name).queue("cb").group_bodies("*"))
        assert all(redis.ttl(key) > 0 for key in staged)
        assert (
            len(list(redis.scan_iter(match=f"{name}:*:t:*", count=10_000))) == (number if groups else 0) + 1
        )
        for key in redis.scan_iter(match=f"{name}:*", count=10_000):
            redis.unlink(key)
    assert whole >= 1


# -- weak spots -------------------------------------------------------------------------------------------


def test_weak_5_a_dead_letter_that_is_trimmed_ends_its_group_and_somebody_is_told(
    daemon: MakeDaemon, client: Client, queue: QueueView, redis: redis_py.Redis, namespace: str
) -> None:
    """The callback never ran, without a signal; the set of members stayed until its TTL."""
    one = flows(
        daemon,
        workers=1,
        janitor={"interval": "200ms", "archived_retention": "1s"},
        on_dead_letter={"kind": "merge", "queue": "alerts"},
    ).start()
    group_id = client.enqueue_group(group_of({}, {"args": {"wrong": True}})).id
    callback = f"{group_id}:cb"
    wait_until(lambda: queue.ids(State.ARCHIVED) == {callback}, what="the end of the group")
    assert f"{group_id}:m1" in json.loads(queue.field(callback, "msg") or b"{}")["last_err"]
    alerts = QueueView(redis, namespace, "alerts")
    wait_until(lambda: alerts.entries() == 1, what="what follows the dead letter of the member")
    # a callback of the kind that follows dead letters is followed by nothing: it would follow itself
    assert not redis.keys(f"{namespace}:*group*")
    wait_until(lambda: queue.bodies() == set(), what="the end of that dead letter, too")
    assert one.stop() == 0


def test_weak_23_a_callback_that_cannot_be_read_is_a_dead_letter_with_the_reason(
    daemon: MakeDaemon, client: Client, queue: QueueView, redis: redis_py.Redis
) -> None:
    """Redis' JSON encoder, which Go has write callbacks, makes a float of a number of 1e14 and more; nobody
    could read that, and its entry stayed pending for ever. (Here no such number is taken: test_workflows.)"""
    one = flows(daemon, workers=1).start()
    msg = '{"group_index":0,"id":"g:cb","kind":"merge","queue":"default","payload":"e30=","max_retry":1e+14}'
    redis.hset(queue.keys.task("g:cb"), mapping={"msg": msg, "state": 1})
    redis.xadd(queue.keys.stream, {"task_id": "g:cb"})
    wait_until(lambda: queue.ids(State.ARCHIVED) == {"g:cb"}, what="the dead letter")
    assert b"max_retry must be an integer" in (queue.field("g:cb", "error") or b"")
    assert queue.entries() == 0
    assert one.stop() == 0
