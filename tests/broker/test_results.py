"""``Client.result`` and ``AsyncClient.result``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from chronosd import (
    AsyncClient,
    BrokerUnavailable,
    Client,
    InvalidTask,
    MessageError,
    ResultTimeout,
    TaskFailed,
    TaskNotFound,
)
from chronosd.broker import consume
from chronosd.broker.consume import Dead, Kept
from chronosd.broker.enqueue import register_queues
from chronosd.embedded import EmbeddedServer
from chronosd.states import State
from tests.support.bench import Bench
from tests.support.proxy import Proxy

Ask = Callable[..., Any]


@dataclass
class Report:
    pages: int
    name: str = "none"


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest, bench: Bench, bench_url: str) -> Ask:
    """``result`` of one of the clients."""
    bench.group()
    bench.run(register_queues(bench.namespace, ["q"]))
    options = {"namespace": bench.namespace.prefix}

    def sync(*args: Any, **given: Any) -> Any:
        with Client(bench_url, **options) as client:
            return client.result(*args, **given)

    def async_(*args: Any, **given: Any) -> Any:
        async def call() -> Any:
            async with AsyncClient(bench_url, **options) as client:
                return await client.result(*args, **given)

        return asyncio.run(call())

    return sync if request.param == "sync" else async_


def succeed(bench: Bench, task_id: str, result: bytes | None) -> None:
    (run,) = bench.fetch()
    message = bench.message(task_id, retention=60, result=result)
    bench.run(consume.retain(bench.queue, [Kept(run.entry, message)]))


def later(act: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(0.15, act)
    timer.start()
    return timer


@pytest.mark.parametrize(
    ("raw", "value"),
    [(b'{"pages":3}', {"pages": 3}), (b"null", None), (None, None), (b"[18446744073709551616]", [2**64])],
)
def test_the_result_is_the_json_that_the_handler_returned(
    bench: Bench, ask: Ask, raw: bytes | None, value: Any
) -> None:
    bench.add("a", retention=60)
    succeed(bench, "a", raw)
    assert ask("a", "q") == value
    assert ask("a", timeout=0) == value, "it is found in whatever queue"


def test_it_is_waited_for(bench: Bench, ask: Ask) -> None:
    bench.add("a", retention=60)
    timer = later(lambda: succeed(bench, "a", b"7"))
    assert ask("a", "q", timeout="20s") == 7
    timer.join()


def test_a_type_is_what_it_is_validated_as(bench: Bench, ask: Ask) -> None:
    bench.add("a", retention=60)
    succeed(bench, "a", b'{"pages":3}')
    assert ask("a", "q", type=Report) == Report(3)
    assert ask("a", "q", type=dict[str, int]) == {"pages": 3}
    with pytest.raises(MessageError, match="no int"):
        ask("a", "q", type=int)


def test_a_task_that_failed_has_none_and_its_error_is_told(bench: Bench, ask: Ask) -> None:
    bench.add("a", "b")
    first, second = bench.fetch()
    dead = [
        Dead(first.entry, "a", bench.message("a", last_err="boom")),
        Dead(second.entry, "b", None, {"error": "undecodable"}),
    ]
    bench.run(consume.archive(bench.queue, dead))
    with pytest.raises(TaskFailed, match="boom") as failed:
        ask("a", "q")
    assert (failed.value.task_id, failed.value.error) == ("a", "boom")
    with pytest.raises(TaskFailed, match="undecodable"):
        ask("b", "q")


def test_a_task_that_has_not_ended_in_time_says_where_it_is(bench: Bench, ask: Ask) -> None:
    bench.add("a", delay_ms=60_000)
    with pytest.raises(ResultTimeout, match=r"after 0.05 s: scheduled") as late:
        ask("a", "q", timeout=0.05)
    assert late.value.state is State.SCHEDULED
    assert isinstance(late.value, TimeoutError)


def test_no_such_task_and_one_that_was_not_kept_are_told_apart(bench: Bench, ask: Ask) -> None:
    with pytest.raises(TaskNotFound, match=r"no task 'a' in queue 'q'"):
        ask("a", "q", timeout=5)
    with pytest.raises(TaskNotFound, match="in any queue"):
        ask("a", timeout=5)
    bench.add("a")
    timer = later(lambda: bench.done(*bench.fetch()))
    with pytest.raises(TaskNotFound, match="enqueue it with a retention"):
        ask("a", timeout=20)
    timer.join()


def test_what_enqueue_returned_names_its_queue(bench: Bench, bench_url: str, ask: Ask) -> None:
    with Client(bench_url, namespace=bench.namespace.prefix) as client:
        info = client.enqueue("k", queue="q", retention="1m")
    succeed(bench, info.id, b"1")
    assert ask(info) == 1
    with pytest.raises(InvalidTask, match="task"):
        ask(7)
    with pytest.raises(InvalidTask, match="timeout"):
        ask(info, timeout="soon")


def test_a_wait_outlives_a_lost_connection(proxy: Proxy, bench_url: str, bench: Bench) -> None:
    bench.group()
    bench.add("a", retention=60)
    with Client(f"{proxy.url}?db=7", namespace=bench.namespace.prefix, timeout=5) as client:

        def away() -> None:
            proxy.mode = "reset"
            succeed(bench, "a", b"7")
            proxy.mode = "pass"

        timer = later(away)
        assert client.result("a", "q", timeout=20) == 7
        timer.join()


def test_a_server_that_is_away_is_told_when_the_time_is_up(fresh_server: EmbeddedServer) -> None:
    fresh_server.kill()
    with Client(fresh_server.url) as client, pytest.raises(BrokerUnavailable):
        client.result("a", "q", timeout=0.3)
