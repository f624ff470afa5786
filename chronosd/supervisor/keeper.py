"""Keeps the embedded server running: started before anything needs it, again when it ends, stopped last."""

from __future__ import annotations

import time

from chronosd.embedded import EmbeddedServer
from chronosd.errors import ChronosError
from chronosd.log import get_logger
from chronosd.supervisor.descriptors import Descriptors
from chronosd.supervisor.restarts import Restarts

log = get_logger("chronosd.supervisor")

_STOP_S = 10.0


class Keeper:
    """One embedded server and its restarts. Instants are monotonic."""

    def __init__(self, server: EmbeddedServer, descriptors: Descriptors) -> None:
        self._server = server
        self._descriptors = descriptors
        self._watched: int | None = None
        self._restarts = Restarts()
        self._ready_at: float | None = None
        self.due_at = 0.0

    @property
    def is_ready(self) -> bool:
        """Whether the server has answered since it was last started."""
        return self._ready_at is not None

    def is_child(self, pid: int) -> bool:
        """Whether a pid is the server's: its status is not for others to collect."""
        return self._server.owned and self._server.pid == pid

    def tick(self, now: float) -> None:
        """Starts it if it does not run; never waits for it."""
        # a server that ended unnoticed gives up its descriptor, and the next one gets the same number
        self._unfollow()
        try:
            self._server.begin()
            if self._server.ready(timeout_s=0.05):
                self._ready_at = now
                self.due_at = float("inf")
            else:
                self.due_at = now + 0.02  # it loads its data, or somebody else is starting one
        except (ChronosError, OSError) as error:
            self._again(str(error), now)
        self._follow()

    def _handle_end(self) -> None:
        now = time.monotonic()
        code = self._server.poll()
        if code is None:
            return
        self._unfollow()
        self._again(f"ended with status {code}", now)

    def _again(self, error: str, now: float) -> None:
        lived = None if self._ready_at is None else now - self._ready_at
        self._ready_at = None
        delay = self._restarts.after(lived_ready_s=lived, completed=0)
        log.error("embedded server is down", error=error, retry_in_s=round(delay, 2))
        self.due_at = now + delay

    def _follow(self) -> None:
        pidfd = self._server.pidfd
        if pidfd != self._watched:
            self._unfollow()
            if pidfd is not None:
                self._descriptors.watch(pidfd, self._handle_end)
                self._watched = pidfd

    def _unfollow(self) -> None:
        if self._watched is not None:
            self._descriptors.unwatch(self._watched)
            self._watched = None

    def abandon(self) -> None:
        """In a child: closes what it inherited; the server goes on."""
        self._server.forget()

    def stop(self) -> None:
        """Ends the server, with everything it acknowledged on disk; after the loop and its selector."""
        self._server.stop(_STOP_S)
