"""Which queues are paused: one set of names, as chronos-go has it. It holds any name, also of no queue."""

from __future__ import annotations

from collections.abc import Sequence

from chronosd.broker.commands import Command, plain
from chronosd.broker.keys import Namespace


def paused_of(namespace: Namespace, queues: Sequence[str]) -> Command[frozenset[str]]:
    """Those of the queues that are paused."""
    return plain(
        *("SMISMEMBER", namespace.paused, *queues),
        parse=lambda reply: frozenset(
            name for name, is_paused in zip(queues, reply, strict=True) if is_paused
        ),
    )


def pause(namespace: Namespace, queue: str) -> Command[bool]:
    """Has nobody fetch from a queue. True if it was not paused before."""
    return plain("SADD", namespace.paused, queue, parse=bool)


def resume(namespace: Namespace, queue: str) -> Command[bool]:
    """Ends a pause. True if the queue was paused before."""
    # what a shell passes on may be no UTF-8, and so may be what others put there
    return plain("SREM", namespace.paused, queue.encode("utf-8", "surrogateescape"), parse=bool)
