"""The control socket: one JSON line in, one JSON line out, then the connection is closed.

Served by the loop's own selector, so it answers while Redis is away and while a reload is under way. Nothing
a client does can hold the loop: reads and writes never block, a request is at most some kilobytes, a client
that does not finish its request or take its answer is dropped, and there are only so many at a time.

Only the owner of the daemon (and root) gets in: the socket's mode is 0600, and the peer is asked for as well.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import select
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from chronosd.log import get_logger
from chronosd.supervisor.descriptors import Descriptors

log = get_logger("chronosd.supervisor")

_REQUEST_BYTES = 16_384
_CLIENTS = 64
_PATIENCE_S = 5.0
_BACKLOG = 128
_SCARCE_S = 0.5
"""How long nobody is let in after a descriptor could not be had: the listener stays readable meanwhile, and
whoever went on asking would spin."""
_LOOK_S = 1.0
"""How often one that waits for its answer is looked at: it may have gone away."""
_CREDENTIALS = struct.Struct("3i")

Answer = dict[str, Any]
Reply = Callable[[Answer], None]
Handle = Callable[[dict[str, Any], Reply], None]
"""Does what is asked and replies, at once or later, once."""


class InUse(OSError):
    """Another daemon serves the socket."""


class Client:
    """One connection."""

    def __init__(self, connection: socket.socket, limit_at: float) -> None:
        self.connection = connection
        self.limit_at: float | None = limit_at
        """When patience is over; None while the answer is on our side."""
        self.request = bytearray()
        self.answer = b""
        self.look_at: float | None = None
        """It has said that no more follows: when to see whether it has gone away altogether."""

    def fileno(self) -> int:
        return self.connection.fileno()

    @property
    def is_gone(self) -> bool:
        """Whether it takes nothing any more. One that has only shut down its own side still does."""
        poll = select.poll()
        poll.register(self.connection, 0)
        return any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))


class Control:
    """The listening socket and its clients. Instants are monotonic.

    Args:
        is_alone: nothing else is in its directory, which goes with it.

    Raises:
        InUse: a living daemon listens there.
        OSError: it cannot be bound.
    """

    def __init__(
        self, path: Path, handle: Handle, descriptors: Descriptors, *, is_alone: bool = False
    ) -> None:
        self._path = path
        self._is_alone = is_alone
        self._handle = handle
        self._descriptors = descriptors
        self._clients: list[Client] = []
        self._lock_path = path.with_name(f"{path.name}.lock")
        self._lock_fd = _lock(self._lock_path, path)
        try:
            self._listener = _listen(path)
        except OSError:
            os.close(self._lock_fd)
            raise
        descriptors.watch(self._listener, self._handle_connection)
        self._listen_at: float | None = None
        """When to let clients in again; None while they are."""

    # -- clients ------------------------------------------------------------------------------------

    def _handle_connection(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                log.warning("cannot take a control connection", error=str(error))
                self._descriptors.unwatch(self._listener)  # it stays in the backlog
                self._listen_at = time.monotonic() + _SCARCE_S
            return  # or it has gone again
        connection.setblocking(False)
        if not _is_owner(connection) or len(self._clients) >= _CLIENTS:
            connection.close()
            return
        client = Client(connection, time.monotonic() + _PATIENCE_S)
        self._clients.append(client)
        self._descriptors.watch(client, lambda: self._handle_request(client))

    def _handle_request(self, client: Client) -> None:
        try:
            said = client.connection.recv(_REQUEST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if client.limit_at is None:
            # It has asked already. One that says no more may still wait for its answer.
            if not said:
                self._descriptors.unwatch(client)
                client.look_at = time.monotonic()
                self._look_after(client)
            return
        if not said:
            self._drop(client)
            return
        client.request += said
        line, end, _ = client.request.partition(b"\n")
        if end:
            client.limit_at = None
            self._obey(client, bytes(line))
        elif len(client.request) >= _REQUEST_BYTES:
            self._answer(client, refused("the request is too long"))

    def _obey(self, client: Client, line: bytes) -> None:
        try:
            request = orjson.loads(line)
        except ValueError:
            request = None
        if not isinstance(request, dict):
            self._answer(client, refused("the request is no JSON object"))
            return
        try:
            self._handle(request, lambda answer: self._answer(client, answer))
        except Exception:
            # A fault in one answer is that client's; the loop and the daemon go on.
            log.exception("control request failed", request=str(request)[:200])
            self._answer(client, refused("the daemon could not answer; its log says why"))

    def _answer(self, client: Client, answer: Answer) -> None:
        if client not in self._clients:
            return  # it has not waited
        client.answer = _written(answer) + b"\n"
        client.look_at = None
        client.limit_at = time.monotonic() + _PATIENCE_S
        self._descriptors.unwatch(client)
        self._descriptors.watch_writable(client, lambda: self._write(client))
        self._write(client)

    def _write(self, client: Client) -> None:
        try:
            sent = client.connection.send(client.answer)
        except BlockingIOError:
            return
        except OSError:
            sent = len(client.answer)
        client.answer = client.answer[sent:]
        if not client.answer:
            # What is left unread when a socket is closed takes the answer with it.
            with contextlib.suppress(OSError):
                client.connection.recv(4 * _REQUEST_BYTES)
            self._drop(client)

    def _look_after(self, client: Client) -> None:
        """Drops one that has gone away while its request was under way: a `restart --wait` that somebody
        interrupted would keep its place for as long as the restart takes."""
        if client.is_gone:
            self._drop(client)
        else:
            client.look_at = time.monotonic() + _LOOK_S

    def _drop(self, client: Client) -> None:
        if client in self._clients:
            self._clients.remove(client)
            self._descriptors.unwatch(client)
            client.connection.close()

    # -- the loop's side ------------------------------------------------------------------------------

    @property
    def due_at(self) -> float:
        """When the next client's time is up, or somebody is to be looked after."""
        instants = [
            at for client in self._clients for at in (client.limit_at, client.look_at) if at is not None
        ]
        if self._listen_at is not None:
            instants.append(self._listen_at)
        return min(instants, default=float("inf"))

    def tick(self, now: float) -> None:
        """Drops clients that neither finish their request nor take their answer."""
        for client in list(self._clients):
            if client.limit_at is not None and client.limit_at <= now:
                self._drop(client)
            elif client.look_at is not None and client.look_at <= now:
                self._look_after(client)
        if self._listen_at is not None and self._listen_at <= now:
            self._listen_at = None
            self._descriptors.watch(self._listener, self._handle_connection)

    def flush(self) -> None:
        """At the end of the daemon: the last answers, as far as they are taken at once."""
        for client in list(self._clients):
            if client.answer:
                self._write(client)

    def close(self) -> None:
        """Ends every connection and removes the socket."""
        self.flush()
        self._path.unlink(missing_ok=True)
        self._lock_path.unlink(missing_ok=True)
        if self._is_alone:
            with contextlib.suppress(OSError):
                self._path.parent.rmdir()
        self.abandon()

    def abandon(self) -> None:
        """In a child: closes what is the supervisor's; the socket stays."""
        for client in self._clients:
            client.connection.close()
        self._clients.clear()
        self._listener.close()
        os.close(self._lock_fd)


def refused(why: str, code: int = 1) -> Answer:
    """An answer that says no; ``code`` is the exit code of the command that asked."""
    return {"ok": False, "error": why, "code": code}


def _written(answer: Answer) -> bytes:
    try:
        return orjson.dumps(answer, default=str, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # a file's name may hold bytes that are no UTF-8
        return json.dumps(answer, default=str).encode()


def _lock(lock_path: Path, path: Path) -> int:
    """Takes the lock that goes with the socket.

    A daemon that was killed leaves its socket behind. The lock tells it from one that lives: the kernel
    lets go of it with the process, and a mute daemon holds it as well as a busy one.
    """
    while True:
        fd = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink > 0:
                return fd
        except BlockingIOError:
            os.close(fd)
            raise InUse(f"another chronosd serves {path}; give one of the two a `name`") from None
        os.close(fd)  # its owner removed it between our open and our lock: that was nobody's lock


def _listen(path: Path) -> socket.socket:
    if path.is_socket():
        path.unlink()  # a dead daemon's: the lock is ours
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    mask = os.umask(0o177)  # from the first instant on: a mode set afterwards leaves a gap
    try:
        listener.setblocking(False)
        listener.bind(str(path))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(mask)
    return listener


def _is_owner(connection: socket.socket) -> bool:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    return uid in (0, os.geteuid())
