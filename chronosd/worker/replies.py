"""What the reply to a cycle means: which ends Redis has, which leases are lost, what has been fetched."""

from __future__ import annotations

from typing import Any

from chronosd import log
from chronosd.board import Cell
from chronosd.broker.cancel import CANCELLED
from chronosd.broker.consume import Delivery, Renewed, Retained, is_newer
from chronosd.errors import BrokerError, Trouble
from chronosd.metrics import End
from chronosd.worker.complete import Sending
from chronosd.worker.cycle import Ask
from chronosd.worker.doubt import Doubt
from chronosd.worker.held import Held
from chronosd.worker.intake import Intake
from chronosd.worker.pace import Pace
from chronosd.worker.pick import Picker
from chronosd.worker.starter import Starter, facts_of
from chronosd.worker.trouble import Troubles

_log = log.get_logger("chronosd.worker")


class Replies:
    """Tells the parts of the worker what has become of what they asked for."""

    def __init__(
        self,
        held: Held,
        starter: Starter,
        intake: Intake,
        doubt: Doubt,
        picker: Picker,
        pace: Pace,
        troubles: Troubles,
    ) -> None:
        self._held = held
        self._starter = starter
        self._intake = intake
        self._doubt = doubt
        self._picker = picker
        self._pace = pace
        self._troubles = troubles
        self._sick: set[int] = set()
        """Queues of which something could not be carried out in this cycle."""
        self.reconnect = False
        """The server that answered is not the one to talk to any more."""

    def settle(self, sendings: list[Sending], results: list[Any]) -> None:
        """Frees the slots of what has been carried out."""
        # One script of a queue may fail and the next not (its kept successes have no place, its fetches do):
        # the queue is not well for that, or the same would be sent again at once, for as long as it fails.
        pairs = zip(sendings, results, strict=False)
        self._sick = {sending.index for sending, result in pairs if isinstance(result, BrokerError)}
        for sending, result in zip(sendings, results, strict=False):
            if isinstance(result, BrokerError):
                self._held.refused(sending)
                self._troubles.sick(sending.index, result)
                self._picker.report(sending.index, 1, 0)
                self.reconnect |= result.trouble is Trouble.RECONNECT
                continue
            self._well(sending.index)
            lost: list[bytes] = result if isinstance(result, list) and not sending.resent else []
            named = [run.message.id for e in lost[:20] if (run := self._held.runs.get((sending.index, e)))]
            if lost:
                self._held.recount(((sending.index, entry) for entry in lost), End.LOST)
            if isinstance(result, Retained) and result.parked:
                self._park(sending, result)
            if isinstance(result, Renewed) and result.cancelled:
                self._end_cancelled(sending, result)
            self._held.told(sending)
            if lost:
                self._held.board.cells[Cell.LEASES_LOST] += len(lost)
                _log.warning("leases lost", queue=sending.queue, entries=len(lost), task_ids=named)

    def _park(self, sending: Sending, retained: Retained) -> None:
        """Tasks that succeeded and were dead-lettered all the same: what follows could not be enqueued."""
        self._held.board.cells[Cell.ARCHIVED] += len(retained.parked)
        parked = dict(retained.parked)
        for entry in sending.entries:
            run = self._held.runs.get((sending.index, entry))
            if run is not None and run.message.id in parked:
                self._held.recount([(sending.index, entry)], End.ARCHIVED)
                why = f"what follows it could not be enqueued: {parked[run.message.id]}"
                _log.error("task archived", **facts_of(run), error=why)

    def _end_cancelled(self, sending: Sending, renewed: Renewed) -> None:
        """Tasks that were to run again, and were cancelled before their worker was told."""
        for entry in renewed.cancelled:
            run = self._held.runs.get((sending.index, entry))
            if run is not None:
                counter = self._held.tally.counter(run.queue, run.message.kind, End.CANCELLED)
                self._held.board.finish(run.slot, counter)
                _log.warning("task cancelled", **facts_of(run), error=CANCELLED)

    def take_in(self, asks: list[Ask], results: list[Any]) -> None:
        """Receives what a cycle fetched."""
        full = asked = False
        for ask, result in zip(asks, results, strict=True):
            if isinstance(result, BrokerError):
                self._cannot_fetch(ask, result)
                continue
            self._well(ask.queue)
            fetched: Delivery = result
            if ask.most:
                brought = len(fetched.tasks) + len(fetched.gone) - len(ask.delivered)
                self._picker.report(ask.queue, ask.most, brought)
                asked = True
                full |= brought >= ask.most
            self.receive(ask.queue, fetched)
        if asked:
            self._pace.is_full = full

    def receive(self, index: int, fetched: Delivery) -> None:
        """Passes on what came of one queue."""
        held = self._held
        if fetched.gone:
            held.board.cells[Cell.DROPPED] += len(fetched.gone)
            name = held.queues[index].name
            _log.warning("tasks dropped: their bodies are gone", queue=name, ids=fetched.gone[:10])
        if fetched.tasks:
            held.board.cells[Cell.FETCHED] += len(fetched.tasks)
            last = fetched.tasks[-1].entry  # in the order of the stream, but for what was delivered before
            if is_newer(last, held.newest[index]):
                held.newest[index] = last
            self._intake.receive(index, fetched.tasks)

    def _well(self, index: int) -> None:
        if index not in self._sick:
            self._troubles.well(index)

    def _cannot_fetch(self, ask: Ask, error: BrokerError) -> None:
        self._troubles.sick(ask.queue, error)
        self._picker.report(ask.queue, 1, 0)
        self._starter.is_doubtful = True
        if error.trouble is Trouble.RECREATE:  # and with the group all that was delivered is gone
            self._doubt.is_group_missing = True
        else:
            self._held.delivered += [(ask.queue, entry) for entry in ask.delivered]
            self.reconnect |= error.trouble is Trouble.RECONNECT
