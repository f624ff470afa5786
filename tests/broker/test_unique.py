"""Unique tasks: enqueue_unique.lua, and what becomes of the lock in every other script."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from redis import Redis

from chronosd import AsyncClient, Client, DuplicateTask, Kind, TaskIdConflict
from chronosd.broker import consume, sweep
from chronosd.broker.consume import Again, Dead, Done, Kept
from chronosd.broker.enqueue import Holder, NewTask, enqueue_unique
from chronosd.broker.message import encode
from chronosd.broker.operate import run_task
from chronosd.states import State
from tests.support.bench import Bench
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

LOCK_MS = 60_000


def lock_of(bench: Bench) -> str:
    return bench.queue.unique("mail:send", "0" * 64)


def new(bench: Bench, task_id: str, *, nonce: str = "", ms: int = LOCK_MS, **when: int) -> NewTask:
    message = bench.message(task_id, unique_key=lock_of(bench), retention=60)
    state = State.SCHEDULED if when else State.PENDING
    delay, at = when.get("delay_ms", 0), when.get("at_ms")
    return NewTask(task_id, encode(message, state), delay, at, nonce, lock_of(bench), ms)


def add(bench: Bench, task_id: str, **given: Any) -> str | Holder:
    (word,) = bench.run(enqueue_unique(bench.queue, [new(bench, task_id, **given)]))
    return word


def left_ms(bench: Bench) -> int:
    return int(bench.redis.pttl(lock_of(bench)))


def test_the_lock_is_taken_with_the_task_and_a_twin_is_told_who_has_it(bench: Bench) -> None:
    bench.group()
    assert add(bench, "a") == "pending"
    assert bench.redis.get(lock_of(bench)) == b"a"
    assert LOCK_MS - 10_000 < left_ms(bench) <= LOCK_MS
    before = bench.look()
    assert add(bench, "b") == Holder("a", State.PENDING)
    assert add(bench, "b", delay_ms=1000) == Holder("a", State.PENDING)
    assert bench.look() == before
    bench.fetch()
    assert add(bench, "b") == Holder("a", State.ACTIVE)
    bench.look().check()


@pytest.mark.parametrize("when", ["delay_ms", "at_ms"])
def test_the_lock_of_a_delayed_task_lives_its_time_from_when_it_is_due(bench: Bench, when: str) -> None:
    at = int(bench.redis.time()[0]) * 1000 + 50_000  # type: ignore[index]
    assert add(bench, "a", **{when: 50_000 if when == "delay_ms" else at}) == "scheduled"
    assert LOCK_MS + 40_000 < left_ms(bench) <= LOCK_MS + 50_001
    assert add(bench, "b") == Holder("a", State.SCHEDULED)


@pytest.mark.parametrize("nonce", ["", "n1"], ids=["own id", "custom id"])
def test_a_resend_finds_its_own_lock_and_is_a_success(bench: Bench, nonce: str) -> None:
    assert add(bench, "a", nonce=nonce) == "pending"
    before = bench.look()
    assert add(bench, "a", nonce=nonce) == "repeat"
    assert bench.look() == before


def test_an_id_in_use_is_a_conflict_where_the_lock_is_free(bench: Bench) -> None:
    bench.add("a", nonce="n1")
    assert add(bench, "a", nonce="n2") == "conflict"
    assert bench.redis.exists(lock_of(bench)) == 0


def test_twins_in_one_batch_are_one_task(bench: Bench) -> None:
    words = bench.run(enqueue_unique(bench.queue, [new(bench, "a"), new(bench, "b")]))
    assert words == ["pending", Holder("a", State.PENDING)]
    assert bench.look().waiting == ["a"]


def test_something_else_under_the_locks_key_refuses_the_task_and_stays(bench: Bench) -> None:
    bench.redis.rpush(lock_of(bench), "x")
    assert add(bench, "a") == Holder("", None)
    assert bench.look().hashes == {}


@pytest.mark.parametrize(
    "state", [State.ARCHIVED, State.COMPLETED, None], ids=["archived", "completed", "gone"]
)
def test_w28_a_lock_whose_holder_has_ended_holds_nothing(bench: Bench, state: State | None) -> None:
    """chronos-go ends a task and releases its lock after: a crash in between left it until its TTL."""
    bench.group()
    if state is not None:
        run = bench.take("a")
        end = consume.archive(bench.queue, [Dead(run.entry, "a", bench.message("a"))])
        if state is State.COMPLETED:
            end = consume.retain(bench.queue, [Kept(run.entry, bench.message("a", retention=60))])
        bench.run(end)
    bench.redis.set(lock_of(bench), "a", px=LOCK_MS)
    assert add(bench, "b") == "pending"
    assert bench.redis.get(lock_of(bench)) == b"b"


# -- what becomes of it ------------------------------------------------------------


@dataclass
class Mail:
    """Go's struct of the vector, in its order."""

    to: str
    n: int


def test_the_key_is_go_s_byte_for_byte(bench: Bench, bench_url: str) -> None:
    with Client(bench_url, namespace=bench.namespace.prefix) as client:
        info = client.enqueue("mail:send", Mail("<u>&é\u2028", 1), queue="q", unique="1h")
        plain = client.enqueue("mail:send", Mail("<u>&é ", 1), queue="q", unique="1h")
    keys = {key.decode() for key in bench.redis.scan_iter(match=f"{bench.queue.unique_prefix}*", count=1000)}
    vector = "842a8241e90501d36bbb162cadde6cb2beb3ea197853b45ed13305c374d9a8ec"
    assert bench.stored(plain.id).unique_key == f"{bench.namespace.prefix}:{{q}}:unique:mail:send:{vector}"
    assert {bench.stored(one.id).unique_key for one in (info, plain)} == keys


def ends(bench: Bench, run: Any) -> dict[str, Any]:
    message = bench.message("a", unique_key=lock_of(bench), retention=60)
    queue, entry = bench.queue, run.entry
    return {
        "success": consume.complete(queue, [Done(entry, "a", lock_of(bench))]),
        "kept": consume.retain(queue, [Kept(entry, message)]),
        "archived": consume.archive(queue, [Dead(entry, "a", message)]),
        "undecodable": consume.archive(queue, [Dead(entry, "a", None, {"error": "why"})]),
    }


@pytest.mark.parametrize("how", ["success", "kept", "archived", "undecodable"])
def test_every_end_lets_go_of_the_lock_in_its_own_script(bench: Bench, how: str) -> None:
    bench.group()
    add(bench, "a")
    (run,) = bench.fetch()
    if how == "undecodable":
        bench.redis.hset(
            bench.queue.task("a"), "msg", bench.hash()["msg"].replace('"retried":0', '"retried":1.5')
        )
    command = ends(bench, run)[how]
    assert bench.run(command) == []
    assert bench.redis.exists(lock_of(bench)) == 0
    assert add(bench, "b") == "pending"
    assert bench.run(command) == [run.entry], "and a late repeat leaves the next holder alone"
    assert bench.redis.get(lock_of(bench)) == b"b"
    bench.look().check()


@pytest.mark.parametrize("ttl_ms", [200, LOCK_MS])
def test_w11_in_retry_for_longer_than_its_ttl_it_still_refuses_a_twin(bench: Bench, ttl_ms: int) -> None:
    """It expired while the task waited for its next attempt, and a twin ran beside that."""
    bench.group()
    add(bench, "a", ms=ttl_ms)
    (run,) = bench.fetch()
    message = bench.message("a", unique_key=lock_of(bench), retried=1)
    bench.run(consume.retry(bench.queue, [Again(run.entry, "a", message, 3600)]))
    assert 3_600_000 + ttl_ms - 10_000 < left_ms(bench) <= 3_600_000 + ttl_ms
    assert add(bench, "b") == Holder("a", State.RETRY)


def test_a_lock_is_never_shortened_and_one_that_expired_is_taken_again_if_it_is_free(bench: Bench) -> None:
    bench.group()
    add(bench, "a", ms=36_000_000)
    (run,) = bench.fetch()
    message = bench.message("a", unique_key=lock_of(bench), retried=1)
    bench.redis.pexpire(lock_of(bench), 90_000_000)
    bench.run(consume.retry(bench.queue, [Again(run.entry, "a", message, 0)]))
    assert left_ms(bench) > 89_000_000
    (run,) = bench.fetch()
    bench.redis.delete(lock_of(bench))
    bench.run(consume.retry(bench.queue, [Again(run.entry, "a", message, 1)]))
    assert bench.redis.get(lock_of(bench)) == b"a"
    bench.redis.set(lock_of(bench), "twin")
    bench.forward(State.RETRY)
    bench.redis.zadd(bench.queue.retry, {"a": 1})
    bench.forward(State.RETRY)
    (run,) = bench.fetch()
    bench.run(consume.retry(bench.queue, [Again(run.entry, "a", message, 60)]))
    assert bench.redis.get(lock_of(bench)) == b"twin"


def test_a_task_of_go_whose_ttl_nobody_noted_keeps_its_lock_for_a_minute_more(bench: Bench) -> None:
    bench.group()
    lock = lock_of(bench)
    bench.add("a", unique_key=lock)
    bench.redis.set(lock, "a", px=5)
    (run,) = bench.fetch()
    message = bench.message("a", unique_key=lock, retried=1)
    bench.run(consume.retry(bench.queue, [Again(run.entry, "a", message, 10)]))
    assert 60_000 < left_ms(bench) <= 70_000


@pytest.mark.parametrize("noted", ["nan", "inf", "-5", "0", "1e300", "60000.5", "soon", ""])
def test_nonsense_in_place_of_its_ttl_stops_neither_a_retry_nor_an_operator(bench: Bench, noted: str) -> None:
    bench.group()
    add(bench, "a")
    (run,) = bench.fetch()
    bench.redis.hset(bench.queue.task("a"), "unique_ttl", noted)
    message = bench.message("a", unique_key=lock_of(bench), retried=1)
    for _ in range(2):
        bench.run(consume.retry(bench.queue, [Again(run.entry, "a", message, 0)]))
        assert bench.redis.get(lock_of(bench)) == b"a"
        bench.redis.delete(lock_of(bench))
        (run,) = bench.fetch()
    bench.run(consume.archive(bench.queue, [Dead(run.entry, "a", message)]))
    assert bench.runner.drive(run_task(bench.queue, "a")) == "moved"
    assert bench.redis.get(lock_of(bench)) == b"a"


def test_a_key_that_is_no_lock_of_the_queue_is_never_written(bench: Bench) -> None:
    """A message is anybody's, and names whatever key it likes."""
    bench.group()
    bench.add("a", unique_key="somebody's:key")
    (run,) = bench.fetch()
    message = bench.message("a", unique_key="somebody's:key", retried=1)
    bench.run(sweep.extend(bench.queue, "c1", [run.entry.decode()], lock_s=60))
    bench.run(consume.retry(bench.queue, [Again(run.entry, "a", message, 10)]))
    assert bench.redis.exists("somebody's:key") == 0


def test_the_lock_of_a_task_that_runs_is_taken_again_unless_a_twin_has_it(bench: Bench) -> None:
    bench.group()
    add(bench, "a", ms=1)
    entries = [run.entry.decode() for run in bench.fetch()]
    bench.redis.delete(lock_of(bench))
    bench.run(sweep.extend(bench.queue, "c1", entries, lock_s=60))
    assert bench.redis.get(lock_of(bench)) == b"a"
    bench.redis.set(lock_of(bench), "twin")
    bench.run(sweep.extend(bench.queue, "c1", entries, lock_s=60))
    assert bench.redis.get(lock_of(bench)) == b"twin"


# -- the clients ------------------------------------------------------------


@pytest.fixture
def client(bench: Bench, bench_url: str) -> Any:
    with Client(bench_url, namespace=bench.namespace.prefix) as one:
        yield one


def test_a_client_tells_the_holder_and_its_state(bench: Bench, client: Client) -> None:
    first = client.enqueue("mail:send", {"n": 1}, queue="q", unique="1h")
    with pytest.raises(DuplicateTask, match=first.id) as refused:
        client.enqueue("mail:send", {"n": 1}, queue="q", unique="5m", delay="1h")
    assert (refused.value.task_id, refused.value.state) == (first.id, State.PENDING)
    client.enqueue("mail:send", {"n": 2}, queue="q", unique="1h")
    client.enqueue("mail:other", {"n": 1}, queue="q", unique="1h")
    client.enqueue("mail:send", {"n": 1}, queue="other", unique="1h")
    client.enqueue("mail:send", {"n": 1}, queue="q")


def test_a_kind_may_be_unique_and_a_call_may_do_without(bench: Bench, client: Client) -> None:
    kind: Kind[Any] = Kind("mail:send", queue="q", unique="1h")
    client.enqueue(kind, {"n": 1})
    with pytest.raises(DuplicateTask):
        client.enqueue(kind, {"n": 1})
    client.enqueue(kind, {"n": 1}, unique=False)


def test_duplicates_among_many_keep_nobody_else_out(bench: Bench, client: Client) -> None:
    tasks = [("k", {"n": n % 3}, {"queue": "q", "unique": "1h"}) for n in range(6)]
    tasks += [("k", {"n": 1}, {"queue": "q"})] * 600
    with pytest.raises(
        DuplicateTask, match=r"3 tasks are duplicates.*\(603 tasks were enqueued\)"
    ) as refused:
        client.enqueue_many(tasks)
    assert refused.value.state is State.PENDING
    assert len(bench.look().waiting) == 603


def test_an_id_in_use_and_a_duplicate_among_many_are_both_refused(bench: Bench, client: Client) -> None:
    client.enqueue("k", {"n": 1}, queue="q", unique="1h")
    client.enqueue("k", {"n": 2}, queue="q", task_id="mine")
    with pytest.raises(TaskIdConflict, match="mine"):
        client.enqueue_many(
            [
                ("k", {"n": 1}, {"queue": "q", "unique": "1h"}),
                ("k", {"n": 3}, {"queue": "q", "task_id": "mine"}),
            ]
        )


def test_concurrent_calls_of_one_task_store_one(bench: Bench, bench_url: str) -> None:
    async def enqueue() -> list[Any]:
        async with AsyncClient(bench_url, namespace=bench.namespace.prefix) as client:
            calls = [client.enqueue("k", {"n": 1}, queue="q", unique="1h") for _ in range(20)]
            calls += [client.enqueue("k", {"n": 1}, queue="q") for _ in range(5)]
            return await asyncio.gather(*calls, return_exceptions=True)

    results = asyncio.run(enqueue())
    refused = [one for one in results if isinstance(one, DuplicateTask)]
    (stored,) = [one for one in results[:20] if not isinstance(one, BaseException)]
    assert {one.task_id for one in refused} == {stored.id}
    assert len(refused) == 19
    assert len(bench.look().waiting) == 6


@pytest.mark.parametrize("task_id", [None, "mine"], ids=["own id", "custom id"])
def test_a_call_whose_reply_was_lost_finds_its_own_lock(
    proxy: Proxy, redis: Redis, namespace: str, task_id: str | None
) -> None:
    """A resend was told that somebody else had it: itself."""
    stream = f"{namespace}:{{default}}:stream"
    with Client(proxy.url, namespace=namespace, timeout=5) as client, ThreadPoolExecutor(1) as pool:
        client.enqueue("warm:up")
        proxy.mode = "swallow"
        call = pool.submit(client.enqueue, "k", {"n": 1}, unique="1h", task_id=task_id)
        wait_until(lambda: redis.xlen(stream) == 2, what="the task that was stored without an answer")
        proxy.mode = "reset"
        proxy.mode = "pass"
        info = call.result(10)
        assert info.state is State.PENDING
        with pytest.raises(DuplicateTask) as refused:
            client.enqueue("k", {"n": 1}, unique="1h")
    assert refused.value.task_id == info.id
    assert redis.xlen(stream) == 2
