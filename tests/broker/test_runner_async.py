"""AsyncRunner: shared connection, deadlines, cancellation, blocked loops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from chronosd.broker import consume, enqueue
from chronosd.broker.commands import plain
from chronosd.broker.runner import AsyncRunner
from chronosd.embedded import EmbeddedServer
from chronosd.errors import BrokerRefused, BrokerUnavailable, Trouble
from tests.support.bench import Bench
from tests.support.proxy import Mode, Proxy
from tests.support.waiting import at_most, wait_until

SLACK_S = 2.0
Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine on an event loop of each kind that is in use."""
    return asyncio.run if request.param == "asyncio" else uvloop.run


@asynccontextmanager
async def running(url: str, **options: Any) -> AsyncIterator[AsyncRunner]:
    runner = AsyncRunner(url, **options)
    try:
        yield runner
    finally:
        await runner.aclose()


def through(proxy: Proxy) -> str:
    return f"{proxy.url.removesuffix('/0')}/7"


def test_concurrent_calls_share_one_connection_and_each_gets_its_own_answers(
    run: Run, bench_url: str
) -> None:
    async def main() -> None:
        async with running(bench_url) as runner:

            async def work(name: int) -> bytes:
                for i in range(20):
                    words = [f"{name}-{i}-{k}" for k in range(3)]
                    assert await runner.run_many([plain("ECHO", w) for w in words]) == [
                        w.encode() for w in words
                    ]
                found: bytes = await runner.run(plain("CLIENT", "ID"))
                return found

            assert len(set(await asyncio.gather(*map(work, range(100))))) == 1

    run(main())


def test_calls_are_pipelined_and_not_sent_one_by_one(run: Run, bench: Bench, bench_url: str) -> None:
    # A call that the server answers late does not keep the next one from being sent.
    async def main() -> None:
        async with running(bench_url) as runner:
            key = f"{bench.namespace.prefix}:list"
            blocked = asyncio.create_task(runner.run(plain("BLPOP", key, 5)))
            behind = asyncio.create_task(runner.run(plain("ECHO", "behind")))
            await asyncio.sleep(0)
            await asyncio.to_thread(wait_until, lambda: bench.redis.info("clients")["blocked_clients"])
            bench.redis.rpush(key, "x")
            assert await blocked == [key.encode(), b"x"]
            assert await behind == b"behind"

    run(main())


@pytest.mark.parametrize("mode", ["mute", "drip", "swallow"])
@pytest.mark.parametrize("connected", [True, False], ids=["connected", "not connected"])
def test_one_deadline_holds_for_the_whole_call(run: Run, proxy: Proxy, mode: Mode, connected: bool) -> None:
    async def main() -> None:
        async with running(through(proxy), timeout_s=0.3) as runner:
            if connected:
                await runner.run(plain("PING"), timeout_s=5)
            proxy.mode = mode
            begin = time.monotonic()
            results = await asyncio.gather(
                *(runner.run_many([plain("PING")] * 5) for _ in range(10)), return_exceptions=True
            )
            assert time.monotonic() - begin < at_most(0.3 + SLACK_S)
            for error in results:
                assert isinstance(error, BrokerUnavailable), error
                assert error.trouble is Trouble.RECONNECT
            proxy.mode = "pass"
            assert await runner.run(plain("PING"), timeout_s=5) == b"PONG"

    run(main())


@pytest.mark.parametrize("mode", ["reset", "refuse"])
def test_a_server_that_refuses_is_told_at_once_and_found_again(run: Run, proxy: Proxy, mode: Mode) -> None:
    async def main() -> None:
        async with running(through(proxy), timeout_s=30) as runner:
            await runner.run(plain("PING"))
            proxy.mode = mode
            with pytest.raises(BrokerUnavailable) as caught:
                await runner.run(plain("PING"))
            assert caught.value.trouble is Trouble.RECONNECT
            proxy.mode = "pass"
            assert await runner.run(plain("PING")) == b"PONG"

    run(main())


def test_whoever_waits_on_a_connection_that_breaks_is_told(run: Run, proxy: Proxy) -> None:
    async def main() -> None:
        async with running(through(proxy), timeout_s=30) as runner:
            await runner.run(plain("PING"))
            proxy.mode = "swallow"
            calls = [asyncio.create_task(runner.run(plain("PING", repeatable=False))) for _ in range(5)]
            await asyncio.sleep(0)
            proxy.mode = "refuse"
            for error in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(error, BrokerUnavailable)
                assert error.maybe_enqueued

    run(main())


def test_only_what_may_be_repeated_is_sent_again_over_a_new_connection(
    run: Run, proxy: Proxy, bench: Bench
) -> None:
    key = f"{bench.namespace.prefix}:count"

    async def main() -> None:
        async with running(through(proxy), timeout_s=30) as runner:
            for repeatable, outcome in ((True, 1), (False, None)):
                await runner.run(plain("PING"))
                proxy.mode = "mute"
                call = asyncio.create_task(runner.run(plain("INCR", key, repeatable=repeatable)))
                await asyncio.sleep(0)  # sent, and held by the relay
                proxy.mode = "reset"
                proxy.mode = "pass"
                if outcome:
                    assert await call == outcome
                else:
                    with pytest.raises(BrokerUnavailable):
                        await call

    run(main())
    assert bench.redis.get(key) == b"1"


def test_a_cancelled_call_leaves_the_connection_and_its_neighbours_alone(
    run: Run, bench: Bench, bench_url: str
) -> None:
    async def main() -> None:
        async with running(bench_url) as runner:
            number = await runner.run(plain("CLIENT", "ID"))
            for i in range(50):
                cancelled = asyncio.create_task(runner.run(plain("ECHO", "cancelled")))
                kept = asyncio.create_task(runner.run(plain("ECHO", f"kept{i}")))
                await asyncio.sleep(0)
                cancelled.cancel()
                assert await kept == f"kept{i}".encode()
                with pytest.raises(asyncio.CancelledError):
                    await cancelled
            assert await runner.run(plain("CLIENT", "ID")) == number

    run(main())


def test_a_call_that_is_cancelled_while_it_connects_leaves_the_others_to_connect(
    run: Run, proxy: Proxy
) -> None:
    async def main() -> None:
        proxy.mode = "mute"
        async with running(through(proxy), timeout_s=30) as runner:
            first = asyncio.create_task(runner.run(plain("ECHO", "first")))
            second = asyncio.create_task(runner.run(plain("ECHO", "second")))
            await asyncio.sleep(0.02)
            first.cancel()
            proxy.mode = "pass"
            assert await second == b"second"
            with pytest.raises(asyncio.CancelledError):
                await first

    run(main())


def test_a_reply_that_arrived_while_the_loop_was_blocked_counts(run: Run, bench_url: str) -> None:
    # An async handler that blocks makes timers and replies come due together. The reply is there: to take the
    # call for failed would send completions a second time, and count them as lost leases.
    async def main() -> None:
        async with running(bench_url, timeout_s=0.1) as runner:
            await runner.run(plain("PING"), timeout_s=5)
            for _ in range(3):
                calls = [
                    asyncio.create_task(runner.run(plain("INCR", "x", repeatable=False))) for _ in range(5)
                ]
                await asyncio.sleep(0)
                time.sleep(0.3)  # noqa: ASYNC251 - what a bad handler does
                assert len(set(await asyncio.gather(*calls))) == 5

    run(main())


def test_a_timeout_does_not_end_a_connection_that_was_made_since(run: Run, proxy: Proxy) -> None:
    async def main() -> None:
        async with running(through(proxy), timeout_s=5) as runner:
            await runner.run(plain("PING"))
            proxy.mode = "mute"
            with pytest.raises(BrokerUnavailable):
                await runner.run(plain("PING"), timeout_s=0.05)
            proxy.mode = "pass"
            number = await runner.run(plain("CLIENT", "ID"))
            await asyncio.sleep(0.1)
            assert await runner.run(plain("CLIENT", "ID")) == number

    run(main())


def test_scripts_that_the_server_forgot_are_loaded_again_for_concurrent_batches(
    run: Run, bench: Bench, bench_url: str
) -> None:
    async def main() -> None:
        async with running(bench_url) as runner:
            await runner.run(consume.create_group(bench.queue))
            for round_ in range(3):
                bench.redis.script_flush()
                ids = [f"{round_}-{i}" for i in range(20)]
                words = await asyncio.gather(
                    *(runner.run(enqueue.enqueue(bench.queue, [bench.new(task_id)])) for task_id in ids)
                )
                assert words == [["pending"]] * 20
                bench.redis.script_flush()
                ping, found = await runner.run_many([plain("PING"), consume.fetch(bench.queue, "c1", 50)])
                assert ping == b"PONG"
                assert sorted(task.task_id for task in found.tasks) == sorted(ids)

    run(main())
    bench.look().check()


def test_an_error_of_one_command_is_its_own_result_in_a_batch(run: Run, bench_url: str) -> None:
    async def main() -> None:
        async with running(bench_url) as runner:
            results = await runner.run_many([plain("PING"), plain("NOSUCHCOMMAND"), plain("PING")])
            assert results[0] == results[2] == b"PONG"
            assert isinstance(results[1], BrokerRefused)

    run(main())


def test_a_connection_over_which_more_came_than_was_asked_is_not_used_again(run: Run, bench_url: str) -> None:
    """Each call would have had the answer to the one before it, for ever."""

    async def main() -> None:
        async with running(bench_url) as runner:
            assert await runner.run(plain("SUBSCRIBE", "a", "b")) == [b"subscribe", b"a", 1]
            assert [await runner.run(plain("ECHO", str(i))) for i in range(3)] == [b"0", b"1", b"2"]

    run(main())


def test_a_wrong_password_is_told_and_a_right_one_taken(
    run: Run, fresh_bench: Bench, fresh_server: Any
) -> None:
    fresh_bench.redis.config_set("requirepass", "secret")

    async def main() -> None:
        for password, code in ((None, "NOAUTH"), ("wrong", "WRONGPASS")):
            async with running(fresh_server.url, password=password) as runner:
                with pytest.raises(BrokerRefused, match=code) as caught:
                    await runner.run(plain("PING"))
                assert caught.value.trouble is Trouble.OPERATOR
        async with running(fresh_server.url, password="secret") as runner:
            assert await runner.run(plain("PING")) == b"PONG"

    run(main())
    fresh_bench.redis.config_set("requirepass", "")


def test_replies_of_many_megabytes_arrive_whole_between_small_ones(
    run: Run, bench: Bench, bench_url: str
) -> None:
    key = f"{bench.namespace.prefix}:big"
    bench.redis.set(key, b"x" * (32 << 20))

    async def main() -> None:
        async with running(bench_url, timeout_s=30) as runner:
            before, big, after = await asyncio.gather(
                runner.run(plain("ECHO", "before")),
                runner.run(plain("GET", key)),
                runner.run(plain("ECHO", "after")),
            )
            assert (before, len(big), after) == (b"before", 32 << 20, b"after")

    run(main())


def test_after_a_restart_of_the_server_the_next_call_works(
    run: Run, fresh_bench: Bench, fresh_server: EmbeddedServer
) -> None:
    fresh_bench.add("a")

    async def main() -> None:
        async with running(fresh_server.url, timeout_s=10) as runner:
            await runner.run(consume.create_group(fresh_bench.queue))
            fresh_server.kill()
            with pytest.raises(BrokerUnavailable):
                await runner.run(plain("PING"))
            fresh_server.start()
            found = await runner.run(consume.fetch(fresh_bench.queue, "c1", 1))
            assert [task.task_id for task in found.tasks] == ["a"]

    run(main())


def test_a_closed_runner_can_be_used_again(run: Run, bench_url: str) -> None:
    async def main() -> None:
        async with running(bench_url) as runner:
            for _ in range(3):
                assert await runner.run(plain("PING")) == b"PONG"
                await runner.aclose()

    run(main())


def test_a_procedure_is_driven_to_its_end(run: Run, bench_url: str) -> None:
    def steps() -> Any:
        first = yield [plain("ECHO", "a"), plain("NOSUCHCOMMAND")]
        second = yield [plain("ECHO", "b")]
        return first[0], type(first[1]), second

    async def main() -> None:
        async with running(bench_url) as runner:
            assert await runner.drive(steps()) == (b"a", BrokerRefused, [b"b"])

    run(main())


def test_a_blocking_read_can_be_answered_early_by_its_connections_number(
    run: Run, bench: Bench, bench_url: str
) -> None:
    async def main() -> None:
        async with running(bench_url) as reader, running(bench_url) as runner:
            await runner.run(consume.create_group(bench.queue))
            await reader.run(plain("PING"))
            read: Awaitable[Any] = asyncio.create_task(
                reader.run(consume.block([bench.queue], "c1", 60_000), timeout_s=90)
            )
            await asyncio.to_thread(wait_until, lambda: bench.redis.info("clients")["blocked_clients"])
            assert await runner.run(consume.unblock(reader.client_id)) == 1
            assert await read == []

    run(main())
    wait_until(lambda: bench.look().owned == {})
