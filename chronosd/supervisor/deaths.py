"""What there is to say of a worker's death: the verdict on its tasks, its last stack, a line in the log."""

from __future__ import annotations

import time

from chronosd.log import get_logger
from chronosd.supervisor.process import Exit
from chronosd.supervisor.stacks import is_in_handler_thread
from chronosd.supervisor.verdict import Verdict, judge
from chronosd.supervisor.worker import Worker

log = get_logger("chronosd.supervisor")


def examine(worker: Worker, exit_: Exit, now: float) -> tuple[Verdict, str]:
    """Judges a death and logs it; returns the verdict, and the stack where it tells anything.

    Args:
        now: monotonic seconds.
    """
    board = worker.board
    stack = worker.stacks.read() if exit_.is_fault or worker.guilty else ""
    worker.stacks.close()
    verdict = judge(
        board.read(),
        exit_,
        worker.reason,
        guilty=worker.guilty,
        # a coroutine that was interrupted half-way by a thread that took the process down did nothing
        current=None if is_in_handler_thread(stack) else board.current,
        now_ns=time.monotonic_ns(),
    )
    is_expected = worker.reason is not None and worker.reason.is_planned
    say = log.info if is_expected else log.error
    say(
        "worker ended" if is_expected else "worker died",
        worker=worker.spec.index,
        pid=worker.child.pid,
        cause=verdict.cause,
        exit_code=exit_.code,
        signal=exit_.signal,
        uptime_s=round(now - worker.started_at, 3),
        max_rss_mb=round(exit_.max_rss_bytes / 2**20, 1),
        tasks=verdict.counts,
        **({"stack": stack} if stack else {}),
    )
    return verdict, stack
