"""The workers: forked, let through the gate, watched, replaced, drained, killed.

Every worker has a place (0 to N-1) that outlives it. Nothing here talks to Redis; a death is handed to
``on_death`` with everything that is known of it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from chronosd.board import Board
from chronosd.config.schema import Config
from chronosd.link import Link, WorkerSpec, board_capacity
from chronosd.log import get_logger
from chronosd.supervisor import process
from chronosd.supervisor.descriptors import Descriptors
from chronosd.supervisor.incarnation import Incarnation
from chronosd.supervisor.process import Exit
from chronosd.supervisor.restarts import Restarts
from chronosd.supervisor.stacks import Stacks
from chronosd.supervisor.verdict import Reason
from chronosd.supervisor.worker import Phase, Worker

log = get_logger("chronosd.supervisor")

WorkerTarget = Callable[[WorkerSpec], int]


@dataclass(slots=True)
class Place:
    """Where one worker belongs: its restarts are counted here."""

    index: int
    worker: Worker | None = None
    restarts: Restarts = field(default_factory=Restarts)
    spawn_at: float | None = 0.0
    """When the next worker is due here; None while there is one."""


class Fleet:
    """All workers of the daemon."""

    def __init__(
        self,
        config: Config,
        target: WorkerTarget,
        incarnation: Incarnation,
        redis_url: str,
        *,
        abandon: Callable[[], None],
        descriptors: Descriptors,
        on_death: Callable[[Worker], None],
    ) -> None:
        self._config = config
        self._target = target
        self._incarnation = incarnation
        self._redis_url = redis_url
        self._abandon = abandon
        self._descriptors = descriptors
        self._on_death = on_death
        self._capacity = board_capacity(config)
        self._generation = 0
        self.places = [Place(index) for index in range(config.workers)]
        self.leaving: list[Worker] = []
        """Workers without a place: drained away by a scale-down."""
        self.gate_open = False
        self.is_quiet = False
        self.stopping = False

    def __iter__(self) -> Iterator[Worker]:
        """Every worker that lives, or whose death has not been seen."""
        yield from [place.worker for place in self.places if place.worker is not None]
        yield from list(self.leaving)

    @property
    def is_empty(self) -> bool:
        return not any(True for _ in self)

    @property
    def all_ready(self) -> bool:
        """Whether every place has a worker that has loaded its handlers."""
        return all(p.worker is not None and p.worker.ready_at is not None for p in self.places)

    @property
    def ready_count(self) -> int:
        return sum(1 for p in self.places if p.worker is not None and p.worker.phase is Phase.RUNNING)

    def by_pid(self, pid: int) -> Worker | None:
        return next((worker for worker in self if worker.child.pid == pid), None)

    # -- timers ---------------------------------------------------------------------------------

    @property
    def due_at(self) -> float:
        """The next instant at which :meth:`tick` has something to do."""
        instants = [w.kill_at for w in self if w.kill_at is not None]
        if not self.stopping:
            instants += [p.spawn_at for p in self.places if p.spawn_at is not None]
        return min(instants, default=float("inf"))

    def tick(self, now: float) -> None:
        """Forks the workers that are due and kills those that are overdue."""
        for worker in self:
            if worker.kill_at is not None and worker.kill_at <= now:
                if worker.phase is Phase.STARTING and worker.reason is None:
                    log.error(
                        "worker not ready in time, killed", worker=worker.spec.index, pid=worker.child.pid
                    )
                    worker.kill(Reason.BOOT)
                else:
                    log.warning(
                        "worker did not stop in time, killed", worker=worker.spec.index, pid=worker.child.pid
                    )
                    worker.kill(Reason.STOP)
        if self.stopping:
            return
        for place in self.places:
            if place.spawn_at is not None and place.spawn_at <= now:
                self._spawn(place, now)
                return  # one fork between two looks at the selector

    def _spawn(self, place: Place, now: float) -> None:
        self._generation += 1
        try:
            worker = self._fork(place.index, self._generation, now)
        except OSError as error:
            delay = place.restarts.after(lived_ready_s=None, completed=0)
            log.error(
                "cannot fork a worker", worker=place.index, error=str(error), retry_in_s=round(delay, 2)
            )
            place.spawn_at = now + delay
            return
        place.worker, place.spawn_at = worker, None
        self._descriptors.watch(worker.child, partial(self._on_death, worker))
        self._descriptors.watch(worker.link, partial(self._handle_word, worker))
        log.debug("worker forked", worker=place.index, pid=worker.child.pid, consumer=worker.spec.consumer)

    def _fork(self, index: int, generation: int, now: float) -> Worker:
        consumer = self._incarnation.consumer(index, generation)
        with ExitStack() as undo:
            board = Board.create(
                self._incarnation.board_path(index, generation),
                self._capacity,
                consumer=consumer,
                queues=tuple(self._config.queues),
            )
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
                config=self._config,
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
        limit = now + self._config.startup_timeout
        return Worker(spec, child, ours, stacks, started_at=now, kill_at=limit)

    # -- what workers say -------------------------------------------------------------------------

    def _handle_word(self, worker: Worker) -> None:
        messages = worker.link.receive()
        if messages is None:
            self._descriptors.unwatch(worker.link)
        for message in messages or ():
            match message.get("t"):
                case "ready":
                    self._handle_ready(worker)
                case "failed":
                    worker.failure = (int(message["code"]), str(message["error"]))
                case "drained":
                    # It was told to stop, by us or by somebody's SIGTERM, and did: nobody is to blame.
                    worker.reason = worker.reason or Reason.STOP
                    worker.phase = Phase.STOPPING

    def _handle_ready(self, worker: Worker) -> None:
        worker.ready_at = time.monotonic()
        if worker.phase is not Phase.STARTING:
            return
        worker.phase = Phase.READY
        worker.kill_at = None
        log.info(
            "worker ready",
            worker=worker.spec.index,
            pid=worker.child.pid,
            took_ms=round((worker.ready_at - worker.started_at) * 1000),
        )
        if self.gate_open:
            self._let_through(worker)

    def open_gate(self) -> None:
        """Lets every ready worker fetch, and from now on each as soon as it is ready."""
        self.gate_open = True
        for worker in self:
            if worker.phase is Phase.READY:
                self._let_through(worker)

    def _let_through(self, worker: Worker) -> None:
        if worker.link.send({"t": "go"}):
            worker.phase = Phase.RUNNING
            if self.is_quiet:
                worker.link.send({"t": "quiet"})

    # -- ends -------------------------------------------------------------------------------------

    def handle_death(self, worker: Worker, exit_: Exit, now: float) -> None:
        """A worker has been reaped: its last words are taken and its place is prepared for the next."""
        self._handle_word(worker)
        self._descriptors.unwatch(worker.link)
        worker.exit = exit_
        worker.link.close()
        if worker in self.leaving:
            self.leaving.remove(worker)
            return
        place = next(p for p in self.places if p.worker is worker)
        place.worker = None
        lived = None if worker.ready_at is None else now - worker.ready_at
        delay = place.restarts.after(lived_ready_s=lived, completed=worker.completed)
        place.spawn_at = now + delay
        if delay and not self.stopping:
            log.warning("worker restart delayed", worker=place.index, retry_in_s=round(delay, 2))

    def drain(self, timeout_s: float, kill_grace_s: float, now: float) -> None:
        """Tells every worker to stop fetching and finish; whoever has not after both times is killed."""
        self.stopping = True
        for worker in self:
            if worker.reason is not None:
                continue
            if worker.phase in (Phase.STARTING, Phase.READY):
                # It has never fetched: there is nothing to finish, and an import may take for ever.
                worker.kill(Reason.STOP)
                continue
            worker.reason = Reason.STOP
            worker.phase = Phase.STOPPING
            worker.kill_at = now + timeout_s + kill_grace_s
            worker.child.send(signal.SIGCONT)  # somebody may have stopped it; it could not drain then
            if not worker.link.send({"t": "drain", "timeout": timeout_s}):
                worker.child.send(signal.SIGTERM)

    def kill_all(self, reason: Reason) -> None:
        self.stopping = True
        for worker in self:
            worker.kill(reason)

    def quiet(self, is_quiet: bool) -> None:
        """Has every worker stop fetching, or go on; those still to come as well."""
        self.is_quiet = is_quiet
        for worker in self:
            if worker.phase is Phase.RUNNING:
                worker.link.send({"t": "quiet" if is_quiet else "resume"})

    # -- size -------------------------------------------------------------------------------------

    def grow(self) -> None:
        """One worker more."""
        self.places.append(Place(len(self.places)))

    def shrink(self) -> bool:
        """One worker less: the last one drains, bounded only by its tasks' own timeouts."""
        if len(self.places) <= 1:
            return False
        worker = self.places.pop().worker
        if worker is not None:
            worker.reason = worker.reason or Reason.STOP
            if worker.phase is Phase.RUNNING and worker.link.send({"t": "drain", "timeout": None}):
                worker.phase = Phase.STOPPING
                self.leaving.append(worker)
            else:
                self.leaving.append(worker)
                worker.kill(Reason.STOP)
        return True

    def abandon(self) -> None:
        """In a child: closes the supervisor's ends of every worker."""
        for worker in self:
            worker.abandon()
