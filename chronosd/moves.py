"""What an operator does to one task, or to many: page by page, at a pace, up to a limit, and somebody is told
how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from chronosd.broker.enqueue import Holder
from chronosd.broker.facts import ListedTask
from chronosd.broker.inspect import server_time
from chronosd.broker.keys import Namespace, QueueKeys
from chronosd.broker.operate import delete_task, run_task
from chronosd.broker.pages import PAGE, WAITING, Page, purge_page, run_page
from chronosd.broker.runner import SyncRunner
from chronosd.broker.workflow import Afterwards
from chronosd.errors import DuplicateTask, TaskActive, TaskNotFound
from chronosd.states import State

__all__ = ["WAITING", "Matching", "Moves", "Page", "delete_one", "purge", "run_all", "run_one"]

_PACE_S = 0.1  # a page of a paced run is what may go in this time


@dataclass(frozen=True, slots=True)
class Matching:
    """Which dead letters are meant; every condition that is given has to hold."""

    kind: str | None = None
    error: str | None = None
    """A part of the error, in whatever case."""
    since: float | None = None
    """Unix seconds by the server's clock: when it died, at the earliest."""

    def __call__(self, task: ListedTask) -> bool:
        if self.kind is not None and task.kind != self.kind:
            return False
        if self.since is not None and (task.at is None or task.at < self.since):
            return False
        if self.error is None:
            return True
        return self.error.casefold() in f"{task.last_err}\n{task.error}".casefold()


@dataclass(slots=True)
class Moves:
    """What became of many tasks."""

    seen: int = 0
    """How many were looked at."""
    moved: int = 0
    """How many were run or deleted; on a dry run, how many would have been."""
    refused: int = 0
    """How many were not run, because another task has their unique lock."""
    states: Mapping[str, int] = field(default_factory=dict)
    """By state: how many were deleted."""


def run_one(runner: SyncRunner, queue: QueueKeys, task_id: str) -> bool:
    """Makes a task ready at once; False if it was.

    Raises TaskNotFound, TaskActive if it is running, DuplicateTask if another task has its unique lock,
    BrokerError.
    """
    word = runner.drive(run_task(queue, task_id))
    if isinstance(word, Holder):
        raise DuplicateTask(
            f"task {word.task_id!r} has the unique lock of task {task_id!r} in queue {queue.name!r}",
            task_id=word.task_id,
            state=word.state,
        )
    if word == "absent":
        raise TaskNotFound(f"no task {task_id!r} in queue {queue.name!r}")
    if word in ("active", "changed"):
        raise TaskActive(f"task {task_id!r} in queue {queue.name!r} is running")
    return word == "moved"


def delete_one(
    runner: SyncRunner,
    namespace: Namespace,
    queue: QueueKeys,
    task_id: str,
    *,
    force: bool,
    then: Afterwards,
) -> None:
    """Deletes a task; ``then`` as for :func:`purge`.

    Raises TaskNotFound, TaskActive if it is running and not forced, BrokerError.
    """
    word = runner.drive(delete_task(namespace, queue, task_id, force=force, then=then))
    if word == "absent":
        raise TaskNotFound(f"no task {task_id!r} in queue {queue.name!r}")
    if word == "active":
        raise TaskActive(f"task {task_id!r} in queue {queue.name!r} is running: cancel it instead")


def run_all(
    runner: SyncRunner,
    queue: QueueKeys,
    matching: Matching,
    *,
    limit: int | None,
    rate: float | None,
    dry_run: bool,
    on_page: Callable[[Page], None],
) -> Moves:
    """Runs the dead letters of a queue again. ``rate`` is tasks a second. Raises BrokerError."""
    until = runner.run(server_time())
    done = Moves()
    after, began_at = "", time.monotonic()
    while limit is None or done.moved < limit:
        most = PAGE if rate is None else max(1, min(PAGE, int(rate * _PACE_S)))
        if limit is not None:
            most = min(most, limit - done.moved)
        steps = run_page(queue, after, most, until=until, matches=matching, dry_run=dry_run)
        page = runner.drive(steps)
        done.seen += page.seen
        done.moved += len(page.moved)
        done.refused += len(page.refused)
        on_page(page)
        after = page.next
        if not after:
            break
        if rate is not None and not dry_run:
            time.sleep(max(began_at + done.moved / rate - time.monotonic(), 0.0))
    return done


def purge(
    runner: SyncRunner,
    namespace: Namespace,
    queue: QueueKeys,
    states: Iterable[State],
    *,
    then: Afterwards,
    on_page: Callable[[Page], None],
) -> Moves:
    """Deletes the tasks of a queue that are in the given states.

    Args:
        then: what follows where a group ends with one of its members.

    Raises BrokerError.
    """
    until = runner.run(server_time())
    done, counts = Moves(), {}
    for state in states:
        counts[state.label] = 0
        after = ""
        while True:
            page = runner.drive(purge_page(namespace, queue, state, after, until=until, then=then))
            done.seen += page.seen
            done.moved += len(page.moved)
            counts[state.label] += len(page.moved)
            on_page(page)
            after = page.next
            if not after:
                break
    done.states = counts
    return done
