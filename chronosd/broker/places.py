"""Where a task is, all at one instant, and whether that is where it should be (invariant 1 of the design)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chronosd.broker.commands import REPLY_BYTES, Command, call, script, text
from chronosd.broker.finding import Finding, redis_cli
from chronosd.broker.keys import GROUP, QueueKeys
from chronosd.states import SET_STATES, WAITING_SETS, State

UNTAKEN_S = 20.0
"""A blocking read delivers a task before its worker marks it. Longer than this and no worker will any more:
what was delivered to a worker that never learnt of it is handed back after 5 s, at the next heartbeat."""

_GO_CONSUMER = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_STATES = {int(state): state for state in State}


@dataclass(frozen=True, slots=True)
class Seat:
    """A stream entry that names a task."""

    entry: str
    kind: str
    """``waiting``; ``pending`` for a consumer; ``deleted``: pending and no longer in the stream; ``adrift``:
    acknowledged and still in the stream, where nobody looks at it again."""
    consumer: str = ""
    idle_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Facts:
    """What is stored of one task."""

    task_id: bytes
    key_type: str
    msg: bytes | None
    """None where it was not asked for, or is too long for a common reply."""
    size: int
    """Bytes of its message; 0 if it has none."""
    state: State | None
    sid: str
    has_unknown_kind: bool
    sets: tuple[State, ...]
    seats: tuple[Seat, ...]

    @property
    def name(self) -> str:
        return text(self.task_id)

    @property
    def places(self) -> int:
        """How many there are; one is right."""
        return len(self.sets) + sum(seat.kind != "adrift" for seat in self.seats)


def places(
    queue: QueueKeys,
    ids: Mapping[bytes, Sequence[bytes]],
    *,
    with_messages: bool = False,
    after: str = "",
) -> Command[list[Facts]]:
    """All that is known of up to 500 tasks at one instant.

    Args:
        ids: for each task, stream entries that may name it; the one in its hash is looked at anyway.
        after: entries behind this one are searched for the tasks as well.
    """
    args: list[Any] = [GROUP, queue.task_prefix, REPLY_BYTES if with_messages else 0, after]
    for task_id, entries in ids.items():
        args += (task_id, len(entries), *entries)

    def parse(rows: Any) -> list[Facts]:
        return [_facts(task_id, row) for task_id, row in zip(ids, rows, strict=True)]

    return call(script("places"), (queue.stream, *queue.sets), args, parse)


def _facts(task_id: bytes, row: Sequence[Any]) -> Facts:
    key_type, msg, size, state, sid, unknown_since, *scores, seats = row
    return Facts(
        task_id,
        text(key_type),
        msg,
        int(size),
        _STATES.get(int(state)) if state and state.isdigit() else None,
        text(sid),
        bool(unknown_since),
        tuple(s for s, score in zip(SET_STATES, scores, strict=True) if score),
        tuple(
            Seat(text(seats[i]), text(seats[i + 1]), text(seats[i + 2]), int(seats[i + 3]) / 1000)
            for i in range(0, len(seats), 4)
        ),
    )


def misplaced(queue: QueueKeys, facts: Facts) -> list[Finding]:
    """What is wrong with a task's place; nothing if it is in exactly one and its hash agrees."""
    if facts.key_type not in ("hash", "none"):
        key = queue.task(facts.name)
        return [
            _finding(
                queue,
                facts,
                "wrong-type",
                f"{key} is a {facts.key_type}",
                "look at it, then rename it: " + redis_cli("RENAME", key, key + ".foreign"),
            )
        ]
    if not facts.size:
        return _without_message(queue, facts)
    found = [
        _finding(
            queue,
            facts,
            "adrift",
            f"entry {seat.entry} was acknowledged and not deleted: nobody will run it",
            redis_cli("XDEL", queue.stream, seat.entry),
        )
        for seat in facts.seats
        if seat.kind == "adrift"
    ]
    if facts.places == 0:
        return [*found, _nowhere(queue, facts)]
    if facts.places > 1:
        return [*found, _in_several(queue, facts)]
    found += _in_set(queue, facts) if facts.sets else _in_stream(queue, facts)
    return found


def _finding(
    queue: QueueKeys, facts: Facts, code: str, problem: str, remedy: str, *, is_error: bool = True
) -> Finding:
    return Finding(code, problem, remedy, queue.name, facts.name, is_error)


def _without_message(queue: QueueKeys, facts: Facts) -> list[Finding]:
    """No task at all: half a hash, or places that still name a deleted one."""
    found = [
        _finding(
            queue,
            facts,
            "no-task",
            f"it is in {state.label} and has no message",
            redis_cli("ZREM", queue.set_of(state), facts.name),
        )
        for state in facts.sets
    ]
    for seat in facts.seats:
        if seat.kind == "adrift":
            problem, remedy = "was acknowledged and not deleted", redis_cli("XDEL", queue.stream, seat.entry)
        else:
            problem, remedy = "names it and it has no message", "the next worker to meet it drops it"
        found.append(
            _finding(queue, facts, "no-task", f"entry {seat.entry} {problem}", remedy, is_error=False)
        )
    if facts.key_type == "hash" and not found:
        found.append(
            _finding(
                queue,
                facts,
                "no-task",
                "its hash has no message, and it is nowhere",
                redis_cli("DEL", queue.task(facts.name)),
            )
        )
    return found


def _nowhere(queue: QueueKeys, facts: Facts) -> Finding:
    state = "unknown" if facts.state is None else facts.state.label
    if facts.state in (State.ARCHIVED, State.COMPLETED):
        remedy = redis_cli("DEL", queue.task(facts.name)) + ", or to keep it as a dead letter: "
        remedy += redis_cli("HSET", queue.task(facts.name), "state", int(State.ARCHIVED)) + " && "
        remedy += redis_cli("ZADD", queue.archived, 0, facts.name)
    else:
        remedy = redis_cli("HSET", queue.task(facts.name), "state", int(State.PENDING)) + " && "
        remedy += redis_cli("XADD", queue.stream, "*", "task_id", facts.name)
    return _finding(
        queue, facts, "nowhere", f"its state is {state} and it is in no place: nothing will run it", remedy
    )


def _in_several(queue: QueueKeys, facts: Facts) -> Finding:
    where = [state.label for state in facts.sets]
    where += [f"the stream as {s.entry} ({s.kind})" for s in facts.seats if s.kind != "adrift"]
    waiting = [seat.entry for seat in facts.seats if seat.kind == "waiting"]
    is_held = any(seat.kind in ("pending", "deleted") for seat in facts.seats)
    # A run goes before an entry, an entry before a set, and of sets the one that its state names.
    if is_held or waiting:
        keep, surplus_sets = State.ACTIVE if is_held else State.PENDING, facts.sets
    else:
        keep = facts.state if facts.state in facts.sets else facts.sets[-1]
        surplus_sets = tuple(state for state in facts.sets if state is not keep)
    surplus = waiting if is_held else waiting[1:]
    steps = [redis_cli("ZREM", queue.set_of(state), facts.name) for state in surplus_sets]
    if surplus:
        steps.append(redis_cli("XDEL", queue.stream, *surplus))
    if facts.state is not keep:
        steps.append(redis_cli("HSET", queue.task(facts.name), "state", int(keep)))
    remedy = " && ".join(steps) or "wait for its runs to end: the first one to do so decides"
    return _finding(queue, facts, "several-places", f"it is in {' and in '.join(where)}", remedy)


def _in_set(queue: QueueKeys, facts: Facts) -> list[Finding]:
    (state,) = facts.sets
    if facts.state is state:
        return []
    said = "unknown" if facts.state is None else facts.state.label
    return [
        _finding(
            queue,
            facts,
            "wrong-state",
            f"it is in {state.label} and its state is {said}",
            redis_cli("HSET", queue.task(facts.name), "state", int(state)),
            is_error=state not in WAITING_SETS,  # the forwarder goes by the set
        )
    ]


def _in_stream(queue: QueueKeys, facts: Facts) -> list[Finding]:
    (seat,) = (seat for seat in facts.seats if seat.kind != "adrift")
    said = "unknown" if facts.state is None else facts.state.label
    hash_key = queue.task(facts.name)
    if seat.kind == "deleted":
        return [
            _finding(
                queue,
                facts,
                "deleted-entry",
                f"its entry {seat.entry} was deleted while {seat.consumer} runs it: its death would lose it",
                f"if so: {redis_cli('XADD', queue.stream, '*', 'task_id', facts.name)}",
            )
        ]
    if seat.kind == "waiting":
        if facts.state is State.PENDING:
            return []
        remedy = redis_cli("HSET", hash_key, "state", int(State.PENDING))
        return [_finding(queue, facts, "wrong-state", f"it is waiting and its state is {said}", remedy)]
    if facts.state is State.PENDING and facts.sid != seat.entry:
        if seat.idle_s < UNTAKEN_S:
            return []
        return [
            _finding(
                queue,
                facts,
                "untaken",
                f"entry {seat.entry} was delivered to {seat.consumer}, which has not begun it",
                "start a daemon that serves this queue: it recovers the task",
            )
        ]
    if facts.state is not State.ACTIVE:
        remedy = redis_cli("HSET", hash_key, "state", int(State.ACTIVE))
        return [
            _finding(queue, facts, "wrong-state", f"{seat.consumer} has it and its state is {said}", remedy)
        ]
    if facts.sid != seat.entry and not _GO_CONSUMER.fullmatch(seat.consumer):
        return [
            _finding(
                queue,
                facts,
                "wrong-owner",
                f"{seat.consumer} has it as {seat.entry} and its hash names {facts.sid or 'no entry'}",
                redis_cli("HSET", hash_key, "sid", seat.entry),
            )
        ]
    return []
