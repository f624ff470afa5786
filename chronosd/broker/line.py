"""One synchronous connection to Redis.

redis-py makes it (addresses, TLS, login); what goes over it afterwards is written and read here, with fewer
steps: that is what a single enqueue and an idle supervisor consist of.
"""

from __future__ import annotations

import select
from typing import Any

import hiredis

from chronosd.broker.connect import Target, connection
from chronosd.broker.sockets import Deadline
from chronosd.broker.wire import ReplyError

_READ = 1 << 16


class Line:
    """Bytes out, replies in order. Not connected before :meth:`connect`.

    Args: as of :class:`~chronosd.broker.runner.SyncRunner`.

    Raises: what redis-py and the system raise.
    """

    __slots__ = ("_link", "_name", "_reader", "_socket", "deadline")

    def __init__(self, target: Target, *, address: str = "", client_name: str = "") -> None:
        self.deadline = Deadline()
        """When the call under way has to be over."""
        self._link = connection(target, self.deadline, address=address)
        self._name = client_name
        self._socket: Any = None
        self._reader: Any = None

    def connect(self) -> None:
        """Connects and logs in, unless it has."""
        if self._socket is None:
            self._link.connect()
            self._reader = hiredis.Reader(replyError=ReplyError, protocolError=ConnectionError)
            self._socket = self._link._sock.real
            if self._name:
                words: tuple[Any, ...] = ("CLIENT", "SETNAME", self._name)
                self.send(hiredis.pack_command(words))
                self.receive()  # an ACL may refuse it, and it is but a name

    def send(self, packed: bytes) -> None:
        """Writes all of it."""
        self._socket.settimeout(self.deadline.left())
        self._socket.sendall(packed)

    def receive(self) -> Any:
        """The next reply; an error of the server is a `ReplyError`, not raised."""
        while (reply := self._reader.gets()) is False:
            self._socket.settimeout(self.deadline.left())
            data = self._socket.recv(_READ)
            if not data:
                raise ConnectionError("connection closed by server")
            self._reader.feed(data)
        return reply

    def is_closed(self) -> bool:
        """Whether something came while nothing was asked: the end of the connection, mostly.

        Looked for before a write, since a write into a closed connection succeeds and leaves it in doubt.
        """
        if self._socket is None or self._reader.has_data():
            return True
        poll = select.poll()
        try:
            poll.register(self._socket.fileno(), select.POLLIN)
        except (ValueError, OSError):  # no socket any more
            return True
        return bool(poll.poll(0))

    def close(self) -> None:
        """Disconnects; in a forked child without a word to the server, whose connection is the parent's."""
        self._socket = self._reader = None
        self._link.disconnect()
