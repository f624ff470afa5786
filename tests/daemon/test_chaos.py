"""Nothing is lost and nothing repeats without a cause, whatever dies and whenever.

A load of every outcome runs while processes are killed, stopped and restarted: by signals at random instants,
by crashes of handlers, and by themselves at chosen points (`tests.support.armed`): at every store to the
board, and before, within and after every script on its way. The ledger of the handlers lies outside Redis.
"""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from chronosd.client import Client
from chronosd.embedded import EmbeddedServer
from chronosd.errors import BrokerError
from chronosd.inspector import Finding, Inspector
from tests.conftest import connect
from tests.support.armed import VARIABLE, Events
from tests.support.chaos import KINDS, MAX_CRASHES, QUEUES, Disaster, Load
from tests.support.chaos_account import Told, account
from tests.support.chaos_watch import Boards, Often, named_twice
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until

CONFIG = {
    "workers": 3,
    "concurrency": 8,
    "queues": QUEUES,
    "handlers": {kind: f"tests.support.chaos_jobs:{kind}" for kind in KINDS},
    "retry": {"base": "50ms", "cap": "300ms"},
    "max_crashes": MAX_CRASHES,
    "log": {"level": "info", "format": "json"},
}


def armed(directory: Path, tmp_path: Path, server: EmbeddedServer, namespace: str, **config: Any) -> Daemon:
    directory.mkdir()
    return Daemon(
        tmp_path / "daemon",
        redis_url=server.url,
        namespace=namespace,
        config={**CONFIG, **config},
        env={VARIABLE: str(directory)},
        program=("tests.support.armed", "run"),
    )


def errors(inspector: Inspector) -> list[Finding]:
    return [finding for finding in inspector.examine(deep=True).findings if finding.is_error]


_WAITING = ("late", "stuck", "untaken", "poison")


def misplaced(inspector: Inspector) -> list[str]:
    """What must not be even for an instant; while no daemon lives long, tasks may wait, and have crashed."""
    try:
        return [finding.line for finding in errors(inspector) if finding.code not in _WAITING]
    except BrokerError:
        return []


def drained(inspector: Inspector) -> bool:
    stats = [inspector.queue_stats(name) for name in QUEUES]
    return not any(one.pending + one.active + one.scheduled + one.retry for one in stats)


def test_nothing_is_lost_and_nothing_repeats_without_a_cause(
    tmp_path: Path,
    fresh_server: EmbeddedServer,
    namespace: str,
    chaos_seconds: float,
    record_property: pytest.RecordProperty,
    capsys: pytest.CaptureFixture[str],
) -> None:
    directory = tmp_path / "chaos"
    wrong: list[str] = []
    with (
        armed(directory, tmp_path, fresh_server, namespace) as daemon,
        Inspector(fresh_server.url, namespace=namespace, timeout=10) as inspector,
        connect(fresh_server.url) as redis,
    ):
        daemon.start()
        load = Load(fresh_server.url, namespace, rate=400)
        boards = Boards(daemon.runtime_dir)
        # What must hold at every instant, and not only in the end.
        watchers = [
            Often(boards.look, 0.001),
            Often(lambda: wrong.extend(named_twice(redis, namespace)), 0.02),
            Often(lambda: wrong.extend(misplaced(inspector)), 1.0),
        ]
        disaster = Disaster(daemon, fresh_server, directory)
        for thread in (load, *watchers):
            thread.start()
        try:
            disaster.run(chaos_seconds)
        finally:
            for thread in (load, *watchers):
                thread.finish()
        wait_until(lambda: drained(inspector), timeout_s=60, what=f"all done ({daemon.log_path})")
        assert daemon.returncode is None, daemon.log_tail()
        assert errors(inspector) == []
        assert daemon.run_command("doctor", "--deep", "-c", str(daemon.config_path)).returncode == 0
        assert daemon.stop() == 0
        assert errors(inspector) == []
        told = Told.read(directory / "events")
        found = account(load, disaster, told, redis)
        for queue in QUEUES:
            left = redis.xinfo_consumers(f"{namespace}:{{{queue}}}:stream", "chronos")
            assert left == [], "a dead worker's consumer is left"
    with capsys.disabled():
        print()
        for line in found.lines():
            print("   ", line)
        recovered = len(daemon.log_records("recovered tasks that nobody held any more"))
        print("   ", f"passes in which the recoverer found something: {recovered}")
        print("   ", f"watched: {boards.reads} slots read; from outside: {dict(disaster.done)}")
    record_property("chaos", json.dumps(list(found.lines())))
    assert found.faults == [], "\n".join(found.faults)
    assert wrong == [], "\n".join(wrong)
    assert boards.seen <= told.claims, "a slot was read that nobody has ever claimed like this"


# -- what arrives after its sender is dead, and settled ---------------------------------------------------


@pytest.mark.parametrize("script", ["fetch", "complete", "retain", "retry", "archive", "release"])
def test_what_a_dead_worker_had_sent_changes_nothing_when_it_arrives_late(
    script: str, tmp_path: Path, fresh_server: EmbeddedServer, namespace: str
) -> None:
    """The worker dies in sending; its tasks are settled; then what it had sent reaches the server.

    Its one replacement does not fetch before that, so every task stands where the settlement has put it: a
    move of the dead worker's that was not refused would be seen. A fetch is not refused, and what it takes is
    handed back by a repeat of the settlement.
    """
    directory = tmp_path / "chaos"
    with (
        armed(directory, tmp_path, fresh_server, namespace, workers=1, max_crashes=10) as daemon,
        Inspector(fresh_server.url, namespace=namespace, timeout=10) as inspector,
        Client(fresh_server.url, namespace=namespace) as client,
        connect(fresh_server.url) as redis,
    ):
        (directory / "plan").write_text(f"0.25 worker {script} late")
        daemon.start()
        kinds = {"retain": ("keep", {"retention": "1h"}), "retry": ("flaky", {}), "archive": ("wrong", {})}
        kind, options = kinds.get(script, ("quick", {}))
        count = 3000 if script == "release" else 800  # which takes a few attempts
        args = {"n": 1, "fails": 1}
        client.enqueue_many([(kind, args, {**options, "queue": "default"}) for _ in range(count)])
        events = Events(directory)
        wait_until(lambda: len(daemon.ledger.entries("start")) > 20)
        (directory / "armed").touch()
        while not events.kills():
            assert not drained(inspector), "all done before it could die"
            # Whatever a fetch brings after this goes back: that is a release to die in.
            daemon.send(signal.SIGTSTP)
            with contextlib.suppress(AssertionError):
                wait_until(events.kills, timeout_s=0.3 if script == "release" else 0.02)
            if not events.kills():
                daemon.send(signal.SIGCONT)
        daemon.send(signal.SIGTSTP)
        (directory / "armed").unlink()
        wait_until(lambda: "\narrived " in events.path.read_text(), what="the late bytes")
        assert named_twice(redis, namespace) == []
        wait_until(lambda: inspector.queue_stats("default").active == 0, timeout_s=8)
        assert errors(inspector) == []
        daemon.send(signal.SIGCONT)
        wait_until(lambda: drained(inspector), timeout_s=30)
        assert daemon.stop() == 0
        assert errors(inspector) == []
        told = Told.read(events.path)
        starts = daemon.ledger.entries("start")
    succeeded = dict(told.succeeded)
    assert [e.id for e in starts if e.at_ns > succeeded.get(e.id, e.at_ns)] == [], "a success ran again"
    ended = {entry.id for what in ("end", "fail") for entry in daemon.ledger.entries(what)}
    assert len(ended) == count


def test_a_success_on_the_board_of_a_daemon_that_was_gone_for_long_is_not_repeated(
    tmp_path: Path, fresh_server: EmbeddedServer, namespace: str
) -> None:
    """The leases had run out by the time the daemon was back, and its recoverer took entries over before the
    boards were settled: tasks that had succeeded ran again."""
    directory = tmp_path / "chaos"
    timing = {"recover_min_idle": "1s", "heartbeat_interval": "300ms", "recover_interval": "100ms"}
    with (
        armed(directory, tmp_path, fresh_server, namespace, workers=6, **timing) as daemon,
        Client(fresh_server.url, namespace=namespace) as client,
        Inspector(fresh_server.url, namespace=namespace, timeout=10) as inspector,
    ):
        (directory / "plan").write_text("0 worker complete before")
        (directory / "armed").touch()
        daemon.start()
        daemon.send(signal.SIGSTOP)  # nobody settles what the workers leave
        events = Events(directory)
        client.enqueue_many([("quick", {}, {"queue": "default"}) for _ in range(200)])
        wait_until(lambda: events.kills().total() == 6)
        daemon.kill()
        (directory / "armed").unlink()
        time.sleep(1.5)  # longer than a lease
        daemon.start()
        wait_until(lambda: drained(inspector))
        assert daemon.stop() == 0
        succeeded = dict(Told.read(events.path).succeeded)
        starts = Counter(entry.id for entry in daemon.ledger.entries("start"))
    assert len(succeeded) == 200
    assert {task_id: count for task_id, count in starts.items() if count > 1} == {}
