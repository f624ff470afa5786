"""systemd's notification protocol (sd_notify(3)), spoken by the main process only.

Never blocks and never fails: a notification that cannot be sent is logged once and forgotten. The variables
are taken out of the environment when the notifier is made, so that nothing the daemon starts can speak in
its name.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import MutableMapping

from chronosd.log import get_logger

log = get_logger("chronosd.notify")


class Notifier:
    """Sends state to ``$NOTIFY_SOCKET``; does nothing where there is none."""

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        address = environ.pop("NOTIFY_SOCKET", "")
        usec = environ.pop("WATCHDOG_USEC", "")
        watched = environ.pop("WATCHDOG_PID", "") or str(os.getpid())
        self.watchdog_s: float | None = None
        """The period within which systemd wants a sign of life; None if it does not watch this process."""
        # WATCHDOG_PID names the process that systemd watches. Ours only if it is us: a shell between
        # systemd and the daemon may have passed on what was meant for itself.
        if watched == str(os.getpid()) and usec.isdigit() and int(usec) > 0:
            self.watchdog_s = int(usec) / 1e6
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket: socket.socket | None = None
        self._failed = False
        self._status = ""
        self._owed: list[tuple[str, ...]] = []
        """READY and STOPPING that the socket has not taken yet: without them systemd kills the daemon."""
        if not address:
            return
        if address[0] not in "@/":
            log.warning("notify socket of an unsupported kind", address=address)
            return
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)

    def ready(self, status: str = "") -> None:
        """Started, or reloaded: from here on the unit counts as up."""
        self._owe(status, "READY=1")

    def reloading(self, status: str = "") -> None:
        """A reload begins; whatever comes of it, :meth:`ready` or :meth:`stopping` has to follow."""
        # One datagram: systemd takes a READY for this reload's only if it is later than this instant.
        usec = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._owe(status, "RELOADING=1", f"MONOTONIC_USEC={usec}")

    def stopping(self, status: str = "") -> None:
        self._owe(status, "STOPPING=1")

    def status(self, status: str) -> None:
        """One line for ``systemctl status``; sent only when it changes."""
        if status != self._status and self._send(*_status_line(status)):
            self._status = status

    def watchdog(self) -> None:
        self._send("WATCHDOG=1")

    def extend_timeout(self, seconds: float) -> None:
        """Still starting or stopping: give it that much longer from now."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def _owe(self, status: str, *lines: str) -> None:
        self._owed.append((*lines, *_status_line(status)))
        self._status = status or self._status
        self.settle()

    def settle(self) -> None:
        """Sends what is owed; to be called now and then while the socket's reader is behind."""
        while self._owed and self._send(*self._owed[0]):
            del self._owed[0]

    def _send(self, *lines: str) -> bool:
        if self._socket is None:
            return False
        try:
            # a file's name may hold bytes that are no UTF-8
            text = "\n".join(lines).encode("utf-8", "backslashreplace")
            self._socket.sendto(text, self._address)
        except OSError as error:
            if not self._failed:
                log.warning("cannot notify systemd", error=str(error))
            self._failed = True
            return False
        self._failed = False
        return True

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _status_line(status: str) -> tuple[str, ...]:
    return (f"STATUS={' '.join(status.split())}",) if status else ()
