"""A reload that fails changes nothing: the same workers go on, and everybody is told why."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis as redis_py

from chronosd import Client
from tests.support.daemon import Daemon
from tests.support.processes import wait_gone
from tests.support.queue_view import QueueView
from tests.support.reloading import KIND, Load, dummy, last_reload, pairs, plan, watched, write_version
from tests.support.waiting import at_most, wait_until

MakeDaemon = Callable[..., Daemon]


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    with Client(redis_url, namespace=namespace) as one:
        yield one


@pytest.fixture
def queue(redis: redis_py.Redis, namespace: str) -> QueueView:
    return QueueView(redis, namespace)


BROKEN = {
    # what is added to the file or put before the module, the exit code, and what is said of it
    "syntax": ("yaml", "workers: [2\n", 78, "chronos.yaml:"),
    "unknown key": ("yaml", "workrs: 2\n", 78, "did you mean"),
    "missing module": ("yaml", "lifespan: absent:f\n", 78, "No module named 'absent'"),
    "raises": ("code", "raise RuntimeError('broken on purpose')\n", 4, "broken on purpose"),
    "exits": ("code", "import os\nos._exit(3)\n", 4, "exited with code 3"),
    "calls exit": ("code", "import sys\nsys.exit(5)\n", 4, "SystemExit: 5"),
    "dies": ("code", "import os\nos.kill(os.getpid(), 11)\n", 4, "SIGSEGV"),
    "hangs": ("code", "import time\ntime.sleep(600)\n", 4, "did not end in time"),
}


def test_broken_files_change_nothing_under_load(daemon: MakeDaemon, client: Client, queue: QueueView) -> None:
    one = daemon(workers=2, reload_timeout="2s", config={"handlers": KIND})
    write_version(one, 0)
    good = one.config_path.read_text()
    module = (one.directory / "handlers.py").read_text()
    one.start()
    pids = one.wait_workers(2)
    with Load(client, 1000) as load, watched(one) as ready:
        for name, (where, text, code, said) in BROKEN.items():
            if where == "yaml":
                one.config_path.write_text(good + text)
            else:
                (one.directory / "handlers.py").write_text(text + module)
            began_at = time.monotonic()
            done = one.run_command("reload", "--wait", "-c", str(one.config_path))
            assert time.monotonic() - began_at < at_most(6), name
            assert done.returncode == code, (name, done.stderr)
            assert said in done.stderr, name
            assert "Traceback" not in done.stderr
            last = last_reload(one)
            assert not last["ok"]
            assert said in "\n".join(last["problems"]), name
            if where == "yaml":  # also found while its file is broken
                shown = one.run_command("status", "-c", str(one.config_path))
                assert shown.returncode == 0, (name, shown.stderr)
                assert said in shown.stdout, name
            assert said in str(one.log_records("reload failed, the configuration before goes on")[-1]), name
            assert any("last reload failed" in datagram for datagram in one.read_notifications()[-3:]), name
            assert one.wait_workers(2) == pids, name
            one.config_path.write_text(good)
            (one.directory / "handlers.py").write_text(module)
    expected = ["READY=1", *["RELOADING=1", "READY=1"] * len(BROKEN)]
    wait_until(lambda: len(pairs(one)) >= len(expected), what="every notification")
    assert pairs(one) == expected
    queue.wait_finished()
    assert min(ready) == 2
    assert one.ledger.ends() == Counter(load.ids)
    assert one.ask("reload", wait=True)["ok"], "a good file is taken after all of that"
    assert "last reload failed" not in one.ask("status")["status"]


STAGE = """
    import contextlib, os, signal, sys, time
    from pathlib import Path
    from tests.support.ledger import Ledger
    ledger = Ledger.of_environment()
    HERE = Path(__file__).parent

    def act(stage):
        # in the new generation only: not in the pre-flight, and not in worker 0, so that k < N are ready
        title = Path("/proc/self/cmdline").read_bytes()
        if not title.startswith(b"chronosd: worker 1") or not (HERE / stage).exists():
            return
        how = (HERE / stage).read_text()
        if how == "raise":
            raise RuntimeError("told to fail")
        if how == "exit":
            os._exit(9)
        if how == "hang":
            time.sleep(600)
        os.kill(os.getpid(), signal.SIGKILL)

    act("import")

    @contextlib.asynccontextmanager
    async def lifespan():
        act("lifespan")
        yield None

    async def version(task):
        ledger.write("start", task.id, task.attempt, "0")
        ledger.write("end", task.id, task.attempt)
"""


@pytest.mark.parametrize("stage", ["import", "lifespan"])
def test_a_new_generation_that_ends_while_it_loads_is_taken_back(
    daemon: MakeDaemon, client: Client, queue: QueueView, stage: str
) -> None:
    one = daemon(
        handlers=STAGE,
        workers=2,
        reload_timeout="1s",
        config={"handlers": KIND, "lifespan": "handlers:lifespan"},
    ).start()
    pids = one.wait_workers(2)
    with Load(client, 1000) as load, watched(one) as ready:
        for how in ("raise", "exit", "hang", "kill"):
            (one.directory / stage).write_text(how)
            done = one.ask("reload", wait=True)
            assert not done["ok"], how
            assert done["took_s"] < at_most(2), how
            assert "worker 1" in done["error"] or "told to fail" in done["error"], done
            assert one.wait_workers(2) == pids, how
            load.wait_more(100)
    queue.wait_finished()
    assert min(ready) == 2
    assert one.ledger.starts() == Counter(load.ids), "each exactly once"
    assert {entry.pid for entry in one.ledger.entries("start")} <= set(pids), "none of the new ones fetched"
    wait_until(lambda: pairs(one) == ["READY=1", *["RELOADING=1", "READY=1"] * 4], what="the pairs")


def test_a_new_generation_that_is_killed_at_the_gate_is_taken_back(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    """Worker 0 of it is ready and waits for worker 1 when it is killed."""
    one = daemon(
        handlers=STAGE,
        workers=2,
        reload_timeout="20s",
        config={"handlers": KIND, "lifespan": "handlers:lifespan"},
    ).start()
    pids = one.wait_workers(2)
    (one.directory / "import").write_text("hang")
    with Load(client, 500) as load:
        answers: list[dict[str, object]] = []
        asking = threading.Thread(target=lambda: answers.append(one.ask("reload", wait=True)))
        asking.start()
        coming = wait_until(
            lambda: [w for w in one.ask("status")["coming"] if w["phase"] == "ready"], what="one at the gate"
        )
        assert one.ask("status")["reload"]["stage"] == "starting"
        os.kill(coming[0]["pid"], signal.SIGKILL)
        asking.join()
        load.wait_more(100)
    assert "worker 0 killed by signal 9" in str(answers[0]["error"])
    assert one.wait_workers(2) == pids
    queue.wait_finished()
    assert {entry.pid for entry in one.ledger.entries("start")} <= set(pids)


def test_no_fork_to_be_had_leaves_the_workers_as_they_are(
    tmp_path: Path, redis_url: str, namespace: str
) -> None:
    """The stage before all others: the board of a new worker cannot be made."""
    with dummy(tmp_path / "d", redis_url, namespace, workers=2) as one:
        one.start()
        pids = one.wait_workers(2)
        (run,) = one.runtime_dir.glob("run-*")
        hidden = run.with_name("hidden")
        run.rename(hidden)
        refused = one.ask("reload", wait=True)
        hidden.rename(run)
        assert "cannot fork a worker" in refused["error"]
        assert one.wait_workers(2) == pids
        assert one.ask("reload", wait=True)["ok"]
        one.wait_workers(2, without=pids)


def test_whatever_keeps_the_new_workers_from_being_ready_the_old_ones_stay(
    tmp_path: Path, redis_url: str, namespace: str
) -> None:
    with dummy(tmp_path / "d", redis_url, namespace, workers=2, reload_timeout="500ms") as one:
        one.start()
        pids = one.wait_workers(2)
        for words in ("exit=0", "exit=1", "fail=4", "fail=78", "hang", "slow=600"):
            plan(one, words)
            refused = one.ask("reload", wait=True)
            assert not refused["ok"], words
            assert refused["code"] == (78 if words == "fail=78" else 4), words
            assert one.wait_workers(2) == pids, words
        plan(one, "ok")
        assert one.ask("reload", wait=True)["ok"]
        one.wait_workers(2, without=pids)
        assert one.stop() == 0


def test_term_during_a_reload_is_obeyed_at_once(daemon: MakeDaemon) -> None:
    """In the pre-flight, then with new workers that load: each ends with the daemon, at once."""
    one = daemon(handlers=STAGE, workers=2, config={"handlers": KIND})
    for stage in ("preflight", "import"):
        (one.directory / "handlers.py").write_text((one.directory / "handlers.py").read_text())
        one.start()
        if stage == "preflight":
            hanging = "import time\nfrom pathlib import Path\n"
            hanging += "if b'preflight' in Path('/proc/self/cmdline').read_bytes(): time.sleep(600)\n"
            saved = (one.directory / "handlers.py").read_text()
            (one.directory / "handlers.py").write_text(hanging + saved)
        else:
            (one.directory / "handlers.py").write_text(saved)
            (one.directory / "import").write_text("hang")
        answers: list[dict[str, object]] = []
        asking = threading.Thread(target=lambda: answers.append(one.ask("reload", wait=True)))  # noqa: B023
        asking.start()
        wait_until(
            lambda: one.children("preflight") if stage == "preflight" else len(one.worker_pids()) == 4,  # noqa: B023
            what=stage,
        )
        everyone = [child.pid for child in one.children()]
        began_at = time.monotonic()
        assert one.stop() == 0
        assert time.monotonic() - began_at < at_most(2)
        asking.join()
        assert answers[0]["error"] == "the daemon is stopping"
        wait_gone(everyone)
        assert pairs(one) == ["READY=1", "RELOADING=1", "STOPPING=1"]
        (one.directory / "import").unlink(missing_ok=True)
