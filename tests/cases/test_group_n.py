"""Cases of group N: what the command line shows, how much it costs, and when it says that all is well."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from chronosd import Client, Inspector
from chronosd.cli.main import main
from chronosd.embedded import EmbeddedServer
from chronosd.errors import TaskNotFound
from chronosd.states import State
from tests.conftest import connect
from tests.support.daemon import Daemon
from tests.support.monitor import Monitor, unbounded
from tests.support.queue_view import QueueView
from tests.support.waiting import at_most, wait_until

MakeDaemon = Callable[..., Daemon]

MANY = int(os.environ.get("CHRONOSD_TEST_MANY", "20000"))
"""Tasks that wait, and other keys: 1,000,000 is the claim, and takes a minute and 2 GB."""

PATIENCE = 1 if MANY >= 1_000_000 else 5
"""Among many other tests on two cores; the million is tried by itself."""

SLOW_US = 20_000 * PATIENCE
LISTING_S = 1.0 * PATIENCE


@pytest.fixture
def crowded(fresh_server: EmbeddedServer) -> str:
    """A URL: so many ready, delayed and archived tasks in one queue, and as many keys of others."""
    url = fresh_server.url
    with Client(url, namespace="n", timeout=60) as client, connect(url) as redis:
        redis.config_set("appendonly", "no")
        client.enqueue_many(("mail:send", {"n": n}) for n in range(MANY))
        client.enqueue_many(("mail:send", {"n": n}, {"delay": "1h"}) for n in range(MANY // 4))
        redis.execute_command("DEBUG", "POPULATE", MANY, "session", 20)
        client.enqueue("mail:send", {}, task_id="wanted", delay="2h")
        # dead letters without a run: what the listing reads of them is the same
        ids = [entry[1][b"task_id"] for entry in redis.xrange("n:{default}:stream", count=MANY // 4)]
        for start in range(0, len(ids), 1000):
            redis.zadd("n:{default}:archived", {one: time.time() for one in ids[start : start + 1000]})
        redis.xgroup_create("n:{default}:stream", "chronos", 0)
        redis.xreadgroup("chronos", "c1", {"n:{default}:stream": ">"}, count=MANY // 10)
    return url


def run(*words: str) -> int:
    """A command, in this process: what is measured is the command and not the start of Python."""
    return main(list(words))


LISTINGS: list[tuple[str, ...]] = [
    ("queue", "ls"),
    ("queue", "show", "default"),
    *(("task", "ls", "default", state.label) for state in State),
    ("task", "ls", "default", "pending", "--limit", "500", "--json"),
    ("task", "show", "wanted"),
    ("schedule", "ls"),
    ("top", "--once"),
    ("doctor",),
]


@pytest.mark.timeout(120 + MANY / 1000)
def test_n145_no_listing_asks_for_everything_or_stops_the_server(
    crowded: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Listings by KEYS, or of whole sets, stopped a production server for seconds."""
    took: dict[str, float] = {}
    with connect(crowded) as redis:
        redis.config_set("slowlog-log-slower-than", SLOW_US)
        redis.slowlog_reset()
        with Monitor(crowded.removeprefix("unix://")) as seen:
            for words in LISTINGS:
                began_at = time.monotonic()
                code = run(*words, "--redis", crowded, "--namespace", "n")
                took[" ".join(words)] = time.monotonic() - began_at
                assert code == 0, capsys.readouterr()
        slow = [(one["duration"], one["command"][:120]) for one in redis.slowlog_get(128)]
    print({name: round(seconds, 3) for name, seconds in took.items()})
    greedy = [words[:6] for words in seen.commands if unbounded(words)]
    assert not greedy
    assert len(seen.commands) > 50, "the monitor has seen what scripts do"
    assert not slow
    del took["top --once"]  # it waits for the second of two samples
    assert max(took.values()) < LISTING_S * (1 if MANY >= 1_000_000 else 5), (
        "on a machine that does much else"
    )


def test_n147_a_task_that_ends_while_it_is_listed_or_looked_for_is_no_error(
    daemon: MakeDaemon, client: Client, redis_url: str, namespace: str, queue: QueueView
) -> None:
    """One that finished between the list and the look raised; a status read in two steps said "not found"."""
    one = daemon(workers=2, concurrency=32).start()
    count = 4000
    listed = 0
    with Inspector(redis_url, namespace=namespace) as inspector:
        infos = client.enqueue_many([("noop", {}, {"retention": "1h"})] * count)
        while queue.size(State.COMPLETED) < count:
            for state in State:
                page = inspector.list_tasks("default", state, limit=500)
                # whatever is listed is shown: what has gone on is in another state, and never broken
                assert not [task for task in page.tasks if task.problem], page.tasks
                listed += len(page.tasks)
            inspector.queue_stats("default")
            inspector.show_task("default", infos[-1].id)  # it is kept, so it is always somewhere
            inspector.find_task(infos[0].id)
        assert inspector.show_task("default", infos[-1].id).state is State.COMPLETED
        with pytest.raises(TaskNotFound):
            inspector.find_task("never there")
    assert listed
    assert one.stop() == 0


def test_n148_what_a_dead_worker_or_host_had_is_marked_as_such_and_goes_away(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    """Killed workers and their jobs were shown as active for long, and nobody could tell which were real."""
    one = daemon(
        workers=1, recover_min_idle="1s", heartbeat_interval="200ms", recover_interval="200ms"
    ).start()
    task_id = client.enqueue("count", {"sleep": 60}).id
    wait_until(lambda: one.ledger.starts()[task_id])
    (owner,) = [name for name, pending in queue.owners().items() if pending]
    # the whole host is gone: nothing of it is left that could settle anything
    config = str(one.config_path)
    one.kill()
    inspect = daemon(recover_min_idle="1s", heartbeat_interval="200ms", recover_interval="200ms")

    def consumers() -> dict[str, Any]:
        done = inspect.run_command("queue", "show", "default", "-c", config, "--json")
        return {one["name"]: one for one in json.loads(done.stdout)["consumers"]}

    shown = wait_until(lambda: (found := consumers())[owner]["is_stale"] and found, timeout_s=20)
    assert shown[owner]["pending"] == 1
    text = inspect.run_command("queue", "show", "default", "-c", config).stdout
    assert "stale, awaiting recovery" in text
    inspect.start()
    wait_until(lambda: inspect.ledger.starts()[task_id], timeout_s=20, what="it runs elsewhere")
    assert owner not in {name for name, pending in queue.owners().items() if pending}


def test_n150_nothing_is_said_to_be_well_that_is_not(
    daemon: MakeDaemon, client: Client, fresh_server: EmbeddedServer, namespace: str
) -> None:
    """Health checks said ok from a stale record, or because of a PING, while nothing was processed. What they
    say of stopped workers, a mute daemon and a user without rights: tests/daemon/test_doctor.py,
    tests/broker/test_examination.py."""
    one = daemon(redis_url=fresh_server.url, workers=1).start()
    assert one.run_command("doctor", "-c", str(one.config_path)).returncode == 0
    # due tasks that nobody forwards: the record of a daemon is fresh, and yet nothing is done
    one.send(signal.SIGSTOP)
    with Client(fresh_server.url, namespace=namespace) as there, connect(fresh_server.url) as redis:
        there.enqueue("count", {}, task_id="late", delay="1h")
        redis.zadd(f"{namespace}:{{default}}:scheduled", {"late": time.time() - 60})
    done = one.run_command("doctor", "-c", str(one.config_path))
    one.send(signal.SIGCONT)
    assert done.returncode == 1
    assert "overdue" in done.stdout
    assert "it does not answer" in done.stdout


def test_n150_every_command_has_a_timeout_and_one_line_where_redis_is_away(
    tmp_path: Any, redis_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    silent = _Silent(str(tmp_path / "silent.sock"))
    nobody = f"unix://{tmp_path}/nobody.sock"
    # a server that takes connections and says nothing costs each command its timeout: two will do
    tried = [(words, nobody) for words in LISTINGS]
    tried += [(words, silent.url) for words in (("queue", "ls"), ("top", "--once"))]
    for words, url in tried:
        began_at = time.monotonic()
        code = run(*words, "--redis", url)
        took_s = time.monotonic() - began_at
        out, err = capsys.readouterr()
        assert (code, out) == (3, ""), (words, out, err)
        assert len(err.splitlines()) == 1, err
        assert took_s < at_most(6.0), words
    silent.close()


def test_n150_a_reader_that_goes_away_is_no_error(redis_url: str, namespace: str) -> None:
    with Client(redis_url, namespace=namespace) as client:
        client.enqueue_many([("k", {"text": "x" * 500}, {"delay": "1h"})] * 500)
    command = ["task", "ls", "default", "scheduled", "--limit", "500", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "chronosd", *command, "--redis", redis_url, "--namespace", namespace],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(100)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


class _Silent:
    """A server that takes connections and never answers."""

    def __init__(self, path: str) -> None:
        import socket

        self.url = f"unix://{path}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen()
        self._taken: list[socket.socket] = []
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        while True:
            try:
                self._taken.append(self._listener.accept()[0])
            except OSError:
                return

    def close(self) -> None:
        import socket

        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._taken:
            one.close()
