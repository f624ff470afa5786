"""Orders that a worker's link has no room for are kept, and offered again until it takes them."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

from chronosd.supervisor.descriptors import Descriptors
from chronosd.supervisor.fleet import Fleet
from chronosd.supervisor.worker import Phase, Worker


class Full:
    """A link that has no room at first."""

    def __init__(self) -> None:
        self.has_room = False
        self.took: list[Any] = []

    def send(self, message: Any) -> bool:
        if self.has_room:
            self.took.append(message)
        return self.has_room


def test_an_order_that_found_no_room_is_offered_again_when_the_fleet_is_due() -> None:
    """The instant at which that was due lay ahead of whoever asked, always: it never came."""
    link = Full()
    worker = Worker(
        cast(Any, SimpleNamespace(index=0)),
        cast(Any, None),
        cast(Any, link),
        cast(Any, None),
        started_at=0.0,
        phase=Phase.RUNNING,
    )
    descriptors = Descriptors()
    fleet = Fleet(cast(Any, SimpleNamespace(workers=1)), cast(Any, None), descriptors)
    fleet.places[0].worker, fleet.places[0].spawn_at = worker, None
    assert fleet.due_at == float("inf")
    fleet.quiet(True)
    assert worker.owed
    now = time.monotonic()
    assert fleet.due_at <= now
    fleet.tick(now)
    assert now < fleet.due_at <= now + 1.0  # not all the time
    link.has_room = True
    fleet.tick(fleet.due_at)
    assert link.took == [{"t": "quiet"}]
    assert fleet.due_at == float("inf")
    descriptors.close()
