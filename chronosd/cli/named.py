"""What a command is about, as it is named on the command line: a task as ``[QUEUE] ID``, or a queue."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from chronosd.cli.output import shown

if TYPE_CHECKING:
    from chronosd.cli.options import Server
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


def known_queues(
    server: Server, inspector: Inspector, names: Sequence[str], *, changes: bool = False
) -> None:
    """A name with a typo in it must not look like a queue that is empty. Raises ClickException."""
    known = {*inspector.queue_names(), *inspector.paused_queues()}
    if server.config is not None:
        known.update(server.config.queues)
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {shown(near[0])}?" if near else "`chronosd queue ls` lists them"
            nothing = ", nothing was changed" if changes else ""
            raise click.ClickException(f"no queue {shown(name)}{nothing}; {hint}")
