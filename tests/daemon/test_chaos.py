"""Nothing is lost and nothing repeats without a cause, whatever dies and whenever.

A load of every outcome runs while processes are killed, stopped and restarted: by signals at random instants,
by crashes of handlers, and by themselves at chosen points (`tests.support.armed`): at every store to the
board, and before, within and after every script on its way. The ledger of the handlers lies outside Redis.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chronosd.embedded import EmbeddedServer
from chronosd.inspector import Finding, Inspector
from tests.conftest import connect
from tests.support.armed import VARIABLE
from tests.support.chaos import KINDS, MAX_CRASHES, QUEUES, Disaster, Load, Told, Watcher, account
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


def errors(inspector: Inspector) -> list[Finding]:
    return [finding for finding in inspector.examine(deep=True).findings if finding.is_error]


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
    directory.mkdir()
    with (
        Daemon(
            tmp_path / "daemon",
            redis_url=fresh_server.url,
            namespace=namespace,
            config=CONFIG,
            env={VARIABLE: str(directory)},
            program=("tests.support.armed", "run"),
        ) as daemon,
        Inspector(fresh_server.url, namespace=namespace, timeout=10) as inspector,
    ):
        daemon.start()
        load = Load(fresh_server.url, namespace, rate=250)
        watcher = Watcher(daemon.runtime_dir)
        disaster = Disaster(daemon, fresh_server, directory)
        load.start()
        watcher.start()
        try:
            disaster.run(chaos_seconds)
        finally:
            load.finish()
            watcher.finish()
        wait_until(lambda: drained(inspector), timeout_s=20, what=f"all done ({daemon.log_path})")
        assert errors(inspector) == []
        assert daemon.run_command("doctor", "--deep", "-c", str(daemon.config_path)).returncode == 0
        assert daemon.stop() == 0
        assert errors(inspector) == []
        told = Told.read(directory / "events")
        with connect(fresh_server.url) as redis:
            found = account(load, disaster, told, redis)
            for queue in QUEUES:
                left = redis.xinfo_consumers(f"{namespace}:{{{queue}}}:stream", "chronos")
                assert left == [], "a dead worker's consumer is left"
    with capsys.disabled():
        print()
        for line in found.lines():
            print("   ", line)
        print("   ", f"watched: {watcher.reads} slots read; from outside: {dict(disaster.done)}")
    record_property("chaos", json.dumps(list(found.lines())))
    assert found.faults == [], "\n".join(found.faults)
    assert watcher.seen <= told.claims, "a slot was read that nobody has ever claimed like this"
    recovered = daemon.log_records("recovered tasks that nobody held any more")
    assert recovered == [], "the recoverer had to do what a settlement should have done"
