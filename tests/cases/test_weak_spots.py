"""Where chronos-go loses, repeats or blocks, and chronosd must not. The numbers are those of the list."""

from __future__ import annotations

import base64
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable

from chronosd import Client
from chronosd.broker.keys import GROUP
from tests.support.daemon import Daemon
from tests.support.queue_view import QueueView
from tests.support.waiting import wait_until

MakeDaemon = Callable[..., Daemon]
LEASES = {"recover_min_idle": "1s", "heartbeat_interval": "300ms", "recover_interval": "300ms"}


def test_weak_7_leases_are_renewed_while_the_daemon_drains(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    """The heartbeat stopped at the shutdown while handlers drained: after one lease another server ran the
    same task beside them."""
    leaving = daemon(workers=1, **LEASES).start()
    ids = Counter(client.enqueue(kind, {"sleep": 4.0}).id for kind in ("count", "sync"))
    wait_until(lambda: leaving.ledger.starts() == ids, what="both running")
    leaving.send(signal.SIGTERM)
    rival = daemon(workers=2, **LEASES).start()
    assert leaving.wait() == 0
    assert leaving.ledger.ends() == ids
    queue.wait_finished()
    assert rival.ledger.starts() == Counter()
    assert rival.stop() == 0


def test_weak_12_the_end_of_one_run_does_not_end_the_heartbeat_of_another_of_the_same_id(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    """Runs were tracked by task id: of two with one id (a producer had overwritten the first) the end of one
    stopped the other's heartbeat, and it was taken over and ran a third time."""
    one = daemon(workers=1, **LEASES).start()
    task_id = client.enqueue("count", {"sleep": 1.0}, task_id="twice").id
    wait_until(lambda: one.ledger.starts()[task_id] == 1, what="its first run")
    # what chronos-go's producer does: it overwrites the hash and adds an entry, whatever runs
    message = json.loads(queue.field(task_id, "msg") or b"{}")
    message["payload"] = base64.b64encode(b'{"sleep":4.0}').decode()
    queue.redis.hset(queue.keys.task(task_id), mapping={"msg": json.dumps(message), "state": "1"})
    queue.redis.xadd(queue.keys.stream, {"task_id": task_id})
    rival = daemon(workers=1, **LEASES).start()
    wait_until(lambda: queue.entries() == 0, timeout_s=30, what="an empty stream")
    starts = one.ledger.starts() + rival.ledger.starts()
    assert starts == one.ledger.ends() + rival.ledger.ends()
    assert starts[task_id] == 2, "once for each time it was enqueued"
    short, long = (e.at_ns / 1e9 for e in one.ledger.entries("end"))
    assert long - short > 2, "it went on for two leases after the end of the other"
    assert queue.bodies() == set()
    assert [one.stop(), rival.stop()] == [0, 0]


def test_weak_21_an_idle_worker_waits_for_work_in_all_of_its_queues(
    daemon: MakeDaemon, client: Client
) -> None:
    """An idle server blocked for a second on its heaviest queue: a task of another one waited 0.9 s."""
    one = daemon(workers=1, queues={"critical": 6, "default": 3, "low": 1}).start()
    waited = []
    for _ in range(20):
        enqueued_ns = time.monotonic_ns()
        task_id = client.enqueue("count", {}, queue="low").id
        wait_until(lambda: one.ledger.ends()[task_id], what="its run")  # noqa: B023
        start = next(entry for entry in one.ledger.entries("start") if entry.id == task_id)
        waited.append((start.at_ns - enqueued_ns) / 1e9)
    assert sorted(waited)[10] < 0.05, waited
    assert one.stop() == 0


def test_weak_22_twenty_restarts_leave_no_consumer(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    """Consumers were never deleted: one more for every restart of every worker, for ever."""
    one = daemon(workers=1).start()
    for _ in range(20):
        (pid,) = one.worker_pids()
        client.enqueue("noop", {})
        queue.wait_finished()
        os.kill(pid, signal.SIGKILL)
        one.wait_workers(1, without=[pid])
    assert len(queue.owners()) > 1, "they stay until their last settlement"
    assert one.stop() == 0
    assert queue.redis.xinfo_consumers(queue.keys.stream, GROUP) == []
