"""`chronosd top` and the other views on a terminal of 80 columns, beside a real daemon."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import redis as redis_py

from chronosd import Client
from chronosd.cli.main import main
from tests.support.daemon import Daemon
from tests.support.queue_view import QueueView
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until

MakeDaemon = Callable[..., Daemon]


def terminal(one: Daemon, *words: str, columns: int = 80, lines: int = 24) -> Terminal:
    return Terminal(
        *words,
        "-c",
        str(one.config_path),
        env=one.environment,
        cwd=one.directory,
        columns=columns,
        lines=lines,
    )


def test_a_frame_shows_queues_workers_and_schedules_and_keys_are_obeyed(
    daemon: MakeDaemon, client: Client, queue: QueueView, redis: redis_py.Redis, namespace: str
) -> None:
    one = daemon(
        workers=2,
        concurrency=4,
        queues={"default": 3, "critical-payments": 6, "reports": 1},
        schedules={"ping": {"every": "1h", "kind": "noop"}},
        retry={"base": "10ms", "cap": "20ms"},
    )
    redis.sadd(f"{namespace}:paused", "reports")
    one.start()
    client.enqueue("count", {}, queue="reports")
    task_id = client.enqueue("count", {"sleep": 60}).id
    client.enqueue_many([("count", {}, {"queue": "critical-payments"})] * 50)
    client.enqueue("wrong", {})
    wait_until(lambda: len(one.ledger.ends()) >= 50 and one.ledger.starts()[task_id])
    with terminal(one, "top", "--interval", "200ms", lines=30) as screen:
        # what goes on is counted from the first frame on
        screen.wait_for(lambda s: "reports (paused)" in s.text and len(s.frames) > 2)
        client.enqueue_many([("count", {}, {"queue": "critical-payments"})] * 200)
        # the last one may have been read in part
        screen.wait_for(lambda s: "succeeded" in s.frames[-2])
        frame = screen.frames[-2]
        lines = frame.splitlines()
        assert max(map(len, lines)) <= 80
        assert "chronosd running  2 of 2 workers" in frame
        (row,) = [line for line in lines if line.startswith("critical-payments ")]
        assert float(row.split()[1].rstrip("kM")) > 0, "tasks per second"
        assert row.split()[-1].startswith("<"), "how long they waited"
        assert any(f"count {task_id[:8]}" in line for line in lines), "what runs, by kind and id"
        (row,) = [line for line in lines if line.startswith("ping ")]
        assert "in 59m" in row or "in 1h" in row
        screen.type("x")
        seen = len(screen.frames)
        screen.wait_for(lambda s: len(s.frames) > seen)
        screen.type("q")
        assert screen.wait() == 0
        assert screen.raw.endswith("\x1b[?25h\x1b[?1049l"), "cursor and screen are as before"


def test_one_frame_on_a_pipe_and_as_json(
    daemon: MakeDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = daemon(workers=1).start()
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(one.runtime_dir))
    assert main(["top", "-c", str(one.config_path)]) == 0
    frame = capsys.readouterr().out
    assert frame.startswith("chronosd running  1 of 1 workers")
    assert "\x1b" not in frame
    assert main(["top", "--json", "-c", str(one.config_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["daemon"]["ready"] == 1
    assert [queue["queue"] for queue in found["queues"]] == ["default"]
    assert "block" in found["daemon"]["kinds"]


def test_without_a_daemon_the_queues_are_shown_and_without_both_it_says_so(
    daemon: MakeDaemon,
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = daemon()
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(one.runtime_dir))
    client.enqueue("count", {})
    assert main(["top", "--once", "-c", str(one.config_path)]) == 0
    frame = capsys.readouterr().out
    assert frame.startswith("chronosd no daemon: no running daemon found")
    (row,) = [line for line in frame.splitlines() if line.startswith("default ")]
    assert row.split()[:4] == ["default", "0", "0", "1"]
    nobody = daemon(redis_url=f"unix://{tmp_path}/nobody.sock")
    assert main(["top", "--once", "-c", str(nobody.config_path)]) == 3
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)


def test_the_views_are_legible_at_80_columns(
    daemon: MakeDaemon, client: Client, redis: redis_py.Redis, namespace: str
) -> None:
    one = daemon(workers=1, queues={"default": 1, "critical-payments": 6}).start()
    for number in range(3):
        client.enqueue(
            "wrong", {"template": "welcome-to-the-service", "number": number}, queue="critical-payments"
        )
    key = f"{namespace}:{{critical-payments}}:archived"
    wait_until(lambda: redis.zcard(key) == 3)
    ids = [found.decode() for found in redis.zrange(key, 0, -1)]
    for words, whole in [
        (("queue", "ls"), ["critical-payments", "PEND", "COMPL"]),
        (("status",), ["WORKER", "MEMORY", "fetching"]),
        (("task", "ls", "critical-payments", "archived"), [*ids, "permanently wrong", "wrong"]),
        (("task", "show", ids[0]), [ids[0], "welcome-to-the-service", "permanently wrong"]),
        (("queue", "show", "critical-payments"), ["CONSUMER", "archived"]),
    ]:
        with terminal(one, *words) as screen:
            assert screen.wait() == 0, screen.text
            wide = [line for line in screen.text.splitlines() if len(line) > 80]
            assert not [line for line in wide if not line.startswith("config ")], screen.text
            for text in whole:
                assert text in screen.text, screen.text
