"""Redis misbehaves: the worker neither loses, strands nor repeats a task, and goes on by itself."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest
import redis as redis_py

from chronosd.board import Cell, SlotState
from chronosd.broker.commands import script
from chronosd.broker.keys import GROUP
from chronosd.embedded import EmbeddedServer
from chronosd.states import State
from chronosd.worker.blocking import MANY
from tests.support.monitor import Monitor
from tests.support.processes import paused
from tests.support.proxy import Mode, Proxy
from tests.support.waiting import at_most, wait_until
from tests.support.worker import WorkerProcess

Make = Callable[..., WorkerProcess]

HANDLERS = """
async def tick(task: Task[Any]) -> None:
    ledger.write("start", task.id, task.attempt)

async def brief(task: Task[Any]) -> None:
    ledger.write("start", task.id, task.attempt)
    await asyncio.sleep(0.01)

async def awaits(task: Task[dict[str, float]]) -> None:
    ledger.write("start", task.id, task.attempt)
    try:
        await asyncio.sleep(task.args["s"])
    except asyncio.CancelledError:
        ledger.write("cancelled", task.id, task.attempt)
        raise
    ledger.write("end", task.id, task.attempt)
"""


def lose_replies(proxy: Proxy, mode: Mode = "swallow") -> None:
    """What is on its way is executed and never answered; then the connections break and can be made anew."""
    proxy.mode = mode
    time.sleep(0.03)
    proxy.mode = "reset"
    proxy.mode = "pass"


def test_lost_replies_under_load_neither_lose_strand_nor_repeat_a_task(worker: Make, proxy: Proxy) -> None:
    """Every fetch whose reply was lost delivered another batch, for which nobody looked."""
    one = worker(HANDLERS, url=proxy.url, concurrency=16)
    ids = one.enqueue_many("brief", 3000)
    one.start()
    for _ in range(12):
        wait_until(lambda: one.count(Cell.SUCCEEDED) > 0)
        lose_replies(proxy)
        time.sleep(0.05)
    one.wait_settled(30)
    assert one.ledger.starts() == dict.fromkeys(ids, 1)
    assert one.slots() == []
    assert one.count(Cell.LEASES_LOST) == 0
    assert one.drain() == 0


def test_an_end_that_is_sent_twice_is_no_lost_lease(worker: Make, proxy: Proxy) -> None:
    """The runner sends again by itself what may be repeated; the second reply says that the entry is gone."""
    one = worker(HANDLERS, url=proxy.url).start()
    one.enqueue("tick")  # the server has every script afterwards
    one.wait_settled()
    task_id = one.enqueue("awaits", {"s": 0.5})
    wait_until(lambda: "run" in one.hash(task_id))
    one.wait_blocked()
    time.sleep(0.1)  # for the last reply to be through the relay: the next one is to be lost
    proxy.mode = "swallow"
    wait_until(lambda: one.pending() == 0, what=one.log_tail())
    proxy.mode = "pass"
    for connection in one.connections():
        one.redis.client_kill_filter(_id=connection["id"])
    wait_until(lambda: one.slots() == [])
    assert one.count(Cell.SUCCEEDED) == 2
    assert one.count(Cell.LEASES_LOST) == 0
    assert one.log_records("leases lost") == []


def test_lost_replies_do_not_make_a_hoard(worker: Make, proxy: Proxy) -> None:
    one = worker(HANDLERS, url=proxy.url, concurrency=4)
    one.enqueue_many("awaits", 200, {"s": 0.05})
    one.start()
    most = 0
    wait_until(lambda: one.ledger.entries())
    for _ in range(15):
        proxy.mode = "swallow"
        time.sleep(0.06)
        proxy.mode = "reset"
        most = max(most, one.pending())
        proxy.mode = "pass"
        time.sleep(0.03)
    assert most <= 12
    one.wait_settled(30)
    assert set(one.ledger.starts().values()) == {1}


def test_a_lost_reply_of_the_blocking_read_strands_no_task(worker: Make, proxy: Proxy) -> None:
    one = worker(HANDLERS, url=proxy.url, queues={"default": 2, "other": 1}).start()
    for name in ("default", "other"):
        one.wait_blocked()
        proxy.mode = "swallow"
        task_id = one.enqueue("tick", queue=name)
        wait_until(lambda name=name: one.pending(name) == 1)
        proxy.mode = "reset"
        proxy.mode = "pass"
        wait_until(lambda task_id=task_id: one.ledger.starts()[task_id], timeout_s=3, what=one.log_tail())
    one.wait_settled()
    assert set(one.ledger.starts().values()) == {1}


def test_an_idle_worker_starts_what_arrives_without_another_round_trip(worker: Make, redis_url: str) -> None:
    """Its body comes with the reply of the blocking read. With one slot nothing else is asked meanwhile."""
    one = worker(HANDLERS, concurrency=1).start()
    one.enqueue("tick")  # the server has every script afterwards
    one.wait_settled()
    one.wait_blocked()
    with Monitor(redis_url.removeprefix("unix://")) as seen:
        task_id = one.enqueue("awaits", {"s": 0.3})
        wait_until(lambda: one.ledger.starts()[task_id])
    fetch = script("fetch").sha
    assert [words for words in seen.commands if words[0] == "EVALSHA" and words[1] == fetch] == []
    one.wait_settled()


def test_of_many_queues_a_fetch_takes_in_what_arrives(worker: Make, redis_url: str) -> None:
    """The script behind the blocking read looks into every queue: with 300 it took two milliseconds, for each
    task that came."""
    one = worker(HANDLERS, queues={f"q{i}": 1 for i in range(MANY)}).start()
    with Monitor(redis_url.removeprefix("unix://")) as seen:
        for name in ("q0", f"q{MANY - 1}"):
            one.wait_blocked()
            task_id = one.enqueue("tick", queue=name)
            wait_until(lambda task_id=task_id: one.ledger.starts()[task_id])
    assert script("arrivals").sha not in [words[1] for words in seen.commands if words[0] == "EVALSHA"]


def test_what_was_delivered_without_its_knowing_is_started_by_the_next_blocking_read(worker: Make) -> None:
    """A read that brings nothing has looked for it all the same, and marked it as running."""
    one = worker(HANDLERS).start(go=False)
    task_id = one.enqueue("tick")
    one.redis.xreadgroup(GROUP, "another", {one.queue.stream: ">"})
    (entry,) = one.redis.xpending_range(one.queue.stream, GROUP, "-", "+", 1)
    one.redis.xclaim(one.queue.stream, GROUP, one.consumer, 0, [entry["message_id"]])
    one.wait_message("ready")
    one.link.send({"t": "go"})
    one.wait_settled()
    assert one.ledger.starts() == {task_id: 1}


@pytest.mark.parametrize("where", ["in the socket of a process that stands still", "on the line"])
def test_what_arrives_late_is_not_started_before_its_lease_is_looked_at(
    worker: Make, proxy: Proxy, where: str
) -> None:
    """The reply to the blocking read was there, for long enough for others to take over what it brings."""
    one = worker(HANDLERS, url=proxy.url).start()
    one.wait_blocked()
    with contextlib.ExitStack() as late:
        if where == "on the line":
            proxy.mode = "mute"
            late.callback(setattr, proxy, "mode", "pass")
        else:
            late.enter_context(paused(one.pid))
        lost = one.enqueue("tick")
        wait_until(lambda: one.pending() == 1)
        (entry,) = one.redis.xpending_range(one.queue.stream, GROUP, "-", "+", 1)
        one.redis.xclaim(one.queue.stream, GROUP, "another", 0, [entry["message_id"]])
        time.sleep(1.2)
    kept = one.enqueue("tick")
    wait_until(lambda: one.ledger.starts()[kept], what=one.log_tail())
    time.sleep(0.1)
    assert one.ledger.starts()[lost] == 0
    assert one.pending() == 1


def test_a_lost_reply_just_before_a_drain_is_handed_back(worker: Make, proxy: Proxy) -> None:
    one = worker(HANDLERS, url=proxy.url).start()
    one.wait_blocked()
    proxy.mode = "swallow"
    one.enqueue("tick")
    wait_until(lambda: one.pending() == 1)
    proxy.mode = "reset"
    proxy.mode = "pass"
    assert one.drain() == 0
    assert one.pending() == 0, one.log_tail()
    assert one.redis.xlen(one.queue.stream) + len(one.ledger.entries()) == 1


@pytest.mark.parametrize("mode", ["reset", "refuse", "mute"])
def test_a_broken_line_under_load_loses_and_repeats_nothing(worker: Make, proxy: Proxy, mode: Mode) -> None:
    one = worker(HANDLERS, url=proxy.url, concurrency=16)
    ids = one.enqueue_many("brief", 1000)
    one.start()
    for _ in range(3):
        wait_until(lambda: one.count(Cell.SUCCEEDED) > 0)
        proxy.mode = mode
        time.sleep(0.2)
        proxy.mode = "pass"
        time.sleep(0.05)
    one.wait_settled(30)
    assert one.ledger.starts() == dict.fromkeys(ids, 1)
    assert len(one.log_records("redis trouble")) < 10


def test_a_line_that_is_down_for_a_while_is_not_hammered(worker: Make, proxy: Proxy) -> None:
    one = worker(HANDLERS, url=proxy.url).start()
    one.wait_blocked()
    proxy.mode = "reset"
    before = proxy.accepted
    time.sleep(1.5)
    assert proxy.accepted - before < 40
    proxy.mode = "pass"
    task_id = one.enqueue("tick")
    wait_until(lambda: one.ledger.starts()[task_id], timeout_s=5)
    assert len(one.log_records("redis trouble")) <= 2
    assert one.log_records("redis is back")


def test_hundreds_of_quick_disconnects_end_nothing(worker: Make) -> None:
    one = worker(HANDLERS).start()
    killed = 0
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and killed < 100:
        for connection in one.connections():
            killed += int(one.redis.client_kill_filter(_id=connection["id"]))
        one.enqueue("tick")
    assert killed >= 100
    probe = one.enqueue("tick")
    one.wait_settled()
    assert one.ledger.starts()[probe] == 1
    assert set(one.ledger.starts().values()) == {1}
    assert one.drain() == 0


def test_blocking_reads_that_are_ended_with_an_error_end_nothing(worker: Make) -> None:
    one = worker(HANDLERS).start()
    for _ in range(8):
        one.wait_blocked()
        for connection in one.connections():
            one.redis.client_unblock(int(connection["id"]), error=True)
        task_id = one.enqueue("tick")
        wait_until(lambda task_id=task_id: one.ledger.starts()[task_id], timeout_s=2, what=one.log_tail())
    one.wait_settled()


def test_scripts_that_are_flushed_under_load_are_loaded_again(worker: Make) -> None:
    one = worker(HANDLERS, concurrency=16)
    ids = one.enqueue_many("brief", 1500)
    one.start()
    while not one.settled():
        one.redis.script_flush()
        time.sleep(0.01)
    one.wait_settled()
    assert one.ledger.starts() == dict.fromkeys(ids, 1)


def test_a_flushed_server_has_its_groups_again_within_two_seconds(
    worker: Make, fresh_server: EmbeddedServer
) -> None:
    one = worker(HANDLERS, server_url=fresh_server.url, concurrency=16, queues={"default": 2, "other": 1})
    one.enqueue_many("brief", 2000)
    one.start()
    for _ in range(3):
        wait_until(lambda: one.count(Cell.SUCCEEDED) > 0)
        one.redis.flushall()
        for name in one.queues:
            task_id = one.enqueue("tick", queue=name)
            wait_until(lambda i=task_id: one.ledger.starts()[i], timeout_s=2, what=one.log_tail())
    one.wait_blocked()
    one.redis.flushall()
    for name in one.queues:
        task_id = one.enqueue("tick", queue=name)
        wait_until(lambda i=task_id: one.ledger.starts()[i], timeout_s=2, what=one.log_tail())
    one.wait_settled()
    cycles = one.count(Cell.CYCLES)
    time.sleep(0.5)
    assert one.count(Cell.CYCLES) - cycles < 20
    assert one.drain() == 0


def test_a_key_of_the_wrong_type_stops_its_queue_and_no_other(worker: Make) -> None:
    """One blocking read asks for all queues: the one at fault failed it for all, and every cycle paused."""
    queues = {"a": 3, "b": 2, "c": 1}
    one = worker(HANDLERS, queues=queues)
    one.redis.set(one.queues["b"].stream, "not a stream")
    one.start()
    for name in ["a", "c"] * 4:
        time.sleep(0.15)
        sent_ns = time.monotonic_ns()
        task_id = one.enqueue("tick", queue=name)
        wait_until(lambda i=task_id: one.ledger.starts()[i], timeout_s=2, what=one.log_tail())
        (entry,) = [e for e in one.ledger.entries() if e.id == task_id]
        assert (entry.at_ns - sent_ns) / 1e9 < 0.4
    before = one.count(Cell.CYCLES)
    time.sleep(1)
    assert one.count(Cell.CYCLES) - before < 40
    assert len(one.log_records("redis trouble")) <= 3
    one.redis.delete(one.queues["b"].stream)
    task_id = one.enqueue("tick", queue="b")
    wait_until(lambda: one.ledger.starts()[task_id], timeout_s=5, what=one.log_tail())
    one.wait_settled()
    assert one.drain() == 0


def test_a_queue_at_fault_does_not_slow_the_others_down(worker: Make) -> None:
    one = worker(HANDLERS, queues={"a": 3, "b": 2}, concurrency=16)
    one.redis.set(one.queues["b"].stream, "not a stream")
    one.enqueue_many("tick", 5000, queue="a")
    one.start()
    began = time.monotonic()
    wait_until(lambda: one.redis.xlen(one.queues["a"].stream) == 0)
    assert time.monotonic() - began < at_most(3)
    assert one.drain() == 0


def test_ends_that_their_queue_refuses_are_told_once_it_takes_them(worker: Make) -> None:
    one = worker(HANDLERS, queues={"a": 3, "b": 2}).start()
    task_id = one.enqueue("awaits", {"s": 0.3}, queue="b")
    wait_until(lambda: one.slots(SlotState.RUNNING))
    stream = one.queues["b"].stream
    one.redis.rename(stream, stream + "x")
    one.redis.set(stream, "not a stream")
    wait_until(lambda: one.slots(SlotState.SUCCEEDED))
    other = one.enqueue("tick", queue="a")
    wait_until(lambda: one.ledger.starts()[other])
    assert one.slots(SlotState.SUCCEEDED)
    one.redis.rename(stream + "x", stream)
    one.wait_settled()
    assert one.slots() == []
    assert one.hash(task_id, "b") == {}


def test_an_end_that_is_refused_is_not_sent_all_the_time_though_the_queue_gives_out_tasks(
    worker: Make,
) -> None:
    """Each fetch that was answered made the queue a well one: the end went out again at once, and a line to
    the log, thousands of times a second."""
    one = worker(HANDLERS)
    one.redis.set(one.queue.completed, "not a sorted set")
    one.start()
    kept = one.enqueue("tick", retention="1m")
    wait_until(lambda: one.ledger.starts()[kept])
    before, until = one.count(Cell.CYCLES), time.monotonic() + 1
    while time.monotonic() < until:
        one.enqueue("tick")
        time.sleep(0.02)
    assert one.count(Cell.CYCLES) - before < 500, "three or four for each task"
    assert len(one.log_records("redis trouble")) <= 2
    one.redis.delete(one.queue.completed)
    one.wait_settled()
    assert one.ids(State.COMPLETED) == {kept}
    assert len(one.ledger.starts()) == sum(one.ledger.starts().values()) > 1
    assert one.drain() == 0


def test_a_hung_server_delays_no_timeout_and_ends_no_task(worker: Make, fresh_server: EmbeddedServer) -> None:
    """Timeouts were armed by the cycle after the start: while Redis hung there was none, and the supervisor
    would have killed the worker for a handler that nobody had cancelled.
    """
    one = worker(
        HANDLERS,
        server_url=fresh_server.url,
        handlers={"short": {"import": "{module}:awaits", "timeout": "300ms"}},
    ).start()
    ids = [one.enqueue("awaits", {"s": 0.5}) for _ in range(3)]
    short = one.enqueue("short", {"s": 60})
    wait_until(lambda: len(one.ledger.starts()) == 4)
    assert fresh_server.pid is not None
    with paused(fresh_server.pid):
        began = time.monotonic()
        wait_until(lambda: one.ledger.entries("cancelled"))
        assert time.monotonic() - began < at_most(1.5)
        wait_until(lambda: len(one.ledger.ends()) == 3)
        time.sleep(0.5)
    one.wait_settled()
    assert one.ledger.starts() == dict.fromkeys([*ids, short], 1)
    assert one.message(short)["last_err"].startswith("TimeoutError")


def test_a_server_that_restarts_loses_no_task(worker: Make, fresh_server: EmbeddedServer) -> None:
    one = worker(HANDLERS, server_url=fresh_server.url, concurrency=8)
    ids = one.enqueue_many("brief", 600)
    one.start()
    wait_until(lambda: one.count(Cell.SUCCEEDED) > 50)
    fresh_server.kill()
    wait_until(lambda: one.log_records("redis trouble"))
    fresh_server.start()
    wait_until(lambda: _answers(one.redis))
    one.wait_settled(30)
    assert one.ledger.starts() == dict.fromkeys(ids, 1)


def _answers(redis: redis_py.Redis) -> bool:
    try:
        return bool(redis.ping())
    except redis_py.RedisError:
        return False


def test_a_server_that_turns_into_a_replica_is_waited_for(worker: Make, fresh_server: EmbeddedServer) -> None:
    one = worker(HANDLERS, server_url=fresh_server.url, concurrency=4)
    ids = one.enqueue_many("brief", 300)
    one.start()
    wait_until(lambda: one.count(Cell.SUCCEEDED) > 20)
    one.redis.replicaof("127.0.0.1", 1)
    wait_until(lambda: one.log_records("redis trouble"))
    one.redis.replicaof("NO", "ONE")
    one.wait_settled(30)
    assert one.ledger.starts() == dict.fromkeys(ids, 1)


def test_a_full_server_is_waited_for(worker: Make, fresh_server: EmbeddedServer) -> None:
    one = worker(HANDLERS, server_url=fresh_server.url, concurrency=4)
    ids = one.enqueue_many("brief", 300)
    one.start()
    wait_until(lambda: one.count(Cell.SUCCEEDED) > 20)
    one.redis.config_set("maxmemory", "1")
    time.sleep(0.3)
    assert one.alive
    one.redis.config_set("maxmemory", "0")
    one.wait_settled(30)
    assert one.ledger.starts() == dict.fromkeys(ids, 1)


def test_a_drain_while_redis_is_away_ends_soon_and_leaves_the_rest_on_the_board(
    worker: Make, fresh_server: EmbeddedServer
) -> None:
    one = worker(HANDLERS, server_url=fresh_server.url).start()
    one.enqueue_many("awaits", 5, {"s": 0.3})
    wait_until(lambda: len(one.ledger.starts()) == 5)
    fresh_server.kill()
    began = time.monotonic()
    assert one.drain(timeout=20) == 0
    assert time.monotonic() - began < at_most(4)
    assert len(one.ledger.ends()) == 5
    assert [slot.state for slot in one.slots()] == [SlotState.SUCCEEDED] * 5


def test_a_drain_does_not_wait_for_ever_for_a_queue_that_takes_nothing(worker: Make) -> None:
    one = worker(HANDLERS, queues={"a": 3, "b": 2}).start()
    one.enqueue("awaits", {"s": 0.2}, queue="b")
    wait_until(lambda: one.slots(SlotState.RUNNING))
    one.redis.rename(one.queues["b"].stream, "elsewhere:" + one.queues["b"].stream)
    one.redis.set(one.queues["b"].stream, "not a stream")
    wait_until(lambda: one.slots(SlotState.SUCCEEDED))
    assert one.drain(wait_s=10) == 0
    assert [slot.state for slot in one.slots()] == [SlotState.SUCCEEDED]
