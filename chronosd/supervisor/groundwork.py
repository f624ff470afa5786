"""What has to be in Redis before anything can be fetched, and what must be known of the server.

Looked after once a second, because the groups can vanish under a running daemon (FLUSHALL, a failover to an
empty replica), because a jump of the server's clock makes every entry look abandoned, and because a server
may answer and refuse what is to be written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from chronosd.broker import consume, enqueue, server
from chronosd.broker.commands import Command, Steps
from chronosd.broker.keys import Namespace, QueueKeys
from chronosd.broker.replies import refuses_writes
from chronosd.errors import BrokerError
from chronosd.log import get_logger
from chronosd.supervisor.recoverer import Grace
from chronosd.supervisor.steps import Done

log = get_logger("chronosd.supervisor")

_SCRIPTS = ("pending", "retry", "release", "complete", "archive")
_JUMP_S = 2.0
"""More than a bounded round trip and a busy server explain."""


class Groundwork:
    """Registers the queues, keeps their groups, watches the server's clock."""

    name = "groundwork"
    interval_s = 1.0

    def __init__(
        self,
        namespace: Namespace,
        queues: Sequence[QueueKeys],
        grace: Grace,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._namespace = namespace
        self._queues = tuple(queues)
        self.laid: set[str] = set()
        """Queues that have had their group."""
        self._grace = grace
        self._clock = clock
        self._offset: float | None = None
        self._warned: set[str] = set()
        self.is_connection_new = True
        """Set on every new connection: who is at the other end is asked again."""
        self.on_clock: Callable[[float], None] = lambda _: None
        """Told what makes a monotonic instant one of the server's clock, in seconds."""
        self.is_laid = False
        """Whether Redis has taken the groundwork since the daemon started, for one queue at least."""
        self.refusal = ""
        """Why Redis takes no writes, whatever the queue, in one line; empty while it does."""

    def look_after(self, queues: Sequence[QueueKeys]) -> None:
        """From the next pass on these, and no others."""
        self._queues = tuple(queues)
        self.laid &= {queue.name for queue in queues}

    def run_once(self) -> Steps[Done]:
        queues = self._queues  # they may change while the replies are on their way
        sent_at = self._clock()
        commands: list[Command[Any]] = [
            server.time(),
            enqueue.register_queues(self._namespace, [queue.name for queue in queues]),
            *(consume.create_group(queue) for queue in queues),
        ]
        if self.is_connection_new:
            # Loaded beforehand: the task of a dead worker shall not wait for the script that hands it back.
            commands += [server.load(name) for name in _SCRIPTS]
            commands.append(server.info())
        replies = yield commands
        server_time, registered, *groups = replies
        if self.is_connection_new:
            info = groups.pop()
            del groups[len(queues) :]
            if not isinstance(info, BrokerError):
                self._meet(info)
            self.is_connection_new = False
        if not isinstance(server_time, BrokerError):
            self._watch_clock(server_time, sent_at)
        errors: dict[str, BrokerError] = {}
        if isinstance(registered, BrokerError):
            errors[""] = registered
        created = 0
        for queue, reply in zip(queues, groups, strict=True):
            if isinstance(reply, BrokerError):
                errors[queue.name] = reply
                continue
            if reply:
                created += 1
                if queue.name in self.laid:
                    log.warning("consumer group had vanished, made again", queue=queue.name)
            self.laid.add(queue.name)
        # One queue is enough: a key of the wrong type under another must not keep the daemon from starting.
        is_any_laid = any(queue.name not in errors for queue in queues)
        self.is_laid = self.is_laid or is_any_laid
        # A full server takes what needs no memory, such as the word that a group is there.
        is_refused = isinstance(registered, BrokerError) and (refuses_writes(registered) or not is_any_laid)
        self.refusal = str(registered) if is_refused else ""
        return Done({"groups_created": created} if is_any_laid else {}, None, errors)

    def _watch_clock(self, server_time: float, sent_at: float) -> None:
        now = self._clock()
        # The middle of the round trip, so that half of a slow one is not taken for a jump.
        offset = server_time - (sent_at + now) / 2
        if self._offset is not None and abs(offset - self._offset) > _JUMP_S:
            self._grace.begin("the server's clock jumped", now)
        self._offset = offset
        self.on_clock(offset)

    def _meet(self, info: server.ServerInfo) -> None:
        """Warns, once each, of what can lose tasks; notices a server that has just come up."""
        if info.maxmemory_policy not in ("", "noeviction"):
            self._warn(
                "the server may evict tasks: set maxmemory-policy to noeviction",
                maxmemory_policy=info.maxmemory_policy,
            )
        if info.has_aof is False:
            self._warn("the server has no append-only file: its restart loses accepted tasks")
        if info.uptime_s is not None and info.uptime_s < self._grace.length_s:
            self._grace.begin("the server has just started", self._clock())

    def _warn(self, event: str, **facts: str) -> None:
        if event not in self._warned:
            self._warned.add(event)
            log.warning(event, **facts)
