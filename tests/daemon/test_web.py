"""The web process of a real daemon: serving, killed, moved by a reload, and no error of it the daemon's."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis as redis_py

from chronosd import Client
from chronosd.embedded import EmbeddedServer
from tests.conftest import connect
from tests.support.daemon import Daemon
from tests.support.processes import wait_gone
from tests.support.proxy import Proxy
from tests.support.scrape import address, get, scrape, total
from tests.support.waiting import wait_until

Make = Callable[..., Daemon]
ANYWHERE: dict[str, Any] = {"listen": "127.0.0.1:0"}


def test_health_metrics_and_dashboard_of_a_daemon_at_work(daemon: Make, client: Client) -> None:
    one = daemon(http=ANYWHERE, queues={"default": 1, "idle": 1}).start()
    where = address(one)
    wait_until(lambda: get(where, "/readyz") == (200, "ok\n"), what="readiness")
    assert get(where, "/livez") == (200, "ok\n")
    client.enqueue_many([("noop", {})] * 50 + [("wrong", {})] * 3 + [("nobody:has:this", {})] * 2)
    client.enqueue("noop", {}, queue="elsewhere")
    processed = "chronos_tasks_processed_total"

    def arrived() -> bool:
        series = scrape(where)
        return (
            total(series, processed, queue="default", kind="noop", outcome="succeeded") == 50
            and total(series, processed, queue="default", kind="wrong", outcome="archived") == 3
            and total(series, processed, queue="default", kind="other", outcome="postponed") == 2
            and total(series, "chronos_task_duration_seconds_count", kind="noop") == 50
            and total(series, "chronos_task_latency_seconds_count", queue="default") == 53
            and total(series, "chronos_queue_tasks", queue="default", state="archived") == 3
            and total(series, "chronos_queue_unserved", queue="elsewhere") == 1
            and total(series, "chronos_queue_unserved", queue="idle") == 0
        )

    wait_until(arrived, timeout_s=20, what="the counts")
    series = scrape(where)
    assert total(series, "chronos_redis_up") == 1
    assert total(series, "chronos_workers", state="ready") == 1
    assert total(series, "chronos_worker_rss_bytes", worker="0") > 1 << 20
    status, text = get(where, "/metrics")
    tool = shutil.which("promtool")  # .ci/run gets it; tests/unit/test_web.py has the client library's parser
    if tool is not None:
        linted = subprocess.run(
            [tool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
        )
        assert (linted.returncode, linted.stdout) == (0, ""), linted.stdout + linted.stderr
    status, text = get(where, "/")
    assert status == 200
    assert "nobody:has:this" not in text  # a kind that nobody handles is no label
    assert "served by nobody" in text


def test_connections_on_which_nothing_is_asked_keep_nobody_out_for_long(daemon: Make) -> None:
    one = daemon(http=ANYWHERE).start()
    where = address(one)
    wait_until(lambda: get(where, "/readyz")[0] == 200, what="readiness")
    host, _, port = where.rpartition(":")
    with contextlib.ExitStack() as open_:
        idle = [open_.enter_context(socket.create_connection((host, int(port)))) for _ in range(250)]
        for number, line in enumerate(idle[:100]):
            line.sendall((b"GET /livez", b"GET /livez HTTP/1.1\r\nhost: x\r\nx: ")[number % 2])
        wait_until(lambda: get(where, "/livez")[0] == 503, what="all places taken")
        wait_until(lambda: get(where, "/livez") == (200, "ok\n"), timeout_s=20, what="room")
    assert one.stop() == 0


def test_a_web_process_that_is_killed_is_replaced_and_its_port_lost_to_nobody(daemon: Make) -> None:
    one = daemon(http=ANYWHERE).start()
    where = address(one)
    wait_until(lambda: get(where, "/readyz")[0] == 200, what="readiness")
    for _ in range(2):
        (web,) = wait_until(lambda: one.children("web"), what="a web process")
        os.kill(web.pid, signal.SIGKILL)
        assert get(where, "/livez", timeout_s=15) == (200, "ok\n")
    assert one.stop() == 0
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections may linger, nobody listens
        host, _, port = where.rpartition(":")
        free.bind((host, int(port)))


def test_the_web_process_minds_its_supervisor_alone_and_goes_with_it(daemon: Make) -> None:
    one = daemon(http=ANYWHERE).start()
    where = address(one)
    assert get(where, "/livez")[0] == 200
    (web,) = one.children("web")
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGTSTP):
        web.send_signal(signum)
    assert get(where, "/livez")[0] == 200
    assert [child.pid for child in one.children("web")] == [web.pid]
    own = {fd.path for fd in web.open_files()}
    assert not any(path.endswith(".board") for path in own), own
    assert listening(web) == 1
    assert listening(one.children("worker")[0]) == 0
    others = [child.pid for child in one.children()]
    one.send(signal.SIGKILL)
    one.wait()
    wait_gone(others)


def listening(process: psutil.Process) -> int:
    return sum(connection.status == psutil.CONN_LISTEN for connection in process.net_connections())


def test_a_port_that_is_taken_ends_the_start_with_one_line(daemon: Make) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        one = daemon(http={"listen": taken}).start(wait=False)
        assert one.wait() == 1
    (record,) = one.log_records("cannot start")
    assert record["error"].endswith(f"http.listen: cannot listen at {taken}: Address already in use")


def test_a_reload_starts_moves_and_stops_it_and_a_taken_port_is_only_logged(daemon: Make) -> None:
    one = daemon().start()
    assert one.children("web") == []

    def reload(http: dict[str, Any] | None) -> None:
        one.write_config({} if http is None else {"http": http})
        assert one.ask("reload", wait=True)["ok"]

    reload(ANYWHERE)
    first = address(one)
    assert get(first, "/livez")[0] == 200
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        reload({"listen": f"127.0.0.1:{other.getsockname()[1]}"})
        wait_until(lambda: one.log_records("http goes on as before"), what="the refusal in the log")
        assert get(first, "/livez")[0] == 200
    reload({"listen": "localhost:0"})
    second = address(one)
    assert second != first
    assert get(second, "/readyz")[0] == 200
    reload(None)
    wait_until(lambda: one.children("web") == [], what="the web process gone")
    assert one.log_records("web process is down") == []
    assert one.stop() == 0


def test_while_redis_is_away_it_lives_and_is_not_ready(daemon: Make, proxy: Proxy) -> None:
    one = daemon(http=ANYWHERE, redis_url=proxy.url).start()
    where = address(one)
    wait_until(lambda: total(scrape(where), "chronos_redis_up") == 1, what="redis")
    proxy.mode = "refuse"
    _, text = wait_until(
        lambda: (found := get(where, "/readyz"))[0] == 503 and found, timeout_s=20, what="no readiness"
    )
    assert text.startswith("redis is away: ")
    assert get(where, "/livez") == (200, "ok\n")
    assert total(scrape(where), "chronos_redis_up") == 0
    assert get(where, "/")[0] == 200
    proxy.mode = "pass"
    wait_until(lambda: get(where, "/readyz")[0] == 200, timeout_s=20, what="readiness")


Refusal = Callable[[redis_py.Redis], Callable[[], Any]]
"""Has a server refuse every write; returns what ends that."""


def full(redis: redis_py.Redis) -> Callable[[], Any]:
    redis.config_set("maxmemory", 1)
    return lambda: redis.config_set("maxmemory", 0)


def unable_to_persist(redis: redis_py.Redis) -> Callable[[], Any]:
    dump = Path(redis.config_get("dir")["dir"]) / redis.config_get("dbfilename")["dbfilename"]
    dump.mkdir()
    redis.config_set("save", "3600 1")
    redis.bgsave()
    wait_until(lambda: redis.info("persistence")["rdb_last_bgsave_status"] != "ok", what="a failed dump")
    return lambda: redis.config_set("save", "")


def demoted(redis: redis_py.Redis) -> Callable[[], Any]:
    redis.replicaof("127.0.0.1", 1)
    return lambda: redis.replicaof("NO", "ONE")


@pytest.mark.parametrize(
    ("begin", "reason"),
    [
        (full, "redis takes no writes: OOM "),
        (unable_to_persist, "redis takes no writes: MISCONF "),
        (demoted, "redis is away: READONLY "),
    ],
    ids=["full", "unable to persist", "demoted"],
)
def test_while_redis_answers_and_takes_no_writes_it_lives_and_is_not_ready(
    daemon: Make, fresh_server: EmbeddedServer, begin: Refusal, reason: str
) -> None:
    """It said that it was ready although nothing could be enqueued. Of a server that had become a replica it
    said so now and then, for it reached it 17 times a second, each time with a child and two lines of log."""
    one = daemon(http=ANYWHERE, redis_url=fresh_server.url).start()
    where = address(one)
    with connect(fresh_server.url) as redis:
        wait_until(lambda: get(where, "/readyz")[0] == 200, what="readiness")
        end = begin(redis)
        _, text = wait_until(
            lambda: (found := get(where, "/readyz"))[0] == 503 and found, timeout_s=20, what="no readiness"
        )
        assert text.startswith(reason), text
        assert text.count("\n") == 1
        assert get(where, "/livez") == (200, "ok\n")
        assert total(scrape(where), "chronos_redis_up") == 0
        assert reason in one.ask("status")["status"]
        said = one.run_command("doctor", "-c", str(one.config_path)).stdout
        assert reason.split(": ")[1] in said, said
        until = time.monotonic() + 2.5  # the page is filled once a second
        while time.monotonic() < until:
            assert get(where, "/readyz")[0] == 503, "it is over when it is over"
            time.sleep(0.02)
        end()
        wait_until(lambda: get(where, "/readyz")[0] == 200, timeout_s=20, what="readiness")
        assert one.ask("status")["redis"] == {"reached": True, "error": "", "away_s": None}
    assert len(one.log_records("redis is away")) <= 3
    assert one.stop() == 0


def test_a_key_of_the_wrong_type_in_one_queue_is_no_want_of_readiness(
    daemon: Make, redis: redis_py.Redis, namespace: str
) -> None:
    redis.set(f"{namespace}:{{bad}}:stream", "not a stream")
    one = daemon(http=ANYWHERE, queues={"default": 1, "bad": 1}).start()
    wait_until(lambda: one.log_records("step hindered"), what="the trouble of that queue")
    where = address(one)
    wait_until(lambda: get(where, "/readyz") == (200, "ok\n"), what="readiness")
    assert one.ask("status")["redis"]["error"] == ""
