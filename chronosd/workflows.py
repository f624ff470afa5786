"""Chains and groups as a producer builds them: tasks that follow one another, tasks that run side by side.

::

    client.enqueue_chain(
        Chain().then("video:fetch", {"id": 7}).then("video:cut", {}).then("video:publish", {}, max_retry=3)
    )
    client.enqueue_group(
        Group().add("page:fetch", {"n": 1}).add("page:fetch", {"n": 2}).on_complete("report:build", {})
    )

A link is enqueued when the one before it has succeeded, and finds what that returned in
``task.prev_result(T)``; a group's callback when all its members have, with ``task.group_results(T)``. What
fails for good stops there, dead-lettered: run again, and successful, it goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar, Unpack, overload

from chronosd.broker.message import Message
from chronosd.broker.workflow import link_of
from chronosd.errors import InvalidTask
from chronosd.kinds import Kind
from chronosd.submission import NO_ARGS, TaskInfo
from chronosd.workflow_step import Step, StepOptions, check_delay, make_step, named, refuse_discard

T = TypeVar("T")

MOST_MEMBERS: Final = 10_000
"""The largest group: its beginning is one script, and so is its end, with all results in one message."""


@dataclass(frozen=True, slots=True)
class ChainInfo:
    """A chain that has been accepted."""

    id: str
    """Its link number ``i`` has the id ``<id>:<i>``."""
    first: TaskInfo


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group that has been accepted."""

    id: str
    members: tuple[TaskInfo, ...]
    """In order; of a chain its first link."""
    callback_id: str


class Chain:
    """Tasks that follow one another, each once the one before it has succeeded.

    Arguments are encoded when a step is added. A chain can be enqueued any number of times.
    """

    def __init__(self) -> None:
        self.steps: list[Step | Group] = []

    @overload
    def then(self, kind: Kind[T], args: T = ..., **options: Unpack[StepOptions]) -> Self: ...
    @overload
    def then(self, kind: str, args: Any = ..., **options: Unpack[StepOptions]) -> Self: ...

    def then(self, kind: Any, args: Any = NO_ARGS, **options: Unpack[StepOptions]) -> Self:
        """Adds a task. It finds what the step before returned in ``task.prev_result(T)``.

        Raises:
            InvalidTask: something about it cannot be stored, or has no place in a chain.
        """
        where = f"step {len(self.steps)} of the chain"
        step = make_step(where, kind, args, options)
        if self.steps and step.at_ms is not None:
            raise InvalidTask(f"{where}: at: it waits for the step before it; give it a delay")
        self.steps.append(step)
        return self

    def then_group(self, group: Group) -> Self:
        """Adds a group, whose callback stands for it: its result goes to the next step.

        Every member finds the result of the step before in ``task.prev_result(T)``. It must not change
        any more, may not hold chains, and cannot be a chain's first step.

        Raises:
            InvalidTask: the group has no place in a chain.
        """
        where = f"step {len(self.steps)} of the chain"
        if not isinstance(group, Group):
            raise InvalidTask(f"{where}: must be a Group (got {type(group).__name__})")
        if not self.steps:
            raise InvalidTask(f"{where}: a chain begins with a task; enqueue the group itself")
        group.check(where)
        for index, member in enumerate(group.members):
            if isinstance(member, Chain):
                raise InvalidTask(f"{where}, member {index}: a group within a chain may not hold a chain")
            if member.at_ms is not None:
                raise InvalidTask(
                    f"{where}, member {index}: at: it waits for the step before; give it a delay"
                )
        self.steps.append(group)
        return self

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        return f"Chain({' -> '.join(_shown(step) for step in self.steps)})"

    def check(self, where: str = "the chain") -> None:
        if not self.steps:
            raise InvalidTask(f"{where} is empty")
        for index, step in enumerate(self.steps[:-1]):
            task = step.end if isinstance(step, Group) else step
            if task.message.no_archive:
                raise InvalidTask(
                    f"{where}, step {index}: discard: only the last one may be discarded, with any other the"
                    " rest would be lost (a kind that is discarded by itself: discard=False)"
                )

    def links(self) -> list[dict[str, Any]]:
        """What comes after the first step, as that carries it."""
        return [
            step.link() if isinstance(step, Group) else link_of(step.message, step.delay_ms)
            for step in self.steps[1:]
        ]

    def first(self, chain_id: str) -> tuple[Message, Step]:
        first = self.steps[0]
        assert isinstance(first, Step)
        message = first.message
        fields = {"chain": self.links(), "chain_id": chain_id}
        return named(message, f"{chain_id}:0", fields), first


class Group:
    """Tasks that run side by side, and a callback that runs once all of them have succeeded.

    Arguments are encoded when a task is added. A group can be enqueued any number of times.
    """

    def __init__(self) -> None:
        self.members: list[Step | Chain] = []
        self._callback: Step | None = None

    @overload
    def add(self, kind: Kind[T], args: T = ..., **options: Unpack[StepOptions]) -> Self: ...
    @overload
    def add(self, kind: str, args: Any = ..., **options: Unpack[StepOptions]) -> Self: ...

    def add(self, kind: Any, args: Any = NO_ARGS, **options: Unpack[StepOptions]) -> Self:
        """Adds a member.

        Raises:
            InvalidTask: something about it cannot be stored, or has no place in a group.
        """
        where = f"member {len(self.members)} of the group"
        member = make_step(where, kind, args, options)
        refuse_discard(where, member)
        check_delay(where, [member])
        self.members.append(member)
        return self

    def add_chain(self, chain: Chain) -> Self:
        """Adds a chain as a member; the result of its last step is the member's. It must not change any more.

        Raises:
            InvalidTask: the chain is empty, holds a group, or has no place in one.
        """
        where = f"member {len(self.members)} of the group"
        if not isinstance(chain, Chain):
            raise InvalidTask(f"{where}: must be a Chain (got {type(chain).__name__})")
        chain.check(where)
        steps = [step for step in chain.steps if isinstance(step, Step)]
        if len(steps) < len(chain):
            raise InvalidTask(f"{where}: a chain within a group may not hold a group")
        for index, step in enumerate(steps):
            refuse_discard(f"{where}, step {index}", step)
        check_delay(where, steps)
        self.members.append(chain)
        return self

    @overload
    def on_complete(self, kind: Kind[T], args: T = ..., **options: Unpack[StepOptions]) -> Self: ...
    @overload
    def on_complete(self, kind: str, args: Any = ..., **options: Unpack[StepOptions]) -> Self: ...

    def on_complete(self, kind: Any, args: Any = NO_ARGS, **options: Unpack[StepOptions]) -> Self:
        """Sets the callback. It finds what the members returned in ``task.group_results(T)``.

        Raises:
            InvalidTask: something about it cannot be stored, or has no place here.
        """
        where = "the callback of the group"
        step = make_step(where, kind, args, options)
        if step.at_ms is not None:
            raise InvalidTask(f"{where}: at: it waits for the members; give it a delay")
        if self._callback is not None:
            raise InvalidTask(f"{where}: it has one already")
        self._callback = step
        return self

    def __len__(self) -> int:
        return len(self.members)

    def __repr__(self) -> str:
        callback = "nothing" if self._callback is None else _shown(self._callback)
        return f"Group({len(self.members)} members -> {callback})"

    @property
    def end(self) -> Step:
        assert self._callback is not None
        return self._callback

    def check(self, where: str = "the group") -> None:
        if not self.members:
            raise InvalidTask(f"{where}: a group needs at least one member")
        if len(self.members) > MOST_MEMBERS:
            raise InvalidTask(
                f"{where}: a group has at most {MOST_MEMBERS} members (got {len(self.members)})"
            )
        if self._callback is None:
            raise InvalidTask(f"{where}: a group needs a callback (on_complete)")

    def link(self) -> dict[str, Any]:
        """As a step of a chain: the callback, and the members with it."""
        members = [step for step in self.members if isinstance(step, Step)]
        links = [link_of(step.message, step.delay_ms) for step in members]
        return {**link_of(self.end.message, self.end.delay_ms), "group": links}


def _shown(step: Step | Group) -> str:
    return repr(step) if isinstance(step, Group) else step.message.kind
