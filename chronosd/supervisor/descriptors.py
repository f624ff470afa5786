"""What the supervisor waits for: descriptors, each with its handler, and instants."""

from __future__ import annotations

import selectors
from collections.abc import Callable
from typing import Protocol


class HasFileno(Protocol):
    """Anything with a descriptor."""

    def fileno(self) -> int: ...


class Timed(Protocol):
    """What has to be looked after at certain instants (monotonic) and never waits for anything."""

    @property
    def due_at(self) -> float: ...
    def tick(self, now: float) -> None: ...


class Descriptors:
    """One selector; every descriptor has a handler."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def watch(self, descriptor: int | HasFileno, handle: Callable[[], None]) -> None:
        """Calls ``handle`` whenever the descriptor is readable, also at its end."""
        self._selector.register(descriptor, selectors.EVENT_READ, handle)

    def watch_writable(self, descriptor: int | HasFileno, handle: Callable[[], None]) -> None:
        """Calls ``handle`` whenever the descriptor takes data."""
        self._selector.register(descriptor, selectors.EVENT_WRITE, handle)

    def unwatch(self, descriptor: int | HasFileno) -> None:
        """Before the descriptor is closed. One that is not watched is left alone."""
        try:
            self._selector.unregister(descriptor)
        except (KeyError, ValueError):
            pass  # its end had been seen before

    def wait(self, timeout_s: float) -> list[selectors.SelectorKey]:
        """What is ready, waiting at most so long for it."""
        return [key for key, _ in self._selector.select(timeout_s)]

    def dispatch(self, keys: list[selectors.SelectorKey]) -> None:
        """Calls the handlers of what :meth:`wait` found."""
        for key in keys:
            # An earlier handler of this turn may have ended what this event is about, and even have
            # given its number to something else.
            if self._selector.get_map().get(key.fd) is key:
                key.data()

    def close(self) -> None:
        """Forgets them all; none is closed. In a child the parent's selector stays as it is."""
        self._selector.close()
