"""What a reload changes besides the code: queues, limits, intervals; and what it must not."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis as redis_py
import yaml

from chronosd import Client
from chronosd.broker.keys import GROUP
from tests.support.daemon import Daemon
from tests.support.queue_view import QueueView
from tests.support.reloading import dummy, last_reload
from tests.support.waiting import at_most, wait_until

MakeDaemon = Callable[..., Daemon]


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    with Client(redis_url, namespace=namespace) as one:
        yield one


def test_a_new_queue_has_its_group_and_is_served_when_the_reload_is_over(
    daemon: MakeDaemon, client: Client, redis: redis_py.Redis, namespace: str
) -> None:
    one = daemon(workers=1, forward_interval="50ms").start()
    waiting = client.enqueue("count", {}, queue="late").id
    delayed = client.enqueue("count", {}, queue="late", delay=0.5).id
    one.write_config({"queues": {"default": 1, "late": 2, "empty": 1}})
    assert one.ask("reload", wait=True)["ok"]
    for name in ("late", "empty"):
        groups = redis.xinfo_groups(QueueView(redis, namespace, name).keys.stream)
        assert [group["name"] for group in groups] == [GROUP.encode()]
    wait_until(lambda: {waiting, delayed} <= set(one.ledger.ends()), what="the ready and the delayed task")
    assert "NOGROUP" not in one.log_text()


def test_a_removed_queue_keeps_what_it_has_and_resumes_when_it_is_put_back(
    daemon: MakeDaemon, client: Client, redis: redis_py.Redis, namespace: str
) -> None:
    both = {"queues": {"default": 1, "low": 1}, "concurrency": 4}
    one = daemon(workers=1, config=both).start()
    running = [client.enqueue("count", {"sleep": 1.5}, queue="low").id for _ in range(4)]
    wait_until(lambda: len(one.ledger.starts()) == 4, what="running tasks")
    ready = [client.enqueue("count", {}, queue="low").id for _ in range(20)]
    delayed = [client.enqueue("count", {}, queue="low", delay=0.2).id for _ in range(5)]
    one.write_config({"queues": {"default": 1}, "concurrency": 4})
    done = one.ask("reload", wait=True)
    assert done["ok"]
    (warning,) = done["warnings"]
    assert warning == "queue 'low' is not served any more: 20 ready, 4 running, 5 delayed"
    assert last_reload(one)["warnings"] == [warning]
    assert [record["what"] for record in one.log_records("reload leaves tasks behind")] == [warning]
    wait_until(lambda: set(one.ledger.ends()) == set(running), what="what ran has finished")
    one.wait_workers(1)
    view = QueueView(redis, namespace, "low")
    wait_until(lambda: view.pending() == 0, what="acknowledged")
    assert view.bodies() == {*ready, *delayed}, "nothing is deleted"
    listed = one.run_command("queue", "ls", "-c", str(one.config_path))
    assert "not in the configuration" in listed.stdout
    assert set(one.ledger.starts()) == set(running)
    one.write_config(both)
    assert one.ask("reload", wait=True)["ok"]
    wait_until(lambda: set(one.ledger.ends()) == {*running, *ready, *delayed}, what="all of them")


def test_a_removed_kind_with_waiting_tasks_is_named(daemon: MakeDaemon, client: Client) -> None:
    kinds = {
        "count": "tests.support.jobs:count",
        "noop": "tests.support.jobs:noop",
        "sync": "tests.support.jobs:sync",
    }
    one = daemon(workers=1, config={"handlers": kinds}).start()
    for _ in range(3):
        client.enqueue("noop", {}, delay="1h")
    one.write_config({"handlers": {"count": kinds["count"]}})
    done = one.run_command("reload", "--wait", "-c", str(one.config_path))
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        "warning: kind 'noop' has no handler any more: 3 of its tasks wait in 'default'",
        "warning: kind 'sync' has no handler any more",
    ]


def test_a_kind_that_a_listed_module_no_longer_declares_is_named(daemon: MakeDaemon, client: Client) -> None:
    source = "from chronosd import Kind, Task\n"
    declared = "{0} = Kind('{0}')\n@{0}.handler\nasync def on_{0}(task: Task) -> None: ...\n"
    one = daemon(workers=1, config={"handlers": ["tasks"]})
    (one.directory / "tasks.py").write_text(source + declared.format("first") + declared.format("second"))
    one.start()
    client.enqueue("second", {}, delay="1h")
    (one.directory / "tasks.py").write_text(source + declared.format("first"))
    done = one.ask("reload", wait=True)
    assert done["warnings"] == ["kind 'second' has no handler any more: 1 of its tasks wait in 'default'"]


def test_a_half_written_file_that_is_valid_is_told_loudly(daemon: MakeDaemon, client: Client) -> None:
    """An editor that is still writing: the prefix of the file is a file without its last queue."""
    text = "queues:\n  default: 1\n  low: 1\n"
    one = daemon(workers=1)
    head = yaml.safe_dump(
        {k: v for k, v in yaml.safe_load(one.config_path.read_text()).items() if k != "queues"}
    )
    one.config_path.write_text(head + text)
    one.start()
    client.enqueue("count", {}, queue="low", delay="1h")
    one.config_path.write_text(head + text[: text.index("  low")])
    one.send(signal.SIGHUP)
    (warning,) = wait_until(lambda: one.log_records("reload leaves tasks behind"), what="a warning")
    assert warning["level"] == "warning"
    assert warning["what"] == "queue 'low' is not served any more: 1 delayed"
    wait_until(lambda: last_reload(one), what="the end of the reload")


def test_a_file_that_is_swapped_under_a_symbolic_link_is_read_anew(daemon: MakeDaemon) -> None:
    """As Kubernetes does it with config maps; relative paths stay relative to where the link is."""
    one = daemon(workers=1)
    for name, workers in (("one", 1), ("two", 2)):
        folder = one.directory / name
        folder.mkdir()
        keys = {**yaml.safe_load(one.config_path.read_text()), "workers": workers}
        (folder / "chronos.yaml").write_text(yaml.safe_dump(keys))
    one.config_path.unlink()
    link = one.directory / "current"
    link.symlink_to("one")
    one.config_path.symlink_to("current/chronos.yaml")
    one.start()
    new = one.directory / "new"
    new.symlink_to("two")
    os.replace(new, link)
    assert one.ask("reload", wait=True)["ok"]
    one.wait_workers(2)


REFUSED = {
    "namespace": "elsewhere",
    "name": "blue",
    "redis": "redis://127.0.0.1:1/0",
    "control_socket": "elsewhere.sock",
}


def test_what_cannot_change_is_refused_with_a_sentence(
    tmp_path: Path, redis_url: str, namespace: str
) -> None:
    with dummy(tmp_path / "d", redis_url, namespace) as one:
        one.start()
        pids = one.wait_workers(1)
        for key, value in REFUSED.items():
            one.write_config({key: value})
            done = one.ask("reload", wait=True)
            assert done["code"] == 78
            path = "redis.url" if key == "redis" else key
            assert f": {path}: cannot change while the daemon runs" in done["error"]
            assert one.wait_workers(1) == pids
        one.write_config({})
        assert one.ask("reload", wait=True)["ok"]


def test_the_supervisor_goes_by_the_new_limits_too(daemon: MakeDaemon, client: Client) -> None:
    one = daemon(
        workers=1, shutdown_timeout="60s", forward_interval="30s", log={"level": "info", "format": "json"}
    )
    one.start()
    one.write_config(
        {"shutdown_timeout": "200ms", "kill_grace": "100ms", "forward_interval": "20ms", "max_crashes": 1}
    )
    assert one.ask("reload", wait=True)["ok"]
    began_at = time.monotonic()
    delayed = client.enqueue("count", {}, delay=0.3).id
    wait_until(lambda: delayed in one.ledger.ends(), timeout_s=5, what="the delayed task")
    assert time.monotonic() - began_at < at_most(3), "the forwarder has the new interval"
    deadly = client.enqueue("die", {}).id
    wait_until(lambda: one.log_records("task archived"), what="archived at its first crash")
    assert deadly in str(one.log_records("task archived"))
    client.enqueue("count", {"sleep": 60})
    wait_until(lambda: len(one.ledger.starts()) == 3, what="a running task")
    began_at = time.monotonic()
    assert one.stop() == 0
    assert time.monotonic() - began_at < at_most(5), "the stop has the new limit"


def test_the_number_of_workers_set_by_hand_holds_until_the_file_says_another(
    tmp_path: Path, redis_url: str, namespace: str
) -> None:
    with dummy(tmp_path / "d", redis_url, namespace, workers=1) as one:
        one.start()
        assert one.ask("scale", count=3)["ok"]
        one.wait_workers(3)
        assert one.ask("reload", wait=True)["ok"]
        wait_until(lambda: one.ask("status")["leaving"] == [], what="the old ones gone")
        one.wait_workers(3)
        one.write_config({"workers": 2})
        assert one.ask("reload", wait=True)["ok"]
        one.wait_workers(2)


def test_a_reload_while_redis_is_away_succeeds_unless_it_needs_it(
    daemon: MakeDaemon, fresh_server: object
) -> None:
    server = fresh_server
    one = daemon(workers=1, redis_url=server.url, reload_timeout="2s").start()  # type: ignore[attr-defined]
    server.kill()  # type: ignore[attr-defined]
    wait_until(lambda: one.ask("status")["redis"]["error"], what="redis away")
    before = one.worker_pids()
    assert one.ask("reload", wait=True)["ok"]
    one.wait_workers(1, without=before, timeout_s=15)
    one.write_config({"queues": {"default": 1, "more": 1}, "reload_timeout": "1s"})
    refused = one.ask("reload", wait=True)
    assert "redis did not take the new queues in time" in refused["error"]
    server.start()  # type: ignore[attr-defined]
    wait_until(lambda: not one.ask("status")["redis"]["error"], what="redis back")
    assert one.ask("reload", wait=True)["ok"]
