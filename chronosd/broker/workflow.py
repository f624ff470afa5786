"""Chains and groups: from a message and its result to what follows. Pure; all as chronos-go 1.2 has it.

A chain's task carries the links that are still to come in its own message, a group's member the callback of
its group. So whoever runs a task, this worker or a Go process, knows all that follows, and every id comes
from the one before: link ``i`` of chain ``c`` is ``c:i``, member ``i`` of group ``g`` is ``g:m<i>`` and the
callback ``g:cb``. What was sent once is found there when it is sent again.

Which members have not succeeded stands in a set of their ids, so a member that succeeds twice counts once.
The group is open while the set is there; with its last member the callback takes its place, in one script.
"""

from __future__ import annotations

import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from chronosd.broker.follow import Follow, GroupBegins, GroupEnds, GroupWaits, MemberDone, NextTask, Place
from chronosd.broker.keys import Namespace, QueueKeys
from chronosd.broker.message import Message, encode
from chronosd.errors import MessageError
from chronosd.states import State

MOST_MEMBERS: Final = 100_000
"""The largest group that is taken from a message: what a group needs of the server goes with its size."""

GROUP_S: Final = 7 * 24 * 3600
"""How long a group waits for its next success, beside the delays of its members."""

HELD_S: Final = 365 * 24 * 3600
"""How long it waits for a dead letter to be run again."""

_MEMBER_ID = re.compile(r":m\d+(:\d+)?\Z")
_CARRIED = ("group_id", "group_queue", "group_callback", "group_index", "group_size", "group_member_id")
"""What a chain that is a group's member hands on to its next link."""


def follow_ups(namespace: Namespace, message: Message, result: bytes | None) -> list[Follow]:
    """What follows the success of a task: the next link of its chain, or a report to its group, or nothing.

    Args:
        result: the JSON of what its handler returned; None if it returned nothing.

    Raises:
        MessageError: its workflow fields make no sense.
        InvalidTask: what follows belongs into a queue that cannot be one.
    """
    workflow = message.workflow
    if workflow.get("chain"):
        following, delay_s = _next_link(namespace, message, result)
        return [following, *waiting(namespace, message, GROUP_S + delay_s)]
    if workflow.get("group_id"):
        return [_report(namespace, message, result)]
    return []


def is_followed(message: Message) -> bool:
    """Whether anything follows its success."""
    return bool(message.workflow.get("chain") or message.workflow.get("group_id"))


def waiting(namespace: Namespace, message: Message, seconds: int = HELD_S) -> list[Follow]:
    """What follows where a task needs more time, as a dead letter does: its group waits for it."""
    workflow = message.workflow
    if not workflow.get("group_id"):
        return []
    try:
        queue = namespace.queue(workflow.get("group_queue", ""))
    except ValueError:
        return []  # a group that no key can be made of never was
    members, results = queue.group(workflow["group_id"]), queue.group_results(workflow["group_id"])
    return [GroupWaits(members, results, seconds)]


def is_member_id(task_id: str) -> bool:
    """Whether a task of this id may be a group's member, or a link of one: only its message can tell."""
    return _MEMBER_ID.search(task_id) is not None


Afterwards = Callable[[Message, QueueKeys], Sequence[NextTask]]
"""What follows the dead-lettering of a message in a queue."""


def nothing_more(message: Message, queue: QueueKeys) -> Sequence[NextTask]:
    """Nothing does."""
    return ()


def end_group(
    namespace: Namespace, message: Message, why: str, then: Afterwards = nothing_more
) -> list[Follow]:
    """What follows where a task is deleted, trimmed or purged: its group, if it has one and is open, ends.

    The callback goes to the dead letters with ``why`` as its last error and the results so far; ``then`` says
    what follows that. Run by hand it goes on; members that succeed later do nothing.

    Args:
        message: the task that is gone, which must not have succeeded.
    """
    workflow = message.workflow
    if not workflow.get("group_id"):
        return []
    try:
        callback, place, head, tail = _callback(namespace, workflow, why)
    except (MessageError, ValueError):
        return []  # nobody could have fired it either
    queue, group_id = place.queue, workflow["group_id"]
    members, results = queue.group(group_id), queue.group_results(group_id)
    slot, size = _slot(message), workflow.get("group_size", 0)
    after = then(callback, queue)
    return [GroupEnds(members, results, slot, size, queue.archived, place, head, tail, after)]


def in_words(message: Message) -> list[tuple[str, str]]:
    """What a task is part of, for people: pairs of ``chain`` or ``group`` and its place there."""
    workflow, said = message.workflow, []
    to_come = [_step_in_words(link) for link in workflow.get("chain", ())]
    if workflow.get("chain_id"):
        then = f", then {', '.join(to_come[:5])}" + (", ..." if len(to_come) > 5 else "") if to_come else ""
        said.append(("chain", f"step {workflow.get('chain_index', 0)} of {workflow['chain_id']}{then}"))
    if workflow.get("group_id"):
        number, size = workflow.get("group_index", 0), workflow.get("group_size", 0)
        callback = _step_in_words(workflow.get("group_callback") or {})
        queue = workflow.get("group_queue", "")
        said.append(
            ("group", f"member {number} of {size} of {workflow['group_id']}, then {callback} in {queue}")
        )
    return said


def _step_in_words(link: Mapping[str, Any]) -> str:
    kind = link.get("kind", "?")
    members = len(link.get("group") or ())
    return f"a group of {members} and {kind}" if members else kind


def without_chain(message: Message) -> dict[str, Any]:
    """The workflow fields of a task that is kept after its success: what followed is on its way."""
    return {name: value for name, value in message.workflow.items() if name != "chain"}


def link_of(message: Message, delay_ms: int) -> dict[str, Any]:
    """A task as a link: what a later one carries in place of a message. The delay becomes whole seconds,
    rounded up: a task must not start before its time."""
    link: dict[str, Any] = {
        "kind": message.kind,
        "payload": b2a_base64(message.payload, newline=False).decode(),
        "queue": message.queue,
        "max_retry": message.max_retry,
    }
    if message.no_archive:
        link["no_archive"] = True
    if message.retention:
        link["retention"] = message.retention
    if delay_ms > 0:
        link["delay"] = -(-delay_ms // 1000)
    return link


def message_of(task_id: str, link: Mapping[str, Any], workflow: dict[str, Any]) -> Message:
    """The task that a link stands for."""
    return Message(
        id=task_id,
        kind=link.get("kind", ""),
        queue=link.get("queue", ""),
        payload=a2b_base64(link.get("payload", "")),
        max_retry=link.get("max_retry", 0),
        no_archive=link.get("no_archive", False),
        retention=link.get("retention", 0),
        workflow=workflow,
    )


def _next_link(namespace: Namespace, message: Message, result: bytes | None) -> tuple[Follow, int]:
    """What comes next in a chain, and the seconds before it is due."""
    workflow = message.workflow
    link, *tail = workflow["chain"]
    chain_id = workflow.get("chain_id")
    if not chain_id:
        raise MessageError("a chain without chain_id")
    index = workflow.get("chain_index", 0) + 1
    fields: dict[str, Any] = {"chain_id": chain_id, "chain_index": index}
    if result is not None:
        fields["prev_result"] = _base64(result)
    if link.get("group"):
        return _stage(namespace, link, tail, fields), 0
    carried = {name: workflow[name] for name in _CARRIED if name in workflow}
    following = message_of(f"{chain_id}:{index}", link, {**fields, **carried, "chain": tail})
    task = _next_task(namespace, following, link)
    return task, task.place.delay_ms // 1000


def _stage(
    namespace: Namespace, link: Mapping[str, Any], tail: list[Any], fields: dict[str, Any]
) -> GroupBegins:
    group_id = f"{fields['chain_id']}:{fields['chain_index']}"
    callback = {name: value for name, value in link.items() if name != "group"}
    size = len(link["group"])
    shared = {
        **fields,
        "group_id": group_id,
        "group_queue": link.get("queue", ""),
        "group_callback": callback,
        "group_size": size,
        "group_cb_chain": tail,
    }
    _, place, head, rest = _callback(namespace, shared)
    tasks = [
        _next_task(namespace, message_of(f"{group_id}:m{j}", member, {**shared, "group_index": j}), member)
        for j, member in enumerate(link["group"])
    ]
    queue = place.queue
    return GroupBegins(queue.group(group_id), queue.group_results(group_id), place, head, rest, tasks)


def _report(namespace: Namespace, message: Message, result: bytes | None) -> MemberDone:
    workflow = message.workflow
    _, place, head, tail = _callback(namespace, workflow)
    group_id = workflow["group_id"]
    return MemberDone(
        place.queue.group(group_id),
        place.queue.group_results(group_id),
        _slot(message),
        workflow.get("group_index", 0),
        workflow.get("group_size", 0),
        b"" if result is None else _base64(result).encode(),
        place,
        head,
        tail,
    )


def _slot(message: Message) -> str:
    member_id: str = message.workflow.get("group_member_id") or message.id
    return member_id


def _callback(
    namespace: Namespace, workflow: Mapping[str, Any], last_err: str = ""
) -> tuple[Message, Place, bytes, bytes]:
    """The callback of a member's group, where it goes, its encoded message up to the results and behind."""
    link, group_id = workflow.get("group_callback"), workflow["group_id"]
    if not link:
        raise MessageError("a group without group_callback")
    if not 0 <= workflow.get("group_size", 0) <= MOST_MEMBERS:
        raise MessageError(f"group_size is {workflow['group_size']}, at most {MOST_MEMBERS} are taken")
    if link.get("queue") != workflow.get("group_queue"):
        raise MessageError("group_queue is not the queue of group_callback")
    fields: dict[str, Any] = {}
    # a stage of a chain: what comes behind it is the callback's to go on with. (A chain that is a member has
    # a chain_id too; its slot is not the task's own id.)
    if workflow.get("chain_id") and not workflow.get("group_member_id"):
        fields["chain_id"], fields["chain_index"] = workflow["chain_id"], workflow.get("chain_index", 0)
        fields["chain"] = workflow.get("group_cb_chain", [])
    message = message_of(f"{group_id}:cb", link, fields)
    message.last_err = last_err
    place = _place(namespace, message, link)
    state = State.ARCHIVED if last_err else _state(place)
    # the key stands in no other place: inside a string its quotes would be escaped
    head, mark, tail = encode(message, state).partition(b'"group_index":')
    return message, place, head, mark + tail


def _next_task(namespace: Namespace, message: Message, link: Mapping[str, Any]) -> NextTask:
    place = _place(namespace, message, link)
    return NextTask(place, encode(message, _state(place)))


def _place(namespace: Namespace, message: Message, link: Mapping[str, Any]) -> Place:
    delay_ms = max(link.get("delay", 0), 0) * 1000
    return Place(namespace, namespace.queue(message.queue), message.id, delay_ms)


def _state(place: Place) -> State:
    return State.SCHEDULED if place.delay_ms else State.PENDING


def _base64(raw: bytes) -> str:
    return b2a_base64(raw, newline=False).decode()
