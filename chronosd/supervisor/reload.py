"""A reload: from the edited file to a generation of workers that runs it, or back to where it was.

::

    CHECKING    a throwaway child reads, validates and imports everything
    WAITING     an earlier reload's workers still drain: at most one generation does
    STARTING    the new generation is forked, one worker at a time, and loads its handlers
    PREPARING   new queues get their groups
    SWITCHING   the gate is open for the new ones and the old ones have been told to stop fetching

Up to the switch everything can be taken back: only workers that never fetched are killed then, and the old
generation has noticed nothing. The whole is bounded by `reload_timeout`. Whoever asks while a reload is
under way is asking for the next one: what this one has read may be older than their edit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from chronosd.board import WorkerState
from chronosd.config.schema import Config
from chronosd.log import get_logger
from chronosd.supervisor.descriptors import Descriptors
from chronosd.supervisor.fleet import Fleet
from chronosd.supervisor.notify import Notifier
from chronosd.supervisor.preflight import Preflight
from chronosd.supervisor.rounds import Rounds
from chronosd.supervisor.stacks import innermost
from chronosd.supervisor.verdict import Reason
from chronosd.supervisor.worker import EXIT_COULD_NOT_LOAD, Phase, Worker

log = get_logger("chronosd.supervisor")

EXIT_RUNTIME = 1
_TURN_S = 0.005
_ASK_BEFORE_S = 0.2
_SWITCH_S = 2.0
"""How long an old worker may take to say that it has stopped fetching: its loop may stand still."""


class Stage(Enum):
    """How far a reload is; the values are for people."""

    IDLE = ""
    CHECKING = "checking the configuration and its imports"
    WAITING = "waiting for the workers of the reload before"
    STARTING = "starting the new workers"
    PREPARING = "preparing the new queues"
    SWITCHING = "switching over"


@dataclass(frozen=True, slots=True)
class Result:
    """How a reload ended."""

    problems: tuple[str, ...]
    """Empty if it succeeded."""
    code: int
    """The exit code that stands for the problems."""
    changes: tuple[str, ...]
    warnings: tuple[str, ...]
    took_s: float
    at: float
    """Unix seconds."""

    @property
    def ok(self) -> bool:
        return not self.problems


Reply = Callable[[Result], None]


class Reload:
    """Reloads, one after the other. Instants are monotonic."""

    def __init__(
        self,
        fleet: Fleet,
        rounds: Rounds,
        notifier: Notifier,
        redis_url: str,
        *,
        abandon: Callable[[], None],
        descriptors: Descriptors,
        apply: Callable[[Config], None],
        status: Callable[[], str],
    ) -> None:
        self._fleet = fleet
        self._rounds = rounds
        self._notifier = notifier
        self._redis_url = redis_url
        self._abandon = abandon
        self._descriptors = descriptors
        self._apply = apply
        self._status = status
        self.stage = Stage.IDLE
        self.last: Result | None = None
        """How the last one ended."""
        self._is_asked = False
        self._replies: list[Reply] = []
        self._next_replies: list[Reply] = []
        self._kinds: frozenset[str] = frozenset()
        self._preflight: Preflight | None = None
        self._config: Config | None = None
        self._count = 0
        self._workers: list[Worker] = []
        self._old: list[Worker] = []
        self._changes: tuple[str, ...] = ()
        self._warnings: tuple[str, ...] = ()
        self._began_at = 0.0
        self._limit_at = 0.0
        self._switch_by = 0.0
        self._turn_at = 0.0
        self._stacks_asked = False

    def ask(self, reply: Reply | None = None) -> None:
        """Reloads as soon as that is possible; ``reply`` is called with the result."""
        self._is_asked = True
        if reply is not None:
            self._next_replies.append(reply)

    @property
    def is_active(self) -> bool:
        return self.stage is not Stage.IDLE

    @property
    def is_asked(self) -> bool:
        """Whether another one is to follow, or to begin."""
        return self._is_asked

    def is_child(self, pid: int) -> bool:
        """Whether a pid is the pre-flight's."""
        return self._preflight is not None and self._preflight.is_child(pid)

    def resize(self, change: int | None = None, count: int | None = None) -> None:
        """The number of workers is changed by hand while a reload is under way: it holds for that as well."""
        if self.stage not in (Stage.IDLE, Stage.CHECKING, Stage.SWITCHING):
            self._count = count if count is not None else max(1, self._count + (change or 0))

    # -- the turns ----------------------------------------------------------------------------------

    @property
    def due_at(self) -> float:
        """The next instant at which :meth:`tick` has something to do."""
        if self.is_active:
            return self._turn_at
        can_begin = self._fleet.gate_open or self._fleet.stopping
        return 0.0 if self._is_asked and can_begin else float("inf")

    def tick(self, now: float) -> None:
        """One turn of the reload that is under way or due."""
        self._turn_at = now + _TURN_S
        if self._fleet.stopping:
            self._abort()
            return
        match self.stage:
            case Stage.IDLE:
                self._begin(now)
            case Stage.CHECKING:
                self._check(now)
            case Stage.WAITING:
                self._wait(now)
            case Stage.STARTING:
                self._start(now)
            case Stage.PREPARING:
                self._prepare(now)
            case Stage.SWITCHING:
                self._switch(now)

    def _begin(self, now: float) -> None:
        self._is_asked = False
        self._replies, self._next_replies = self._next_replies, []
        self._changes = self._warnings = ()
        self._began_at = now
        self._limit_at = now + self._fleet.config.reload_timeout
        self._stacks_asked = False
        self.stage = Stage.CHECKING
        log.info("reloading", file=str(self._fleet.config.path))
        self._notifier.reloading(self._status())
        try:
            self._preflight = Preflight(
                self._fleet.config,
                self._kinds,
                self._redis_url,
                self._limit_at,
                abandon=self._abandon,
                descriptors=self._descriptors,
            )
        except OSError as error:
            self._fail([f"cannot fork: {error}"], EXIT_RUNTIME)

    def _check(self, now: float) -> None:
        assert self._preflight is not None
        self._preflight.tick(now)
        found = self._preflight.findings
        if found is None:
            return
        self._preflight = None
        self._changes, self._warnings = found.changes, found.warnings
        if found.problems or found.config is None:
            self._fail(list(found.problems), found.code)
            return
        config, running = found.config, self._fleet.config
        # What was set by hand holds until the file says something else than it did.
        is_same = config.workers == running.workers
        self._config, self._count = config, len(self._fleet.places) if is_same else config.workers
        self._kinds = found.kinds
        log.info("configuration checked", changes=list(found.changes), workers=self._count)
        for warning in found.warnings:
            log.warning("reload leaves tasks behind", what=warning)
        self.stage = Stage.WAITING

    def _wait(self, now: float) -> None:
        draining = [w for w in self._fleet.leaving if w.revision < self._fleet.revision]
        if not draining:
            self.stage = Stage.STARTING
        elif now >= self._limit_at:
            tasks = sum(len(worker.board.read()) for worker in draining)
            text = f"{len(draining)} workers of the reload before still drain, with {tasks} tasks"
            self._fail([f"{text}; reload again when they have ended"], EXIT_RUNTIME)

    def _start(self, now: float) -> None:
        self._trim()
        if self._is_broken(now):
            return
        if len(self._workers) < self._count:
            try:
                worker = self._fleet.fork(len(self._workers), now, self._config)
            except OSError as error:
                self._fail([f"cannot fork a worker: {error}"], EXIT_RUNTIME)
                return
            worker.kill_at = None  # the reload's own limit holds
            self._workers.append(worker)
        elif all(worker.phase is Phase.READY for worker in self._workers):
            assert self._config is not None
            self._rounds.prepare(self._config, now)
            self.stage = Stage.PREPARING

    def _trim(self) -> None:
        while len(self._workers) > self._count:
            self._fleet.discard(self._workers.pop(), Reason.SCALE)

    def _prepare(self, now: float) -> None:
        assert self._config is not None
        if self._is_broken(now):
            return
        if len(self._workers) != self._count:
            self.stage = Stage.STARTING  # resized meanwhile
        elif trouble := self._rounds.preparation_trouble(self._config):
            self._fail([f"a new queue cannot be served: {trouble}"], EXIT_RUNTIME)
        elif self._rounds.is_prepared(self._config):
            self._old = self._fleet.install(self._workers, self._config)
            self._workers = []
            self._apply(self._config)
            self._switch_by = now + _SWITCH_S
            self.stage = Stage.SWITCHING

    def _switch(self, now: float) -> None:
        """Over when no old handler code can start any more, as far as the old workers can tell."""
        states = (WorkerState.DRAINING, WorkerState.STOPPED)
        is_over = all(worker.exit is not None or worker.board.state in states for worker in self._old)
        if is_over or now >= self._switch_by:
            self._old = []
            self._finish((), 0)

    def _is_broken(self, now: float) -> bool:
        """Fails the reload if one of its workers has ended, or the time is up."""
        for worker in self._workers:
            if worker.exit is not None:
                code, why = worker.why_not_ready(worker.exit)
                self._fail(why.splitlines(), code)
                return True
        late = [worker for worker in self._workers if worker.phase is Phase.STARTING]
        if now >= self._limit_at - _ASK_BEFORE_S and not self._stacks_asked:
            self._stacks_asked = True
            for worker in late:
                worker.stacks.clear()
                worker.stacks.ask(worker.child)
        if now < self._limit_at:
            return False
        if late:
            where = innermost(late[0].stacks.read())
            why = f"{late[0].name} was not ready in time{where}"
        elif len(self._workers) < self._count:
            why = "the new workers could not be forked in time"
        else:
            why = "redis did not take the new queues in time"
        self._fail([why], EXIT_COULD_NOT_LOAD if late else EXIT_RUNTIME)
        return True

    # -- ends -----------------------------------------------------------------------------------------

    def _fail(self, problems: list[str], code: int) -> None:
        for worker in self._workers:
            self._fleet.discard(worker, Reason.ROLLBACK)
        self._workers = []
        if self.stage is Stage.PREPARING:
            self._rounds.forget_preparation()
        self._finish(tuple(problems) or ("nobody knows why",), code or EXIT_RUNTIME)

    def _finish(self, problems: tuple[str, ...], code: int) -> None:
        took_s = round(time.monotonic() - self._began_at, 3)
        self.last = Result(problems, code, self._changes, self._warnings, took_s, time.time())
        self.stage, self._config = Stage.IDLE, None
        if problems:
            log.error("reload failed, the configuration before goes on", took_s=took_s, problems=problems)
        else:
            log.info("reloaded", took_s=took_s, revision=self._fleet.revision, workers=self._count)
        if not self._fleet.stopping:
            self._notifier.ready(self._status())
        replies, self._replies = self._replies, []
        for reply in replies:
            reply(self.last)

    def _abort(self) -> None:
        """The daemon stops: nobody has to wait for this any more. The workers are the stop's to end."""
        if self._preflight is not None:
            self._preflight.close()
            self._preflight = None
        self._workers, self._old = [], []
        self._replies += self._next_replies
        self._is_asked, self._next_replies = False, []
        if self.is_active or self._replies:
            self._finish(("the daemon is stopping",), EXIT_RUNTIME)

    def abandon(self) -> None:
        """In a child: closes what belongs to the pre-flight."""
        if self._preflight is not None:
            self._preflight.abandon()
