"""The workers: forked, let through the gate, replaced, drained, killed.

Every worker that fetches has a place (0 to N-1) that outlives it. Those that are still to get one (the next
generation of a reload, the successor of a recycled worker) are ``coming``, those that have lost theirs are
``leaving``. Nothing here talks to Redis; a death is handed on with everything that is known of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from chronosd.board import Cell
from chronosd.config.schema import Config
from chronosd.log import get_logger
from chronosd.supervisor.descriptors import Descriptors
from chronosd.supervisor.process import Exit
from chronosd.supervisor.restarts import Restarts
from chronosd.supervisor.spawn import Spawner
from chronosd.supervisor.verdict import Reason
from chronosd.supervisor.worker import Phase, Worker

log = get_logger("chronosd.supervisor")

_TELL_AGAIN_S = 0.05


@dataclass(slots=True, eq=False)
class Place:
    """Where one worker belongs: its restarts are counted here."""

    index: int
    worker: Worker | None = None
    restarts: Restarts = field(default_factory=Restarts)
    spawn_at: float | None = 0.0
    """When the next worker is due here; None while there is one."""


class Fleet:
    """All workers of the daemon."""

    def __init__(self, config: Config, spawner: Spawner, descriptors: Descriptors) -> None:
        self.config = config
        """What new workers run."""
        self.revision = 1
        """Counts the configurations that have been in effect."""
        self._spawner = spawner
        self._descriptors = descriptors
        self.places = [Place(index) for index in range(config.workers)]
        self.coming: list[Worker] = []
        """Workers without a place as yet, which have never fetched."""
        self.leaving: list[Worker] = []
        """Workers without a place any more: they drain, or have been killed."""
        self.gate_open = False
        self.is_quiet = False
        self.paused: frozenset[str] = frozenset()
        """Queues that nobody fetches from."""
        self.stopping = False
        self._tell_at = 0.0
        """When orders that found no room are tried again."""

    def __iter__(self) -> Iterator[Worker]:
        """Every worker that lives, or whose death has not been seen."""
        yield from [place.worker for place in self.places if place.worker is not None]
        yield from list(self.coming)
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
        """How many places have a worker that may fetch."""
        return sum(1 for p in self.places if p.worker is not None and p.worker.phase is Phase.RUNNING)

    @property
    def kinds(self) -> frozenset[str]:
        """Every kind that is served, as far as that is known."""
        declared = [place.worker.kinds for place in self.places if place.worker is not None]
        return frozenset(self.config.handlers).union(*declared)

    def set_clock(self, offset_s: float) -> None:
        """What makes a monotonic instant one of the server's clock: told to every worker, now and later."""
        self._spawner.server_clock_ns = clock_ns = int(offset_s * 1e9)
        for worker in self:
            worker.board.cells[Cell.SERVER_CLOCK] = clock_ns

    def by_pid(self, pid: int) -> Worker | None:
        return next((worker for worker in self if worker.child.pid == pid), None)

    # -- timers ---------------------------------------------------------------------------------

    @property
    def due_at(self) -> float:
        """The next instant at which :meth:`tick` has something to do."""
        instants = [w.kill_at for w in self if w.kill_at is not None]
        if not self.stopping:
            instants += [p.spawn_at for p in self.places if p.spawn_at is not None]
        if any(worker.owed for worker in self):
            instants.append(self._tell_at)
        return min(instants, default=float("inf"))

    def tick(self, now: float) -> None:
        """Forks the workers that are due and kills those that are overdue."""
        self._tell_at = now + _TELL_AGAIN_S
        for worker in self:
            worker.tell_again()
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
        try:
            worker = self._spawner.spawn(place.index, self.config, self.revision, now, self._handle_word)
        except OSError as error:
            delay = place.restarts.after(lived_ready_s=None, completed=0)
            log.error(
                "cannot fork a worker", worker=place.index, error=str(error), retry_in_s=round(delay, 2)
            )
            place.spawn_at = now + delay
            return
        place.worker, place.spawn_at = worker, None

    def fork(self, index: int, now: float, config: Config | None = None) -> Worker:
        """Forks a worker that has no place yet; of the next revision if a configuration is given.

        Raises OSError.
        """
        revision = self.revision if config is None else self.revision + 1
        worker = self._spawner.spawn(index, config or self.config, revision, now, self._handle_word)
        self.coming.append(worker)
        return worker

    # -- what workers say -------------------------------------------------------------------------

    def _handle_word(self, worker: Worker) -> None:
        messages = worker.link.receive()
        if messages is None:
            self._descriptors.unwatch(worker.link)
        for message in messages or ():
            match message.get("t"):
                case "ready":
                    worker.kinds = frozenset(message.get("kinds", ()))
                    self._handle_ready(worker)
                case "failed":
                    worker.failure = (int(message["code"]), str(message["error"]))
                case "drained":
                    # It was told to stop, by us or by somebody's SIGTERM, and did: nobody is to blame.
                    worker.reason = worker.reason or Reason.STOP
                    worker.phase = Phase.STOPPING
                    worker.has_drained = True

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
        if self.gate_open and worker not in self.coming:
            self._let_through(worker)

    def open_gate(self) -> None:
        """Lets every ready worker fetch, and from now on each as soon as it is ready."""
        self.gate_open = True
        for place in self.places:
            if place.worker is not None and place.worker.phase is Phase.READY:
                self._let_through(place.worker)

    def _let_through(self, worker: Worker) -> None:
        worker.has_begun = True
        if self.paused:
            worker.tell({"t": "paused", "queues": sorted(self.paused)})
        if worker.link.send({"t": "go"}):
            worker.phase = Phase.RUNNING
            if self.is_quiet:
                worker.tell({"t": "quiet"})

    # -- replacements -----------------------------------------------------------------------------

    def install(self, workers: Sequence[Worker], config: Config) -> list[Worker]:
        """The next generation takes over: all of it fetches before any of the present one stops.

        Returns the workers that drain now.
        """
        old = [place.worker for place in self.places if place.worker is not None]
        self.config, self.revision = config, self.revision + 1
        self.places = [Place(index, worker, spawn_at=None) for index, worker in enumerate(workers)]
        for worker in workers:
            self.coming.remove(worker)
            self._let_through(worker)
        for worker in old:
            self._dismiss(worker, Reason.RELOAD)
        return [worker for worker in old if worker.has_begun]

    def succeed(self, place: Place, successor: Worker, reason: Reason) -> None:
        """A ready worker takes over one place, whose worker drains."""
        old = place.worker
        self.coming.remove(successor)
        place.worker, place.spawn_at = successor, None
        self._let_through(successor)
        if old is not None:
            self._dismiss(old, reason)

    def discard(self, worker: Worker, reason: Reason) -> None:
        """Kills a worker that never fetched."""
        if worker in self.coming:
            self.coming.remove(worker)
            self._dismiss(worker, reason)

    def _dismiss(self, worker: Worker, reason: Reason) -> None:
        """A worker without a place: it drains, bounded only by its tasks' own timeouts."""
        self.leaving.append(worker)
        if not worker.has_begun:
            worker.kill(reason)  # nothing to finish, and an import may take for ever
        elif worker.phase is not Phase.STOPPING and not worker.killed:
            worker.drain(reason, None)

    # -- ends -------------------------------------------------------------------------------------

    def handle_death(self, worker: Worker, exit_: Exit, now: float) -> None:
        """A worker has been reaped: its last words are taken and its place is prepared for the next."""
        self._handle_word(worker)
        self._descriptors.unwatch(worker.link)
        worker.exit = exit_
        worker.link.close()
        worker.owed.clear()
        for without_place in (self.leaving, self.coming):
            if worker in without_place:
                without_place.remove(worker)
                return
        place = next(p for p in self.places if p.worker is worker)
        place.worker = None
        lived = None if worker.ready_at is None else now - worker.ready_at
        delay = place.restarts.after(lived_ready_s=lived, completed=worker.completed)
        place.spawn_at = now + delay
        if delay and not self.stopping:
            log.warning("worker restart delayed", worker=place.index, retry_in_s=round(delay, 2))

    def drain(self, timeout_s: float, kill_grace_s: float, now: float) -> None:
        """Tells every worker to stop fetching and finish; whoever has not after both times is killed.

        Those that drain already, for as long as their tasks take, get the same limit.
        """
        self.stopping = True
        for worker in self:
            if worker.killed:
                continue
            if not worker.has_begun:
                # It has never fetched: there is nothing to finish, and an import may take for ever.
                worker.kill(Reason.STOP)
                continue
            limit = now + timeout_s + kill_grace_s
            worker.kill_at = limit if worker.kill_at is None else min(limit, worker.kill_at)
            if not worker.has_drained:
                worker.drain(Reason.STOP, timeout_s)

    def kill_all(self, reason: Reason) -> None:
        self.stopping = True
        for worker in self:
            worker.kill(reason)

    def quiet(self, is_quiet: bool) -> None:
        """Has every worker stop fetching, or go on; those still to come as well."""
        self.is_quiet = is_quiet
        for worker in self:
            if worker.phase is Phase.RUNNING:
                worker.tell({"t": "quiet" if is_quiet else "resume"})

    def pause(self, queues: frozenset[str]) -> None:
        """From now on these queues are paused, and no others; those still to come are told as well."""
        self.paused = queues
        for worker in self:
            if worker.phase is Phase.RUNNING:
                worker.tell({"t": "paused", "queues": sorted(queues)})

    # -- size -------------------------------------------------------------------------------------

    def resize(self, count: int) -> None:
        """Exactly so many places: further ones are filled at the next turns, surplus workers drain."""
        while len(self.places) < count:
            self.places.append(Place(len(self.places)))
        while len(self.places) > count:
            worker = self.places.pop().worker
            if worker is not None:
                self._dismiss(worker, Reason.SCALE)

    def abandon(self) -> None:
        """In a child: closes the supervisor's ends of every worker."""
        for worker in self:
            worker.abandon()
