"""What the control socket is asked, and what it answers.

A request is ``{"command": NAME, ...}``; the answer has ``ok``, and ``error`` and ``code`` (an exit code) if
that is false. ``"config": PATH`` in a request is answered only by the daemon that runs that file: a command
that looks for its daemon in several places must not stop somebody else's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from chronosd.log import get_logger
from chronosd.supervisor.control import Reply, refused
from chronosd.supervisor.measures import Measures
from chronosd.supervisor.orders import MOST_WORKERS, Orders
from chronosd.supervisor.reload import Result
from chronosd.supervisor.status import Status

log = get_logger("chronosd.supervisor")

_WHO = "control socket"
_STACKS_S = 0.06
_LOOKS = ("status", "measures")
"""What is asked again and again, and changes nothing."""

Request = dict[str, Any]


class Answers:
    """Obeys requests. Instants are monotonic."""

    def __init__(self, orders: Orders, status: Status, measures: Measures) -> None:
        self._orders = orders
        self._status = status
        self._measures = measures
        self._stacks_at = float("inf")
        self._stacks_for: list[Reply] = []
        self._commands: dict[str, Callable[[Request, Reply], None]] = {
            "status": self._show,
            "reload": self._reload,
            "scale": self._scale,
            "restart": self._restart,
            "quiet": self._quiet,
            "resume": self._resume,
            "stacks": self._stacks,
            "stop": self._stop,
            "measures": self._measure,
        }

    def handle(self, request: Request, reply: Reply) -> None:
        """Does what a request says and replies, now or when it is done."""
        name = request.get("command")
        do = self._commands.get(name) if isinstance(name, str) else None
        if do is None:
            reply(refused(f"no such command; there are {', '.join(self._commands)}", 2))
            return
        wanted, mine = request.get("config"), str(self._orders.fleet.config.path)
        if isinstance(wanted, str) and os.path.realpath(wanted) != os.path.realpath(mine):
            reply({**refused(f"this daemon runs {mine}"), "other": True})
            return
        if name not in _LOOKS:
            log.info("asked", command=name, by=_WHO)
        if self._orders.fleet.stopping and name not in (*_LOOKS, "stop", "stacks"):
            reply(refused("the daemon is stopping"))
            return
        do(request, reply)

    def _show(self, _request: Request, reply: Reply) -> None:
        reply({"ok": True, **self._status.document()})

    def _measure(self, _request: Request, reply: Reply) -> None:
        reply({"ok": True, **self._measures.document()})

    def _reload(self, request: Request, reply: Reply) -> None:
        if not request.get("wait"):
            self._orders.reload.ask()
            reply({"ok": True})
            return

        def report(result: Result) -> None:
            said = {"changes": result.changes, "warnings": result.warnings, "took_s": result.took_s}
            if result.ok:
                reply({"ok": True, **said, "status": self._status.line()})
            else:
                text = "; ".join(result.problems)
                reply({**refused(text, result.code), "problems": result.problems, **said})

        self._orders.reload.ask(report)

    def _scale(self, request: Request, reply: Reply) -> None:
        count = request.get("count")
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MOST_WORKERS:
            reply(refused(f"count must be a number from 1 to {MOST_WORKERS}", 2))
            return
        self._orders.scale(count)
        reply({"ok": True, "target": count})

    def _restart(self, request: Request, reply: Reply) -> None:
        if not request.get("wait"):
            self._orders.recycler.restart()
            reply({"ok": True})
            return

        def report(end: tuple[int, str]) -> None:
            code, why = end
            reply({"ok": True} if code == 0 else refused(why, code))

        self._orders.recycler.restart(report)

    def _quiet(self, _request: Request, reply: Reply) -> None:
        self._orders.quiet(True, _WHO)
        reply({"ok": True})

    def _resume(self, _request: Request, reply: Reply) -> None:
        self._orders.quiet(False, _WHO)
        reply({"ok": True})

    def _stop(self, request: Request, reply: Reply) -> None:
        """With ``wait`` nothing is said: the connection ends with the daemon."""
        if request.get("now"):
            self._orders.quit(_WHO)
        else:
            self._orders.stop(_WHO)
        if not request.get("wait"):
            reply({"ok": True})

    # -- stacks ---------------------------------------------------------------------------------------

    def _stacks(self, _request: Request, reply: Reply) -> None:
        """The workers write them down; they are read a little later."""
        for worker in self._orders.fleet:
            if worker.ready_at is not None and not worker.killed:
                worker.stacks.clear()
                worker.stacks.ask(worker.child)
                worker.link.send({"t": "stacks", "entries": []})
        self._stacks_for.append(reply)
        self._stacks_at = time.monotonic() + _STACKS_S

    @property
    def due_at(self) -> float:
        """When the stacks that were asked for can be read."""
        return self._stacks_at

    def tick(self, _now: float) -> None:
        """Reads the stacks and answers."""
        self._stacks_at = float("inf")
        found = [
            {
                "index": worker.spec.index,
                "pid": worker.child.pid,
                "phase": worker.phase.name.lower(),
                "tasks": [
                    {"state": slot.state.name.lower(), "queue": slot.queue, "entry": slot.entry}
                    for slot in worker.board.read()[:100]
                ],
                "stack": worker.stacks.read() if worker.ready_at is not None else "",
            }
            for worker in self._orders.fleet
        ]
        replies, self._stacks_for = self._stacks_for, []
        for reply in replies:
            reply({"ok": True, "workers": found})
