"""The line between supervisor and worker: whole messages, nobody waits, the other end's death is told."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

import pytest

from chronosd.link import Link


@pytest.fixture
def ends() -> Iterator[tuple[Link, Link]]:
    ours, theirs = Link.pair()
    yield ours, theirs
    ours.close()
    theirs.close()


def test_messages_arrive_whole_and_in_order_both_ways(ends: tuple[Link, Link]) -> None:
    ours, theirs = ends
    assert theirs.receive() == []
    sent = [{"t": "lost", "entries": [["q", f"{i}-0"]]} for i in range(50)]
    assert all(ours.send(message) for message in sent)
    assert theirs.send({"t": "ready"})
    assert theirs.receive() == sent
    assert theirs.receive() == []
    assert ours.receive() == [{"t": "ready"}]


def test_nobody_waits_for_an_end_that_does_not_read(ends: tuple[Link, Link]) -> None:
    ours, theirs = ends
    sent = 0
    while ours.send({"t": "go", "n": sent}):
        sent += 1
        assert sent < 100_000
    received = theirs.receive()
    assert received is not None
    assert [message["n"] for message in received] == list(range(sent))
    assert ours.send({"t": "go"})


@pytest.mark.parametrize("entries", [1, 1500, 3000])
def test_long_messages_arrive_whole(ends: tuple[Link, Link], entries: int) -> None:
    """A message longer than the reader's buffer is cut off by the kernel, and was no JSON any more."""
    ours, theirs = ends
    message = {"t": "lost", "entries": [["a-queue-of-some-length", "1700000000000-0"]] * entries}
    assert ours.send(message)
    assert theirs.receive() == [message]


@pytest.mark.parametrize("size", [230_000, 300_000, 3_000_000])
def test_a_message_that_is_too_long_is_refused_and_the_line_stays_good(
    ends: tuple[Link, Link], size: int
) -> None:
    ours, theirs = ends
    assert ours.send({"t": "x" * size}) is False
    assert ours.send({"t": "go"})
    assert theirs.receive() == [{"t": "go"}]


def test_the_end_of_the_other_side_is_told_after_its_last_words(ends: tuple[Link, Link]) -> None:
    ours, theirs = ends
    theirs.send({"t": "drained"})
    theirs.close()
    assert select.select([ours], [], [], 1)[0] == [ours]
    assert ours.receive() == [{"t": "drained"}]
    assert ours.receive() is None
    assert ours.send({"t": "go"}) is False
    assert ours.receive() is None


def test_what_was_sent_to_a_side_that_closes_unread_is_no_error(ends: tuple[Link, Link]) -> None:
    ours, theirs = ends
    theirs.send({"t": "ready"})
    ours.send({"t": "go"})
    theirs.close()
    received = ours.receive()
    while received:
        received = ours.receive()
    assert received is None


def test_a_dead_process_ends_the_line(ends: tuple[Link, Link]) -> None:
    ours, theirs = ends
    pid = os.fork()
    if pid == 0:
        theirs.send({"t": "ready"})
        os._exit(0)
    theirs.close()
    os.waitpid(pid, 0)
    assert ours.receive() == [{"t": "ready"}]
    assert ours.receive() is None


def test_descriptors_do_not_pass_an_exec(ends: tuple[Link, Link]) -> None:
    assert not any(os.get_inheritable(end.fileno()) for end in ends)
