"""Commands that talk to Redis, and ``run`` as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from chronosd.client import Client
from chronosd.inspector import Inspector
from chronosd.states import State
from tests.support.daemon import ROOT, Daemon
from tests.support.queue_view import QueueView
from tests.support.waiting import at_most, wait_until


class Shell:
    """Runs ``chronosd <words>`` in a directory, against one server and namespace."""

    def __init__(self, folder: Path, url: str, namespace: str) -> None:
        self.folder = folder
        self.options = ("--redis", url, "--namespace", namespace)

    def plain(self, *words: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        """Without options."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("CHRONOSD")}
        return subprocess.run(
            [sys.executable, "-m", "chronosd", *words],
            input=stdin,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={**inherited, "PYTHONPATH": str(ROOT), **env},
            timeout=60,
            check=False,
        )

    def __call__(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return self.plain(*words, *self.options, stdin=stdin)

    def json(self, *words: str) -> Any:
        done = self(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def shell(tmp_path: Path, redis_url: str, namespace: str) -> Shell:
    return Shell(tmp_path, redis_url, namespace)


@pytest.fixture
def client(redis_url: str, namespace: str) -> Any:
    with Client(redis_url, namespace=namespace) as one:
        yield one


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    (line,) = done.stderr.splitlines()
    return line


def test_enqueue_prints_the_id_first_and_stores_what_the_options_say(shell: Shell) -> None:
    done = shell(
        *("enqueue", "k", '{"a": 1}', "-q", "low", "--in", "1h", "--max-retry", "3"),
        *("--retention", "10m", "--id", "mine", "--discard"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["mine", "k", "low", "scheduled"]
    shown = shell.json("task", "show", "mine")
    assert shown["args"] == {"a": 1}
    message = shown["message"]
    assert (message["max_retry"], message["retention"], message["no_archive"]) == (3, 600, True)
    assert 3590 < shown["places"]["scheduled"] - time.time() < 3610


def test_enqueue_at_an_instant(shell: Shell) -> None:
    for task_id, at in (("a", "2099-01-01T00:00:00Z"), ("b", "4070908800")):
        assert shell("enqueue", "k", "--at", at, "--id", task_id).returncode == 0
        assert shell.json("task", "show", "default", task_id)["places"] == {"scheduled": 4070908800.0}


def test_enqueue_without_arguments_sends_an_empty_object(shell: Shell) -> None:
    done = shell("enqueue", "k")
    assert shell.json("task", "show", done.stdout.split()[0])["args"] == {}


def test_enqueue_reads_its_arguments_from_stdin(shell: Shell) -> None:
    done = shell("enqueue", "k", "-", stdin='["grüße", 1.5, null]\n')
    assert shell.json("task", "show", done.stdout.split()[0])["args"] == ["grüße", 1.5, None]


def test_enqueue_many_at_once(shell: Shell) -> None:
    done = shell("enqueue", "k", "--count", "25000")
    assert done.stdout.startswith("25000 tasks  k  default  pending")
    (queue,) = shell.json("queue", "ls")
    assert (queue["queue"], queue["pending"]) == ("default", 25000)


def test_enqueue_in_json(shell: Shell) -> None:
    info = shell.json("enqueue", "k", "--id", "x", "--max-retry", "0")
    assert info == {
        "id": "x",
        "kind": "k",
        "queue": "default",
        "state": "pending",
        "max_retry": 0,
        "retention": 0,
    }
    assert len(shell.json("enqueue", "k", "--count", "3")) == 3


def test_an_id_in_use_is_refused_with_1(shell: Shell) -> None:
    assert shell("enqueue", "k", "--id", "mine").returncode == 0
    done = shell("enqueue", "k", "--id", "mine")
    assert done.returncode == 1
    assert "'mine' is in use" in one_line(done)


def test_enqueue_warns_of_kinds_and_queues_that_the_file_does_not_know(
    shell: Shell, tmp_path: Path, redis_url: str, namespace: str
) -> None:
    (tmp_path / "chronos.yaml").write_text(
        f"redis: {redis_url}\nnamespace: {namespace}\nqueues: [default, low]\n"
        "handlers: {'email:send': 'm:f', 'email:drop': 'm:g'}\n"
    )
    done = shell.plain("enqueue", "email:sned", "-q", "lwo")
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "warning: chronos.yaml has no kind 'email:sned' (did you mean 'email:send'?);"
        " enqueueing it all the same",
        "warning: chronos.yaml has no queue 'lwo' (did you mean 'low'?); enqueueing it all the same",
    ]
    known = shell.plain("enqueue", "email:send", "-q", "low")
    assert (known.returncode, known.stderr) == (0, "")


def test_the_configuration_is_found_by_option_environment_or_directory(
    shell: Shell, tmp_path: Path, redis_url: str, namespace: str
) -> None:
    text = f"redis: {redis_url}\nnamespace: {namespace}\nqueues: [q]\nhandlers: {{k: 'm:f'}}\n"
    (tmp_path / "elsewhere.yaml").write_text(text)
    file = str(tmp_path / "elsewhere.yaml")
    assert "q" in shell.plain("queue", "ls", "-c", file).stdout
    assert "q" in shell.plain("queue", "ls", CHRONOSD_CONFIG=file).stdout
    (tmp_path / "chronos.yaml").write_text(text)
    assert "q" in shell.plain("queue", "ls").stdout


def test_queue_ls_counts_every_state_and_marks_what_is_paused_or_unserved(
    shell: Shell, client: Client, redis: redis_py.Redis, tmp_path: Path, redis_url: str, namespace: str
) -> None:
    client.enqueue_many([("k", {}), ("k", {}), ("k", {}, {"delay": "1h"}), ("k", {}, {"queue": "old"})])
    redis.sadd(f"{namespace}:paused", "default")
    (tmp_path / "chronos.yaml").write_text(
        f"redis: {redis_url}\nnamespace: {namespace}\nqueues: [default, empty]\nhandlers: {{k: 'm:f'}}\n"
    )
    lines = [line.split() for line in shell.plain("queue", "ls").stdout.splitlines()]
    assert lines[0] == [
        *("QUEUE", "PENDING", "ACTIVE", "SCHEDULED", "RETRY", "ARCHIVED", "COMPLETED", "OLDEST", "REMARKS")
    ]
    rows = {line[0]: line[1:] for line in lines[1:]}
    assert rows["default"][:6] == ["2", "0", "1", "0", "0", "0"]
    assert rows["default"][-1] == "paused"
    assert rows["empty"] == ["0", "0", "0", "0", "0", "0", "-"]
    assert rows["old"][-4:] == ["not", "in", "the", "configuration"]


def test_task_ls_pages_through_more_than_one_reply(shell: Shell, client: Client) -> None:
    client.enqueue_many([("k", {"n": n}) for n in range(1200)])
    listed = shell.json("task", "ls", "default", "pending", "--limit", "1100")
    assert [task["args"]["n"] for task in listed] == list(range(1100))


def test_task_ls_of_a_queue_that_is_not_there_is_one_line_and_1(shell: Shell) -> None:
    done = shell("task", "ls", "nowhere", "archived")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert "no queue nowhere" in done.stderr


def test_task_show_of_what_is_not_there_is_one_line_and_1(shell: Shell) -> None:
    for words in (["nope"], ["default", "nope"]):
        done = shell("task", "show", *words)
        assert done.returncode == 1
        assert "no task 'nope'" in one_line(done)


def test_task_show_wants_the_queue_where_two_have_that_id(shell: Shell, client: Client) -> None:
    for queue in ("a", "b"):
        client.enqueue("k", queue=queue, task_id="twin")
    assert "'a', 'b'" in one_line(shell("task", "show", "twin"))
    assert shell.json("task", "show", "b", "twin")["queue"] == "b"


def test_what_is_in_redis_cannot_play_with_the_terminal(
    shell: Shell, client: Client, redis: redis_py.Redis, namespace: str
) -> None:
    client.enqueue("k", {"name": "\x1b]0;owned\x07\u202e"}, task_id="evil")
    redis.hset(f"{namespace}:{{default}}:t:evil", "error", "\x1b[2Jgone")
    for words in (["task", "ls", "default", "pending"], ["task", "show", "evil"]):
        done = shell(*words)
        assert done.returncode == 0
        assert not {"\x1b", "\x07", "\u202e"} & set(done.stdout)


def test_garbage_in_redis_is_shown_as_such(
    shell: Shell, redis: redis_py.Redis, client: Client, namespace: str
) -> None:
    client.enqueue("k", task_id="broken")
    redis.hset(f"{namespace}:{{default}}:t:broken", "msg", b"\xff{")
    done = shell("task", "ls", "default", "pending")
    assert done.returncode == 0
    assert "undecodable message" in done.stdout
    assert "undecodable message" in shell("task", "show", "broken").stdout


def test_a_reader_that_has_seen_enough_is_no_error(shell: Shell, client: Client) -> None:
    client.enqueue_many([("k", {"text": "x" * 200}) for _ in range(2000)])
    words = [sys.executable, "-m", "chronosd", "task", "ls", "default", "pending", "--limit", "2000"]
    with subprocess.Popen(
        [*words, *shell.options], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("ID")
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(30) == 0


def test_a_full_disk_is_one_line(shell: Shell, client: Client) -> None:
    client.enqueue("k")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "chronosd", "queue", "ls", *shell.options],
            cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert one_line(done) == "chronosd: cannot write: No space left on device"


def test_closed_standard_streams_are_no_error(shell: Shell, client: Client) -> None:
    """With descriptor 1 closed, the connection to Redis got it, and the listing was written to the server."""
    client.enqueue("k")
    line = " ".join([sys.executable, "-m", "chronosd", "queue", "ls", *shell.options])
    done = subprocess.run(
        ["sh", "-c", f"exec {line} <&- >&-"], cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_that_knows_only_ascii_gets_escapes(shell: Shell, client: Client) -> None:
    client.enqueue("k", {"text": "grüße"})
    done = shell.plain("task", "ls", "default", "pending", *shell.options, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "gr\xfc\xdfe" in done.stdout


def test_a_mute_server_is_reported_and_not_waited_for(shell: Shell, proxy: Any) -> None:
    proxy.mode = "mute"
    began = time.monotonic()
    done = shell.plain("queue", "ls", "--redis", proxy.url)
    assert done.returncode == 3
    assert one_line(done)
    assert time.monotonic() - began < at_most(15)


def test_a_task_enqueued_from_the_shell_runs_and_its_result_is_shown(
    daemon: Callable[..., Daemon], shell: Shell
) -> None:
    one = daemon(
        handlers="async def hello(task):\n    return f\"hello, {task.args['name']}\"\n",
        config={"handlers": {"hello": "handlers:hello"}},
    ).start()
    done = one.run_command("enqueue", "hello", '{"name": "you"}', "--retention", "1h", "--id", "first")
    assert (done.returncode, done.stderr) == (0, "")

    def result() -> Any:
        return shell.json("task", "show", "first")["result"]

    assert wait_until(result, timeout_s=10) == "hello, you"
    assert [task["id"] for task in shell.json("task", "ls", "default", "completed")] == ["first"]
    assert one.stop() == 0


def test_burst_ends_with_0_when_nothing_is_left_that_is_due(
    daemon: Callable[..., Daemon], client: Client, queue: QueueView
) -> None:
    client.enqueue_many([("count", {}) for _ in range(50)])
    client.enqueue("count", {}, delay=0.05)
    later = client.enqueue("count", {}, delay="1h").id
    failing = client.enqueue("count", {"fail": 1}).id
    time.sleep(0.1)
    one = daemon(args=("--burst",), retry={"base": "1h", "cap": "1h"}).start(wait=False)
    assert one.wait(30) == 0
    assert one.ledger.starts().keys() - one.ledger.ends().keys() == {failing}
    assert len(one.ledger.ends()) == 51
    assert queue.ids(State.SCHEDULED) == {later}
    assert queue.ids(State.RETRY) == {failing}


@pytest.mark.parametrize(
    ("handlers", "keys", "code"),
    [
        ("x = 1", {}, 78),
        ("def broken(:", {}, 78),
        ("raise RuntimeError('not now')", {}, 4),
        ("async def f(task): ...", {"handlers": {"k": "nosuchmodule:f"}}, 78),
        ("async def f(task): ...", {"redis": "redis://127.0.0.1:1/0", "startup_timeout": "500ms"}, 3),
    ],
)
def test_a_daemon_that_cannot_start_says_why_with_its_exit_code(
    handlers: str, keys: dict[str, Any], code: int, daemon: Callable[..., Daemon]
) -> None:
    one = daemon(handlers=handlers, config={"handlers": {"k": "handlers:f"}, **keys}).start(wait=False)
    assert one.wait(30) == code
    assert "Traceback" not in one.log_text()


@pytest.mark.parametrize(
    ("source", "is_sound"),
    [
        ("async def f(task): ...", True),
        ("f = lambda task: None", True),
        ("import functools\nasync def g(x, task): ...\nf = functools.partial(g, 1)", True),
        ("class C:\n    async def __call__(self, task): ...\nf = C()", True),
        ("import queue\nasync def f(task): queue.Queue", True),
        ("class f: ...", False),
        ("def f(task): yield", False),
        ("async def f(task): yield", False),
        ("async def f(): ...", False),
        ("f = 7", False),
        ("import handlers\nhandlers.g\nasync def f(task): ...", False),
    ],
)
def test_check_gives_the_verdict_of_the_daemon(
    source: str, is_sound: bool, daemon: Callable[..., Daemon]
) -> None:
    one = daemon(handlers=source, config={"handlers": {"k": "handlers:f"}}).start(wait=is_sound)
    checked = one.run_command("check", "-c", str(one.config_path))
    assert (checked.returncode == 0) == is_sound, checked.stderr
    if is_sound:
        assert one.stop() == 0
    else:
        assert one.wait(30) in (4, 78)
        assert len(checked.stderr.splitlines()) == 1


def test_run_with_a_broken_file_prints_its_problems_and_exits_with_78(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "chronos.yaml").write_text("queues: []\nhandlers: {k: nothing}\n")
    done = shell.plain("run")
    assert done.returncode == 78
    assert [line.split(":")[1] for line in done.stderr.splitlines()] == ["1", "2"]


def test_run_and_demo_without_a_server_binary_say_how_to_get_one(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "chronos.yaml").write_text("redis: embedded://\nqueues: [q]\nhandlers: {k: 'm:f'}\n")
    for words in (["run"], ["demo"]):
        done = shell.plain(*words, CHRONOSD_SERVER="/nonexistent/server")
        assert done.returncode == 1
        assert "/nonexistent/server" in one_line(done)


def test_signals_count_from_the_first_moment_on(daemon: Callable[..., Daemon]) -> None:
    """A SIGHUP while modules are still being imported killed the process; a SIGTERM was lost."""
    one = daemon().start(wait=False)
    wait_until(lambda: catches(one.pid, signal.SIGHUP), what="signals caught")
    one.send(signal.SIGHUP)
    one.send(signal.SIGTERM)
    assert one.wait(30) == 0


def catches(pid: int, signum: int) -> bool:
    """Whether a process has a handler for a signal, as the kernel says."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    return False


def test_the_development_configuration_runs_its_examples(
    tmp_path: Path, redis_url: str, namespace: str
) -> None:
    """``chronosd run -c config/dev.yaml`` in one terminal, ``chronosd enqueue`` in another."""
    folder = tmp_path / "project" / "config"
    folder.mkdir(parents=True)
    (folder / "dev.yaml").write_text((ROOT / "config" / "dev.yaml").read_text())
    shell = Shell(tmp_path, "", "")
    with Daemon(tmp_path / "harness", redis_url=redis_url, namespace=namespace) as one:
        one.config_path = folder / "dev.yaml"
        one.start()
        done = shell.plain(
            *("enqueue", "email:send", '{"to": "a@b.c"}', "--id", "m", "--retention", "1h"),
            *("-c", str(one.config_path)),
        )
        assert (done.returncode, done.stderr) == (0, "")
        with Inspector.from_config(one.config_path) as look:
            wait_until(lambda: look.find_task("m").state is State.COMPLETED, what="the mail")
        assert "completed" in shell.plain("task", "show", "m", "-c", str(one.config_path)).stdout
        assert one.stop() == 0


def test_the_demo_accounts_for_every_task_and_leaves_nothing_behind(shell: Shell, tmp_path: Path) -> None:
    temporary = tmp_path / "t"
    temporary.mkdir()
    done = shell.plain("demo", "--tasks", "300", TMPDIR=str(temporary))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing was lost" in done.stdout
    assert "killed with SIGKILL" in done.stdout
    total = next(line.split() for line in done.stdout.splitlines() if line.startswith("all "))
    tasks, succeeded, archived, discarded, lost = map(int, total[1:])
    assert tasks == 300 == succeeded + archived + discarded
    assert lost == 0
    assert min(succeeded, archived, discarded) > 0
    assert list(temporary.iterdir()) == []


def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    temporary = tmp_path / "t"
    temporary.mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "chronosd", "demo"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "daemon up" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        # If it comes in the middle of an exec() (dataclasses are made so, at import) Python ends itself by
        # the signal in the end, although the interrupt was handled; shells make 130 of that.
        assert process.wait(40) in (130, -signal.SIGINT)
        assert process.stderr.read() == ""
    assert list(temporary.iterdir()) == []
