"""The task that a command is about, as it is named on the command line: ``[QUEUE] ID``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from chronosd.inspector import Inspector, TaskDetails

Named = tuple[str, str | None]
"""Its id, and its queue if one was given."""


def _parse(_ctx: click.Context, _param: click.Parameter, words: tuple[str, ...]) -> Named:
    if len(words) > 2:
        raise click.UsageError("takes a task's id, or a queue and an id")
    return words[-1], words[0] if len(words) == 2 else None


task_argument = click.argument("named", metavar="[QUEUE] ID", nargs=-1, required=True, callback=_parse)


def look_up(inspector: Inspector, named: Named) -> TaskDetails:
    """All that is stored of it. Raises TaskNotFound, also if it is in several queues and none was given."""
    task_id, queue = named
    return inspector.find_task(task_id) if queue is None else inspector.show_task(queue, task_id)
