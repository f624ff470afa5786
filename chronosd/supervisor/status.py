"""How the daemon stands: one line for systemd, one document for programs."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from chronosd import __version__
from chronosd.board import Board, Cell
from chronosd.supervisor.availability import Availability
from chronosd.supervisor.fleet import Fleet
from chronosd.supervisor.overrun import beat_age_s
from chronosd.supervisor.recycle import Recycler, rss_bytes
from chronosd.supervisor.reload import Reload, Stage
from chronosd.supervisor.rounds import Rounds
from chronosd.supervisor.worker import Worker

_LINE_LIMIT = 300


class Status:
    """Looks at everything and changes nothing."""

    def __init__(
        self, fleet: Fleet, rounds: Rounds, redis: Availability, reload: Reload, recycler: Recycler
    ) -> None:
        self._fleet = fleet
        self._rounds = rounds
        self._redis = redis
        self._reload = reload
        self._recycler = recycler
        self._started_at = time.monotonic()

    @property
    def state(self) -> str:
        """One word: starting, running, quiet, reloading or stopping."""
        if self._fleet.stopping:
            return "stopping"
        if not self._fleet.gate_open:
            return "starting"
        if self._reload.is_active:
            return "reloading"
        return "quiet" if self._fleet.is_quiet else "running"

    @property
    def boards(self) -> list[Board]:
        """Of every worker that lives."""
        return [worker.board for worker in self._fleet]

    @property
    def reloads(self) -> Mapping[str, int]:
        """How many have ended, by result."""
        return self._reload.totals

    def line(self) -> str:
        """One line for a person, as in ``systemctl status``."""
        state = self.state
        if state == "stopping":
            return state
        line = f"{self._fleet.ready_count} of {len(self._fleet.places)} workers running"
        if state == "starting":
            line = f"starting: {line}"
        if self._fleet.is_quiet:
            line += ", fetching stopped"
        if self._fleet.paused:
            line += f", {len(self._fleet.paused)} of {len(self._fleet.config.queues)} queues paused"
        if self._redis.error:
            line += f"; redis is away: {self._redis.error}"
        elif self._rounds.serving.refusal:
            line += f"; redis takes no writes: {self._rounds.serving.refusal}"
        last = self._reload.last
        if self._reload.stage is not Stage.IDLE:
            line += f"; reload: {self._reload.stage.value}"
        elif last is not None and not last.ok:
            more = f" (and {len(last.problems) - 1} more)" if len(last.problems) > 1 else ""
            line += f"; last reload failed: {last.problems[0]}{more}"
        return line if len(line) <= _LINE_LIMIT else f"{line[: _LINE_LIMIT - 1]}…"

    def document(self) -> dict[str, Any]:
        """Everything, for JSON. Durations in seconds, sizes in bytes, instants in unix time."""
        fleet, now = self._fleet, time.monotonic()
        config = fleet.config
        return {
            "state": self.state,
            "status": self.line(),
            "pid": os.getpid(),
            "version": __version__,
            "config": str(config.path),
            "namespace": config.namespace,
            "queues": list(config.queues),
            "paused": sorted(self._fleet.paused),
            "revision": fleet.revision,
            "uptime_s": round(now - self._started_at, 1),
            "ready": fleet.ready_count,
            "target": len(fleet.places),
            "quiet": fleet.is_quiet,
            "redis": {
                "reached": self._redis.away_since is None,
                "error": self._redis.error or self._rounds.serving.refusal,
                "away_s": None if self._redis.away_since is None else round(now - self._redis.away_since, 1),
            },
            "workers": [_of(w, "running", now) for p in fleet.places if (w := p.worker) is not None],
            "coming": [_of(worker, "coming", now) for worker in fleet.coming],
            "leaving": [_of(worker, "leaving", now) for worker in fleet.leaving],
            "reload": self._of_reload(),
            "restarting": self._recycler.is_restarting,
            "recycled": dict(self._recycler.totals),
            "steps": self._rounds.ages(now),
        }

    def _of_reload(self) -> dict[str, Any]:
        last = self._reload.last
        return {
            "stage": self._reload.stage.name.lower(),
            "asked": self._reload.is_asked,
            "last": None
            if last is None
            else {
                "ok": last.ok,
                "at": round(last.at, 3),
                "took_s": last.took_s,
                "problems": list(last.problems),
                "changes": list(last.changes),
                "warnings": list(last.warnings),
            },
        }


def _of(worker: Worker, role: str, now: float) -> dict[str, Any]:
    board = worker.board
    tasks = Counter(slot.state.name.lower() for slot in board.read())
    return {
        "index": worker.spec.index,
        "pid": worker.child.pid,
        "generation": worker.spec.generation,
        "revision": worker.revision,
        "role": role,
        "phase": worker.phase.name.lower(),
        "state": board.state.name.lower(),
        "uptime_s": round(now - worker.started_at, 1),
        "beat_age_s": round(beat_age_s(worker, now), 3),
        "rss_bytes": rss_bytes(worker),
        "tasks": dict(tasks),
        "completed": worker.completed,
        "succeeded": board.cells[Cell.SUCCEEDED],
        "retried": board.cells[Cell.RETRIED],
        "archived": board.cells[Cell.ARCHIVED],
    }
