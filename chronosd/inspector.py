"""What the command line shows, for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from chronosd.broker import consumers, inspect, pause
from chronosd.broker.cancel import Cancellation
from chronosd.broker.cancelling import cancel_anywhere
from chronosd.broker.consumers import Consumer, QueueDetails, name_entries
from chronosd.broker.dead_letter import DeadLetters
from chronosd.broker.finding import Expected, Finding
from chronosd.broker.inspect import ListedTask, QueueStats, ServerInfo, TaskDetails, TaskPage
from chronosd.broker.keys import QueueKeys
from chronosd.broker.pages import WAITING
from chronosd.broker.runner import SyncRunner
from chronosd.broker.schedule import schedules_of
from chronosd.broker.timetable import ScheduleInfo, timetable
from chronosd.broker.workflow import nothing_more
from chronosd.client_settings import ClientSettings, settings, settings_of_file
from chronosd.config.schema import Config, DeadLetterConfig
from chronosd.errors import TaskNotFound
from chronosd.examination import Examination, examine, possible
from chronosd.moves import Matching, Moves, Page, delete_one, purge, run_all, run_one
from chronosd.states import State, state_named
from chronosd.submission import DEFAULT_TIMEOUT_S

__all__ = [
    "Cancellation",
    "CancelledTask",
    "Consumer",
    "Examination",
    "Expected",
    "Finding",
    "Inspector",
    "ListedTask",
    "Moves",
    "Page",
    "QueueDetails",
    "QueueStats",
    "ScheduleInfo",
    "ServerInfo",
    "TaskDetails",
    "TaskPage",
]


@dataclass(frozen=True, slots=True)
class CancelledTask:
    """What a cancellation found, and did."""

    id: str
    queue: str
    done: Cancellation


class Inspector:
    """Looks into the queues, and does to tasks what an operator may. Usable from any thread; connects when
    first used.

    Args:
        url: ``redis://``, ``rediss://``, ``unix://`` or ``embedded://``; default: $CHRONOSD_REDIS_URL.
        namespace: the prefix of all keys; the same as the daemon's.
        password: used where the URL has none.
        timeout: the most that one round trip may take, connecting included.
        on_dead_letter: what follows where a deletion or a cancellation ends a group, whose callback is then
            a dead letter; as in the configuration.

    Every method raises BrokerUnavailable or BrokerRefused where the server cannot be asked.

    Raises:
        ConfigError: no URL, or one of an unknown form.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str = "chronos",
        password: str | None = None,
        timeout: str | float | timedelta = DEFAULT_TIMEOUT_S,
        on_dead_letter: DeadLetterConfig | None = None,
    ) -> None:
        given = settings(url, namespace=namespace, password=password, timeout=timeout)
        self._use(replace(given, on_dead_letter=on_dead_letter))

    @classmethod
    def from_config(cls, path: str | Path, *, timeout: str | float | timedelta = DEFAULT_TIMEOUT_S) -> Self:
        """An inspector for the server and namespace of a chronos.yaml. Raises ConfigError."""
        inspector = cls.__new__(cls)
        inspector._use(settings_of_file(path, timeout))
        return inspector

    def _use(self, given: ClientSettings) -> None:
        self._namespace = given.drafter.namespace
        letters = DeadLetters.following_in(self._namespace, given.on_dead_letter)
        self._then = nothing_more if letters is None else letters.following
        self._runner = SyncRunner(
            given.url, given.password, timeout_s=given.timeout_s, client_name="chronosd-inspector"
        )

    @property
    def namespace(self) -> str:
        """The prefix of all keys."""
        return self._namespace.prefix

    def server_info(self) -> ServerInfo:
        """Version, run id, uptime, eviction policy and append-only file of the server."""
        return self._runner.run(inspect.server_info())

    def server_time(self) -> float:
        """The server's clock, in unix seconds; all instants in Redis are by it."""
        return self._runner.run(inspect.server_time())

    def queue_names(self) -> tuple[str, ...]:
        """Every queue that was ever enqueued to, sorted."""
        return self._runner.drive(inspect.queue_names(self._namespace))

    def queue_stats(self, queue: str) -> QueueStats:
        """How many tasks of a queue are in each state; all zero if there is no such queue.

        Raises InvalidTask for a name that cannot be a queue's.
        """
        return self._runner.drive(inspect.queue_stats(self._namespace, self._namespace.queue(queue)))

    def stats_of(self, queues: Iterable[str]) -> tuple[QueueStats, ...]:
        """:meth:`queue_stats` of many queues at once; names that cannot be a queue's are left out."""
        keys = [self._namespace.queue(name) for name in possible(self._namespace, queues)]
        return tuple(self._runner.drive(inspect.stats_of(self._namespace, keys)))

    def queue_details(self, queue: str, silent_s: float = consumers.SILENT_S) -> QueueDetails:
        """A queue with its group and consumers.

        Args:
            silent_s: a consumer that was not heard of for so many seconds is stale: the `recover_min_idle`
                of the daemons.

        Raises InvalidTask for a name that cannot be a queue's.
        """
        keys = self._namespace.queue(queue)
        return self._runner.drive(consumers.queue_details(self._namespace, keys, silent_s))

    def pause(self, queue: str) -> bool:
        """Has nobody, on any host, start further tasks of a queue, from within a second on; what runs is
        finished. True if it was not paused before. Raises InvalidTask for a name that cannot be a queue's.
        """
        return self._runner.run(pause.pause(self._namespace, self._namespace.queue(queue).name))

    def resume(self, queue: str) -> bool:
        """Ends a pause, within a second. True if the queue was paused before. Takes any name: the set may
        hold one that cannot be a queue's here.
        """
        return self._runner.run(pause.resume(self._namespace, queue))

    def paused_queues(self) -> tuple[str, ...]:
        """The names of all paused queues, sorted; there may be some that no queue has."""
        return self._runner.drive(inspect.paused_names(self._namespace))

    def schedules(self, config: Config | None = None) -> tuple[ScheduleInfo, ...]:
        """Every schedule that a daemon or a Go service has registered, by name, with its next five times.

        Args:
            config: a configuration whose schedules are listed too, whether or not a daemon has them.
        """
        configured = () if config is None else schedules_of(config)
        return tuple(self._runner.drive(timetable(self._namespace, configured)))

    def list_tasks(self, queue: str, state: State | str, after: str = "", limit: int = 50) -> TaskPage:
        """A page of a queue's tasks in one state.

        Args:
            state: a State, or its lower-case name.
            after: ``next`` of the page before; empty for the first page.
            limit: the most to list, up to 500.

        Raises InvalidTask for a queue that cannot be one, ValueError for another state or ``after``.
        """
        keys = self._namespace.queue(queue)
        return self._runner.drive(inspect.list_tasks(keys, state_named(state), after, limit))

    def show_task(self, queue: str, task_id: str) -> TaskDetails:
        """All that is stored of one task. Raises TaskNotFound."""
        _check_id(task_id)
        found = self._runner.run(inspect.show_task(self._namespace.queue(queue), task_id))
        if found is None:
            raise TaskNotFound(f"no task {task_id!r} in queue {queue!r}")
        return found

    def find_task(self, task_id: str) -> TaskDetails:
        """The task of that id, in whatever queue. Raises TaskNotFound, also if several queues have one."""
        return self.show_task(self._where(task_id, None).name, task_id)

    def _where(self, task_id: str, queue: str | None) -> QueueKeys:
        """The queue of a task; looked for if none is given."""
        _check_id(task_id)
        if queue is not None:
            return self._namespace.queue(queue)
        return self._runner.drive(inspect.queue_having(self._namespace, task_id))

    def name_entries(self, entries: Iterable[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, str]]:
        """Id and kind of the tasks of stream entries, given as (queue, entry); unknown ones are left out."""
        return self._runner.drive(name_entries(self._namespace, entries))

    def cancel(self, task_id: str, queue: str | None = None, *, force: bool = False) -> CancelledTask:
        """Cancels a task: one that waits is deleted, one that runs is told to end and does not run again.

        An async handler is cancelled within about a second. A sync one cannot be: it runs on, and a success
        of it counts; with ``force`` its worker is killed, whose other tasks go back uncharged. A task that
        was cancelled while it ran is archived with the error ``cancelled``.

        Args:
            queue: where it is; without it, all queues are looked through.

        Raises TaskNotFound, BrokerUnavailable, BrokerRefused.
        """
        _check_id(task_id)
        keys = None if queue is None else self._namespace.queue(queue)
        steps = cancel_anywhere(self._namespace, task_id, keys, force=force, then=self._then)
        where, done = self._runner.drive(steps)
        return CancelledTask(task_id, where, done)

    def run_task(self, task_id: str, queue: str | None = None) -> bool:
        """Makes a task ready at once: one that waits for a time, is dead-lettered, or is kept as completed.

        One that had ended begins anew under its id, with all its retries and nothing of its crashes, and has
        its unique lock again. Returns False if it was ready already.

        Args:
            queue: where it is; without it, all queues are looked through.

        Raises TaskNotFound, TaskActive if it is running, DuplicateTask if another task has its unique lock.
        """
        return run_one(self._runner, self._where(task_id, queue), task_id)

    def run_all(
        self,
        queue: str,
        *,
        kind: str | None = None,
        error: str | None = None,
        since: float | None = None,
        limit: int | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        on_page: Callable[[Page], None] = lambda page: None,
    ) -> Moves:
        """Runs the dead letters of a queue again, oldest first; those that die meanwhile are left alone.

        Args:
            kind, error, since: only those of this kind, with this text in their error, that died at this
                unix time or later.
            limit: the most to run.
            rate: tasks a second; as fast as it goes by default.
            dry_run: nothing is run; ``on_page`` is told what would be.
            on_page: called with each page of up to 200.
        """
        return run_all(
            self._runner,
            self._namespace.queue(queue),
            Matching(kind, error, since),
            limit=limit,
            rate=rate,
            dry_run=dry_run,
            on_page=on_page,
        )

    def delete_task(self, task_id: str, queue: str | None = None, *, force: bool = False) -> None:
        """Deletes a task and its unique lock, wherever it is. A group that it was a member of ends.

        Args:
            queue: where it is; without it, all queues are looked through.
            force: also if it is running: its handler goes on, and whatever it comes to is dropped.

        Raises TaskNotFound, TaskActive if it is running: see :meth:`cancel`.
        """
        keys = self._where(task_id, queue)
        delete_one(self._runner, self._namespace, keys, task_id, force=force, then=self._then)

    def purge(
        self,
        queue: str,
        states: Iterable[State | str] = WAITING,
        *,
        on_page: Callable[[Page], None] = lambda page: None,
    ) -> Moves:
        """Deletes the tasks of a queue, with their unique locks.

        Args:
            states: by default what has yet to run: pending, scheduled, retry.
            on_page: called with each page of up to 200.

        Raises ValueError for ``active``: what runs cannot be purged.
        """
        chosen = [state_named(state) for state in states]
        if State.ACTIVE in chosen:
            raise ValueError("states: active tasks cannot be purged; cancel them, or stop the workers")
        keys = self._namespace.queue(queue)
        return purge(self._runner, self._namespace, keys, chosen, then=self._then, on_page=on_page)

    def examine(self, *, deep: bool = False, expected: Expected | None = None) -> Examination:
        """Looks for what is wrong with the server and the queues, and how to mend it.

        Args:
            deep: proves of every single task that it is in exactly one place. Reads everything, in pages;
                tasks that move meanwhile are looked at again before anything is said of them.
            expected: what the configuration says; by default its own defaults.
        """
        return examine(self._runner, self._namespace, expected or Expected(), deep=deep)

    def close(self) -> None:
        """Closes the connections; the inspector can be used again."""
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Inspector({self._runner.target.label!r}, namespace={self.namespace!r})"


def _check_id(task_id: str) -> None:
    """An id that is no UTF-8 (a shell passes such bytes on as lone surrogates) is no task's."""
    try:
        task_id.encode()
    except UnicodeEncodeError:
        raise TaskNotFound(f"no task {task_id!r}: the id is not UTF-8") from None
