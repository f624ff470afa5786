"""Taking over what lost owners on other hosts have left pending."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chronosd.broker.commands import Command, Steps, plain, text
from chronosd.broker.fates import Death, Fate, Policy, Row, Settled
from chronosd.broker.keys import GROUP, QueueKeys
from chronosd.broker.settle import execute, look
from chronosd.broker.sweep import give_back
from chronosd.errors import BrokerError


@dataclass(slots=True)
class Recovered:
    """What one recovery step did. ``cursor`` is where the next one continues; "0-0" means from the start."""

    cursor: str
    settled: Settled
    claimed: int = 0


def recover(
    queue: QueueKeys,
    recoverer: str,
    min_idle_s: float,
    cursor: str,
    own: Mapping[str, str],
    policy: Policy,
    count: int = 100,
) -> Steps[Recovered]:
    """Takes over entries that nobody has renewed for ``min_idle_s``, whose owners are on other hosts.

    ``own`` maps entries on this host's boards to their consumers: those are alive, whatever their idle time
    says (an outage made it grow), and are given back. Raises BrokerError; then the old cursor stays valid.
    """
    (reply,) = yield [_autoclaim(queue, recoverer, min_idle_s, cursor, count)]
    if isinstance(reply, BrokerError):
        raise reply
    following, entries, vanished = reply
    # Deleted from the stream while they were pending (an operator, a trim): the server has cleared them.
    summary = Settled(dropped=vanished)
    alive = [e for e in entries if text(e) in own]
    if alive:
        yield [give_back(queue, own[text(e)], [text(e)]) for e in alive]
    lost = [e for e in entries if text(e) not in own]
    if lost:
        (rows,) = yield [look(queue, lost)]
        if isinstance(rows, BrokerError):
            raise rows
        death = Death(f"worker lost: its lease was not renewed for {min_idle_s:g} s", "unknown")
        judged = [(queue, [(row, _fate_of_lost(row)) for row in rows])]
        yield from execute(judged, death, policy, summary)
    return Recovered(following, summary, len(lost))


def _fate_of_lost(row: Row) -> Fate:
    """Ours are charged once their run had outlived a cycle; chronos-go's, which tell no more, if active."""
    if row.sid == row.entry:
        return Fate.CHARGE if row.run == row.entry else Fate.RETURN
    return Fate.CHARGE if row.state == b"2" else Fate.RETURN


def _autoclaim(
    queue: QueueKeys, consumer: str, min_idle_s: float, cursor: str, count: int
) -> Command[tuple[str, list[bytes], int]]:
    words = ("XAUTOCLAIM", queue.stream, GROUP, consumer, round(min_idle_s * 1000), cursor)
    return plain(
        *words,
        *("COUNT", count, "JUSTID"),
        # servers before 7.0 do not tell what is deleted: those entries come along, and are found to be gone
        parse=lambda reply: (text(reply[0]), [e for e in reply[1] if e], len(reply[2]) if reply[2:] else 0),
        repeatable=False,
    )
