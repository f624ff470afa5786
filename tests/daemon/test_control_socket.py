"""The control socket and the commands on it: for the owner alone, whatever the daemon is busy with."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chronosd import Client
from chronosd.paths import CONTROL_SOCKET, socket_path
from tests.support.daemon import ROOT, Daemon
from tests.support.processes import paused, wait_gone
from tests.support.reloading import dummy, plan
from tests.support.waiting import at_most, wait_until

MakeDaemon = Callable[..., Daemon]


@pytest.fixture
def one(tmp_path: Path, redis_url: str, namespace: str) -> Iterator[Daemon]:
    """A supervisor over two dummies, running."""
    with dummy(tmp_path / "d", redis_url, namespace, workers=2) as made:
        yield made.start()


def place(one: Daemon) -> Path:
    return socket_path(one.runtime_dir, CONTROL_SOCKET)


def connect(one: Daemon) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.connect(str(place(one)))
    line.settimeout(20)
    return line


def said(line: socket.socket) -> dict[str, Any]:
    text = b""
    while part := line.recv(65536):
        text += part
    answer: dict[str, Any] = json.loads(text)
    return answer


def command(one: Daemon, *words: str) -> subprocess.CompletedProcess[str]:
    return one.run_command(*words, "-c", str(one.config_path))


# -- who gets in, and what they may send ---------------------------------------------------------------


def test_only_the_owner_can_open_it(one: Daemon) -> None:
    status = place(one).stat()
    assert stat.S_ISSOCK(status.st_mode)
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_uid == os.geteuid()
    assert stat.S_IMODE(place(one).parent.stat().st_mode) == 0o700


def test_another_user_is_refused_even_where_the_modes_let_them_through(one: Daemon) -> None:
    if os.geteuid() != 0:
        return  # nobody to play the other user
    path = place(one)
    folder = path.parent
    while folder != Path("/tmp") and folder != Path("/"):
        folder.chmod(0o755)
        folder = folder.parent
    path.chmod(0o666)
    ask = "import socket,sys,os\nos.setuid(65534)\ns=socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n"
    ask += 's.sendall(b\'{"command":"status"}\\n\')\nsys.stdout.buffer.write(s.recv(100))\n'
    done = subprocess.run(
        [sys.executable, "-c", ask, str(path)], capture_output=True, check=False, timeout=20
    )
    assert done.stdout == b""
    assert one.ask("status")["ok"]


WRONG = [
    (b"nonsense\n", "no JSON object"),
    (b"[1]\n", "no JSON object"),
    (b"\xff\xfe\n", "no JSON object"),
    (b"\n", "no JSON object"),
    (b"{}\n", "no such command; there are status, reload,"),
    (b'{"command": "launch"}\n', "no such command"),
    (b'{"command": ["status"]}\n', "no such command"),
    (b'{"command": "scale"}\n', "count must be"),
    (b'{"command": "scale", "count": 0}\n', "count must be"),
    (b'{"command": "scale", "count": true}\n', "count must be"),
    (b'{"command": "scale", "count": 1025}\n', "count must be"),
    (b'{"command": "status", "config": "/etc/other.yaml"}\n', "this daemon runs"),
    (b"x" * 20_000, "too long"),
]


def test_what_is_no_request_is_answered_with_one_line(one: Daemon) -> None:
    for sent, error in WRONG:
        with connect(one) as line:
            line.sendall(sent)
            answer = said(line)
        assert not answer["ok"]
        assert error in answer["error"]
    assert one.ask("status")["target"] == 2


def test_a_request_may_come_in_pieces_and_its_sender_may_say_that_no_more_follows(one: Daemon) -> None:
    with connect(one) as line:
        for piece in (b'{"comm', b'and": "rel', b'oad", "wait": true}', b"\n"):
            line.sendall(piece)
            time.sleep(0.01)
        line.shutdown(socket.SHUT_WR)
        assert said(line)["ok"]


def test_clients_that_say_nothing_or_take_nothing_hold_nobody_and_are_dropped(one: Daemon) -> None:
    with contextlib.ExitStack() as stack:
        mute = [stack.enter_context(connect(one)) for _ in range(80)]
        for line in mute[:40]:
            with contextlib.suppress(OSError):
                line.sendall(b'{"command": ')
        os.kill(one.worker_pids()[0], signal.SIGKILL)
        one.wait_workers(2)
        wait_until(lambda: _answers(one), timeout_s=15, what="an answer once the mute ones are dropped")
        for line in mute:
            with contextlib.suppress(ConnectionResetError):
                assert line.recv(100) == b""
    assert one.stop() == 0


def _answers(one: Daemon) -> bool:
    try:
        return bool(one.ask("status")["ok"])
    except (OSError, AssertionError):
        return False


def test_it_answers_while_redis_is_mute(daemon: MakeDaemon, fresh_server: Any) -> None:
    one = daemon(workers=1, redis_url=fresh_server.url).start()
    with paused(fresh_server.pid):
        wait_until(lambda: one.ask("status")["redis"]["error"], timeout_s=20, what="redis away")
        for _ in range(5):
            began_at = time.monotonic()
            assert one.ask("status")["ready"] == 1
            assert time.monotonic() - began_at < at_most(3)
    wait_until(lambda: one.ask("status")["redis"]["reached"], timeout_s=20, what="redis back")


# -- where it is ----------------------------------------------------------------------------------------


def test_a_socket_that_a_killed_daemon_left_is_taken_over_and_a_stopped_one_leaves_none(one: Daemon) -> None:
    one.kill()
    assert place(one).is_socket()
    refused = command(one, "status")
    assert refused.returncode == 1
    assert refused.stderr.startswith("chronosd: no running daemon found (looked at ")
    assert len(refused.stderr.splitlines()) == 1
    one.start()
    assert one.ask("status")["pid"] == one.pid
    assert one.stop() == 0
    assert not place(one).exists()


def test_a_second_daemon_of_the_same_file_is_refused_with_one_line(one: Daemon) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "tests.support.dummy", "-c", str(one.config_path)],
        env={**os.environ, "RUNTIME_DIRECTORY": str(one.runtime_dir), "PYTHONPATH": str(ROOT)},
        cwd=one.directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert second.returncode == 1
    assert "another chronosd serves" in second.stderr
    assert one.ask("status")["pid"] == one.pid, "the first is not disturbed"


def test_a_configured_place_is_used_and_a_file_there_is_not_deleted(
    tmp_path: Path, redis_url: str, namespace: str
) -> None:
    with dummy(tmp_path / "d", redis_url, namespace, control_socket="c.sock") as one:
        precious = one.directory / "c.sock"
        precious.write_text("precious")
        one.start(wait=False)
        assert one.wait(20) == 1
        assert precious.read_text() == "precious"
        assert "cannot start" in one.log_text()
        precious.unlink()
        one.start()
        done = command(one, "status", "--json")
        assert json.loads(done.stdout)["pid"] == one.pid
        assert one.stop() == 0


def test_the_daemon_of_a_broken_file_is_found_all_the_same(
    tmp_path: Path, redis_url: str, namespace: str
) -> None:
    with dummy(tmp_path / "d", redis_url, namespace, control_socket="c.sock") as one:
        one.start()
        one.config_path.write_text("control_socket: 'c.sock'  # here\nqueues: [a\n")
        assert command(one, "status").returncode == 0
        assert command(one, "reload", "--wait").returncode == 78


# -- the commands ----------------------------------------------------------------------------------------


def test_status_is_a_document_for_programs_and_lines_for_people(one: Daemon) -> None:
    document = json.loads(command(one, "status", "--json").stdout)
    assert document["state"] == "running"
    assert (document["ready"], document["target"], document["pid"]) == (2, 2, one.pid)
    assert [worker["index"] for worker in document["workers"]] == [0, 1]
    assert all(worker["rss_bytes"] > 1_000_000 for worker in document["workers"])
    shown = command(one, "status").stdout
    assert "2 of 2 workers running" in shown
    assert str(one.worker_pids()[0]) in shown


def test_scale_sets_the_number_and_refuses_what_is_none(one: Daemon) -> None:
    assert command(one, "scale", "4").returncode == 0
    one.wait_workers(4)
    assert command(one, "scale", "1").returncode == 0
    one.wait_workers(1)
    for wrong in ("0", "1025", "many", "-1"):
        done = command(one, "scale", wrong)
        assert done.returncode == 2, wrong
        assert len(done.stderr.splitlines()) == 1
    assert json.loads(command(one, "scale", "2", "--json").stdout) == {"ok": True, "target": 2}


def test_quiet_and_resume(daemon: MakeDaemon, redis_url: str, namespace: str) -> None:
    one = daemon(workers=2).start()
    assert command(one, "quiet").returncode == 0
    wait_until(
        lambda: {worker["state"] for worker in one.ask("status")["workers"]} == {"quiet"},
        what="quiet workers",
    )
    with Client(redis_url, namespace=namespace) as client:
        client.enqueue("count", {})
    assert one.ask("reload", wait=True)["ok"], "the next generation is as quiet"
    assert one.ask("status")["state"] == "quiet"
    assert one.ledger.starts() == {}
    assert command(one, "resume").returncode == 0
    wait_until(one.ledger.ends, what="the task")


def test_stacks_shows_where_every_worker_is_also_one_that_blocks(
    daemon: MakeDaemon, redis_url: str, namespace: str
) -> None:
    one = daemon(workers=2).start()
    with Client(redis_url, namespace=namespace) as client:
        task = client.enqueue("block", {"sleep": 9})
        wait_until(one.ledger.starts, what="a blocked loop")
        client.enqueue("sync", {"sleep": 9})
        client.enqueue("count", {"sleep": 9})
    wait_until(lambda: len(one.ledger.starts()) == 3, what="two that wait on the other worker")
    done = command(one, "stacks")
    assert done.returncode == 0, done.stderr
    assert "in block" in done.stdout
    assert f"  running block {task.id} of queue default\n" in done.stdout
    assert "in sync\n" in done.stdout
    assert "in count\n" in done.stdout
    assert "supervisor" not in done.stdout, "how the worker was forked is nobody's question"
    assert "_beat_in_thread" not in done.stdout
    found = json.loads(command(one, "stacks", "--json").stdout)
    assert sorted(worker["index"] for worker in found) == [0, 1]


def test_stop_drains_and_waits_if_told_to(one: Daemon) -> None:
    workers = one.worker_pids()
    assert command(one, "stop", "--wait").returncode == 0
    assert one.wait(5) == 0
    wait_gone(workers)
    one.start()
    assert command(one, "stop").returncode == 0
    assert one.wait(10) == 0
    one.start()
    plan(one, "deaf")
    assert one.ask("restart", wait=True)["ok"]
    assert command(one, "stop", "--now").returncode == 0
    assert one.wait(5) == 0


def test_a_daemon_that_stops_says_so_to_who_wants_a_reload(
    tmp_path: Path, redis_url: str, namespace: str
) -> None:
    with dummy(tmp_path / "d", redis_url, namespace, "deaf", shutdown_timeout="3s", kill_grace="0s") as one:
        one.start()
        one.send(signal.SIGTERM)
        one.wait_notified("STOPPING=1")
        done = command(one, "reload", "--wait")
        assert (done.returncode, done.stderr) == (1, "the daemon is stopping\n")
        assert one.ask("status")["state"] == "stopping"
        assert one.wait(20) == 0


def test_without_a_daemon_every_command_says_so_in_one_line_with_1(tmp_path: Path) -> None:
    one = Daemon(tmp_path / "d", redis_url="redis://127.0.0.1:1/0", namespace="t")
    for words in (["status"], ["reload", "--wait"], ["scale", "2"], ["quiet"], ["stop"]):
        done = command(one, *words)
        assert done.returncode == 1, words
        assert done.stderr.startswith("chronosd: no running daemon found")
        assert len(done.stderr.splitlines()) == 1
