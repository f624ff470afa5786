"""The asynchronous client against a real server: shared round trips, loops that end, bounded waits."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import uvloop
from redis import Redis

from chronosd.client import AsyncClient
from chronosd.embedded import EmbeddedServer
from chronosd.errors import BrokerRefused, BrokerUnavailable, InvalidTask, TaskIdConflict
from chronosd.kinds import Kind
from chronosd.states import State
from tests.conftest import connect
from tests.support.proxy import Proxy

RUNNERS = [pytest.param(asyncio.run, id="asyncio"), pytest.param(uvloop.run, id="uvloop")]
Run = Callable[[Awaitable[Any]], Any]


def stream(redis: Redis, namespace: str) -> list[str]:
    entries: Any = redis.xrange(f"{namespace}:{{default}}:stream")
    return [fields[b"task_id"].decode() for _, fields in entries]


def evalshas(redis: Redis) -> int:
    stats: Any = redis.info("commandstats")
    return int(stats.get("cmdstat_evalsha", {"calls": 0})["calls"])


@pytest.mark.parametrize("run", RUNNERS)
def test_one_client_serves_one_event_loop_after_another(
    run: Run, redis_url: str, namespace: str, redis: Redis
) -> None:
    # made at import time, as applications do; a connection of a loop that has ended would hang or raise
    client = AsyncClient(redis_url, namespace=namespace)

    async def main(name: str) -> None:
        await client.enqueue("k", {}, task_id=name)
        await asyncio.gather(*[client.enqueue("k", {}) for _ in range(10)])

    for name in ("a", "b", "c"):
        run(main(name))
    assert len(stream(redis, namespace)) == 33


def test_nothing_is_left_open_when_a_loop_ends_although_nobody_closed_the_client(
    redis_url: str, namespace: str
) -> None:
    code = """
import asyncio, gc, os, sys, warnings
from chronosd import AsyncClient
client = AsyncClient(sys.argv[1], namespace=sys.argv[2])
async def main(): await client.enqueue("k", {})
asyncio.run(main())
gc.collect()
before = len(os.listdir("/proc/self/fd"))
for _ in range(5):
    asyncio.run(main())
gc.collect()
assert len(os.listdir("/proc/self/fd")) == before
"""
    done = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", code, redis_url, namespace],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_one_client_serves_loops_in_several_threads_at_once(
    redis_url: str, namespace: str, redis: Redis
) -> None:
    client = AsyncClient(redis_url, namespace=namespace)

    async def main(_: int) -> None:
        for _ in range(20):
            await asyncio.gather(*[client.enqueue("k", {}) for _ in range(5)])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: asyncio.run(main(n)), range(24)))
    assert len(stream(redis, namespace)) == 24 * 20 * 5


@pytest.mark.parametrize("run", RUNNERS)
def test_concurrent_calls_share_round_trips_and_each_gets_its_own_answer(
    run: Run, fresh_server: EmbeddedServer
) -> None:
    async def main(redis: Redis) -> None:
        async with AsyncClient(fresh_server.url) as client:
            await client.enqueue("k", {})
            before = evalshas(redis)
            options: list[Any] = [{"task_id": f"t{n}", "queue": f"q{n % 3}"} for n in range(2000)]
            infos = await asyncio.gather(*[client.enqueue("k", {}, **one) for one in options])
            assert [(info.id, info.queue) for info in infos] == [
                (one["task_id"], one["queue"]) for one in options
            ]
            assert evalshas(redis) - before < 40

    with connect(fresh_server.url) as redis:
        run(main(redis))


@pytest.mark.parametrize("run", RUNNERS)
def test_a_conflict_among_shared_calls_is_raised_to_its_caller_only(
    run: Run, redis_url: str, namespace: str, redis: Redis
) -> None:
    async def main() -> list[Any]:
        async with AsyncClient(redis_url, namespace=namespace) as client:
            ids = ["a", "b", "a", "c"]
            calls = [client.enqueue("k", {}, task_id=task_id) for task_id in ids]
            return await asyncio.gather(*calls, client.enqueue("", {}), return_exceptions=True)

    a, b, again, c, invalid = run(main())
    assert [info.id for info in (a, b, c)] == ["a", "b", "c"]
    assert isinstance(again, TaskIdConflict)
    assert again.task_id == "a"
    assert isinstance(invalid, InvalidTask)
    assert stream(redis, namespace) == ["a", "b", "c"]


@pytest.mark.parametrize("run", RUNNERS)
def test_many_tasks_are_all_stored_and_answered_in_their_order(
    run: Run, redis_url: str, namespace: str, redis: Redis
) -> None:
    kind: Kind[dict[str, int]] = Kind("k", queue="low")

    async def main() -> None:
        async with AsyncClient(redis_url, namespace=namespace) as client:
            infos = await client.enqueue_many(
                ("k", {"n": n}) if n % 2 else (kind, {"n": n}, {"delay": n % 4}) for n in range(7000)
            )
            assert len({info.id for info in infos}) == 7000
            assert [info.queue for info in infos[:2]] == ["low", "default"]
            assert infos[2].state is State.SCHEDULED
            assert sorted(stream(redis, namespace)) == sorted(info.id for info in infos[1::2])
            assert await client.enqueue_many([]) == []
            with pytest.raises(TaskIdConflict, match=r"\(1 tasks were enqueued\)"):
                await client.enqueue_many([("k", {}, {"task_id": "a"})] * 2)
            with pytest.raises(InvalidTask, match=r"^tasks\[0\]: kind"):
                await client.enqueue_many([("", {})])

    run(main())


@pytest.mark.parametrize("run", RUNNERS)
@pytest.mark.parametrize("mode", ["mute", "drip"])
@pytest.mark.parametrize("connected", [False, True])
def test_a_silent_server_holds_every_caller_for_no_longer_than_the_timeout(
    run: Run, proxy: Proxy, namespace: str, mode: Any, connected: bool
) -> None:
    async def main() -> None:
        async with AsyncClient(proxy.url, namespace=namespace, timeout=0.3) as client:
            if connected:
                await client.enqueue("k", {})
            proxy.mode = mode

            async def one(after_s: float) -> float:
                await asyncio.sleep(after_s)
                began = time.monotonic()
                with pytest.raises(BrokerUnavailable, match="timed out"):
                    await client.enqueue("k", {})
                return time.monotonic() - began

            # the later ones wait behind a round trip that is never answered: their time counts all the same
            waits = await asyncio.gather(*[one(n * 0.06) for n in range(6)])
            assert max(waits) < 5
            proxy.mode = "pass"
            assert (await client.enqueue("k", {})).state is State.PENDING

    run(main())


@pytest.mark.parametrize("run", RUNNERS)
def test_calls_in_a_loop_that_was_blocked_for_longer_than_the_timeout_do_not_fail(
    run: Run, redis_url: str, namespace: str
) -> None:
    async def main() -> None:
        async with AsyncClient(redis_url, namespace=namespace, timeout=0.2) as client:
            await client.enqueue("k", {})
            calls = [asyncio.ensure_future(client.enqueue("k", {})) for _ in range(2)]
            await asyncio.sleep(0)
            time.sleep(0.5)  # noqa: ASYNC251 - a handler that blocks its loop is the case
            assert len(await asyncio.gather(*calls)) == 2

    run(main())


@pytest.mark.parametrize("run", RUNNERS)
def test_a_dead_server_is_reported_without_doubt_and_a_new_one_found(
    run: Run, fresh_server: EmbeddedServer
) -> None:
    async def main() -> None:
        async with AsyncClient(fresh_server.url) as client:
            await client.enqueue("k", {})
            fresh_server.kill()
            await asyncio.sleep(0.05)  # the loop has to see the end of the connection
            with pytest.raises(BrokerUnavailable) as caught:
                await client.enqueue("k", {})
            assert not caught.value.maybe_enqueued
            with pytest.raises(BrokerUnavailable, match="no task was enqueued"):
                await client.enqueue_many([("k", {})] * 2000)
            fresh_server.start()
            await client.enqueue("k", {})

    run(main())


@pytest.mark.parametrize("run", RUNNERS)
def test_a_lost_reply_leaves_every_caller_in_doubt_and_every_task_stored(
    run: Run, proxy: Proxy, namespace: str, redis: Redis
) -> None:
    async def main() -> None:
        async with AsyncClient(proxy.url, namespace=namespace, timeout=0.5) as client:
            await client.enqueue("k", {}, task_id="a")
            proxy.mode = "swallow"
            results = await asyncio.gather(
                *[client.enqueue("k", {}, task_id=task_id) for task_id in "bcd"], return_exceptions=True
            )
            assert all(isinstance(one, BrokerUnavailable) and one.maybe_enqueued for one in results)
            assert len({id(one) for one in results}) == 3  # a shared exception would collect tracebacks

    run(main())
    assert stream(redis, namespace) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("run", RUNNERS)
def test_tasks_are_stored_once_although_connections_are_reset(
    run: Run, proxy: Proxy, namespace: str, redis: Redis
) -> None:
    async def main() -> list[str]:
        async with AsyncClient(proxy.url, namespace=namespace, timeout=10) as client:

            async def disturb() -> None:
                for _ in range(5):
                    await asyncio.sleep(0.05)
                    proxy.mode = "reset"
                    proxy.mode = "pass"

            disturbance = asyncio.create_task(disturb())

            async def produce() -> list[str]:
                ids = []
                while not disturbance.done():
                    try:
                        ids.append((await client.enqueue("k", {})).id)
                    except BrokerUnavailable as error:
                        if error.maybe_enqueued:
                            raise
                        # refused before anything was sent
                return ids

            produced = await asyncio.gather(*[produce() for _ in range(20)])
            await disturbance
            return [task_id for ids in produced for task_id in ids]

    assert sorted(run(main())) == sorted(stream(redis, namespace))


@pytest.mark.parametrize("run", RUNNERS)
def test_a_cancelled_call_disturbs_no_other(run: Run, redis_url: str, namespace: str, redis: Redis) -> None:
    async def main() -> None:
        async with AsyncClient(redis_url, namespace=namespace) as client:
            calls = [asyncio.create_task(client.enqueue("k", {}, task_id=f"t{n}")) for n in range(100)]
            await asyncio.sleep(0)
            for call in calls[::2]:
                call.cancel()
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(one, asyncio.CancelledError) for one in results[::2])
            assert [one.id for one in results[1::2]] == [f"t{n}" for n in range(1, 100, 2)]  # type: ignore[union-attr]

    run(main())
    # who gave up before anything was sent is not sent
    assert stream(redis, namespace) == [f"t{n}" for n in range(1, 100, 2)]


@pytest.mark.parametrize("run", RUNNERS)
def test_a_full_server_refuses_each_call(run: Run, fresh_server: EmbeddedServer) -> None:
    async def main(redis: Redis) -> None:
        async with AsyncClient(fresh_server.url) as client:
            await client.enqueue("k", {})
            redis.config_set("maxmemory", 1)
            results = await asyncio.gather(
                *[client.enqueue("k", {}) for _ in range(3)], return_exceptions=True
            )
            assert all(isinstance(one, BrokerRefused) and "OOM" in str(one) for one in results)
            with pytest.raises(BrokerRefused, match=r"OOM.*no task was enqueued"):
                await client.enqueue_many([("k", {})] * 1500)

    with connect(fresh_server.url) as redis:
        run(main(redis))


def test_a_closed_client_connects_again_and_closing_waits_for_what_is_under_way(
    redis_url: str, namespace: str, redis: Redis
) -> None:
    async def main() -> None:
        client = AsyncClient(redis_url, namespace=namespace)
        await client.aclose()
        call = asyncio.create_task(client.enqueue("k", {}, task_id="a"))
        await asyncio.sleep(0)
        await client.aclose()
        assert (await call).id == "a"
        await client.enqueue("k", {}, task_id="b")
        await client.aclose()
        await client.aclose()

    asyncio.run(main())
    assert stream(redis, namespace) == ["a", "b"]


def test_a_client_of_the_file_uses_its_server_and_namespace(
    redis_url: str, namespace: str, tmp_path: Path, redis: Redis
) -> None:
    path = tmp_path / "chronos.yaml"
    path.write_text(
        f"namespace: {namespace}\nredis: {json.dumps(redis_url)}\nqueues: [default]\nhandlers: {{k: 'a:b'}}\n"
    )

    async def main() -> None:
        async with AsyncClient.from_config(path) as client:
            await client.enqueue("k", {}, task_id="a")

    asyncio.run(main())
    assert stream(redis, namespace) == ["a"]
