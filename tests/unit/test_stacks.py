"""Where a worker is: threads and coroutines, as they are logged and kept with a task."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from chronosd.cli.task import _crash
from chronosd.supervisor.stacks import Stacks, is_in_handler_thread
from chronosd.worker import suspended

DUMP = """\
Thread 0x00007f01 (most recent call first):
  File "/site/chronosd/worker/threads.py", line 221 in _work
  File "/usr/lib/python3.11/threading.py", line 982 in run

Thread 0x00007f02 (most recent call first):
  File "/app/handlers.py", line 9 in hang
  File "/site/chronosd/worker/execute.py", line 372 in _run_sync
  File "/site/chronosd/worker/threads.py", line 221 in _work

Thread 0x00007f03 (most recent call first):
  File "/site/chronosd/worker/main.py", line 249 in _beat_in_thread

Current thread 0x00007f04 (most recent call first):
  File "/site/chronosd/worker/main.py", line 87 in run
  File "/site/chronosd/worker/main.py", line 60 in run
  File "/site/chronosd/supervisor/process.py", line 171 in _be_child
Thread 0x00007f05 (most recent call first):
  File "/app/handlers.py", line 12 in slow
"""


@pytest.fixture
def stacks() -> Iterator[Stacks]:
    one = Stacks.create("test")
    yield one
    one.close()


def test_threads_that_wait_for_work_are_left_out(stacks: Stacks) -> None:
    os.write(stacks.fd, DUMP.encode())
    shown = stacks.read()
    assert "in hang" in shown
    assert shown.endswith(
        '87 in run\nThread 0x00007f05 (most recent call first):\n  File "/app/handlers.py", line 12 in slow'
    ), "how the worker was forked is left out, and nothing else"
    assert "0x00007f01" not in shown
    assert "_beat_in_thread" not in shown
    stacks.clear()
    os.write(stacks.fd, b"Fatal Python error: Segmentation fault\n\n\xff")
    assert stacks.read() == "Fatal Python error: Segmentation fault\n\n\\xff"


def test_a_fault_in_a_thread_of_a_handler_is_told_from_one_in_a_coroutine() -> None:
    assert is_in_handler_thread(DUMP)
    assert not is_in_handler_thread(DUMP.partition("Current")[2])


class Wrapper:
    """Awaits a coroutine by hand, as the worker's trampoline does."""

    def __init__(self, coroutine: Any) -> None:
        self.coroutine = coroutine

    def __await__(self) -> Any:
        return self

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return self.coroutine.send(None)

    def send(self, value: Any) -> Any:
        return self.coroutine.send(value)


async def innermost() -> None:
    await asyncio.Event().wait()


async def handler() -> None:
    await innermost()


async def outermost() -> None:
    await Wrapper(handler())


def run_of(entry: str, aio: asyncio.Task[None] | None) -> Any:
    message = SimpleNamespace(id=f"id-{entry}", kind="mail:send", queue="default")
    return SimpleNamespace(aio=aio, entry=entry.encode(), message=message)


def test_a_coroutine_that_waits_is_shown_down_to_what_it_waits_in() -> None:
    async def show() -> tuple[str, str, str]:
        task = asyncio.create_task(outermost())
        await asyncio.sleep(0)
        runs = [run_of("1-0", task), run_of("2-0", task), run_of("3-0", None)]
        shown = (
            suspended.stacks(runs, [("default", "1-0")]),
            suspended.stacks(runs, ()),
            suspended.stacks(runs, [("other", "1-0")]),
        )
        task.cancel()
        return shown

    one, every, none = asyncio.run(show())
    names = [line.rpartition(" in ")[2] for line in one.splitlines() if line.startswith("  File")]
    assert names[0] == "wait"
    assert [name for name in names if name in ("innermost", "handler", "outermost")] == [
        "innermost",
        "handler",
        "outermost",
    ]
    assert one.startswith("Task id-1-0 of kind mail:send, waiting (most recent call first):\n")
    assert every.count("Task id-") == 2
    assert "Thread" not in one
    assert none == ""


def test_every_other_thread_is_shown_where_all_are_asked_for() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name="handler-7")
    thread.start()
    try:
        shown = suspended.stacks([], ())
    finally:
        over.set()
        thread.join()
    assert "Thread handler-7 (most recent call first):\n" in shown
    assert " in wait\n" in shown
    assert "MainThread" not in shown, "the thread that asks has said where it is"


@pytest.mark.parametrize(
    ("death", "lines"),
    [
        (
            {"at": 1.5, "cause": "worker killed by signal 9 (SIGKILL)", "worker": "w", "signal": 9},
            [("crash", "1970-01-01T00:00:01Z worker killed by signal 9 (SIGKILL) w")],
        ),
        ({"cause": "worker died", "exit_code": 3}, [("crash", "worker died, exit code 3")]),
        ({"cause": "c", "stack": "a\n\nb"}, [("crash", "c"), ("stack", "a"), ("", " "), ("", "b")]),
        ({"at": "x", "cause": None, "stack": 7, "signal": "9"}, [("crash", "None")]),
        ({}, [("crash", "")]),
    ],
    ids=str,
)
def test_a_crash_is_shown_with_how_it_ended_and_its_stack(
    death: dict[str, Any], lines: list[tuple[str, str]]
) -> None:
    assert _crash(death) == lines
