"""Cases of group E: retries, backoff, dead letters."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from chronosd import Client
from chronosd.states import State
from tests.support.daemon import Daemon
from tests.support.queue_view import QueueView
from tests.support.waiting import wait_until

MakeDaemon = Callable[..., Daemon]


def test_e58_graceful_restarts_cost_a_task_without_retries_nothing(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    """A deploy consumed a retry: with none to spend the task was among the dead letters without ever having
    failed."""
    one = daemon(workers=2, shutdown_timeout="200ms", kill_grace="200ms").start()
    ids = [client.enqueue(kind, {"sleep": 2.5}, max_retry=0).id for kind in ("count", "sync")]
    for restart in (1, 2):
        wait_until(
            lambda n=restart: one.ledger.starts() == Counter(dict.fromkeys(ids, n)),  # type: ignore[misc]
            what=f"start {restart} of both",
        )
        assert one.stop() == 0
        assert queue.places(ids) == {task_id: ["stream"] for task_id in ids}
        assert [queue.field(task_id, "crashes") for task_id in ids] == [None, None]
        one.start()
    queue.wait_finished()
    assert one.ledger.ends() == Counter(ids)
    assert [e.attempt for e in one.ledger.entries("start")] == [1] * 6
    assert queue.size(State.ARCHIVED) == 0
    assert one.stop() == 0


def test_e58_a_reload_or_a_restart_that_gives_it_time_does_not_even_interrupt_it(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    """The handler's context was cancelled at the shutdown, although ten seconds of grace were given."""
    one = daemon(workers=1).start()
    ids = [client.enqueue(kind, {"sleep": 2.5}, max_retry=0).id for kind in ("count", "sync")]
    wait_until(lambda: len(one.ledger.starts()) == 2, what="both running")
    one.send(signal.SIGHUP)
    wait_until(lambda: one.log_records("reloaded"), what="the reload")
    assert one.stop() == 0
    assert one.ledger.starts() == one.ledger.ends() == Counter(ids)
    assert queue.bodies() == set()


def test_e58_a_kill_spends_an_attempt_and_says_so(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    """[choice] Whatever kills a worker may be the task's own doing, so a kill costs what a failure costs, and
    a task that may not be tried twice is not: it is archived with the cause, to be run again by who knows."""
    one = daemon(workers=1).start()
    task_id = client.enqueue("count", {"sleep": 30}, max_retry=0).id
    wait_until(lambda: one.ledger.starts()[task_id] == 1, what="its start")
    os.kill(one.worker_pids()[0], signal.SIGKILL)
    wait_until(lambda: queue.ids(State.ARCHIVED) == {task_id}, what="the dead letter")
    shown = one.run_command("task", "show", task_id, "-c", str(one.config_path)).stdout
    assert "killed by signal 9 (SIGKILL)" in shown
    assert one.ledger.starts() == Counter([task_id])
    assert one.stop() == 0


def test_e60_no_delay_that_a_handler_asks_for_becomes_a_tight_loop(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    """A negative or overflowed delay meant at once, and again at once. (The backoff itself is not the user's:
    tests/unit/test_retry.py; every odd delay is tried in tests/unit/test_outcome.py.)"""
    one = daemon(
        handlers="""
        from chronosd import RetryIn, Task
        from tests.support.ledger import Ledger
        ledger = Ledger.of_environment()
        DELAYS = {"negative": -1, "zero": 0, "tiny": 1e-300, "none": None, "nan": float("nan")}
        async def again(task: Task[dict]) -> None:
            ledger.write("start", task.id, task.attempt)
            raise RetryIn(DELAYS[task.args["delay"]])
        """,
        config={"handlers": {"again": "handlers:again"}, "retry": {"base": "100ms", "cap": "100ms"}},
    ).start()
    ids = [
        client.enqueue("again", {"delay": name}, max_retry=3).id
        for name in ("negative", "zero", "tiny", "none", "nan")
    ]
    wait_until(lambda: queue.ids(State.ARCHIVED) == set(ids), timeout_s=20, what="retries spent")
    assert one.ledger.starts() == Counter(dict.fromkeys(ids, 4))
    for task_id in ids:
        marks = [e.at_ns for e in one.ledger.entries("start") if e.id == task_id]
        assert (marks[-1] - marks[0]) / 1e9 > 0.25, "three delays of at least the floor of 0.1 s"
    assert one.stop() == 0


def test_e64_what_is_not_to_be_archived_is_not_when_it_crashes(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    """The flag was heeded where a handler failed and forgotten where its worker died."""
    one = daemon(workers=1, retry={"base": "100ms", "cap": "100ms"}).start()
    discarded = [
        client.enqueue("die", {}, discard=True, max_retry=0).id,
        client.enqueue("die", {}, discard=True).id,
        client.enqueue("count", {"fail": 9}, discard=True, max_retry=1).id,
    ]
    kept = client.enqueue("die", {}).id
    wait_until(lambda: queue.ids(State.ARCHIVED) == {kept}, timeout_s=30, what="the one that is kept")
    queue.wait_finished()
    assert queue.bodies() == {kept}
    # one dies beside the others, which may just have begun, or be about to say how they ended
    starts = one.ledger.starts()
    most = zip((*discarded, kept), (1, 3, 3, 3), strict=True)
    assert all(starts[task_id] <= count for task_id, count in most), starts
    assert one.stop() == 0


def test_e64_a_dead_letter_that_is_run_again_begins_anew_under_its_id(
    daemon: MakeDaemon, client: Client, queue: QueueView, tmp_path: Path
) -> None:
    """It was put back with its crashes and retries spent, and was dead again at the first stumble."""
    mended = tmp_path / "mended"
    one = daemon(
        workers=1,
        handlers=f"""
        import os, signal
        from pathlib import Path
        from chronosd import Task
        from tests.support.ledger import Ledger
        ledger = Ledger.of_environment()
        async def work(task: Task[dict]) -> str:
            with ledger.run(task.id, task.attempt):
                if not Path({str(mended)!r}).exists():
                    os.kill(os.getpid(), signal.SIGKILL)
                if task.attempt == 1:
                    raise RuntimeError("stumbles once more")
                return "done"
        """,
        config={"handlers": {"work": "handlers:work"}, "retry": {"base": "50ms", "cap": "50ms"}},
    ).start()
    info = client.enqueue("work", {}, max_retry=5, unique="1h", retention="1h")
    wait_until(lambda: queue.ids(State.ARCHIVED) == {info.id}, timeout_s=30, what="poison")
    mended.touch()
    done = one.run_command("task", "run", info.id, "-c", str(one.config_path))
    assert "it was archived" in done.stdout, done.stderr
    assert client.result(info, timeout=20) == "done"
    assert [e.attempt for e in one.ledger.entries("start")] == [1, 2, 3, 1, 2]
    assert queue.field(info.id, "crashes") is None
    assert one.stop() == 0


def test_e64_the_number_of_dead_letters_is_bounded_whoever_makes_them(
    daemon: MakeDaemon, client: Client, queue: QueueView
) -> None:
    """A cap that was looked at once a minute, or only where a handler failed."""
    one = daemon(
        workers=1, config={"janitor": {"interval": "200ms", "max_archived": 5}, "max_payload": "1KiB"}
    ).start()
    client.enqueue_many([("wrong", {"n": n}) for n in range(600)])
    client.enqueue_many([("count", {"text": "x" * 2000}) for _ in range(50)])
    client.enqueue_many([("die", {}, {"max_retry": 0}) for _ in range(2)])
    queue.wait_finished()
    wait_until(lambda: queue.size(State.ARCHIVED) == 5, what="the number")
    assert len(queue.bodies()) == 5
    assert one.stop() == 0
