"""The life of one task, read from the JSON log by its id: enqueued, started, failed, crashed, archived, run
again, succeeded; and one trace through all of it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from chronosd import Client, Inspector
from chronosd.states import State
from tests.support.daemon import Daemon
from tests.support.queue_view import QueueView
from tests.support.scrape import address, get
from tests.support.waiting import wait_until

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE_ID}-00f067aa0ba902b7-01"

HANDLERS = """
    import logging, os, signal
    from chronosd import Task
    from chronosd.trace import trace_id

    async def life(task: Task) -> str:
        logging.getLogger("shop").warning("at work")
        assert trace_id(task.trace) == "4bf92f3577b34da6a3ce929d0e0e4736"
        if os.path.exists("mended"):
            await task.client.enqueue("child", {}, task_id="child")
            return "fine"
        if task.attempt == 1:
            raise ValueError("first time")
        os.kill(os.getpid(), signal.SIGKILL)

    def child(task: Task) -> None:
        assert trace_id(task.trace) == "4bf92f3577b34da6a3ce929d0e0e4736"
"""

PRODUCER = """
import sys
from chronosd import Client, log
log.configure("debug", "json")
with Client(sys.argv[1], namespace=sys.argv[2]) as client:
    client.enqueue("life", {}, task_id="t1", max_retry=2, trace=sys.argv[3])
"""

LIFE = [
    ("debug", "task enqueued"),
    ("debug", "task started"),
    ("warning", "at work"),
    ("warning", "task failed, will retry"),
    ("debug", "task started"),
    ("warning", "at work"),
    ("error", "task crashed, will retry"),
    ("debug", "task started"),
    ("warning", "at work"),
    ("error", "task archived"),
    ("debug", "task started"),
    ("warning", "at work"),
    ("debug", "task succeeded"),
]


def lines_of(daemon: Daemon, task_id: str) -> list[dict[str, Any]]:
    return sorted(
        (one for one in daemon.log_records() if one.get("task_id") == task_id),
        key=lambda one: str(one["timestamp"]),
    )


def test_a_tasks_whole_life_can_be_read_by_its_id_and_has_one_trace(
    daemon: Callable[..., Daemon], redis_url: str, namespace: str, queue: QueueView
) -> None:
    one = daemon(
        handlers=HANDLERS,
        config={"handlers": {"life": "handlers:life", "child": "handlers:child"}},
        retry={"base": "10ms", "cap": "20ms"},
        on_dead_letter={"kind": "child", "queue": "alerts"},
    ).start()
    with one.log_path.open("ab") as log:
        words = [sys.executable, "-c", PRODUCER, redis_url, namespace, PARENT]
        subprocess.run(words, stderr=log, env=one.environment, check=True, timeout=30)
    wait_until(lambda: queue.ids(State.ARCHIVED) == {"t1"}, what="archived")
    assert queue.field("t1", "traceparent") == PARENT.encode()
    shown = one.run_command("task", "show", "t1", "-c", str(one.config_path)).stdout
    assert re.search(rf"^trace +{PARENT}$", shown, re.MULTILINE), shown
    (one.directory / "mended").touch()
    with Inspector(redis_url, namespace=namespace) as inspector:
        assert inspector.run_task("t1")
    wait_until(lambda: len(lines_of(one, "child")) == 3, what="its child")
    wait_until(lambda: len(lines_of(one, "t1")) >= len(LIFE), what="the last line")

    life = lines_of(one, "t1")
    told = [(line["level"], line["event"]) for line in life if line["event"] != "worker died"]
    # what happens at the same time in two processes may be told in either order: a worker may have started a
    # task before its producer has read that it is stored
    assert Counter(told) == Counter(LIFE), told
    for line in life:
        assert line["queue"] == "default", line
        assert line["kind"] == "life", line
        assert line["trace_id"] == TRACE_ID, line
        assert line["event"] == "task enqueued" or line["attempt"] in (1, 2, 3), line
    assert [line["attempt"] for line in life if line["event"] == "task started"] == [1, 2, 3, 1]
    (failed,) = [line for line in life if line["event"] == "task failed, will retry"]
    assert failed["error"] == "ValueError: first time"
    (crashed,) = [line for line in life if line["event"] == "task crashed, will retry"]
    assert crashed["cause"].startswith("worker killed by signal 9")
    assert life[-1]["took_ms"] >= 0

    of_child = lines_of(one, "child")
    assert {line["event"] for line in of_child} == {"task enqueued", "task started", "task succeeded"}
    assert {line["trace_id"] for line in of_child} == {TRACE_ID}
    alerts = QueueView(queue.redis, namespace, "alerts")
    (alert,) = alerts.bodies()
    assert alerts.field(alert, "traceparent") == PARENT.encode()


def test_lines_that_are_not_wanted_are_not_there(daemon: Callable[..., Daemon], queue: QueueView) -> None:
    one = daemon(log={"level": "info", "format": "json"}).start()
    with Client(one.redis_url, namespace=one.namespace) as client:
        client.enqueue_many([("noop", {})] * 20)
    queue.wait_finished()
    assert one.stop() == 0
    about_tasks = [line for line in one.log_records() if "task_id" in line]
    assert about_tasks == []


def test_an_idle_daemon_says_nothing(daemon: Callable[..., Daemon]) -> None:
    """One line per change of state and none per turn of a loop, at debug as well."""
    one = daemon(
        http={"listen": "127.0.0.1:0"},
        heartbeat_interval="100ms",
        recover_interval="50ms",
        janitor={"interval": "100ms"},
        schedules={"tick": {"every": "1h", "kind": "noop"}},
    ).start()
    assert get(address(one), "/livez")[0] == 200
    wait_until(lambda: one.ask("status")["steps"]["janitor"] < 5, what="the first passes")
    before = len(one.log_records())
    beats = one.ask("status")["uptime_s"] + 2
    wait_until(lambda: one.ask("status")["uptime_s"] > beats, what="two idle seconds")
    more = [line["event"] for line in one.log_records()[before:]]
    assert [event for event in more if event not in ("asked",)] == []
