"""What surrounds a handler: middleware, lifespan, the worker's client, its logs."""

from __future__ import annotations

import base64
import json
import os
import signal
import time
from collections.abc import Callable

import pytest

from chronosd.board import Cell, WorkerState
from chronosd.states import State
from tests.support.waiting import at_most, wait_until
from tests.support.worker import WorkerProcess

Make = Callable[..., WorkerProcess]


def result(one: WorkerProcess, task_id: str) -> object:
    return json.loads(base64.b64decode(one.message(task_id)["result"]))


MIDDLEWARE = """
local = threading.local()

async def _aouter(task: Task[Any], call_next: Any) -> Any:
    ledger.write("outer", task.id)
    try:
        return ["outer", await call_next(task)]
    except ValueError as error:
        raise SkipRetry(f"translated {error}") from error

async def _ainner(task: Task[Any], call_next: Any) -> Any:
    return ["inner", await call_next(task)]

def _souter(task: Task[Any], call_next: Any) -> Any:
    local.value = threading.get_ident()
    return ["sync", call_next(task)]

async def given(task: Task[Any]) -> Any:
    return task.args

async def raises(task: Task[Any]) -> Any:
    raise ValueError("mine")

def thread(task: Task[Any]) -> Any:
    return local.value == threading.get_ident()
"""


def test_middleware_wraps_handlers_of_its_own_sort_the_first_outermost(worker: Make) -> None:
    one = worker(MIDDLEWARE, middleware=["{module}:_aouter", "{module}:_souter", "{module}:_ainner"]).start()
    given = one.enqueue("given", 1, retention="1h")
    thread = one.enqueue("thread", 1, retention="1h")
    raises = one.enqueue("raises")
    one.wait_settled()
    assert result(one, given) == ["outer", ["inner", 1]]
    assert result(one, thread) == ["sync", True]
    assert one.ids(State.ARCHIVED) == {raises}
    assert one.message(raises)["last_err"] == "translated mine"


LIFESPAN = """
@contextlib.asynccontextmanager
async def _span() -> Any:
    ledger.write("enter", "span")
    yield {"pool": 17}
    ledger.write("leave", "span")

@contextlib.asynccontextmanager
async def _raises_at_start() -> Any:
    raise ConnectionError("no database")
    yield

@contextlib.asynccontextmanager
async def _exits_at_start() -> Any:
    sys.exit(3)
    yield

@contextlib.asynccontextmanager
async def _hangs_at_start() -> Any:
    ledger.write("enter", "span")
    await asyncio.sleep(60)
    yield

@contextlib.asynccontextmanager
async def _raises_at_end() -> Any:
    yield
    raise ConnectionError("gone")

@contextlib.asynccontextmanager
async def _exits_at_end() -> Any:
    yield
    sys.exit(3)

@contextlib.asynccontextmanager
async def _cancels_at_end() -> Any:
    yield
    asyncio.current_task().cancel()
    await asyncio.sleep(1)

@contextlib.asynccontextmanager
async def _hangs_at_end() -> Any:
    yield
    while True:
        try:
            await asyncio.sleep(60)
        except BaseException:
            pass

async def pool(task: Task[Any]) -> Any:
    return task.state["pool"]

def sync_pool(task: Task[Any]) -> Any:
    return task.state["pool"]

async def tick(task: Task[Any]) -> None:
    ledger.write("start", task.id)
"""


def test_handlers_are_given_what_the_lifespan_yields(worker: Make) -> None:
    one = worker(LIFESPAN, lifespan="{module}:_span").start()
    ids = [one.enqueue(kind, retention="1h") for kind in ("pool", "sync_pool")]
    one.wait_settled()
    assert [result(one, task_id) for task_id in ids] == [17, 17]
    assert one.drain() == 0
    assert [entry.what for entry in one.ledger.entries()] == ["enter", "leave"]


@pytest.mark.parametrize("name", ["_raises_at_start", "_exits_at_start"])
def test_a_lifespan_that_fails_at_its_start_is_reported_like_an_import(worker: Make, name: str) -> None:
    one = worker(LIFESPAN, lifespan=f"{{module}}:{name}").start(go=False)
    failed = one.wait_message("failed")
    assert failed["code"] == 4
    assert name in failed["error"]
    assert one.wait() == 4


def test_a_lifespan_that_hangs_at_its_start_does_not_keep_the_worker_from_ending(worker: Make) -> None:
    one = worker(LIFESPAN, lifespan="{module}:_hangs_at_start").start(go=False)
    wait_until(lambda: one.ledger.entries("enter"))
    os.kill(one.pid, signal.SIGTERM)
    assert one.wait(5) == 0


@pytest.mark.parametrize("name", ["_raises_at_end", "_exits_at_end", "_cancels_at_end"])
def test_a_lifespan_that_fails_at_its_end_changes_nothing(worker: Make, name: str) -> None:
    """Every task is settled by then: an exit code that says otherwise would count as a crash."""
    one = worker(LIFESPAN, lifespan=f"{{module}}:{name}").start()
    task_id = one.enqueue("tick")
    one.wait_settled()
    assert one.drain() == 0
    assert one.ledger.starts() == {task_id: 1}
    assert one.log_records("lifespan failed at its end")
    one.wait_message("drained")
    assert one.board.state is WorkerState.STOPPED


@pytest.mark.parametrize("timeout", [0.3, None])
def test_a_lifespan_that_hangs_at_its_end_does_not_hold_the_process(
    worker: Make, timeout: float | None
) -> None:
    one = worker(LIFESPAN, lifespan="{module}:_hangs_at_end", shutdown_timeout="1s").start()
    one.enqueue("tick")
    one.wait_settled()
    began = time.monotonic()
    assert one.drain(timeout) == 0
    assert time.monotonic() - began < at_most(4)


def test_a_module_that_cannot_be_imported_is_refused_with_the_reason(worker: Make) -> None:
    one = worker("", handlers={"a": "no_such_module:f"}).start(go=False)
    failed = one.wait_message("failed")
    assert failed["code"] == 78
    assert "no_such_module" in failed["error"]
    assert one.wait() == 78


def test_a_module_that_raises_at_import_ends_with_4(worker: Make) -> None:
    one = worker("async def a(task: Task[Any]) -> None: ...\nraise ConnectionError('no')").start(go=False)
    assert one.wait_message("failed")["code"] == 4
    assert one.wait() == 4


CLIENTS = """
async def parent(task: Task[Any]) -> Any:
    infos = await asyncio.gather(*(task.client.enqueue("child", {"n": n}) for n in range(50)))
    return len(infos)

def sync_parent(task: Task[Any]) -> Any:
    return [task.client.enqueue("child", {"n": n}).id for n in range(5)]

async def child(task: Task[Any]) -> None:
    ledger.write("start", task.id)
"""


def test_the_workers_client_is_async_in_async_handlers_and_sync_in_sync_ones(worker: Make) -> None:
    one = worker(CLIENTS, concurrency=16).start()
    parents = [one.enqueue("parent", retention="1h"), one.enqueue("parent", retention="1h")]
    threads = [one.enqueue("sync_parent", retention="1h") for _ in range(4)]
    wait_until(lambda: len(one.ledger.starts()) == 120)
    one.wait_settled()
    assert [result(one, task_id) for task_id in parents] == [50, 50]
    made = {child for task_id in threads for child in result(one, task_id)}  # type: ignore[attr-defined]
    assert made <= set(one.ledger.starts())
    assert one.drain() == 0


LOGS = """
log = logging.getLogger("mine")

async def talks(task: Task[Any]) -> None:
    log.warning("before")
    await asyncio.sleep(0.01)
    log.warning("after", extra={"of": task.id})
    await asyncio.create_task(_deeper())

async def _deeper() -> None:
    log.warning("deeper")

def sync_talks(task: Task[Any]) -> None:
    log.warning("thread")

async def breaks_the_log(task: Task[Any]) -> None:
    class Broken:
        def __str__(self) -> str:
            raise SystemExit(1)
        __repr__ = __str__
    log.warning("broken %s", Broken())
    log.warning("%d", "no number", extra={"object": Broken()})
    log.warning("long " + "x" * 1_000_000)
    log.warning("surrogate \\ud800 and nul \\x00")

async def fails(task: Task[Any]) -> None:
    raise RuntimeError("told to")
"""


def test_log_lines_carry_the_task_they_are_about(worker: Make) -> None:
    one = worker(LOGS, concurrency=16).start()
    ids = [one.enqueue("talks") for _ in range(10)]
    sync = one.enqueue("sync_talks", max_retry=7)
    failing = one.enqueue("fails")
    one.wait_settled()
    for event in ("before", "after", "deeper"):
        found = one.log_records(event)
        assert sorted(line["task_id"] for line in found) == sorted(ids)
        assert {(line["kind"], line["queue"], line["attempt"]) for line in found} == {("talks", "default", 1)}
    for line in one.log_records("after"):
        assert line["of"] == line["task_id"]
    (line,) = one.log_records("thread")
    assert (line["task_id"], line["kind"]) == (sync, "sync_talks")
    (line,) = one.log_records("task failed, will retry")
    assert (line["task_id"], line["kind"], line["queue"]) == (failing, "fails", "default")
    assert line["error"] == "RuntimeError: told to"
    assert line["stack"].splitlines()[1].endswith(" in fails"), (
        "where it was raised, the innermost call first"
    )
    assert all("told to" not in str(line) for line in one.log_records("redis trouble"))


def test_log_calls_that_go_wrong_fail_no_task(worker: Make) -> None:
    one = worker(LOGS).start()
    one.enqueue("breaks_the_log")
    one.wait_settled()
    assert one.count(Cell.SUCCEEDED) == 1, one.log_tail()
    lines = one.log_path.read_bytes().split(b"\n")
    assert max(map(len, lines)) <= 4096


def test_the_worker_goes_on_where_nobody_reads_its_log(worker: Make) -> None:
    one = worker(
        """
        async def chatters(task: Task[Any]) -> None:
            for _ in range(200):
                logging.getLogger("mine").warning("x" * 1000)
        """,
        concurrency=4,
    )
    ends = os.pipe()
    one.start(stderr=ends[1])
    one.enqueue_many("chatters", 20)
    one.wait_settled()
    assert one.count(Cell.SUCCEEDED) == 20
    assert one.drain() == 0
    for end in ends:
        os.close(end)
