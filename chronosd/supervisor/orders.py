"""What can be asked of a running daemon, by signal or over the control socket.

Each may come at any moment, also before the start is over or after a stop has begun: it is done, kept for
later, or has no object any more; it is never an error of the loop.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

from chronosd.log import get_logger
from chronosd.supervisor.fleet import Fleet
from chronosd.supervisor.overrun import Overruns
from chronosd.supervisor.recycle import Recycler
from chronosd.supervisor.reload import Reload

log = get_logger("chronosd.supervisor")

MOST_WORKERS = 1024
"""As in the configuration."""


@dataclass(slots=True)
class Orders:
    """The daemon as it obeys."""

    fleet: Fleet
    reload: Reload
    recycler: Recycler
    overruns: Overruns
    stop: Callable[[str], None]
    """Begins to drain; given who asked. Nothing if it has begun."""
    quit: Callable[[str], None]
    """Hands everything back and ends now."""

    def obey(self, signum: int, count: int) -> None:
        """What a signal asks for; it has come so often since the last turn."""
        match signum:
            case signal.SIGHUP:
                self.reload.ask()
            case signal.SIGUSR1:
                self.overruns.describe()
            case signal.SIGUSR2:
                self.recycler.restart()
            case signal.SIGTTIN:
                self.grow(count)
            case signal.SIGTTOU:
                self.grow(-count)
            case signal.SIGTSTP:
                self.quiet(True, "SIGTSTP")
            case signal.SIGCONT:
                # Also what a shell sends to a stopped process, which then was not quiet.
                self.quiet(False, "SIGCONT")

    def scale(self, count: int) -> None:
        """So many workers, within 1 and :data:`MOST_WORKERS`."""
        count = max(1, min(count, MOST_WORKERS))
        if self.fleet.stopping:
            return
        self.reload.resize(count=count)
        self.fleet.resize(count)
        log.info("workers", count=count)

    def grow(self, more: int) -> None:
        """So many workers more, or less if it is negative."""
        self.reload.resize(change=more)
        count = max(1, min(len(self.fleet.places) + more, MOST_WORKERS))
        if not self.fleet.stopping:
            self.fleet.resize(count)
        log.info("workers", count=len(self.fleet.places))

    def quiet(self, is_quiet: bool, who: str) -> None:
        """No task starts any more, or they start again; what runs goes on."""
        if self.fleet.is_quiet != is_quiet:
            log.info("fetching stopped" if is_quiet else "fetching resumed", asked_by=who)
            self.fleet.quiet(is_quiet)
