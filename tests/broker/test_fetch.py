"""Delivering tasks: fetch.lua, block, body, mark.lua, owned.lua, group.lua."""

from __future__ import annotations

import time
from typing import Any

import pytest

from chronosd.broker import consume
from chronosd.broker.commands import BATCH, REPLY_BYTES
from chronosd.broker.keys import GROUP
from chronosd.errors import BrokerRefused, Trouble
from chronosd.states import State
from tests.support.bench import Bench


def raw(bench: Bench, fields: dict[Any, Any]) -> bytes:
    """Puts an entry into the stream by hand."""
    entry: bytes = bench.redis.xadd(bench.queue.stream, fields)  # type: ignore[assignment]
    return entry


def put(bench: Bench, task_id: str, **fields: Any) -> bytes:
    """Puts a task into Redis by hand, as a Go producer would."""
    bench.redis.hset(bench.queue.task(task_id), mapping=fields)
    return raw(bench, {"task_id": task_id})


def test_a_group_is_made_once_and_delivers_what_was_there_before_it(bench: Bench) -> None:
    bench.add("a")
    assert bench.run(consume.create_group(bench.queue)) is True
    assert bench.run(consume.create_group(bench.queue)) is False
    assert [run.task_id for run in bench.fetch()] == ["a"]


def test_a_group_on_a_key_that_is_no_stream_is_an_error(bench: Bench) -> None:
    bench.redis.set(bench.queue.stream, "x")
    with pytest.raises(BrokerRefused, match="WRONGTYPE") as caught:
        bench.group()
    assert caught.value.trouble is Trouble.OPERATOR


def test_fetch_delivers_the_oldest_and_marks_them_active_with_their_entry(bench: Bench) -> None:
    bench.group()
    bench.add("a", "b", "c")
    runs = bench.fetch("c1", count=2)
    assert [run.task_id for run in runs] == ["a", "b"]
    assert [consume.body(bench.queue, run.task_id) for run in runs]
    assert runs[0].msg == bench.redis.hget(bench.queue.task("a"), "msg")
    assert (runs[0].crashes, runs[0].unknown_since) == (0, 0.0)
    found = bench.look()
    found.check()
    assert found.waiting == ["c"]
    assert found.active == {"a": "c1", "b": "c1"}
    assert found.hashes["a"]["state"] == "2"
    assert found.hashes["a"]["sid"] == runs[0].entry.decode()


def test_fetch_of_an_empty_queue_brings_nothing(bench: Bench) -> None:
    bench.group()
    assert bench.deliver() == consume.Delivery([], [])


def test_what_is_known_of_crashes_and_unknown_kinds_comes_along(bench: Bench) -> None:
    bench.group()
    put(bench, "a", msg="{}", state="1", crashes="2", unknown_since="1700000000.5")
    put(bench, "b", msg="{}", state="1", crashes="many", unknown_since="soon")
    assert [(run.crashes, run.unknown_since) for run in bench.fetch()] == [(2, 1700000000.5), (0, 0.0)]


def test_entries_whose_task_was_deleted_are_dropped_and_named_and_their_neighbours_run(bench: Bench) -> None:
    bench.group()
    bench.add("a", "gone", "b")
    bench.redis.delete(bench.queue.task("gone"))
    found = bench.deliver()
    assert [run.task_id for run in found.tasks] == ["a", "b"]
    assert found.gone == ["gone"]
    bench.look().check()
    assert bench.redis.xlen(bench.queue.stream) == 2


def test_a_hash_that_has_a_state_and_no_message_is_removed_with_its_entry(bench: Bench) -> None:
    bench.group()
    put(bench, "zombie", state="1")
    assert bench.deliver().gone == ["zombie"]
    assert bench.look().hashes == {}


def test_a_key_of_another_type_strands_none_of_its_neighbours(bench: Bench) -> None:
    bench.group()
    bench.add("a", "odd", "b")
    bench.redis.delete(bench.queue.task("odd"))
    bench.redis.set(bench.queue.task("odd"), "x")
    found = bench.deliver()
    assert [run.task_id for run in found.tasks] == ["a", "b"]
    assert found.gone == ["odd"]
    bench.look().check()
    assert bench.redis.get(bench.queue.task("odd")) == b"x"


@pytest.mark.parametrize(
    ("fields", "held"),
    [
        ({"foo": "bar"}, b"foo bar"),
        ({b"data": b"\xff\xfe"}, b"data \xff\xfe"),
        ({"task_id": ""}, b"task_id "),
        ({"task_id": b"\xff\x00"}, b"task_id \xff\x00"),
        ({"x": "y" * 100_000}, b"x " + b"y" * 65_534),
    ],
    ids=["another field", "bytes", "empty id", "id that is not UTF-8", "long"],
)
def test_an_entry_that_names_no_task_is_told_as_such_and_can_be_buried(
    bench: Bench, fields: dict[Any, Any], held: bytes
) -> None:
    bench.group()
    if fields.get("task_id"):
        bench.redis.hset(
            b"%s\xff\x00" % bench.queue.task_prefix.encode(), mapping={"msg": "{}", "state": "1"}
        )
    raw(bench, fields)
    bench.add("a")
    odd, sound = bench.fetch()
    assert (odd.task_id, odd.msg, sound.task_id) == ("", held, "a")
    record = consume.undecodable(bench.queue, odd.entry, odd.msg or b"")
    assert bench.run(consume.bury(bench.queue, odd.entry, record)) == []
    assert bench.run(consume.bury(bench.queue, odd.entry, record)) == [odd.entry]
    assert bench.look().sets[State.ARCHIVED].keys() == {record.id}
    stored = bench.stored(record.id)
    assert stored.kind == consume.UNDECODABLE_KIND
    assert odd.entry.decode() in stored.last_err


def test_a_message_that_is_not_json_is_delivered_as_it_is(bench: Bench) -> None:
    bench.group()
    put(bench, "a", msg=b"\xff{", state="1")
    assert [run.msg for run in bench.fetch()] == [b"\xff{"]


@pytest.mark.parametrize("state", ["", "0", "2", "3", "4", "5", "6", "7", "on", "-1"])
def test_a_task_written_with_a_wrong_state_runs_all_the_same(bench: Bench, state: str) -> None:
    bench.group()
    put(bench, "a", msg="{}", **({"state": state} if state else {}))
    assert [run.task_id for run in bench.fetch()] == ["a"]
    bench.look().check()


@pytest.mark.parametrize("state", [State.SCHEDULED, State.RETRY, State.ARCHIVED, State.COMPLETED])
def test_an_entry_whose_task_is_in_the_set_its_state_names_is_dropped(bench: Bench, state: State) -> None:
    # chronos-go stores an id that is in use again: with "schedule" over a waiting task the id is in the
    # stream and in the set. It must not run before its time, and not twice.
    bench.group()
    put(bench, "a", msg="{}", state=int(state))
    bench.redis.zadd(bench.queue.set_of(state), {"a": 4e9})
    assert bench.deliver() == consume.Delivery([], ["a"])
    found = bench.look()
    found.check()
    assert found.places("a") == [state]


def test_an_id_that_is_in_the_stream_twice_runs_once_at_a_time(bench: Bench) -> None:
    # chronos-go overwrites an id in use: two entries, one hash. Two runs of one task must not overlap.
    bench.group()
    put(bench, "a", msg="{}", state="1")
    put(bench, "a", msg="{}", state="1")
    found = bench.deliver(count=1)
    again = bench.deliver("c2")
    assert [run.task_id for run in found.tasks] == ["a"]
    assert again == consume.Delivery([], ["a"])
    bench.look().check()
    assert bench.done(*found.tasks) == []
    assert bench.look().hashes == {}


def test_an_entry_that_was_deleted_does_not_keep_its_task_from_running_under_another(bench: Bench) -> None:
    first = bench.take("a")
    bench.redis.xdel(bench.queue.stream, first.entry)
    raw(bench, {"task_id": "a"})
    assert [run.task_id for run in bench.fetch("c2")] == ["a"]


def test_a_blocking_read_delivers_one_entry_of_each_queue_which_fetch_takes_in(
    bench: Bench, other: Bench
) -> None:
    bench.group()
    other.group()
    bench.add("a", "b")
    other.add("c")
    found = bench.run(consume.block([bench.queue, other.queue], "c1", 1000))
    assert [index for index, _ in found] == [0, 1]
    assert bench.look().hashes["a"]["state"] == "1"
    (first,) = bench.fetch(count=0, delivered=[found[0][1]])
    assert first.task_id == "a"
    (second,) = other.fetch(count=0, delivered=[found[1][1]])
    assert second.task_id == "c"
    bench.look().check()
    assert bench.look().active == {"a": "c1"}


def test_a_blocking_read_of_empty_queues_answers_with_nothing(bench: Bench) -> None:
    bench.group()
    assert bench.run(consume.block([bench.queue], "c1", 1)) == []


def test_what_a_blocking_read_brings_is_taken_in_by_what_was_sent_with_it(bench: Bench, other: Bench) -> None:
    bench.group()
    other.group()
    queues = [bench.queue, other.queue]
    before_ms = time.time() * 1000
    assert bench.run(consume.arrivals(queues, "c1", [b"", b""])).deliveries == {}
    bench.add("a", "b")
    (_, entry), *_ = bench.run(consume.block(queues, "c1", 1000))
    found = bench.run(consume.arrivals(queues, "c1", [b"", b""]))
    assert list(found.deliveries) == [0]
    (a,) = found.deliveries[0].tasks
    assert (a.entry, a.task_id, a.msg) == (entry, "a", bench.redis.hget(bench.queue.task("a"), "msg"))
    assert before_ms - 1 <= found.at_ms <= time.time() * 1000
    bench.look().check()
    assert bench.look().active == {"a": "c1"}
    # what is known already is not brought again, what belongs to others never is
    other.add("c", "d")
    assert other.fetch("c2", count=1)
    bench.run(consume.block(queues, "c1", 1000))
    found = bench.run(consume.arrivals(queues, "c1", [entry, b""]))
    assert {i: [run.task_id for run in one.tasks] for i, one in found.deliveries.items()} == {
        0: ["b"],
        1: ["d"],
    }
    found = bench.run(consume.arrivals(queues, "c2", [b"", b""]))
    assert {i: [run.task_id for run in one.tasks] for i, one in found.deliveries.items()} == {1: ["c"]}


def test_a_queue_without_its_group_keeps_no_other_from_being_taken_in(bench: Bench, other: Bench) -> None:
    bench.group()
    bench.add("a")
    bench.block()
    found = bench.run(consume.arrivals([other.queue, bench.queue], "c1", [b"", b""]))
    assert {i: len(one.tasks) for i, one in found.deliveries.items()} == {1: 1}


def test_entries_are_ordered_as_in_the_stream() -> None:
    assert consume.is_newer(b"1-1", b"")
    assert consume.is_newer(b"10-1", b"9-2")
    assert consume.is_newer(b"9-10", b"9-9")
    assert not consume.is_newer(b"9-9", b"9-9")
    assert not consume.is_newer(b"9-9", b"10-0")


def test_taking_in_twice_gives_the_same_task_again(bench: Bench) -> None:
    # The reply to the first was lost: the worker asks again for what it has not seen.
    bench.group()
    bench.add("a")
    entry = bench.block()
    assert bench.fetch(count=0, delivered=[entry]) == bench.fetch(count=0, delivered=[entry])
    bench.look().check()


def test_a_delivered_entry_that_somebody_recovered_or_deleted_meanwhile_is_not_taken_in(bench: Bench) -> None:
    bench.group()
    bench.add("a", "b")
    entry, deleted = bench.block(), bench.block()
    bench.redis.xclaim(bench.queue.stream, GROUP, "c2", 0, [entry])
    bench.redis.xdel(bench.queue.stream, deleted)
    assert bench.deliver(count=0, delivered=[entry, deleted]) == consume.Delivery([], [])
    assert bench.look().owned == {entry.decode(): ("a", "c2")}


def test_messages_beyond_the_reply_budget_are_marked_and_read_singly(bench: Bench) -> None:
    bench.group()
    payload = b'"' + b"x" * (REPLY_BYTES // 4) + b'"'
    for task_id in "abcdef":
        bench.add(task_id, payload=payload)
    runs = bench.fetch()
    assert [run.task_id for run in runs] == list("abcdef")
    assert [run.msg is None for run in runs] == [False, False, True, True, True, True]
    assert bench.run(consume.body(bench.queue, "f")) == bench.redis.hget(bench.queue.task("f"), "msg")
    assert bench.run(consume.body(bench.queue, "nobody")) is None
    bench.look().check()
    assert bench.done(*runs) == []


def test_a_message_beyond_the_budget_is_read_singly_and_spends_none_of_it(bench: Bench) -> None:
    """However slow the network, the cycle that also carries completions stays short."""
    bench.group()
    bench.add("long", payload=b'"' + b"x" * (REPLY_BYTES * 2) + b'"')
    bench.add("short")
    long, short = bench.fetch()
    assert long.msg is None
    assert short.msg is not None
    assert bench.done(long, short) == []


def test_more_than_a_batch_of_entries_is_fetched_and_completed_at_once(bench: Bench) -> None:
    bench.group()
    ids = [f"t{i}" for i in range(4 * BATCH)]
    for start in range(0, len(ids), BATCH):
        bench.add(*ids[start : start + BATCH])
    runs = bench.fetch(count=len(ids))
    assert [run.task_id for run in runs] == ids
    assert bench.done(*runs) == []
    found = bench.look()
    assert (found.hashes, found.owned, found.settled) == ({}, {}, [])


def test_a_run_is_marked_while_it_owns_its_task_only(bench: Bench) -> None:
    run = bench.take("a")
    pairs = [(run.entry, "a"), (b"1-1", "a"), (b"1-1", "nobody")]
    assert bench.run(consume.mark_running(bench.queue, pairs)) == 1
    assert bench.hash()["run"] == run.entry.decode()
    assert not bench.redis.exists(bench.queue.task("nobody"))


def test_entries_that_are_not_ones_own_any_more_are_told(bench: Bench) -> None:
    bench.group()
    bench.add("a", "b", "c")
    a, b, c = bench.fetch()
    bench.done(a)
    bench.redis.xclaim(bench.queue.stream, GROUP, "c2", 0, [b.entry])
    entries = [a.entry, b.entry, c.entry]
    assert bench.run(consume.not_owned(bench.queue, "c1", entries)) == [a.entry, b.entry]
    assert bench.run(consume.not_owned(bench.queue, "c1", [])) == []


def test_without_its_group_a_queue_asks_to_be_recreated(bench: Bench) -> None:
    for command in (
        consume.fetch(bench.queue, "c1", 1),
        consume.block([bench.queue], "c1", 1),
        consume.not_owned(bench.queue, "c1", [b"1-1"]),
    ):
        with pytest.raises(BrokerRefused) as caught:
            bench.run(command)
        assert caught.value.trouble is Trouble.RECREATE
