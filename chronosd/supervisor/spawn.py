"""Makes one worker: its board, its link, its stacks, and the fork."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from chronosd.board import Board, Cell
from chronosd.config.schema import Config
from chronosd.link import Link, WorkerSpec, board_capacity
from chronosd.log import get_logger
from chronosd.supervisor import process
from chronosd.supervisor.descriptors import Descriptors
from chronosd.supervisor.incarnation import Incarnation
from chronosd.supervisor.stacks import Stacks
from chronosd.supervisor.worker import Worker
from chronosd.tally import cells_needed

log = get_logger("chronosd.supervisor")

WorkerTarget = Callable[[WorkerSpec], int]


class Spawner:
    """Forks workers. Each gets a generation number, so that no two ever have the same name."""

    def __init__(
        self,
        target: WorkerTarget,
        incarnation: Incarnation,
        redis_url: str,
        *,
        abandon: Callable[[], None],
        descriptors: Descriptors,
        on_death: Callable[[Worker], None],
    ) -> None:
        self._target = target
        self._incarnation = incarnation
        self._redis_url = redis_url
        self._abandon = abandon
        self._descriptors = descriptors
        self._on_death = on_death
        self._generation = 0
        self.server_clock_ns = 0
        """For the boards: see `Cell.SERVER_CLOCK`."""

    def spawn(
        self, index: int, config: Config, revision: int, now: float, on_word: Callable[[Worker], None]
    ) -> Worker:
        """Forks a worker, which is watched from then on.

        Raises:
            OSError: no process, descriptor, memory or disk to be had.
        """
        self._generation += 1
        worker = self._fork(index, self._generation, config, revision, now)
        self._descriptors.watch(worker.child, partial(self._on_death, worker))
        self._descriptors.watch(worker.link, partial(on_word, worker))
        log.debug("worker forked", worker=index, pid=worker.child.pid, consumer=worker.spec.consumer)
        return worker

    def _fork(self, index: int, generation: int, config: Config, revision: int, now: float) -> Worker:
        consumer = self._incarnation.consumer(index, generation)
        with ExitStack() as undo:
            board = Board.create(
                self._incarnation.board_path(index, generation),
                board_capacity(config),
                consumer=consumer,
                queues=tuple(config.queues),
                tally_cells=cells_needed(len(config.queues)),
            )
            board.cells[Cell.SERVER_CLOCK] = self.server_clock_ns
            undo.callback(board.unlink)
            undo.callback(board.close)
            ours, theirs = Link.pair()
            undo.callback(ours.close)
            undo.callback(theirs.close)
            stacks = Stacks.create(f"chronosd-{index}.{generation}")
            undo.callback(stacks.close)
            spec = WorkerSpec(
                index=index,
                generation=generation,
                consumer=consumer,
                config=config,
                board=board,
                link=theirs,
                redis_url=self._redis_url,
                stack_fd=stacks.fd,
            )

            def abandon() -> None:
                ours.close()
                self._abandon()

            child = process.fork(
                lambda: self._target(spec),
                title=f"chronosd: worker {index}",
                abandon=abandon,
                stack_fd=stacks.fd,
            )
            undo.pop_all()
        theirs.close()
        limit = now + config.startup_timeout
        return Worker(spec, child, ours, stacks, started_at=now, revision=revision, kill_at=limit)
