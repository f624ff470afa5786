"""Cases of group A: fetching, acknowledging, and the list of what is pending."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import redis as redis_py

from chronosd import Client
from chronosd.broker import commands, consume, inspect, settle
from chronosd.broker.runner import SyncRunner
from chronosd.supervisor.incarnation import Incarnation
from tests.support.bench import Bench
from tests.support.daemon import Daemon
from tests.support.processes import wait_gone
from tests.support.proxy import Proxy
from tests.support.queue_view import QueueView
from tests.support.waiting import wait_until

MakeDaemon = Callable[..., Daemon]
LEASES = {"recover_min_idle": "1s", "heartbeat_interval": "300ms", "recover_interval": "300ms"}


def test_a01_tasks_in_a_row_of_one_slot_run_once_each(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    """Ten tasks were fetched for one free slot; those at the end of the local buffer grew older than a lease,
    were claimed by another process, and ran twice."""
    one = daemon(workers=1, concurrency=1, **LEASES).start()
    ids = Counter(info.id for info in client.enqueue_many([("count", {"sleep": 0.6})] * 5))
    queue.wait_finished()
    assert one.ledger.starts() == one.ledger.ends() == ids
    marks = [(e.at_ns, e.what) for e in one.ledger.entries()]
    assert all(before[1] != after[1] for before, after in pairwise(sorted(marks))), "two ran at once"
    assert one.stop() == 0


@pytest.mark.parametrize("how", ["XDEL", "XTRIM"])
def test_a03_a_pending_entry_whose_body_is_gone_is_cleared_and_told_once(
    daemon: MakeDaemon, client: Client, queue: QueueView, how: str
) -> None:
    """The entry came back from the pending list with null fields, and the loop that read it broke on them,
    over and over; no other task was recovered any more."""
    one = daemon(workers=1, concurrency=4, **LEASES).start()
    ghost = client.enqueue("count", {"sleep": 30}).id
    wait_until(lambda: ghost in one.ledger.starts(), what="its start")
    ((entry, _),) = queue.redis.xrange(queue.keys.stream)
    if how == "XDEL":
        queue.redis.xdel(queue.keys.stream, entry)
    else:
        queue.redis.xtrim(queue.keys.stream, maxlen=0, approximate=False)
    others = Counter(info.id for info in client.enqueue_many([("count", {"sleep": 0.5})] * 3))
    wait_until(lambda: set(others) <= set(one.ledger.starts()), what="its neighbours")
    (pid,) = one.worker_pids()
    os.kill(pid, signal.SIGKILL)
    wait_gone([pid])
    wait_until(lambda: set(others) <= set(one.ledger.ends()), what="the others' end")
    wait_until(lambda: queue.pending() == 0, what="an empty list of pending entries")
    # by the settlement, or before it by the recoverer's first look
    wait_until(lambda: '"dropped":1' in one.log_text(), what=f"a word of it: {one.log_tail()}")
    more = client.enqueue("count", {}).id
    wait_until(lambda: one.ledger.ends()[more], what="the next one")
    counted = [record["dropped"] for record in one.log_records() if record.get("dropped")]
    assert counted == [1], "cleared once, and said so"
    assert "Traceback" not in one.log_text()
    assert one.stop() == 0


@pytest.mark.parametrize("protocol", ["", "?protocol=2", "?protocol=3"])
def test_a04_replies_mean_the_same_whatever_protocol_the_url_asks_for(
    bench: Bench, bench_url: str, protocol: str
) -> None:
    """A stream read answers with a list of pairs or with a map, with nothing or with an empty one, by
    protocol and by what there is; parsers broke when the protocol changed under them."""
    separator = "&" if "?" in bench_url else "?"
    runner = SyncRunner(bench_url + protocol.replace("?", separator), timeout_s=5)
    bench.group()
    queue = bench.queue
    assert runner.run(consume.block([queue], "c", 1)) == []
    assert runner.run(consume.fetch(queue, "c", 5)).tasks == []
    assert runner.run(settle.pending(queue, "c")) == []
    bench.add("a", "b")
    ((_, entry),) = runner.run(consume.block([queue], "c", 1000))
    fetched = runner.run(consume.fetch(queue, "c", 5, [entry])).tasks
    assert [task.task_id for task in fetched] == ["a", "b"]
    assert [row.task_id for row in runner.run(settle.pending(queue, "c"))] == ["a", "b"]
    assert runner.run(consume.pending_for(queue, "c")) == [task.entry for task in fetched]
    stats = runner.drive(inspect.queue_stats(bench.namespace, queue))
    assert (stats.pending, stats.active) == (0, 2)
    runner.close()


def test_a06_an_idle_daemon_neither_reconnects_nor_says_anything(
    daemon: MakeDaemon, redis: redis_py.Redis, queue: QueueView
) -> None:
    """A blocking read as long as the client's own timeout: every idle poll was an error and a new connection,
    all night long."""
    one = daemon(workers=1).start()

    def connections() -> set[str]:
        return {c["id"] for c in redis.client_list() if c["name"].startswith("chronosd:")}

    # the one for cycles, and the one that blocks
    wait_until(lambda: queue.owners() and len(connections()) == 2, what="a worker that waits")
    settled_at = time.monotonic()
    before, said = connections(), one.log_text()
    wait_until(lambda: time.monotonic() > settled_at + 3.2, what="three blocking reads")
    assert connections() == before
    assert one.log_text() == said
    assert one.stop() == 0


def test_a07_a_line_that_goes_dead_without_a_word_is_noticed_and_what_came_meanwhile_runs(
    daemon: MakeDaemon, client: Client, proxy: Proxy, queue: QueueView
) -> None:
    """A half-open connection: the blocking read never returned, the process was up for hours, consumed
    nothing and said nothing."""
    one = daemon(redis_url=proxy.url, workers=2).start()
    proxy.mode = "mute"
    ids = Counter(info.id for info in client.enqueue_many([("count", {})] * 100))
    wait_until(
        lambda: any("redis is away" in said for said in one.read_notifications()),
        what="the status that tells it",
    )
    assert one.ledger.starts() == Counter()
    proxy.mode = "pass"
    healed_at = time.monotonic()
    queue.wait_finished()
    print(f"100 tasks done {time.monotonic() - healed_at:.1f} s after the line was mended")
    assert one.ledger.starts() == one.ledger.ends() == ids
    wait_until(lambda: "away" not in one.read_notifications()[-1], what="the status that it is over")
    assert one.stop() == 0


def test_a09_no_script_ever_bounds_a_stream() -> None:
    """A stream was cut to a length, and what was cut off were tasks that nobody had run yet. A queue has no
    such bound here: a server that is full refuses the producer (tests/broker/test_client.py)."""
    folder = Path(commands.__file__).parent / "lua"
    scripts = {path.name: path.read_text() for path in folder.glob("*.lua")}
    assert scripts
    for name, source in scripts.items():
        for word in ("MAXLEN", "MINID", "XTRIM"):
            assert word not in source.upper(), name


def test_a10_two_daemons_that_look_the_same_from_inside_have_other_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In containers every daemon was process 1 on the same host name; two of them took each other's entries
    for their own."""
    monkeypatch.setattr(socket, "gethostname", lambda: "worker")
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.0)
    both = [Incarnation.create(tmp_path) for _ in range(2)]
    assert both[0].consumer(0, 1) != both[1].consumer(0, 1)
    assert both[0].recoverer != both[1].recoverer
    for one in both:
        one.remove()
