"""Where log lines go: a descriptor that is written to without ever waiting.

stderr is shared with whoever started the daemon, so O_NONBLOCK may not be set on it: the flag belongs to the
open file, not to the descriptor, and would break the shell's. Asking ``select`` first is not enough either,
for another process on the same pipe can fill it in between. So a pipe or terminal is opened once more
(through /proc, which makes an open file of our own), a socket is sent to with MSG_DONTWAIT, and a regular
file, which never blocks, is written as it is (opening it again would lose O_APPEND).
"""

from __future__ import annotations

import os
import select
import socket
import stat
import threading
import weakref
from collections.abc import Callable

MAX_LINE = 4096
"""Longest line in bytes, newline and priority included: what POSIX lets a pipe take in one piece."""

_sinks: weakref.WeakSet[Sink] = weakref.WeakSet()


def _after_fork() -> None:
    # a handler that forks while another thread logs would leave its child with a lock held for ever
    for sink in _sinks:
        sink.forget()


os.register_at_fork(after_in_child=_after_fork)


def _plain_notice(count: int) -> bytes:
    return b'{"event":"log lines dropped","count":%d}' % count


def is_journal(fd: int) -> bool:
    """Whether ``fd`` is the journal, which takes ``<3>`` before a line for its priority."""
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    # set by systemd to the device and inode of the stream that goes to the journal
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


class Sink:
    """Writes whole lines to one descriptor; drops and counts what it does not take at once."""

    def __init__(self, fd: int, notice: Callable[[int], bytes] = _plain_notice) -> None:
        self.dropped = 0
        """Lines dropped so far."""
        self._notice = notice  # the line that says how many were dropped, once lines are taken again
        self._reported = 0
        self._rest = b""  # of a line that a terminal or socket took only in part
        self._lock = threading.RLock()  # re-entrant: a signal handler may log on top of a log call
        self._fd = fd
        self._own_fd: int | None = None
        self._socket: socket.socket | None = None
        self._poll = False
        self._journal = False
        try:
            status = os.fstat(fd)
        except OSError:  # started with stderr closed: every line is dropped
            status = None
        if status is not None:
            self._open(fd, status)
        _sinks.add(self)

    def _open(self, fd: int, status: os.stat_result) -> None:
        self._journal = is_journal(fd)
        if stat.S_ISSOCK(status.st_mode):
            self._socket = socket.socket(fileno=os.dup(fd))
        elif stat.S_ISFIFO(status.st_mode) or os.isatty(fd):
            try:
                self._own_fd = os.open(
                    f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
                )
            except OSError:  # another user's pipe, or no /proc: the small race is all that is left
                self._poll = True

    @property
    def room(self) -> int:
        """Bytes that a line may have before its priority and newline are added."""
        return MAX_LINE - 4

    def write(self, line: bytes, priority: int = 6) -> bool:
        """Writes ``line`` and a newline; False where it was dropped. ``priority`` is syslog's, 0 to 7."""
        with self._lock:
            if self.dropped > self._reported:
                count = self.dropped - self._reported
                if not self._put(self._framed(self._notice(count), 4)):
                    self.dropped += 1
                    return False
                self._reported = self.dropped
            if self._put(self._framed(line, priority)):
                return True
            self.dropped += 1
            return False

    def _framed(self, line: bytes, priority: int) -> bytes:
        line = line[: self.room]
        # journald takes a line break for the end of the entry
        return b"<%d>%s\n" % (priority, line) if self._journal else line + b"\n"

    def _put(self, data: bytes) -> bool:
        try:
            if self._rest:
                self._rest = self._rest[self._send(self._rest) :]
                if self._rest:
                    return False
            self._rest = data[self._send(data) :]
        except OSError:  # full, closed at the other end, no space on the disk
            return False
        return True

    def _send(self, data: bytes) -> int:
        if self._socket is not None:
            return self._socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        if self._own_fd is not None:
            return os.write(self._own_fd, data)
        if self._poll:
            poller = select.poll()
            poller.register(self._fd, select.POLLOUT)
            if not poller.poll(0):
                raise BlockingIOError
        return os.write(self._fd, data)

    def close(self) -> None:
        """Gives up what was opened here; the descriptor given stays open."""
        with self._lock:
            if self._own_fd is not None:
                os.close(self._own_fd)
            if self._socket is not None:
                self._socket.close()
            self._own_fd = self._socket = None
            self._fd = -1

    def forget(self) -> None:
        """In a forked child: nobody holds the lock there, and the parent finishes its own lines."""
        self._lock = threading.RLock()
        self._rest = b""
