"""Timed work against Redis, one bounded round trip at a time.

Each kind of work (forwarding, leases, recovery ...) is an object whose ``run_once`` is a generator of
commands that returns counts. A :class:`Step` drives it: every :meth:`Step.advance` is one round trip, after
which the loop looks at its signals and deaths again. An error ends the pass, never the step: it is logged
when it begins and when it is over, backed off with jitter, and tried again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from chronosd.broker.commands import Command, Steps
from chronosd.errors import BrokerError, Trouble
from chronosd.log import get_logger
from chronosd.supervisor.tenths import aligned

log = get_logger("chronosd.supervisor")

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

_BACKOFF_FIRST_S = 0.1
_BACKOFF_CAP_S = 5.0


class Runner(Protocol):
    """Executes commands; every call is one round trip that ends within its deadline."""

    def run_many(self, commands: Sequence[Command[Any]], /) -> list[Any]: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Done:
    """What one pass did."""

    counts: Mapping[str, int] = field(default_factory=dict)
    next_in_s: float | None = None
    """When the next pass should begin; None for the usual interval, or up to a tenth of a second sooner."""
    errors: Mapping[str, BrokerError] = field(default_factory=dict)
    """By queue: what went wrong there while the others went on."""


class Work(Protocol):
    """One kind of timed work."""

    @property
    def name(self) -> str: ...
    @property
    def interval_s(self) -> float: ...
    def run_once(self) -> Steps[Done]: ...


class Step:
    """Drives one kind of work. Instants are monotonic."""

    def __init__(
        self,
        work: Work,
        *,
        now: float,
        random: Callable[[], float] = random.random,
    ) -> None:
        self.work = work
        self.due_at = now
        self.returned_at = now
        """When it last came back, with success or with an error that was understood."""
        self.totals: dict[str, int] = {}
        self._pass: Steps[Done] | None = None
        self._commands: list[Command[Any]] | None = None
        self._failures = 0
        self.troubles: dict[str, str] = {}
        """By queue: what hinders it, as long as it does."""
        self.lost_group = False
        """Whether the last pass met a queue without its group."""
        self._random = random

    @property
    def name(self) -> str:
        return self.work.name

    @property
    def deadline_s(self) -> float:
        """How long it may be silent before it counts as stuck."""
        return max(10.0, 3 * self.work.interval_s)

    def poke(self, now: float) -> None:
        """Makes it due now."""
        self.due_at = min(self.due_at, now)

    def take(self, work: Work, now: float) -> None:
        """Goes on with other work of the same name; a pass under way is dropped between two round trips."""
        self.work = work
        self._pass = None
        self.returned_at = now
        self.poke(now)

    def rest(self, now: float) -> None:
        """Redis is away, which counts as an attempt: the step is not stuck, it has nothing to work with."""
        self._pass = None
        self.returned_at = now

    def advance(self, runner: Runner, now: float) -> BrokerError | None:
        """One round trip; returns the error if it was the connection's, which concerns every step."""
        try:
            if self._pass is None:
                self._pass = self.work.run_once()
                self._commands = next(self._pass)
            results = runner.run_many(self._commands) if self._commands else []
            _raise_lost_connection(results)
            self._commands = self._pass.send(results)
            self.due_at = now  # the rest of the pass, after a look at everything else
        except StopIteration as end:
            self._pass = None
            self._finish(end.value, now)
        except BrokerError as error:
            self._pass = None
            self.returned_at = now
            if error.trouble is Trouble.RECONNECT:
                self.due_at = now + self._backoff()
                return error
            self._finish(Done(errors={"": error}), now)
        except Exception:
            # A fault in the work itself. The step goes on: delayed tasks must not stop for ever because
            # one pass met something nobody had thought of. Not counted as progress, so that a step which
            # always fails like this withholds the watchdog.
            self._pass = None
            self._failures += 1
            self.due_at = now + self._backoff()
            log.exception("step failed", step=self.name)
        return None

    def _finish(self, done: Done, now: float) -> None:
        self.returned_at = now
        for name, count in done.counts.items():
            self.totals[name] = self.totals.get(name, 0) + count
        self._note(done.errors)
        if done.errors and not done.counts:
            self._failures += 1
            self.due_at = now + self._backoff()
            return
        self._failures = 0
        if done.next_in_s is None:
            self.due_at = aligned(now + self.work.interval_s, now)
        else:
            self.due_at = now + done.next_in_s

    def _note(self, errors: Mapping[str, BrokerError]) -> None:
        """Logs what has changed since the last pass, and only that."""
        self.lost_group = any(error.trouble is Trouble.RECREATE for error in errors.values())
        for queue, error in errors.items():
            if error.trouble is not Trouble.RECREATE and self.troubles.get(queue) != str(error):
                log.warning("step hindered", step=self.name, queue=queue or None, error=str(error))
        for queue in self.troubles.keys() - errors.keys():
            log.info("step resumed", step=self.name, queue=queue or None)
        self.troubles = {q: str(e) for q, e in errors.items() if e.trouble is not Trouble.RECREATE}

    def _backoff(self) -> float:
        delay = min(_BACKOFF_FIRST_S * 2.0 ** min(self._failures, 16), _BACKOFF_CAP_S)
        return delay * (0.5 + 0.5 * self._random())


def _raise_lost_connection(results: Sequence[Any]) -> None:
    for result in results:
        if isinstance(result, BrokerError) and result.trouble is Trouble.RECONNECT:
            raise result


def together(works: Mapping[K, Steps[T]]) -> Steps[tuple[dict[K, T], dict[K, BrokerError]]]:
    """Runs procedures side by side: each of their round trips is shared by all that are not done yet.

    Returns what they returned, and the errors of those that failed: one queue whose key has the wrong
    type does not hold up its neighbours.
    """
    results: dict[K, T] = {}
    errors: dict[K, BrokerError] = {}
    waiting: dict[K, list[Command[Any]]] = {}

    def step(key: K, replies: list[Any] | None) -> None:
        try:
            waiting[key] = works[key].send(replies)  # type: ignore[arg-type] # None begins it
        except StopIteration as end:
            results[key] = end.value
        except BrokerError as error:
            errors[key] = error

    for key in works:
        step(key, None)
    while waiting:
        batch, waiting = waiting, {}
        replies = yield [command for commands in batch.values() for command in commands]
        at = 0
        for key, commands in batch.items():
            step(key, replies[at : at + len(commands)])
            at += len(commands)
    return results, errors
