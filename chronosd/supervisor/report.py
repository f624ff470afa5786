"""What systemd is told while the daemon runs: status, start-up that takes longer, signs of life."""

from __future__ import annotations

from collections.abc import Callable, Collection

from chronosd.supervisor.notify import Notifier
from chronosd.supervisor.tenths import aligned

_PERIOD_S = 1.0
_EXTEND_EVERY_S = 5.0


class Report:
    """Sends at most once a second, or four times in a watchdog period. Instants are monotonic."""

    def __init__(
        self,
        notifier: Notifier,
        *,
        status: Callable[[], str],
        is_starting: Callable[[], bool],
        stuck: Callable[[float], Collection[str]],
        extend_s: float,
    ) -> None:
        self._notifier = notifier
        self._status = status
        self._is_starting = is_starting
        self._stuck = stuck
        self.extend_s = extend_s
        self._extend_at = 0.0
        watchdog_s = notifier.watchdog_s
        self._period_s = _PERIOD_S if watchdog_s is None else min(_PERIOD_S, watchdog_s / 4)
        self.due_at = 0.0

    def tick(self, now: float) -> None:
        """One report. The watchdog is fed only while every step makes progress."""
        self.due_at = aligned(now + self._period_s, now)
        self._notifier.settle()
        self._notifier.status(self._status())
        if self._is_starting() and now >= self._extend_at:
            # Waiting for Redis or for slow imports is bounded here, by startup_timeout, and not there.
            self._extend_at = now + _EXTEND_EVERY_S
            self._notifier.extend_timeout(self.extend_s)
        if not self._stuck(now) and self._notifier.watchdog_s is not None:
            self._notifier.watchdog()
