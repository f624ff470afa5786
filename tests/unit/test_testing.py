"""The tools for applications' tests: the worker's validation and outcomes, without a queue."""

from __future__ import annotations

import asyncio
import inspect
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from chronosd import kinds, log
from chronosd.client import AsyncClient, Cancellation, Client
from chronosd.errors import (
    DuplicateTask,
    InvalidTask,
    PayloadTooLarge,
    ResultTimeout,
    RetryIn,
    SkipRetry,
    TaskFailed,
    TaskIdConflict,
    TaskNotFound,
)
from chronosd.signature import HandlerError
from chronosd.states import State
from chronosd.task import Task
from chronosd.testing import (
    AsyncRecordingClient,
    Failed,
    Postponed,
    RecordingClient,
    Rejected,
    Succeeded,
    make_task,
    run,
    run_async,
)


@dataclass
class Welcome:
    user_id: int


async def welcome(task: Task[Welcome]) -> dict[str, int]:
    return {"user": task.args.user_id}


def plain(task: Task[Welcome]) -> None:
    assert task.args.user_id > 0


def test_make_task_gives_the_arguments_as_they_are() -> None:
    args = object()
    deadline = datetime(2030, 1, 1, tzinfo=UTC)
    task = make_task(args, kind="email:send", attempt=3, deadline=deadline, state="state")
    assert task.args is args
    assert (task.kind, task.queue, task.attempt, task.retried, task.max_retry) == (
        "email:send",
        "default",
        3,
        0,
        25,
    )
    assert task.deadline == deadline
    assert task.state == "state"
    assert make_task(None).id != make_task(None).id
    assert asyncio.run(welcome(make_task(Welcome(3)))) == {"user": 3}


@pytest.mark.parametrize("args", [Welcome(3), {"user_id": 3}, {"user_id": "3"}])
def test_run_encodes_validates_and_returns_the_outcome(args: Any) -> None:
    assert run(welcome, args) == Succeeded(b'{"user":3}')
    assert run(plain, args) == Succeeded()


def raising(exc: BaseException) -> Callable[[Any], Any]:
    async def handler(task: Any) -> None:
        raise exc

    return handler


def raising_in_thread(exc: BaseException) -> Callable[[Any], Any]:
    def handler(task: Any) -> None:
        raise exc

    return handler


@pytest.mark.parametrize("handler", [raising, raising_in_thread])
def test_what_a_handler_raises_is_its_outcome(handler: Callable[[BaseException], Any]) -> None:
    assert run(handler(ValueError("bad"))) == Failed("ValueError: bad")
    assert run(handler(SkipRetry("gone"))) == Rejected("gone")
    assert run(handler(RetryIn("1m", "busy", charge=False))) == Postponed(60.0, False, "busy")
    assert run(handler(SystemExit(3))) == Failed("SystemExit: 3")
    assert isinstance(run(handler(KeyboardInterrupt())), Failed)
    assert isinstance(run(handler(asyncio.CancelledError())), Failed)


def test_sys_exit_in_a_task_that_the_handler_created_is_an_outcome() -> None:
    async def child() -> None:
        raise SystemExit(3)

    async def handler(task: Task[Any]) -> None:
        await asyncio.gather(child())

    assert run(handler) == Failed("SystemExit: 3")


def test_arguments_that_do_not_validate_reject_the_task() -> None:
    outcome = run(welcome, {"user_id": "seven"})
    assert isinstance(outcome, Rejected)
    assert "user_id" in outcome.error


def test_arguments_that_cannot_be_stored_are_refused_as_at_enqueue() -> None:
    with pytest.raises(InvalidTask):
        run(welcome, {"user_id": float("nan")})


def test_what_the_worker_would_refuse_to_load_is_refused() -> None:
    with pytest.raises(HandlerError, match="is a class"):
        run(Welcome)


def test_a_type_defined_in_the_test_function_is_found() -> None:
    @dataclass
    class Local:
        n: int

    def handler(task: Task[Local]) -> Any:
        return [type(task.args).__name__, task.args.n]

    assert run(handler, {"n": 1}) == Succeeded(b'["Local",1]')

    async def within() -> Any:
        return await run_async(handler, {"n": 1})

    assert asyncio.run(within()) == Succeeded(b'["Local",1]')


def test_fields_of_the_task_can_be_given() -> None:
    def handler(task: Task[Any]) -> Any:
        return [task.id, task.attempt, task.state, task.args]

    assert run(handler, id="t-1", attempt=4, state="s") == Succeeded(b'["t-1",4,"s",{}]')


def test_middleware_of_the_handlers_sort_is_wrapped_around_it() -> None:
    async def upper(task: Task[Any], call_next: Callable[..., Any]) -> Any:
        return str(await call_next(task)).upper()

    def lower(task: Task[Any], call_next: Callable[..., Any]) -> Any:
        return str(call_next(task)).lower()

    async def handler(task: Task[Any]) -> str:
        return "Mixed"

    assert run(handler, middleware=[upper, lower]) == Succeeded(b'"MIXED"')
    assert run(lambda task: "Mixed", middleware=[upper, lower]) == Succeeded(b'"mixed"')


def test_a_sync_handler_runs_in_the_tests_own_thread() -> None:
    """A database transaction that a test has opened belongs to its thread."""
    seen: list[int] = []
    run(lambda task: seen.append(threading.get_ident()))
    assert seen == [threading.get_ident()]


def test_run_works_where_an_event_loop_is_running() -> None:
    async def main() -> Any:
        return (
            run(welcome, Welcome(1)),
            await run_async(welcome, Welcome(2)),
            await run_async(plain, Welcome(3)),
        )

    assert asyncio.run(main()) == (Succeeded(b'{"user":1}'), Succeeded(b'{"user":2}'), Succeeded())


def test_cancelling_the_test_is_no_outcome_of_the_handler() -> None:
    async def handler(task: Task[Any]) -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        async with asyncio.timeout(0.01):
            await run_async(handler)

    with pytest.raises(TimeoutError):
        asyncio.run(main())


def test_the_task_is_bound_to_log_lines_while_its_handler_runs() -> None:
    def handler(task: Task[Any]) -> bool:
        return log.current_task() is task

    async def async_handler(task: Task[Any]) -> bool:
        return log.current_task() is task

    assert run(handler) == run(async_handler) == Succeeded(b"true")
    assert log.current_task() is None


def test_a_recording_client_keeps_what_is_enqueued() -> None:
    client = RecordingClient()
    info = client.enqueue("email:send", {"to": "a@b.c"}, queue="mail", max_retry=3, delay="5m")
    (task,) = client.enqueued
    assert (task.id, task.kind, task.queue, task.args) == (info.id, "email:send", "mail", {"to": "a@b.c"})
    assert (task.max_retry, task.delay, task.state) == (3, "5m", State.SCHEDULED)
    assert task.payload == b'{"to":"a@b.c"}'
    assert task.outcome is None
    assert info.state is State.SCHEDULED
    client.enqueue_many([("one", [1]), ("two", {}, {"queue": "low"}), ("three",)])
    assert [(one.kind, one.queue, one.args) for one in client.enqueued[1:]] == [
        ("one", "default", [1]),
        ("two", "low", {}),
        ("three", "default", {}),
    ]


def test_a_recording_client_takes_the_defaults_of_a_kind() -> None:
    kind = kinds.Kind("email:welcome", Welcome, queue="mail", max_retry=5, retention="1h", discard=True)
    client = RecordingClient()
    client.enqueue(kind, Welcome(1), max_retry=1)
    (task,) = client.enqueued
    assert (task.kind, task.queue, task.max_retry, task.retention, task.discard) == (
        "email:welcome",
        "mail",
        1,
        3600,
        True,
    )
    assert task.args == Welcome(1)


def test_a_recording_client_refuses_what_the_real_one_refuses() -> None:
    client = RecordingClient(max_payload=10)
    with pytest.raises(InvalidTask):
        client.enqueue("kind", {"n": float("inf")})
    with pytest.raises(InvalidTask):
        client.enqueue("")
    with pytest.raises(PayloadTooLarge):
        client.enqueue("kind", "x" * 20)
    with pytest.raises(InvalidTask, match=r"tasks\[1\]"):
        client.enqueue_many([("kind", 1), ("kind", 2, {"qeueu": "low"})])
    assert client.enqueued == []
    client.enqueue("kind", task_id="t-1")
    with pytest.raises(TaskIdConflict):
        client.enqueue("kind", task_id="t-1")
    with pytest.raises(TaskIdConflict):
        client.enqueue_many([("kind", 1, {"task_id": "t-1"})])
    client.enqueue("kind", task_id="t-1", queue="other")
    assert len(client.enqueued) == 2


def test_inline_runs_each_task_and_what_it_enqueues() -> None:
    def first(task: Task[Any]) -> str:
        task.client.enqueue("second", {"from": task.id})
        return "done"

    async def second(task: Task[Any]) -> None:
        raise ValueError(task.args["from"])

    client = RecordingClient(inline=True, handlers={"first": first, "second": second})
    info = client.enqueue("first", delay="1h")
    assert [(one.kind, one.outcome) for one in client.enqueued] == [
        ("first", Succeeded(b'"done"')),
        ("second", Failed(f"ValueError: {info.id}")),
    ]


def test_inline_finds_declared_handlers_and_names_a_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "declarations", [])
    kind = kinds.Kind("email:welcome", Welcome)

    @kind.handler
    def handler(task) -> int:  # type: ignore[no-untyped-def]
        return int(task.args.user_id)

    client = RecordingClient(inline=True)
    client.enqueue(kind, Welcome(7))
    assert client.enqueued[0].outcome == Succeeded(b"7")
    with pytest.raises(LookupError, match="no handler for kind 'other'"):
        client.enqueue("other")


def test_the_async_twin_does_the_same() -> None:
    async def main() -> AsyncRecordingClient:
        async with AsyncRecordingClient(inline=True, handlers={"one": welcome, "two": plain}) as client:
            await client.enqueue("one", Welcome(1))
            await client.enqueue_many([("two", Welcome(2)), ("two", Welcome(-2))])
            return client

    outcomes = [one.outcome for one in asyncio.run(main()).enqueued]
    assert outcomes[:2] == [Succeeded(b'{"user":1}'), Succeeded()]
    assert isinstance(outcomes[2], Failed)


@pytest.mark.parametrize(
    ("recording", "real"), [(RecordingClient, Client), (AsyncRecordingClient, AsyncClient)]
)
@pytest.mark.parametrize("name", ["enqueue", "enqueue_many"])
def test_the_recording_clients_have_the_signatures_of_the_real_ones(
    recording: type[Any], real: type[Any], name: str
) -> None:
    """A stand-in that accepts other calls than the real thing hides the error it is there to show."""
    assert inspect.signature(getattr(recording, name)) == inspect.signature(getattr(real, name))
    public = {attribute for attribute in vars(real) if not attribute.startswith("_")} - {"from_config"}
    assert {attribute for attribute in public if not hasattr(recording, attribute)} == set()


def test_the_fixture_is_there_without_any_configuration(tmp_path: Path) -> None:
    (tmp_path / "test_application.py").write_text(
        "from chronosd import Client, State\n"
        "def test_it(chronosd_server):\n"
        "    with Client(chronosd_server.url) as client:\n"
        "        assert client.enqueue('kind').state is State.PENDING\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_application.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_logging_of_a_rehearsed_handler_needs_no_configuration(caplog: pytest.LogCaptureFixture) -> None:
    run(lambda task: logging.getLogger("application").warning("hello"))
    assert "hello" in caplog.text


def test_a_unique_task_is_refused_until_the_first_one_has_run() -> None:
    client = RecordingClient()
    first = client.enqueue("k", {"n": 1}, unique="1h")
    with pytest.raises(DuplicateTask) as refused:
        client.enqueue("k", {"n": 1}, unique="1h", delay="5m")
    assert (refused.value.task_id, refused.value.state) == (first.id, State.PENDING)
    client.enqueue("k", {"n": 2}, unique="1h")
    inline = RecordingClient(inline=True, handlers={"k": lambda task: None})
    for _ in range(2):
        inline.enqueue("k", {"n": 1}, unique="1h")


def test_what_ran_inline_has_a_result_if_it_would_have_been_kept() -> None:
    def work(task: Task[dict[str, int]]) -> int:
        return 10 // task.args["n"]

    client = RecordingClient(inline=True, handlers={"k": work})
    kept = client.enqueue("k", {"n": 5}, retention="1h")
    assert (client.result(kept), client.result(kept.id, type=float)) == (2, 2.0)
    with pytest.raises(TaskNotFound, match="retention"):
        client.result(client.enqueue("k", {"n": 5}))
    with pytest.raises(TaskFailed, match="ZeroDivisionError"):
        client.result(client.enqueue("k", {"n": 0}, retention="1h"))
    with pytest.raises(TaskNotFound):
        client.result("another")
    recorded = RecordingClient()
    with pytest.raises(ResultTimeout):
        recorded.result(recorded.enqueue("k"))


async def _asked() -> int:
    client = AsyncRecordingClient(inline=True, handlers={"k": _async_work})
    result: int = await client.result(await client.enqueue("k", retention=1), type=int)
    return result


async def _async_work(task: Task[dict[str, int]]) -> int:
    return 7


def test_the_async_client_has_results_too() -> None:
    assert asyncio.run(_asked()) == 7


def test_a_recorded_task_that_was_not_run_can_be_cancelled() -> None:
    client = RecordingClient()
    info = client.enqueue("k", unique="1h")
    assert client.cancel(info.id) is Cancellation.REMOVED
    assert client.enqueued == []
    client.enqueue("k", unique="1h")
    with pytest.raises(TaskNotFound):
        client.cancel(info.id)
    inline = RecordingClient(inline=True, handlers={"k": lambda task: None})
    assert inline.cancel(inline.enqueue("k").id) is Cancellation.ENDED
