"""The web process, as the supervisor knows it: forked like a worker, restarted, told to go, ended last.

The socket is opened here and handed to each of them, so that a web process that dies takes no port with it,
and a scrape that comes meanwhile only waits.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from chronosd.config.schema import Config
from chronosd.log import get_logger
from chronosd.page import Page, WebSpec
from chronosd.supervisor import process
from chronosd.supervisor.descriptors import Descriptors
from chronosd.supervisor.process import Child
from chronosd.supervisor.restarts import Restarts

log = get_logger("chronosd.supervisor")

WebTarget = Callable[[WebSpec], int]

_BACKLOG = 128
_STOP_S = 1.0
_LEAVE_S = 5.0
"""How long one that was told to go is waited for; it gives what it serves a second."""


def listen(address: str) -> socket.socket:
    """A socket that listens at ``127.0.0.1:9980`` and the like.

    Raises:
        OSError: the port is in use, or the address not ours; the message says which.
    """
    url = urlsplit(f"//{address}")
    host, port = url.hostname or "", url.port or 0
    if host == "localhost":
        host = "127.0.0.1"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    one = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((host, port))
        one.listen(_BACKLOG)
        one.setblocking(False)
    except OSError as error:
        one.close()
        raise OSError(error.errno, f"http.listen: cannot listen at {address}: {error.strerror}") from None
    return one


class Web:
    """One web process after the other, while the configuration asks for one. Instants are monotonic."""

    def __init__(
        self,
        config: Config,
        target: WebTarget,
        *,
        abandon: Callable[[], None],
        descriptors: Descriptors,
    ) -> None:
        self._target = target
        self._abandon = abandon
        self._descriptors = descriptors
        self._config = config
        self._socket: socket.socket | None = None
        self._address = ""
        self.page: Page | None = None
        """There while a web process is wanted."""
        self._child: Child | None = None
        self._leaving: list[Child] = []
        self._forked_at = 0.0
        self._restarts = Restarts()
        self._spawn_at = self._kill_at = float("inf")
        if config.http is not None:
            self._open(config.http.listen)

    def _open(self, address: str) -> None:
        """Raises OSError."""
        opened = listen(address)
        if self._socket is not None:
            self._socket.close()
        self._socket, self._address = opened, address
        if self.page is None:
            self.page = Page()
        host, port = opened.getsockname()[:2]
        log.info("listening for http", address=f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        self._spawn_at = 0.0

    def beat(self) -> None:
        """The supervisor's loop has turned: the health check goes by that."""
        if self.page is not None:
            self.page.beat(time.monotonic_ns())

    def is_child(self, pid: int) -> bool:
        """Whether a pid is a web process: its status is not for others to collect."""
        children = [*self._leaving, *([self._child] if self._child is not None else [])]
        return any(child.pid == pid and child.pidfd >= 0 for child in children)

    @property
    def due_at(self) -> float:
        return min(self._spawn_at, self._kill_at)

    def tick(self, now: float) -> None:
        """Forks one that is due, and kills those that have not gone: they still hold the port they had."""
        if self._kill_at <= now:
            self._kill_at = float("inf")
            for child in self._leaving:
                log.warning("web process did not stop in time, killed", pid=child.pid)
                child.send(signal.SIGKILL)
        if self._spawn_at <= now:
            self._spawn(now)

    def _spawn(self, now: float) -> None:
        if self._child is not None or self._socket is None or self.page is None:
            self._spawn_at = float("inf")
            return
        theirs = self._socket.dup()
        spec = WebSpec(theirs, self.page, self._config.log.level, self._config.log.format)
        try:
            self._child = process.fork(
                lambda: self._target(spec), title="chronosd: web", abandon=lambda: self._enter_child(theirs)
            )
        except OSError as error:
            self._again(f"cannot fork: {error}", now)
            return
        finally:
            theirs.close()
        self._forked_at, self._spawn_at = now, float("inf")
        child = self._child
        self._descriptors.watch(child, lambda: self._handle_death(child))
        log.info("web process forked", pid=child.pid)

    def _enter_child(self, theirs: socket.socket) -> None:
        page, self.page = self.page, None  # it is the one child that keeps it
        self._abandon()
        self.page = page

    def _handle_death(self, child: Child) -> None:
        self._descriptors.unwatch(child)
        exit_ = child.reap()
        if child in self._leaving:
            self._leaving.remove(child)
            return
        self._child = None
        now = time.monotonic()
        if self._socket is not None:
            self._again(str(exit_), now)

    def _again(self, error: str, now: float) -> None:
        delay = self._restarts.after(lived_ready_s=now - self._forked_at, completed=0)
        log.error("web process is down", error=error, retry_in_s=round(delay, 2))
        self._spawn_at = now + delay

    def apply(self, config: Config) -> None:
        """A reload has succeeded. A new address that cannot be had is logged, and the old one kept."""
        before, self._config = self._config, config
        if config.http is None:
            if self._socket is not None:
                self._socket.close()
                self._socket = None
                log.info("http is off")
            self._dismiss()
            if self.page is not None:
                self.page.close()
                self.page = None
        elif self._socket is None or config.http.listen != self._address:
            try:
                self._open(config.http.listen)
            except OSError as error:
                log.error("http goes on as before", error=error.strerror)
                return
            self._dismiss()
        elif before.log != config.log:
            self._dismiss()
            self._spawn_at = 0.0

    def _dismiss(self) -> None:
        if self._child is not None:
            self._child.send(signal.SIGTERM)
            self._leaving.append(self._child)
            self._kill_at = time.monotonic() + _LEAVE_S
            self._child = None

    def stop(self) -> None:
        """Ends it, after the loop: what it serves may be of interest up to the end of the drain."""
        self._dismiss()
        by = time.monotonic() + _STOP_S
        for child in self._leaving:
            while (exit_ := child.reap()) is None and time.monotonic() < by:
                time.sleep(0.005)
            if exit_ is None:
                child.send(signal.SIGKILL)
                child.close()
        self._leaving.clear()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def abandon(self) -> None:
        """In a child: closes what is the supervisor's alone."""
        if self._socket is not None:
            self._socket.close()
        if self.page is not None:
            self.page.close()
        for child in [*self._leaving, *([self._child] if self._child is not None else [])]:
            child.close()
