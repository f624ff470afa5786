"""Whether Redis is there, asked without ever waiting for it.

Looking a name up knows no timeout, and a server may accept and then say nothing. So while Redis is away a
throwaway child does all of that: it resolves, connects, logs in and asks PING, is killed after 2 s, and sends
back a numeric address. Only then does the supervisor connect itself, to that address, with a deadline on the
whole call.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from chronosd.broker.connect import masked, probe
from chronosd.broker.runner import SyncRunner
from chronosd.errors import BrokerError, ChronosError
from chronosd.log import get_logger
from chronosd.supervisor import process
from chronosd.supervisor.descriptors import Descriptors
from chronosd.supervisor.process import Child

log = get_logger("chronosd.supervisor")

PROBE_LIMIT_S = 2.0
CALL_LIMIT_S = 1.0
_AGAIN_FIRST_S = 0.05
_AGAIN_CAP_S = 2.0
_LOOK_AGAIN_S = 0.02
_SAID_ADDRESS = b"+"
_SAID_ERROR = b"-"


@dataclass(slots=True)
class _Probe:
    child: Child
    pipe: int
    password: str | None
    kill_at: float
    said: bytes = b""


class Availability:
    """The connection to Redis, while there is one, and the way back to it while there is none."""

    def __init__(
        self,
        url: str,
        password: Callable[[], str | None],
        *,
        abandon: Callable[[], None],
        descriptors: Descriptors,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._url = url
        self.password = password
        """Asked at every new connection."""
        self._abandon = abandon
        self._descriptors = descriptors
        self._random = random
        self._probe: _Probe | None = None
        self._probe_at = 0.0
        self._failures = 0
        self.runner: SyncRunner | None = None
        """Usable while Redis is there, else None."""
        self.away_since: float | None = time.monotonic()
        """None while there is a connection that has proved to be of use."""
        self.can_answer: Callable[[], bool] = lambda: True
        """Whether to ask at all; an embedded server that is being started would only refuse."""
        self.is_new = False
        """Set with every new runner, for the loop to notice."""
        self.error = ""
        """Why it is away, in one line."""

    @property
    def due_at(self) -> float:
        """The next instant at which :meth:`tick` has something to do."""
        if self._probe is not None:
            return self._probe.kill_at
        return self._probe_at if self.runner is None else float("inf")

    def tick(self, now: float) -> None:
        """Starts a probe that is due, or kills one that takes too long."""
        if self._probe is not None:
            if now >= self._probe.kill_at:
                self._end_probe(b"-no answer within 2 s", now)
        elif self.runner is None and now >= self._probe_at:
            if self.can_answer():
                self._begin_probe(now)
            else:
                self._probe_at = now + _LOOK_AGAIN_S

    def _begin_probe(self, now: float) -> None:
        try:
            password = self.password()
        except ChronosError as error:
            self._failed(str(error), now)  # its file is being replaced, perhaps: asked for again each time
            return
        try:
            reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            self._failed(f"cannot make a pipe: {error}", now)
            return

        def ask() -> int:
            try:
                said = _SAID_ADDRESS + probe(self._url, password, PROBE_LIMIT_S).encode()
            except ChronosError as error:
                said = _SAID_ERROR + str(error).encode("utf-8", "backslashreplace")[:2000]
            os.write(writing, said)
            return 0

        def abandon() -> None:
            os.close(reading)
            self._abandon()

        try:
            child = process.fork(ask, title="chronosd: probe", abandon=abandon)
        except OSError as error:
            os.close(reading)
            self._failed(f"cannot fork: {error}", now)
            return
        finally:
            os.close(writing)
        self._probe = _Probe(child, reading, password, now + PROBE_LIMIT_S)
        self._descriptors.watch(reading, self._handle_readable)

    def _handle_readable(self) -> None:
        """The probe has said something, or died."""
        assert self._probe is not None
        try:
            said = os.read(self._probe.pipe, 4096)
        except BlockingIOError:
            return
        self._end_probe(said or b"-the probe died", time.monotonic())

    def _end_probe(self, said: bytes, now: float) -> None:
        probe_, self._probe = self._probe, None
        assert probe_ is not None
        self._descriptors.unwatch(probe_.pipe)
        os.close(probe_.pipe)
        # It has said all it has to say. From here on it is a stranger, reaped with SIGCHLD: to wait for it
        # would be to trust that it can be killed.
        probe_.child.send(signal.SIGKILL)
        probe_.child.close()
        text = said[1:].decode("utf-8", "backslashreplace")
        if not said.startswith(_SAID_ADDRESS):
            self._failed(text, now)
            return
        self.runner = SyncRunner(
            self._url,
            probe_.password,
            timeout_s=CALL_LIMIT_S,
            address=text,
            client_name="chronosd-supervisor",
        )
        self.is_new = True

    def _failed(self, error: str, now: float) -> None:
        if error != self.error:
            log.warning("redis is away", url=masked(self._url), error=error)
        self.error = error
        delay = min(_AGAIN_FIRST_S * 2.0 ** min(self._failures, 16), _AGAIN_CAP_S)
        self._failures += 1
        self._probe_at = now + delay * (0.5 + 0.5 * self._random())

    def lost(self, error: BrokerError, now: float) -> None:
        """A call has failed in a way that only a new connection can mend."""
        if self.runner is not None:
            self.runner.close()
            self.runner = None
            if self.away_since is None:
                self.away_since = now
        self._failed(str(error), now)

    def proved(self, now: float) -> None:
        """The connection is of use: the next outage starts with short delays again. Until then each loss
        makes them longer: a server that has become a replica lets everybody in, and takes no writes."""
        if self.away_since is not None:
            log.info("redis reached", url=masked(self._url), after_s=round(now - self.away_since, 3))
        self.away_since, self.error, self._failures = None, "", 0

    def abandon(self) -> None:
        """In a child: closes the parent's descriptors without a word to the server or the probe."""
        if self.runner is not None:
            self.runner.close()
        if self._probe is not None:
            os.close(self._probe.pipe)
            self._probe.child.close()

    def close(self) -> None:
        """At the end: no probe is left running, no connection open."""
        if self._probe is not None:
            self._end_probe(b"-stopped", time.monotonic())
        if self.runner is not None:
            self.runner.close()
            self.runner = None
