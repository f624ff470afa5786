"""A reload: from the edited file to a generation of workers that runs it, or back to where it was.

::

    CHECKING    a throwaway child reads, validates and imports everything
    WAITING     an earlier reload's workers still drain: at most one generation does
    STARTING    the new generation is forked and loads its handlers
    PREPARING   new queues get their groups
    SWITCHING   the gate is open for the new ones and the old ones have been told to stop fetching

Up to the switch everything can be taken back: only workers that never fetched are killed then, and the old
generation has noticed nothing. The whole is bounded by `reload_timeout`. Whoever asks while a reload is
under way is asking for the next one: what this one has read may be older than their edit. One that hangs
in the imports makes way for it.
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
from chronosd.supervisor.generation import Generation
from chronosd.supervisor.notify import Notifier
from chronosd.supervisor.preflight import Preflight
from chronosd.supervisor.rounds import Rounds
from chronosd.supervisor.verdict import Reason
from chronosd.supervisor.worker import Worker

log = get_logger("chronosd.supervisor")

EXIT_RUNTIME = 1
_TURN_S = 0.005
_PATIENCE_S = 5.0
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
        self.totals = {"success": 0, "failure": 0}
        """How many have ended, by result."""
        self._is_asked = False
        self._replies: list[Reply] = []
        self._next_replies: list[Reply] = []
        self._preflight: Preflight | None = None
        self._next: Generation | None = None
        self._old: list[Worker] = []
        self._changes: tuple[str, ...] = ()
        self._warnings: tuple[str, ...] = ()
        self._began_at = 0.0
        self._limit_at = 0.0
        self._switch_by = 0.0
        self._turn_at = 0.0
        self._is_impatient = False
        """Whether this reload began in the place of one that hung."""

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
        if self._next is not None:
            self._next.count = count if count is not None else max(1, self._next.count + (change or 0))

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
        if self._is_asked and self._is_stuck(now):
            self._fail(["called off for the next one, which was asked for meanwhile"], EXIT_RUNTIME)
            self._is_impatient = True
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

    def _is_stuck(self, now: float) -> bool:
        """Whether it has loaded for so long that who asks again has probably mended what it hangs in.

        Its successor has all the time there is: else somebody who asks often would never get any.
        """
        is_loading = self.stage in (Stage.CHECKING, Stage.STARTING)
        return is_loading and not self._is_impatient and now - self._began_at > _PATIENCE_S

    def _begin(self, now: float) -> None:
        self._is_asked = False
        self._replies, self._next_replies = self._next_replies, []
        self._changes = self._warnings = ()
        self._began_at = now
        self._limit_at = now + self._fleet.config.reload_timeout
        self.stage = Stage.CHECKING
        log.info("reloading", file=str(self._fleet.config.path))
        self._notifier.reloading(self._status())
        try:
            self._preflight = Preflight(
                self._fleet.config,
                self._fleet.kinds,
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
        count = len(self._fleet.places) if is_same else config.workers
        self._next = Generation(self._fleet, config, count, self._limit_at)
        log.info("configuration checked", changes=list(found.changes), workers=count)
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
        assert self._next is not None
        self._next.tick(now)
        if self._next.trouble is not None:
            self._fail(*self._next.trouble)
        elif self._next.is_ready:
            self._rounds.serving.prepare(self._next.config.queues, now)
            self.stage = Stage.PREPARING

    def _prepare(self, now: float) -> None:
        assert self._next is not None
        self._next.tick(now)
        config = self._next.config
        if self._next.trouble is not None:
            self._fail(*self._next.trouble)
        elif not self._next.is_ready:
            self.stage = Stage.STARTING  # resized meanwhile
        elif trouble := self._rounds.serving.preparation_trouble(config.queues):
            self._fail([f"a new queue cannot be served: {trouble}"], EXIT_RUNTIME)
        elif self._rounds.serving.is_prepared(config.queues):
            self._old = self._fleet.install(self._next.workers, config)
            self._next = None
            self._apply(config)
            self._switch_by = now + _SWITCH_S
            self.stage = Stage.SWITCHING

    def _switch(self, now: float) -> None:
        """Over when no old handler code can start any more, as far as the old workers can tell."""
        states = (WorkerState.DRAINING, WorkerState.STOPPED)
        is_over = all(worker.exit is not None or worker.board.state in states for worker in self._old)
        if is_over or now >= self._switch_by:
            self._old = []
            self._finish((), 0)

    # -- ends -----------------------------------------------------------------------------------------

    def _fail(self, problems: list[str], code: int) -> None:
        if self._preflight is not None:
            self._preflight.close()
            self._preflight = None
        if self._next is not None:
            self._next.discard(Reason.ROLLBACK)
        if self.stage is Stage.PREPARING:
            self._rounds.serving.forget_preparation()
        self._finish(tuple(problems) or ("nobody knows why",), code or EXIT_RUNTIME)

    def _finish(self, problems: tuple[str, ...], code: int) -> None:
        took_s = round(time.monotonic() - self._began_at, 3)
        self._is_impatient = False
        self.last = Result(problems, code, self._changes, self._warnings, took_s, time.time())
        self.totals["failure" if problems else "success"] += 1
        self.stage, self._next = Stage.IDLE, None
        if problems:
            log.error("reload failed, the configuration before goes on", took_s=took_s, problems=problems)
        else:
            log.info("reloaded", took_s=took_s, revision=self._fleet.revision)
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
        self._old = []
        self._replies += self._next_replies
        self._is_asked, self._next_replies = False, []
        if self.is_active or self._replies:
            self._finish(("the daemon is stopping",), EXIT_RUNTIME)

    def abandon(self) -> None:
        """In a child: closes what belongs to the pre-flight."""
        if self._preflight is not None:
            self._preflight.abandon()
