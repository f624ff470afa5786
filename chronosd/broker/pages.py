"""What an operator does to many tasks, page by page: run the dead letters again, purge a queue.

Nothing here asks for all keys or a whole set: a page has at most 200 tasks and 4 MiB of messages and takes
two round trips, each of a few milliseconds, so that a server with millions of tasks serves everybody else
meanwhile. A message that is longer than that is a page of its own, and read by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from chronosd.broker.commands import REPLY_BYTES, Command, Steps, call, script, text
from chronosd.broker.consume import body
from chronosd.broker.enqueue import Holder
from chronosd.broker.facts import ListedTask, described, number, seconds
from chronosd.broker.keys import GROUP, Namespace, QueueKeys
from chronosd.broker.operate import ToDelete, ToRun, delete_tasks, ended_groups, run_tasks, to_run
from chronosd.broker.workflow import Afterwards, nothing_more
from chronosd.errors import BrokerError
from chronosd.states import WAITING_SETS, State

PAGE: Final = 200
"""Tasks that one page has at most."""

WAITING: tuple[State, ...] = (State.PENDING, *WAITING_SETS)
"""What a purge deletes by itself: all that is still to be run, and nothing that has been."""


@dataclass(slots=True)
class Page:
    """What became of one page."""

    seen: int = 0
    moved: list[ListedTask] = field(default_factory=list)
    """Run or deleted; on a dry run those that would have been."""
    refused: list[tuple[ListedTask, Holder]] = field(default_factory=list)
    """Not run: another task has their unique lock."""
    next: str = ""
    """Where the next page begins; empty at the end."""


class _Row(NamedTuple):
    task: ListedTask
    raw: bytes | None


def run_page(
    queue: QueueKeys,
    after: str,
    limit: int,
    *,
    until: float,
    matches: Callable[[ListedTask], bool] = lambda task: True,
    dry_run: bool = False,
) -> Steps[Page]:
    """Runs the dead letters of one page that match.

    Args:
        after: ``Page.next`` of the page before; empty for the first.
        limit: the most to run.
        until: unix seconds by the server's clock: what has died later is left alone, or what fails at once
            would be run for ever.

    Raises BrokerError.
    """
    offset = int(after or 0)
    rows, is_last = yield from _rows(queue, State.ARCHIVED, offset)
    page = Page()
    chosen: list[_Row] = []
    for row in rows:
        if row.task.at is not None and row.task.at > until:
            break
        if len(chosen) == limit:
            break
        page.seen += 1
        if row.raw is not None and matches(row.task):
            chosen.append(row)
    moved = 0
    if dry_run:
        page.moved = [row.task for row in chosen]
    elif chosen:
        words = yield from _run(queue, chosen)
        for row, word in zip(chosen, words, strict=True):
            if isinstance(word, Holder):
                page.refused.append((row.task, word))
            elif word == "moved":
                page.moved.append(row.task)
            moved += word in ("moved", "pending", "active")
    if (is_last and page.seen == len(rows)) or (page.seen < len(rows) and len(chosen) < limit):
        return page
    page.next = str(offset + page.seen - moved)
    return page


def _run(queue: QueueKeys, rows: Sequence[_Row]) -> Steps[list[str | Holder]]:
    commands: list[Command[list[str | Holder]]] = []
    batch: list[ToRun] = []
    size = 0
    for row in rows:
        one = to_run(row.task.id, row.raw or b"", State.ARCHIVED)
        if batch and size + len(one.msg) > REPLY_BYTES:
            commands.append(run_tasks(queue, batch))
            batch, size = [], 0
        batch.append(one)
        size += len(one.msg)
    commands.append(run_tasks(queue, batch))
    words: list[str | Holder] = []
    for command in commands:
        (reply,) = yield [command]
        if isinstance(reply, BrokerError):
            raise reply
        words += reply
    return words


def purge_page(
    namespace: Namespace,
    queue: QueueKeys,
    state: State,
    after: str,
    *,
    until: float,
    then: Afterwards = nothing_more,
) -> Steps[Page]:
    """Deletes a page of the tasks in one state; `after` as for `run_page`, `then` as for `delete_task`.

    Args:
        until: unix seconds by the server's clock: ready tasks that came later are left alone.

    Raises BrokerError.
    """
    page = Page()
    if state is State.PENDING:
        args: list[Any] = [GROUP, after, PAGE, queue.task_prefix, REPLY_BYTES]
        (found,) = yield [call(script("list_ready"), (queue.stream,), args)]
        if isinstance(found, BrokerError):
            raise found
        found, is_last = _fitting(found)
        rows = []
        for entry, task_id, msg, size, *_ in found:
            if int(text(entry).partition("-")[0]) > until * 1000:
                is_last = True
                break
            task = ListedTask(queue.name, state, text(task_id), entry=text(entry), size=int(size))
            rows.append(_Row(task, (yield from _whole(queue, task.id, msg, size))))
        page.next = "" if is_last else rows[-1].task.entry
    else:
        offset = int(after or 0)
        rows, is_last = yield from _rows(queue, state, offset)
    page.seen = len(rows)
    if not rows:
        return page
    doomed = [
        ToDelete(row.task.id, row.task.entry, state, ended_groups(namespace, row.raw, state, then))
        for row in rows
    ]
    (words,) = yield [delete_tasks(queue, doomed)]
    if isinstance(words, BrokerError):
        raise words
    page.moved = [row.task for row, word in zip(rows, words, strict=True) if word == "deleted"]
    if state is not State.PENDING:
        kept = sum(word in ("active", "changed") for word in words)
        page.next = "" if is_last else str(offset + kept)
    return page


def _rows(queue: QueueKeys, state: State, offset: int) -> Steps[tuple[list[_Row], bool]]:
    """A page of a set, and whether it is the last."""
    args = [offset, PAGE, queue.task_prefix, REPLY_BYTES]
    (found,) = yield [call(script("list_set"), (queue.set_of(state),), args)]
    if isinstance(found, BrokerError):
        raise found
    found, is_last = _fitting(found)
    rows: list[_Row] = []
    for task_id, score, msg, size, _, crashes, enqueued_at, error, _ in found:
        raw = yield from _whole(queue, text(task_id), msg, size)
        task = ListedTask(
            queue.name,
            state,
            text(task_id),
            at=float(score),
            size=int(size),
            crashes=number(crashes),
            enqueued_at=seconds(enqueued_at, 1000),
            error=text(error),
        )
        rows.append(_Row(described(task, raw), raw))
    return rows, is_last


def _fitting(found: Sequence[Any]) -> tuple[Sequence[Any], bool]:
    """The rows of a listing up to the first message that had no room in the reply, and whether that is all
    there was. It may be the first row itself."""
    for at, (_, _, msg, size, *_) in enumerate(found):
        if at and msg is None and size:
            return found[:at], False
    return found, len(found) < PAGE


def _whole(queue: QueueKeys, task_id: str, msg: bytes | None, size: int) -> Steps[bytes | None]:
    """A message that was too long for the common reply, read by itself: it may be as long as Redis allows."""
    if msg is not None or not size:
        return msg
    (raw,) = yield [body(queue, task_id)]
    if isinstance(raw, BrokerError):
        raise raw
    found: bytes | None = raw
    return found
