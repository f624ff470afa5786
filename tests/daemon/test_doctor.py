"""``chronosd doctor`` beside real daemons: what it prints, and how it ends."""

from __future__ import annotations

import json
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
    code, lines = doctor(sound, "--deep", "--json")
    found: dict[str, Any] = json.loads("\n".join(lines))
    assert code == 1
    assert found["sound"] is False
    assert found["queues"] == ["default"]
    assert found["server"]["has_aof"] is True
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
