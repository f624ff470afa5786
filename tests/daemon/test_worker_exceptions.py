"""Whatever a handler raises, in its own frame or in a task it made: its task's failure, nobody else's."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable

import pytest

from chronosd.board import Cell, SlotState
from chronosd.states import State
from tests.support.waiting import wait_until
from tests.support.worker import WorkerProcess

Make = Callable[..., WorkerProcess]

HANDLERS = """
class BrokenStr(Exception):
    def __str__(self) -> str:
        raise RuntimeError("and so does its __str__")

class BrokenRepr(Exception):
    def __str__(self) -> str:
        return "x" * 50_000_000

class NeedsArguments(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__()

class Own(BaseException):
    pass

class Meta(type):
    def __instancecheck__(cls, other: Any) -> bool:
        raise KeyError("instancecheck")
    def __getattribute__(cls, name: str) -> Any:
        raise SystemExit(7)

def _deep() -> BaseException:
    error: BaseException = ValueError("leaf")
    for _ in range(1000):
        error = BaseExceptionGroup("g", [error])
    return error

def _circle() -> BaseException:
    a, b = ValueError("a"), ValueError("b")
    a.__cause__, b.__cause__ = b, a
    return a

def _make(name: str) -> BaseException:
    match name:
        case "plain": return RuntimeError("plain")
        case "exit": return SystemExit(3)
        case "exit text": return SystemExit("text")
        case "interrupt": return KeyboardInterrupt()
        case "generator exit": return GeneratorExit()
        case "cancelled": return asyncio.CancelledError("mine")
        case "stop": return StopIteration(1)
        case "stop async": return StopAsyncIteration()
        case "timeout": return TimeoutError()
        case "memory": return MemoryError()
        case "recursion": return RecursionError()
        case "own": return Own("own")
        case "broken str": return BrokenStr()
        case "huge": return BrokenRepr()
        case "arguments": return NeedsArguments(1, 2)
        case "surrogate": return ValueError("a\\ud800b")
        case "nul": return ValueError("a\\x00b\\x1b[31m")
        case "bytes": return ValueError(b"\\xff")
        case "group": return ExceptionGroup("g", [ValueError("1"), SkipRetry("2")])
        case "exit group": return BaseExceptionGroup("g", [SystemExit(1), KeyboardInterrupt()])
        case "deep": return _deep()
        case "circle": return _circle()
        case "unbound": return UnboundLocalError("x")
    raise AssertionError(name)

async def direct(task: Task[str]) -> None:
    raise _make(task.args)

async def after_a_step(task: Task[str]) -> None:
    try:
        await asyncio.sleep(0.001)
    finally:
        await asyncio.sleep(0.001)
    raise _make(task.args)

def thread(task: Task[str]) -> None:
    raise _make(task.args)

async def in_a_task(task: Task[str]) -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise _make(task.args)
    made = asyncio.create_task(fails())
    await asyncio.sleep(0.02)
    made.cancel()

async def awaits_a_task(task: Task[str]) -> None:
    async def fails() -> None:
        raise _make(task.args)
    await asyncio.create_task(fails())

async def in_a_callback(task: Task[str]) -> None:
    def fails() -> None:
        raise _make(task.args)
    loop = asyncio.get_running_loop()
    loop.call_soon(fails)
    loop.call_later(0.005, fails)
    await asyncio.sleep(0.02)

async def in_a_thread(task: Task[str]) -> None:
    def fails() -> None:
        raise _make(task.args)
    await asyncio.to_thread(fails)

async def in_a_bare_thread(task: Task[str]) -> None:
    def fails() -> None:
        raise _make(task.args)
    one = threading.Thread(target=fails)
    one.start()
    await asyncio.to_thread(one.join)

async def at_its_end(task: Task[str]) -> None:
    class Ends:
        def __del__(self) -> None:
            raise _make(task.args)
    Ends()

async def probe(task: Task[Any]) -> None:
    ledger.write("start", task.id)

async def bystander(task: Task[Any]) -> None:
    await asyncio.sleep(0.3)
    ledger.write("start", task.id)

async def stops_the_loop(task: Task[Any]) -> None:
    asyncio.get_running_loop().stop()

async def closes_the_loop(task: Task[Any]) -> None:
    asyncio.get_running_loop().close()

async def leaves_a_future(task: Task[Any]) -> None:
    asyncio.get_running_loop().create_future().set_exception(ValueError("never retrieved"))

async def leaks_a_generator(task: Task[Any]) -> None:
    async def numbers() -> Any:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
    async for _ in numbers():
        break

def returns_a_coroutine(task: Task[Any]) -> Any:
    return asyncio.sleep(0)

def returns_a_future(task: Task[Any]) -> Any:
    return asyncio.Future(loop=asyncio.new_event_loop())
"""

NAMES = (
    "plain",
    "exit",
    "exit text",
    "interrupt",
    "generator exit",
    "cancelled",
    "stop",
    "stop async",
    "timeout",
    "memory",
    "recursion",
    "own",
    "broken str",
    "huge",
    "arguments",
    "surrogate",
    "nul",
    "bytes",
    "group",
    "exit group",
    "deep",
    "circle",
    "unbound",
)

HOLDERS_OF_THE_FAULT = ("direct", "after_a_step", "thread", "awaits_a_task")
INNOCENT = ("in_a_task", "in_a_callback", "in_a_bare_thread", "at_its_end")


@pytest.fixture
def one(worker: Make) -> WorkerProcess:
    return worker(HANDLERS, concurrency=64).start()


@pytest.mark.parametrize("kind", [*HOLDERS_OF_THE_FAULT, "in_a_thread"])
def test_whatever_a_handler_raises_fails_its_task_with_a_safe_text(one: WorkerProcess, kind: str) -> None:
    bystanders = [one.enqueue("bystander") for _ in range(3)]
    names = NAMES if kind != "in_a_thread" else [n for n in NAMES if n != "stop"]  # a Future refuses it
    ids = {name: one.enqueue(kind, name) for name in names}
    one.wait_settled()
    assert one.ids(State.RETRY) == set(ids.values()), one.log_tail()
    for name, task_id in ids.items():
        text = one.message(task_id)["last_err"]
        assert text, name
        assert len(text) <= 2000
        text.encode()
        assert not any(ord(c) < 32 for c in text if c not in "\n\t")
        assert one.message(task_id)["retried"] == 1
    assert set(one.ledger.starts()) == set(bystanders)
    assert one.drain() == 0


@pytest.mark.parametrize("kind", INNOCENT)
def test_what_code_beside_the_handler_raises_ends_nothing(one: WorkerProcess, kind: str) -> None:
    """sys.exit() in a task that a handler has made ends an event loop: the worker re-enters it."""
    bystanders = [one.enqueue("bystander") for _ in range(3)]
    for name in NAMES:
        one.enqueue(kind, name)
    one.wait_settled()
    probe = one.enqueue("probe")
    one.wait_settled()
    assert set(one.ledger.starts()) == {*bystanders, probe}
    assert one.ids(State.RETRY) == set(), one.log_tail()
    assert one.count(Cell.SUCCEEDED) == len(NAMES) + 4
    assert one.drain() == 0


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        ("stops_the_loop", None),
        ("closes_the_loop", State.RETRY),
        ("leaves_a_future", None),
        ("leaks_a_generator", None),
        ("returns_a_coroutine", State.ARCHIVED),
        ("returns_a_future", State.ARCHIVED),
    ],
)
def test_a_handler_that_mistreats_the_loop_harms_nobody(
    one: WorkerProcess, kind: str, state: State | None
) -> None:
    bystander = one.enqueue("bystander")
    task_id = one.enqueue(kind)
    one.wait_settled()
    assert one.ledger.starts() == {bystander: 1}
    if state is not None:
        assert one.ids(state) == {task_id}
    probe = one.enqueue("probe")
    one.wait_settled()
    assert one.ledger.starts()[probe] == 1
    assert one.drain() == 0


def test_a_timeout_that_the_handler_turns_into_something_else_is_still_a_timeout(worker: Make) -> None:
    one = worker(
        """
        async def converts(task: Task[Any]) -> None:
            try:
                await asyncio.sleep(60)
            except BaseException:
                raise ConnectionError("connection lost") from None

        async def chooses(task: Task[Any]) -> None:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise SkipRetry("too slow for ever") from None

        async def finishes(task: Task[Any]) -> Any:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return "in the end"
        """,
        handlers={
            name: {"import": f"{{module}}:{name}", "timeout": "50ms"}
            for name in ("converts", "chooses", "finishes")
        },
    ).start()
    converts = one.enqueue("converts")
    chooses = one.enqueue("chooses")
    finishes = one.enqueue("finishes", retention="1h")
    one.wait_settled()
    error = one.message(converts)["last_err"]
    assert error == "TimeoutError: timed out after 50ms; then ConnectionError: connection lost"
    assert one.ids(State.ARCHIVED) == {chooses}
    assert one.message(chooses)["last_err"] == "too slow for ever"
    assert one.ids(State.COMPLETED) == {finishes}


def test_a_sync_handler_keeps_its_slot_until_it_is_over_whatever_its_timeout(worker: Make) -> None:
    """A thread cannot be cancelled: freeing its slot would let the next attempt overlap it."""
    one = worker(
        """
        def long(task: Task[Any]) -> None:
            with ledger.run(task.id, task.attempt):
                time.sleep(0.6)
        """,
        concurrency=1,
        handlers={"long": {"import": "{module}:long", "timeout": "50ms"}},
    ).start()
    one.enqueue_many("long", 2)
    one.wait_settled()
    order = [entry.what for entry in one.ledger.entries()]
    assert order == ["start", "end", "start", "end"]


def test_the_timeout_counts_from_the_start_of_the_handler(worker: Make) -> None:
    one = worker(
        """
        async def half(task: Task[Any]) -> None:
            await asyncio.sleep(0.3)
        """,
        concurrency=1,
        handlers={"half": {"import": "{module}:half", "timeout": "600ms"}},
    ).start()
    one.enqueue_many("half", 4)
    one.wait_settled()
    assert one.count(Cell.SUCCEEDED) == 4
    assert one.ids(State.RETRY) == set()


def test_as_many_sync_handlers_run_at_once_as_concurrency_says(worker: Make) -> None:
    one = worker(
        """
        def meet(task: Task[Any]) -> None:
            ledger.write("start", task.id)
            while len(ledger.starts()) < 20:
                time.sleep(0.005)
        """,
        concurrency=20,
    ).start()
    one.enqueue_many("meet", 20)
    one.wait_settled()


def test_the_worker_lives_on_where_no_thread_is_to_be_had(worker: Make) -> None:
    """The task is put off uncharged; with the first thread to be had it runs."""
    one = worker(
        """
        def sync(task: Task[Any]) -> None:
            ledger.write("start", task.id)

        async def forbid(task: Task[Any]) -> None:
            def start(self: Any) -> None:
                raise RuntimeError("can't start new thread")
            threading.Thread._start, threading.Thread.start = threading.Thread.start, start

        async def allow(task: Task[Any]) -> None:
            threading.Thread.start = threading.Thread._start
        """
    ).start()
    one.enqueue("forbid")
    one.wait_settled()
    task_id = one.enqueue("sync", max_retry=0)
    one.wait_settled()
    assert one.ids(State.RETRY) == {task_id}
    assert "can't start new thread" in one.message(task_id)["last_err"]
    one.enqueue("allow")
    one.wait_settled()
    one.forward()
    one.wait_settled()
    assert one.ledger.starts() == {task_id: 1}


def test_collecting_garbage_all_the_time_loses_no_task(worker: Make) -> None:
    """An asyncio task that only the loop refers to, weakly, vanishes with the next collection."""
    one = worker(
        """
        gc.set_threshold(1)

        async def bare(task: Task[Any]) -> None:
            future = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(0.001, future.set_result, None)
            await future
        """,
        concurrency=64,
    )
    count = 1500
    one.enqueue_many("bare", count)
    one.start().wait_settled(60)
    assert one.count(Cell.SUCCEEDED) == count


def test_a_blocked_loop_is_attributed_to_its_task(worker: Make) -> None:
    one = worker(
        """
        async def fine(task: Task[Any]) -> None:
            await asyncio.sleep(5)

        async def blocks(task: Task[Any]) -> None:
            await asyncio.sleep(0.01)
            time.sleep(0.5)
        """
    ).start()
    one.enqueue_many("fine", 3)
    wait_until(lambda: len(one.slots()) == 3)
    assert one.board.current is None
    one.enqueue("blocks")
    slot = wait_until(lambda: one.board.current)
    last = max(one.slots(), key=lambda s: [int(n) for n in s.entry.split("-")])
    assert slot.entry == last.entry
    deadline = time.monotonic() + 5
    while one.board.current is not None:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_handler_that_cancels_every_task_it_finds_does_not_end_the_worker(worker: Make) -> None:
    """Shut-down code that people copy does; among what it found were the worker's own tasks."""
    one = worker(
        """
        async def cancels(task: Task[Any]) -> None:
            for found in asyncio.all_tasks() - {asyncio.current_task()}:
                found.cancel()

        async def bystander(task: Task[Any]) -> None:
            await asyncio.sleep(0.5)

        async def probe(task: Task[Any]) -> None:
            ledger.write("start", task.id)
        """
    ).start()
    one.wait_blocked()
    bystander = one.enqueue("bystander")
    wait_until(lambda: one.slots(SlotState.RUNNING))
    one.enqueue("cancels")
    wait_until(lambda: one.count(Cell.SUCCEEDED) == 1)
    wait_until(lambda: one.ids(State.RETRY) == {bystander})
    probe = one.enqueue("probe")
    one.wait_settled()
    assert one.ledger.starts() == {probe: 1}
    assert one.drain() == 0


@pytest.mark.parametrize("how", ["sys.exit(0)", "return", "raise ValueError('in the child')"])
@pytest.mark.parametrize("sort", ["async def", "def"])
def test_a_process_that_a_handler_forks_does_not_become_a_second_worker(
    worker: Make, how: str, sort: str
) -> None:
    """Its sys.exit() is caught like any other: the child went on with our board and our connections."""
    one = worker(
        f"""
        {sort} forks(task: Task[Any]) -> Any:
            ledger.write("start", task.id)
            pid = os.fork()
            if pid == 0:
                {how}
            _, status = os.waitpid(pid, 0)
            return os.waitstatus_to_exitcode(status)

        async def probe(task: Task[Any]) -> None:
            ledger.write("probe", task.id)
        """
    ).start()
    task_id = one.enqueue("forks", retention="1h")
    one.wait_settled(5)
    result = json.loads(base64.b64decode(one.message(task_id)["result"]))
    assert result == (1 if "raise" in how else 0)
    one.enqueue_many("probe", 50)
    one.wait_settled()
    assert {entry.pid for entry in one.ledger.entries("probe")} == {one.pid}
    assert len(one.ledger.entries("probe")) == 50
