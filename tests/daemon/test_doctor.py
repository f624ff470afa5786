"""``chronosd doctor`` beside real daemons: what it prints, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis as redis_py

from chronosd.client import Client
from chronosd.embedded import EmbeddedServer
from tests.conftest import connect
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until

MakeDaemon = Callable[..., Daemon]


@pytest.fixture
def sound(daemon: MakeDaemon, fresh_server: EmbeddedServer) -> Daemon:
    """A daemon on a server with an append-only file: nothing to be said of either."""
    return daemon(
        redis_url=fresh_server.url, workers=2, concurrency=8, retry={"base": "50ms", "cap": "100ms"}
    )


@pytest.fixture
def redis(fresh_server: EmbeddedServer) -> Iterator[redis_py.Redis]:
    with connect(fresh_server.url) as client:
        yield client


def doctor(daemon: Daemon, *words: str) -> tuple[int, list[str]]:
    done = daemon.run_command("doctor", "-c", str(daemon.config_path), *words)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_under_load_there_is_nothing_to_say(sound: Daemon, fresh_server: EmbeddedServer) -> None:
    sound.start()
    with Client(fresh_server.url, namespace=sound.namespace) as client:
        client.enqueue_many([("count", {"sleep": 0.005, "fail": n % 3}) for n in range(3000)])
        code, lines = doctor(sound, "--deep")
    assert (code, len(lines)) == (0, 1), lines
    assert lines[0].endswith(": sound")
    code, lines = doctor(sound)
    assert (code, len(lines)) == (0, 1), lines
    wait_until(lambda: len(sound.ledger.ends()) == 3000, timeout_s=40)
    assert doctor(sound, "--deep")[1][0].endswith("1 queue, 0 tasks: sound")


def test_each_finding_is_a_line_with_its_remedy_and_errors_end_with_1(
    sound: Daemon, redis: redis_py.Redis, fresh_server: EmbeddedServer
) -> None:
    with Client(fresh_server.url, namespace=sound.namespace) as client:
        client.enqueue("count", {}, task_id="it's", delay="1h")
        client.enqueue("nobody:knows", {}, delay="1h")
    redis.zrem(f"{sound.namespace}:{{default}}:scheduled", "it's")
    sound.start()
    code, lines = doctor(sound, "--deep")
    assert code == 1
    error, warning, verdict = lines
    assert error.startswith("error: queue default: task it's: its state is scheduled and it is in no place")
    assert "redis-cli XADD" in error
    assert warning.startswith("warning: queue default: 1 task is of kind 'nobody:knows'")
    assert verdict.endswith("1 queue, 2 tasks: 1 error, 1 warning")
    assert doctor(sound)[0] == 0, "that takes a look at every task"


def test_programs_are_told_in_json(
    sound: Daemon, redis: redis_py.Redis, fresh_server: EmbeddedServer
) -> None:
    with Client(fresh_server.url, namespace=sound.namespace) as client:
        client.enqueue("count", {}, task_id="a", delay="1h")
    redis.delete(f"{sound.namespace}:{{default}}:t:a")
    sound.start()
    code, lines = doctor(sound, "--deep", "--json")
    found: dict[str, Any] = json.loads("\n".join(lines))
    assert code == 1
    assert found["sound"] is False
    assert found["queues"] == ["default"]
    assert found["server"]["has_aof"] is True
    assert found["daemon"] == {
        "state": "running",
        "status": "2 of 2 workers running",
        "pid": sound.pid,
    }
    (finding,) = found["findings"]
    assert (finding["code"], finding["task_id"], finding["is_error"]) == ("no-task", "a", True)


def test_overdue_tasks_of_a_queue_that_nobody_serves_are_an_error(
    sound: Daemon, redis: redis_py.Redis, fresh_server: EmbeddedServer
) -> None:
    with Client(fresh_server.url, namespace=sound.namespace) as client:
        client.enqueue("count", {}, task_id="a", delay="1h")
    redis.zadd(f"{sound.namespace}:{{default}}:scheduled", {"a": time.time() - 60})
    code, lines = doctor(sound)
    assert code == 1
    assert "start a daemon" in lines[0]
    sound.start()
    wait_until(lambda: sound.ledger.ends()["a"])
    assert doctor(sound)[0] == 0


def test_two_daemons_that_would_take_over_each_others_tasks_are_told_apart(
    daemon: MakeDaemon, fresh_server: EmbeddedServer
) -> None:
    patient = daemon(redis_url=fresh_server.url).start()
    hasty = daemon(redis_url=fresh_server.url, recover_min_idle="25s").start()
    for one in (patient, hasty):
        code, lines = doctor(one)
        assert code == 1
        assert "recover_min_idle is not the same everywhere" in lines[0]


def test_a_server_that_does_not_answer_is_exit_code_3(daemon: MakeDaemon, tmp_path: Any) -> None:
    done = daemon(redis_url=f"unix://{tmp_path}/nobody.sock").run_command("doctor", "--deep")
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1


def test_the_five_troubles_of_the_night_are_named_with_what_to_do(
    daemon: MakeDaemon, redis: redis_py.Redis, fresh_server: EmbeddedServer
) -> None:
    one = daemon(
        redis_url=fresh_server.url,
        workers=2,
        concurrency=4,
        queues={"default": 1, "reports": 1},
        max_crashes=2,
        retry={"base": "10ms", "cap": "20ms"},
    )
    redis.sadd(f"{one.namespace}:paused", "reports")
    one.start()
    with Client(fresh_server.url, namespace=one.namespace) as client:
        client.enqueue("count", {}, queue="reports")
        client.enqueue("nobody:knows", {}, delay="1h")
        poison = client.enqueue("die", {}).id
        wait_until(lambda: redis.zscore(f"{one.namespace}:{{default}}:archived", poison), timeout_s=20)
        one.wait_workers(2)
        blocks = client.enqueue("block", {"sleep": 60}).id
    used = int(redis.info("memory")["used_memory"])  # type: ignore[index]
    redis.config_set("maxmemory", int(used / 0.9))
    wait_until(lambda: any(w["beat_age_s"] > 3.2 for w in one.ask("status")["workers"]), timeout_s=20)

    code, lines = doctor(one)
    text = "\n".join(lines)
    assert code == 1, text
    for problem, remedy in [
        ("queue reports: it is paused: 1 ready task waits", "chronosd queue resume reports"),
        (
            f"task {poison}: kind 'die' has taken its worker down twice",
            f"chronosd task show default {poison}",
        ),
        (f"task {blocks}: the event loop of worker", f"chronosd task cancel default {blocks} --force"),
        ("1 task is of kind 'nobody:knows', for which there is no handler", "add the handler"),
        ("(maxmemory) are in use", "CONFIG SET maxmemory"),
    ]:
        (line,) = [line for line in lines if problem in line] or [text]
        assert problem in line
        assert remedy in line
    assert "kind 'block' blocks it" in text
    assert lines[0].startswith("error: queue default: task")
    assert "worker killed by signal 9" in text


def test_a_daemon_whose_worker_was_stopped_is_no_sound_one(
    daemon: MakeDaemon, fresh_server: EmbeddedServer
) -> None:
    one = daemon(redis_url=fresh_server.url, workers=1).start()
    (pid,) = one.worker_pids()
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: one.ask("status")["workers"][0]["beat_age_s"] > 3.2)
    code, lines = doctor(one)
    assert code == 1
    assert f"worker 0 (pid {pid}) has stood still" in lines[0]
    assert f"kill -CONT {pid}" in lines[0]
    os.kill(pid, signal.SIGCONT)
