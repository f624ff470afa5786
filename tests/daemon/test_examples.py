"""The examples in a real daemon."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil

from chronosd.client import Client
from chronosd.inspector import Inspector
from chronosd.states import State
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until


def charges(folder: Path, account: str) -> list[str]:
    """The ids of the tasks that have charged an account."""
    database_file = folder / "payments.sqlite3"
    if not database_file.exists():
        return []
    with closing(sqlite3.connect(database_file)) as database:
        try:
            rows = database.execute("SELECT task_id FROM charges WHERE account = ?", (account,))
        except sqlite3.OperationalError:  # the tables are being made
            return []
        return [task_id for (task_id,) in rows]


def test_a_card_is_charged_once_although_the_worker_is_killed_right_after_the_money_moved(
    daemon: Callable[..., Daemon], redis_url: str, namespace: str, tmp_path: Path
) -> None:
    """The window that no queue can close: the effect has happened, and Redis does not know. The task runs
    again, finds what its first run stored under its id, and returns without charging a second time."""
    one = daemon(
        workers=2,
        config={"handlers": {"payment:charge": "handlers_example.payments:charge"}},
        env={"EXAMPLE_DATA": str(tmp_path)},
    ).start()
    with Client(redis_url, namespace=namespace) as client, Inspector(redis_url, namespace=namespace) as look:
        # the receipt takes so long that the first run can only end by the kill
        args = {"account": "a", "cents": 500, "receipt_s": 2.0}
        task = client.enqueue("payment:charge", args, retention="1h")
        wait_until(lambda: charges(tmp_path, "a"), what="the money moved")
        owner = look.show_task("default", task.id)
        assert owner.state is State.ACTIVE
        victims = one.worker_pids()
        for pid in victims:
            if any(file.path.endswith("payments.sqlite3") for file in psutil.Process(pid).open_files()):
                victims = [pid]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)

        def done() -> Any:
            found = look.show_task("default", task.id)
            return found if found.state is State.COMPLETED else None

        found = wait_until(done, timeout_s=20, what="the second run's success")
    assert found.result == "charged before"
    assert charges(tmp_path, "a") == [task.id]
    with closing(sqlite3.connect(tmp_path / "payments.sqlite3")) as database:
        assert database.execute("SELECT cents FROM balances WHERE account = 'a'").fetchone() == (500,)
    assert one.stop() == 0
