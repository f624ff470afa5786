"""H: supervisor, forks, signals, reload; what the other tests do not try."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from chronosd import Client
from tests.support.daemon import Daemon
from tests.support.queue_view import QueueView
from tests.support.reloading import KIND, dummy, write_version
from tests.support.waiting import at_most, wait_until

MakeDaemon = Callable[..., Daemon]


def test_h87_a_reload_that_hangs_in_an_import_makes_way_for_the_one_that_mends_it(
    daemon: MakeDaemon, client: Client
) -> None:
    one = daemon(workers=1, config={"handlers": KIND})
    write_version(one, 0)
    one.start()
    hangs = one.directory / "hangs"
    (one.directory / "handlers.py").write_text(
        f"import pathlib, time\npathlib.Path({str(hangs)!r}).touch()\ntime.sleep(600)\n"
    )
    answers: list[dict[str, object]] = []
    asking = threading.Thread(target=lambda: answers.append(one.ask("reload", wait=True)))
    asking.start()
    wait_until(hangs.exists, what="a pre-flight that hangs in the import")
    write_version(one, 1)
    began_at = time.monotonic()
    assert one.ask("reload", wait=True)["ok"]
    assert time.monotonic() - began_at < at_most(15), (
        "not when the other's reload_timeout of a minute is over"
    )
    asking.join()
    assert answers[0]["error"] == "called off for the next one, which was asked for meanwhile"
    client.enqueue("v", {})
    wait_until(one.ledger.ends, what="the task")
    assert [entry.note for entry in one.ledger.entries("start")] == ["1"]


SUBPROCESS = """
    import asyncio, subprocess
    from tests.support.ledger import Ledger
    ledger = Ledger.of_environment()

    async def run(task):
        child = await asyncio.create_subprocess_exec("sh", "-c", "exit 3")
        ledger.write("end", task.id, await child.wait())

    def run_in_thread(task):
        ledger.write("end", task.id, subprocess.run(["sh", "-c", "exit 4"]).returncode)
"""


def test_h93_the_return_codes_of_a_handlers_own_subprocesses_are_right(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    kinds = {"run": "handlers:run", "thread": "handlers:run_in_thread"}
    one = daemon(handlers=SUBPROCESS, workers=2, config={"handlers": kinds}).start()
    ids = {client.enqueue("run", {}).id: 3 for _ in range(20)}
    ids |= {client.enqueue("thread", {}).id: 4 for _ in range(20)}
    queue.wait_finished()
    assert {entry.id: entry.attempt for entry in one.ledger.entries("end")} == ids
    assert one.log_records("worker died") == []


def test_h97_no_child_of_hundreds_hangs_whatever_the_supervisor_was_doing(
    tmp_path: Path, redis_url: str, namespace: str
) -> None:
    """A fork in the middle of a log line, of an answer, of a reload."""
    with dummy(tmp_path / "d", redis_url, namespace, workers=4, startup_timeout="5s") as one:
        one.start()
        is_over = threading.Event()

        def ask() -> None:
            while not is_over.is_set():
                one.ask("status")
                one.ask("reload")

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            deadline = time.monotonic() + 4
            while time.monotonic() < deadline:
                for pid in one.worker_pids():
                    if random.random() < 0.5:
                        with contextlib.suppress(ProcessLookupError):  # replaced by a reload meanwhile
                            os.kill(pid, signal.SIGKILL)
                time.sleep(0.02)
        finally:
            is_over.set()
            asking.join()
        wait_until(lambda: one.ask("status")["ready"] == 4, timeout_s=30, what="four workers")
        print(f"{one.log_text().count('worker forked')} forks")
        assert one.log_text().count("worker forked") > 50
        assert "not ready in time" not in one.log_text()
        assert one.stop() == 0


LOUD = """
    from tests.support.ledger import Ledger
    ledger = Ledger.of_environment()

    async def loud(task):
        with ledger.run(task.id):
            print("x" * 1_000_000)
"""


def test_h102_handlers_may_print_megabytes(daemon: MakeDaemon, client: Client, queue: QueueView) -> None:
    one = daemon(handlers=LOUD, workers=2, config={"handlers": {"loud": "handlers:loud"}}).start()
    for _ in range(10):
        client.enqueue("loud", {}, max_retry=0)
    queue.wait_finished()
    assert len(one.ledger.ends()) == 10


def test_h102_a_reader_of_the_log_that_has_gone_away_stops_nothing(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    """``chronosd run | head -1``"""
    one = daemon(workers=1)
    process = subprocess.Popen(
        [sys.executable, "-m", "chronosd", "run", "-c", str(one.config_path)],
        cwd=one.directory,
        env={**one.environment, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        for _ in range(50):
            client.enqueue("count", {})
        queue.wait_finished()
        assert len(one.ledger.ends()) == 50
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: one.ask("status")["revision"] == 2, what="a reload")
    finally:
        process.terminate()
        assert process.wait(20) == 0
