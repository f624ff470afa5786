"""A chain or group on its way to the server: its ids, its messages, its requests. No I/O."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from chronosd.broker.commands import Command
from chronosd.broker.enqueue import NewTask
from chronosd.broker.groups import NewMember, new_group
from chronosd.broker.keys import QueueKeys
from chronosd.broker.message import Message, encode
from chronosd.broker.workflow import link_of
from chronosd.errors import PayloadTooLarge
from chronosd.submission import Draft, Drafter, TaskInfo, new_id
from chronosd.trace import current as current_trace
from chronosd.workflow_step import Step, named, waiting_ms
from chronosd.workflows import Chain, ChainInfo, Group, GroupInfo

MOST_BYTES: Final = 16 << 20
"""The longest a chain may be, all its arguments together: every link carries all that are still to come."""


class ChainPlan:
    """A chain with its ids, as a client of this namespace stores it.

    Raises: InvalidTask, PayloadTooLarge.
    """

    def __init__(self, drafter: Drafter, chain: Chain) -> None:
        chain.check()
        _check_sizes(drafter, chain)
        self.id = new_id()
        message, first = chain.first(self.id)
        self.draft = _draft(drafter, message, first)
        if len(self.draft.new.msg) > MOST_BYTES:
            raise PayloadTooLarge(
                f"the chain is {len(self.draft.new.msg)} bytes long, at most {MOST_BYTES} are taken"
            )

    def accepted(self, first: TaskInfo) -> ChainInfo:
        """The chain as the server took its first link."""
        return ChainInfo(self.id, first)


class GroupPlan:
    """A group with its ids, as a client of this namespace stores it.

    Raises: InvalidTask, PayloadTooLarge.
    """

    def __init__(self, drafter: Drafter, group: Group) -> None:
        group.check()
        _check_sizes(drafter, group)
        self.id = new_id()
        end = group.end
        self._namespace = drafter.namespace
        self._callback: QueueKeys = drafter.namespace.queue(end.message.queue)
        callback = link_of(end.message, end.delay_ms)
        shared = {
            "group_id": self.id,
            "group_queue": end.message.queue,
            "group_callback": callback,
            "group_size": len(group),
        }
        self.drafts: list[Draft] = []
        self.members: list[NewMember] = []
        for index, member in enumerate(group.members):
            slot = f"{self.id}:m{index}"
            fields: dict[str, Any] = {**shared, "group_index": index}
            if isinstance(member, Chain):
                message, first = member.first(slot)
                message.workflow |= fields | {"group_member_id": slot}
            else:
                message, first = named(member.message, slot, fields), member
            draft = _draft(drafter, message, first)
            self.drafts.append(draft)
            waits_s = math.ceil(waiting_ms(_all_steps([member])) / 1000)
            self.members.append(NewMember(slot, draft.queue, draft.new, waits_s))

    @property
    def members_key(self) -> str:
        """The key of the set of its open members."""
        return self._callback.group(self.id)

    @property
    def commands(self) -> list[Command[Any]]:
        """The requests that make it, one after the other; only the last one makes anything run."""
        return new_group(self._namespace, self._callback, self.id, self.members)

    def accepted(self) -> GroupInfo:
        """The group as the server took it."""
        members = tuple(draft.accepted(draft.state.label) for draft in self.drafts)
        return GroupInfo(self.id, members, f"{self.id}:cb")


def _draft(drafter: Drafter, message: Message, step: Step) -> Draft:
    state = step.state
    new = NewTask(message.id, encode(message, state), step.delay_ms, step.at_ms, trace=current_trace())
    queue = drafter.namespace.queue(message.queue)
    return Draft(new, message.kind, queue, state, message.max_retry, message.retention)


def _all_steps(steps: Sequence[Step | Chain | Group]) -> Iterator[Step]:
    for step in steps:
        if isinstance(step, Step):
            yield step
        elif isinstance(step, Chain):
            yield from _all_steps(step.steps)
        else:
            yield from _all_steps([*step.members, step.end])


def _check_sizes(drafter: Drafter, given: Chain | Group) -> None:
    for step in _all_steps([given]):
        size = len(step.message.payload)
        if size > drafter.max_payload:
            raise PayloadTooLarge(
                f"{step.message.kind}: the arguments are {size} bytes long,"
                f" at most {drafter.max_payload} are taken"
            )
