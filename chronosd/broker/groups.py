"""Storing new groups. A group is there as a whole or not at all, however its producer ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from chronosd.broker.commands import BATCH, Command, call, script, text
from chronosd.broker.enqueue import NewTask, when
from chronosd.broker.keys import Namespace, QueueKeys
from chronosd.broker.workflow import GROUP_S

STAGED_S: Final = 600
"""For how long messages that were put down wait for the rest of their group."""

REQUEST_BYTES: Final = 4 << 20
"""The most message bytes that one request carries."""


@dataclass(frozen=True, slots=True)
class NewMember:
    """A member of a new group, as it goes to the server."""

    slot: str
    """What stands for it in the set of members; its id, unless it is the first link of a chain."""
    queue: QueueKeys
    task: NewTask
    waits_s: int = 0
    """All its delays together; its group lives that much longer."""


def stage_group(
    callback: QueueKeys, group_id: str, members: Sequence[NewMember], first: int = 0
) -> Command[int]:
    """Puts down the messages of members, beginning with number ``first``, for :func:`open_group`."""
    args: list[Any] = [STAGED_S]
    for index, member in enumerate(members, first):
        args += (index, member.task.msg)
    return call(script("stage_group"), (callback.group_bodies(group_id),), args)


def open_group(
    namespace: Namespace,
    callback: QueueKeys,
    group_id: str,
    members: Sequence[NewMember],
    *,
    is_staged: bool = False,
) -> Command[str]:
    """Enqueues a group with all its members: ``opened``, ``repeat`` (it is there, or has ended) or
    ``expired`` (what was put down was not opened in time; nothing was changed)."""
    queues = {member.queue.name: member.queue for member in members}
    numbers = {name: number for number, name in enumerate(queues, 1)}
    args: list[Any] = [GROUP_S + max(member.waits_s for member in members), len(queues)]
    for queue in queues.values():
        args += (queue.name, queue.stream, queue.scheduled, queue.task_prefix)
    for member in members:
        task = member.task
        args += (member.slot, numbers[member.queue.name], task.id)
        args += when(task)
        args.append(b"" if is_staged else task.msg)
    keys = (
        callback.group(group_id),
        callback.group_bodies(group_id),
        callback.task(f"{group_id}:cb"),
        namespace.queues,
    )
    return call(script("open_group"), keys, args, text)


def new_group(
    namespace: Namespace, callback: QueueKeys, group_id: str, members: Sequence[NewMember]
) -> list[Command[Any]]:
    """The requests that make a group, one after the other; only the last one makes anything run."""
    if len(members) <= BATCH and sum(len(member.task.msg) for member in members) <= REQUEST_BYTES:
        return [open_group(namespace, callback, group_id, members)]
    commands: list[Command[Any]] = []
    start = size = 0
    for end, member in enumerate(members):
        length = len(member.task.msg)
        if end > start and (end - start == BATCH or size + length > REQUEST_BYTES):
            commands.append(stage_group(callback, group_id, members[start:end], start))
            start, size = end, 0
        size += length
    commands.append(stage_group(callback, group_id, members[start:], start))
    return [*commands, open_group(namespace, callback, group_id, members, is_staged=True)]
