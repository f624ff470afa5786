"""Edit, reload: the new code is in effect, and no task notices."""

from __future__ import annotations

import bisect
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import redis as redis_py

from chronosd import Client
from tests.support.daemon import Daemon
from tests.support.queue_view import QueueView
from tests.support.reloading import KIND, Load, last_reload, pairs, watched, write_version
from tests.support.waiting import at_most, wait_until

MakeDaemon = Callable[..., Daemon]
ROUNDS = 30


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    with Client(redis_url, namespace=namespace) as one:
        yield one


@pytest.fixture
def queue(redis: redis_py.Redis, namespace: str) -> QueueView:
    return QueueView(redis, namespace)


def test_thirty_reloads_in_a_row_under_load_lose_nothing_and_each_runs_its_code(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    one = daemon(workers=2, config={"handlers": KIND})
    write_version(one, 0)
    one.start()
    returned: list[int] = []
    with Load(client, 2000) as load, watched(one) as ready:
        for version in range(1, ROUNDS + 1):
            write_version(one, version)
            done = one.ask("reload", wait=True)
            assert done["ok"], done
            returned.append(time.monotonic_ns())
            load.wait_more(200)
    queue.wait_finished()
    took_s = [record["took_s"] for record in one.log_records("reloaded")]
    print(
        f"{len(load.ids)} tasks, {len(ready)} looks, reloads of {sum(took_s) / ROUNDS:.2f} s, {max(took_s)} s"
    )
    assert min(ready) == 2, "at no moment fewer than N ready"
    assert one.ledger.starts() == Counter(load.ids), "each exactly once"
    assert one.ledger.ends() == Counter(load.ids)
    for entry in one.ledger.entries("start"):
        assert int(entry.note) >= bisect.bisect(returned, entry.at_ns), "old code started after its reload"
    expected = ["READY=1", *["RELOADING=1", "READY=1"] * ROUNDS]
    wait_until(lambda: len(pairs(one)) >= len(expected), what="every notification")  # its reader was behind
    assert pairs(one) == expected
    assert one.stop() == 0


def test_a_changed_module_that_the_handlers_import_is_new_as_well(daemon: MakeDaemon, client: Client) -> None:
    """gunicorn #606: modules imported in the parent stay what they were."""
    one = daemon(handlers="from inner import version\n", workers=1, config={"handlers": KIND})
    source = "from tests.support.ledger import Ledger\nledger = Ledger.of_environment()\n"
    source += "async def version(task):\n    ledger.write('start', task.id, 0, '{}')\n"
    (one.directory / "inner.py").write_text(source.format("first"))
    one.start()
    (one.directory / "inner.py").write_text(source.format("other"))  # of the same size, in the same second
    one.write_config({"handlers": KIND, "workers": 3})
    assert one.ask("reload", wait=True)["ok"]
    one.wait_workers(3)
    client.enqueue("v", {})
    wait_until(one.ledger.starts, what="the task")
    assert [entry.note for entry in one.ledger.entries("start")] == ["other"]


def test_running_tasks_finish_with_the_old_code_and_none_is_cut(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    one = daemon(workers=2, shutdown_timeout="100ms").start()
    ids = [info.id for info in client.enqueue_many([("count", {"sleep": 1.5}, {"max_retry": 0})] * 4)]
    ids += [info.id for info in client.enqueue_many([("sync", {"sleep": 1.5}, {"max_retry": 0})] * 4)]
    wait_until(lambda: len(one.ledger.starts()) == 8, what="running tasks")
    assert one.ask("reload", wait=True)["ok"]
    assert sum(one.ledger.ends().values()) == 0, "a reload does not wait for the tasks"
    more = client.enqueue("count", {}).id
    wait_until(lambda: more in one.ledger.ends(), what="the new generation at work")
    status = one.ask("status")
    assert status["leaving"]
    assert status["ready"] == 2
    queue.wait_finished()
    assert one.ledger.starts() == one.ledger.ends() == Counter([*ids, more])
    one.wait_workers(2)


def test_a_reload_waits_until_the_one_before_has_drained_for_at_most_one_generation_does(
    daemon: MakeDaemon, client: Client
) -> None:
    one = daemon(workers=1, reload_timeout="700ms").start()
    client.enqueue("count", {"sleep": 2.5})
    wait_until(one.ledger.starts, what="a running task")
    assert one.ask("reload", wait=True)["ok"]
    refused = one.ask("reload", wait=True)
    assert "1 workers of the reload before still drain, with 1 tasks" in refused["error"]
    assert len(one.worker_pids()) == 2
    wait_until(one.ledger.ends, what="its end")
    one.wait_workers(1)
    assert one.ask("reload", wait=True)["ok"]


def test_a_term_while_an_old_generation_drains_is_bounded_by_shutdown_timeout(
    daemon: MakeDaemon, client: Client
) -> None:
    """Workers that drained already kept their hour: the stop waited for them."""
    one = daemon(workers=1, shutdown_timeout="500ms", kill_grace="500ms").start()
    client.enqueue("count", {"sleep": 60})
    wait_until(one.ledger.starts, what="a running task")
    assert one.ask("reload", wait=True)["ok"]
    began_at = time.monotonic()
    assert one.stop() == 0
    assert time.monotonic() - began_at < at_most(4)


def test_status_tells_what_a_reload_changed(daemon: MakeDaemon) -> None:
    one = daemon(workers=1).start()
    assert one.ask("status")["reload"] == {"stage": "idle", "asked": False, "last": None}
    one.write_config({"workers": 2, "shutdown_timeout": "5s"})
    done = one.run_command("reload", "--wait", "-c", str(one.config_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "workers: 1 to 2\nshutdown_timeout: 25s to 5s\n"
    assert last_reload(one)["changes"] == done.stdout.splitlines()
    assert one.ask("status")["revision"] == 2
