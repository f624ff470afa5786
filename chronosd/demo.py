"""``chronosd demo``: the real daemon, a server of its own, a few hundred tasks, one worker killed on the way.

Nothing is staged. The daemon is a subprocess like any other; the tasks are those of ``handlers_example``;
what is said about them at the end is counted in a file that the handlers' processes write (a middleware of
theirs), not in the queue that is being shown.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import psutil

from chronosd import embedded
from chronosd.demo_book import Book, Death
from chronosd.demo_plan import CENTS, HANDLERS, Batch, plan, prepare
from chronosd.demo_view import Outcome, Screen, Snapshot, screen, summary
from chronosd.inspector import Inspector
from chronosd.private_daemon import home, private_daemon
from chronosd.states import State

NAMESPACE = "demo"
QUEUES = {"critical": 6, "default": 3, "low": 1}
WORKERS = 3
CONCURRENCY = 32
PATIENCE_S = 1.2
"""A worker is killed when nothing is waiting any more, but at the latest so long after the start."""
LIMIT_S = 40.0
"""After that it gives up and says what is missing."""


def run(tasks: int, *, keep: bool = False) -> int:
    """Shows it all; returns 0 if every task ended as planned, else 1.

    Args:
        tasks: how many, roughly; at least 300.
        keep: leave the directory with configuration, log and data behind.

    Raises:
        ChronosError: no server binary, no example handlers, or a daemon that does not start.
    """
    embedded.find_binary()  # the error that names the remedy, before anything is begun
    folder = Path(tempfile.mkdtemp(prefix="chronosd-demo-"))
    try:
        return _show(folder, tasks)
    finally:
        if keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _show(folder: Path, tasks: int) -> int:
    began = time.monotonic()
    batches = plan(tasks, folder)
    book = Book(folder / "ledger")
    with _daemon(folder) as daemon, Inspector(_url(folder), namespace=NAMESPACE) as inspector:
        with screen(sum(batch.count for batch in batches)) as view:
            view.event(f"daemon up: {WORKERS} workers, {CONCURRENCY} tasks each, a server of its own")
            _enqueue(folder, batches, view)
            death = _watch(daemon.pid, book, inspector, view)
        outcomes = [_outcome(batch, book, _archived(inspector)) for batch in batches]
        daemon.send_signal(signal.SIGTERM)
        code = daemon.wait(30)
    charged = _charged(folder)
    paying = batches[0]
    summary(outcomes, book, death, time.monotonic() - began)
    repeated = sum(1 for one in paying.ids if len(book.starts[one]) > 1)
    print(
        f"charged: {charged} cards for {paying.count} tasks, although {repeated} of them were started twice"
    )
    good = code == 0 and death is not None and all(one.is_as_planned for one in outcomes)
    if not good or charged != paying.count:
        print(f"NOT AS PLANNED (the daemon ended with exit code {code})")
        return 1
    print("nothing was lost")
    return 0


def _enqueue(folder: Path, batches: list[Batch], view: Screen) -> None:
    from chronosd.client import Client

    began = time.monotonic()
    with Client(_url(folder), namespace=NAMESPACE) as client:
        for batch in batches:
            batch.ids += [info.id for info in client.enqueue_many(batch.tasks())]
    count = sum(len(batch.ids) for batch in batches)
    view.event(f"enqueued {count} tasks in {(time.monotonic() - began) * 1000:.0f} ms")


def _watch(daemon: int, book: Book, inspector: Inspector, view: Screen) -> Death | None:
    """Follows the tasks until none is left to run; kills one worker on the way."""
    began = time.monotonic()
    until = began + LIMIT_S
    death: Death | None = None
    told = is_quiet = False
    idle_looks = 0
    while idle_looks < 3 and time.monotonic() < until:
        time.sleep(0.02)
        book.read()
        if death is None and (is_quiet or time.monotonic() - began > PATIENCE_S):
            death = _kill_a_busy_worker(daemon, book)
            if death is not None:
                view.event(f"worker {death.pid} killed with SIGKILL while it ran {len(death.running)} tasks")
        elif death is not None and not told and book.is_recovered(death):
            told = True
            view.event(
                f"all {len(death.running)} are running again on other workers,"
                f" {book.recovery_ms(death)[-1]:.0f} ms after the kill"
            )
        stats = [inspector.queue_stats(name) for name in QUEUES]
        view.update(Snapshot.of(stats, book))
        is_quiet = bool(book.ended) and not any(one.pending for one in stats)
        left = sum(one.pending + one.active + one.scheduled + one.retry for one in stats)
        idle_looks = 0 if left else idle_looks + 1
    book.read()
    return death


def _kill_a_busy_worker(daemon: int, book: Book) -> Death | None:
    """SIGKILL to a worker that is in the middle of several tasks; None if none is yet."""
    for pid, running in book.busiest():
        if len(running) < 3:
            return None
        try:
            if psutil.Process(pid).ppid() != daemon:
                continue
            os.kill(pid, signal.SIGKILL)
            psutil.wait_procs([psutil.Process(pid)], timeout=5)
        except (psutil.NoSuchProcess, ProcessLookupError):
            pass  # reaped already: that was quick
        at_ns = time.monotonic_ns()
        book.read()
        return Death(pid, at_ns, tuple(book.running(pid)))
    return None


def _archived(inspector: Inspector) -> dict[str, str]:
    """The error of every archived task, by id."""
    found: dict[str, str] = {}
    for queue in QUEUES:
        after = ""
        while True:
            page = inspector.list_tasks(queue, State.ARCHIVED, after, 500)
            found |= {one.id: one.last_err for one in page.tasks}
            after = page.next
            if not after:
                break
    return found


def _charged(folder: Path) -> int:
    """How many charges of one task the example's database holds in all its balances."""
    with closing(sqlite3.connect(folder / "data" / "payments.sqlite3")) as database:
        (cents,) = database.execute("SELECT coalesce(sum(cents), 0) FROM balances").fetchone()
    return int(cents) // CENTS


def _outcome(batch: Batch, book: Book, archived: dict[str, str]) -> Outcome:
    succeeded = {one for one in batch.ids if one in book.ended}
    dead = {one for one in batch.ids if one in archived} - succeeded
    gone = set(batch.ids) - succeeded - dead
    return Outcome(
        batch.what,
        batch.expected,
        tasks=len(batch.ids),
        succeeded=len(succeeded),
        archived=len(dead),
        discarded=len(gone) if batch.expected == "discarded" else 0,
        lost=0 if batch.expected == "discarded" else len(gone),
        retried=sum(1 for one in succeeded if book.failures[one]),
        error=next((archived[one] for one in dead), ""),
    )


@contextmanager
def _daemon(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The daemon, ready; ended when the block is left, whatever happens."""
    prepare(folder)
    env = {"EXAMPLE_LEDGER": str(folder / "ledger"), "EXAMPLE_DATA": str(folder / "data")}
    with private_daemon(folder, _config(folder), env, without=("SMTP_HOST",)) as process:
        yield process


def _config(folder: Path) -> dict[str, object]:
    return {
        "namespace": NAMESPACE,
        "redis": _url(folder),
        "pythonpath": [home("handlers_example")],
        "workers": WORKERS,
        "concurrency": CONCURRENCY,
        "queues": QUEUES,
        "handlers": HANDLERS,
        "middleware": ["handlers_example.ledger:record", "handlers_example.ledger:record_sync"],
        "retry": {"base": "200ms", "cap": "500ms"},
        "log": {"format": "json"},
    }


def _url(folder: Path) -> str:
    return f"embedded://{quote(str(folder / 'state'))}"
