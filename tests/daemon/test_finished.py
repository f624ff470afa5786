"""What had finished when its worker was killed is acknowledged, not repeated."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from chronosd import Client
from tests.support.daemon import Daemon
from tests.support.queue_view import QueueView
from tests.support.waiting import wait_until

HOOK = """
import os, signal
from chronosd.board import Board
from tests.support.ledger import Ledger

ledger = Ledger.of_environment()

def stop_between_return_and_ack() -> None:
    # The board knows that it succeeded; Redis does not, and will not from this process.
    succeed = Board.succeed

    def succeed_and_stop(board: Board, *told: int) -> None:
        succeed(board, *told)
        ledger.write("stopped", "-")
        os.kill(os.getpid(), signal.SIGSTOP)

    Board.succeed = succeed_and_stop
"""


def test_a_worker_killed_between_return_and_acknowledgement_repeats_nothing(
    daemon: Callable[..., Daemon], client: Client, queue: QueueView, ack_rounds: int
) -> None:
    """Every other queue runs such a task again: the acknowledgement was all that was missing."""
    one = daemon(
        handlers=HOOK, workers=2, concurrency=4, setup="handlers:stop_between_return_and_ack"
    ).start()
    for number in range(1, ack_rounds + 1):
        kind = "count" if number % 2 else "sync"
        task_id = client.enqueue(kind, {}, max_retry=0).id
        wait_until(lambda n=number: len(one.ledger.entries("stopped")) == n, what=f"stop {number}")  # type: ignore[misc]
        pid = one.ledger.entries("stopped")[-1].pid
        assert one.ledger.ends()[task_id] == 1, "its handler has returned"
        assert queue.entries() == 1, "and it is not acknowledged"
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: queue.entries() == 0, what=f"acknowledgement {number}:\n{one.log_tail()}")
    assert queue.bodies() == set()
    one.wait_workers(2)
    starts = one.ledger.starts()
    assert set(starts.values()) == {1}
    assert len(starts) == ack_rounds
    print(f"{ack_rounds} rounds, {sum(starts.values()) - ack_rounds} repeats")
    assert one.stop() == 0
    assert sum(one.ledger.starts().values()) == ack_rounds
