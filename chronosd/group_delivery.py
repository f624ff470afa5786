"""How a new group gets to the server, without I/O: request after request, resent while there is time."""

from __future__ import annotations

from collections.abc import Generator
from time import monotonic
from typing import Any

from chronosd.broker.commands import Command
from chronosd.delivery import PAUSE_S, Attempt, retold
from chronosd.errors import BrokerError, BrokerUnavailable, Trouble
from chronosd.workflow_plan import GroupPlan
from chronosd.workflows import GroupInfo

GroupDelivery = Generator[Attempt, list[Any], GroupInfo]


def group_delivery(plan: GroupPlan, timeout_s: float) -> GroupDelivery:
    """Makes a group; each of its requests may take ``timeout_s``. As `chronosd.delivery.delivery`.

    Raises BrokerUnavailable, whose ``maybe_enqueued`` is true only if the whole group may be there, and
    BrokerRefused.
    """
    *staging, opening = plan.commands
    for command in staging:
        try:
            yield from _insist(command, timeout_s)
        except BrokerUnavailable as error:
            # what was put down is forgotten: nothing of it has run, or will
            raise BrokerUnavailable(str(error), trouble=error.trouble) from None
    word = yield from _insist(opening, timeout_s)
    if word == "expired":
        raise BrokerUnavailable("the group took too long to be put down; nothing of it was enqueued")
    return plan.accepted()


def _insist(command: Command[Any], timeout_s: float) -> Generator[Attempt, list[Any], Any]:
    until = monotonic() + timeout_s
    in_doubt = lost = False
    attempt = Attempt([command], timeout_s)
    while True:
        error: BrokerError
        try:
            (result,) = yield attempt
        except BrokerUnavailable as exc:
            error = exc
            in_doubt = in_doubt or exc.maybe_enqueued
            is_hopeless = exc.trouble is not Trouble.RETRY and not in_doubt
        else:
            if not isinstance(result, BrokerError):
                return result
            error = retold(result, in_doubt=in_doubt)
            is_hopeless = not isinstance(error, BrokerUnavailable)
        if isinstance(error, BrokerUnavailable):
            error.maybe_enqueued = in_doubt
        if is_hopeless or monotonic() + PAUSE_S >= until:
            raise error
        pause_s = PAUSE_S if lost or error.trouble is Trouble.RETRY else 0.0
        lost = True
        attempt = Attempt(
            [command], until - monotonic(), pause_s=pause_s, reconnect=error.trouble is Trouble.RECONNECT
        )
