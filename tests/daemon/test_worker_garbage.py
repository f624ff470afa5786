"""Whatever stands in Redis: the worker lives, each entry ends where it should, the next one runs."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from chronosd.board import Cell
from chronosd.states import State
from tests.support.waiting import wait_until
from tests.support.worker import WorkerProcess

Make = Callable[..., WorkerProcess]

HANDLERS = """
async def probe(task: Task[Any]) -> None:
    ledger.write("start", task.id, task.attempt)

async def shows(task: Task[Any]) -> Any:
    return [task.id, task.kind, task.queue, task.attempt]

async def typed(task: Task[dict[str, int]]) -> None:
    ledger.write("start", task.id, task.attempt)
"""


def msg(**fields: Any) -> bytes:
    """A message as chronos-go writes it, with some fields replaced."""
    payload = fields.pop("payload", b"{}")
    values = {
        "id": "x",
        "kind": "probe",
        "payload": base64.b64encode(payload).decode() if isinstance(payload, bytes) else payload,
        "queue": "default",
        "state": 1,
        "retried": 0,
        "max_retry": 3,
        "no_archive": False,
        "unique_key": "",
        "group_index": 0,
        **fields,
    }
    return json.dumps(values).encode()


UNDECODABLE: dict[str, bytes | str] = {
    "not JSON": b"hello",
    "not UTF-8": b"\xff\xfe\x00",
    "empty": b"",
    "half": msg()[:50],
    "null": b"null",
    "a list": b"[]",
    "a number": b"17",
    "too deep": b"[" * 100_000,
    "a number that is too large": b'{"retried": 1e400}',
    "kind is a list": msg(kind=["a"]),
    "retried is text": msg(retried="3"),
    "retried is a fraction": msg(retried=1.5),
    "max_retry beyond 64 bits": msg(max_retry=2**64),
    "payload is no base64": msg(payload="***"),
    "payload is an object": msg(payload={"a": 1}),
    "a chain of the wrong shape": msg(chain=[17]),
    "no_archive is text": msg(no_archive="yes"),
}


def test_messages_that_cannot_be_read_are_archived_as_they_are_with_the_reason(worker: Make) -> None:
    one = worker(HANDLERS)
    for name, raw in UNDECODABLE.items():
        one.write(name, raw)
    one.start()
    probe = one.enqueue("probe")
    one.wait_settled()
    assert one.ledger.starts() == {probe: 1}
    assert one.ids(State.ARCHIVED) == set(UNDECODABLE)
    for name, raw in UNDECODABLE.items():
        found = one.hash(name)
        assert found["msg"] == raw
        assert found["state"] == b"5"
        assert found["error"].startswith(b"undecodable message: "), found
        assert len(found["error"]) < 500


def test_entries_that_name_no_task_become_records(worker: Make) -> None:
    one = worker(HANDLERS)
    stream = one.queue.stream
    entries = [
        one.redis.xadd(stream, {"data": b"\xff\xfe"}),
        one.redis.xadd(stream, {"foo": "bar"}),
        one.redis.xadd(stream, {"task_id": ""}),
        one.redis.xadd(stream, {"foo": "x" * 1_000_000}),
    ]
    one.start()
    probe = one.enqueue("probe")
    one.wait_settled()
    assert one.ledger.starts() == {probe: 1}
    ids = {f"undecodable-{entry.decode()}" for entry in entries}
    assert one.ids(State.ARCHIVED) == ids
    for record in (one.message(task_id) for task_id in ids):
        assert record["kind"] == "chronosd:undecodable"
        assert "names no task" in record["last_err"]


def test_an_entry_whose_task_was_deleted_is_dropped(worker: Make) -> None:
    one = worker(HANDLERS)
    one.redis.xadd(one.queue.stream, {"task_id": "deleted"})
    one.write("zombie", None, state="2")
    one.redis.set(one.queue.task("text"), "no hash")
    one.redis.xadd(one.queue.stream, {"task_id": "text"})
    one.start()
    probe = one.enqueue("probe")
    one.wait_settled()
    assert one.ledger.starts() == {probe: 1}
    assert one.count(Cell.DROPPED) == 3
    assert one.hash("zombie") == {}
    assert one.ids(State.ARCHIVED) == set()


def test_an_entry_deleted_while_its_task_runs_is_a_lost_lease_and_no_more(worker: Make) -> None:
    one = worker(
        """
        async def wait(task: Task[Any]) -> None:
            ledger.write("start", task.id)
            await asyncio.sleep(0.3)

        async def probe(task: Task[Any]) -> None:
            ledger.write("start", task.id)
        """
    ).start()
    one.enqueue("wait")
    wait_until(lambda: one.slots())
    one.redis.xtrim(one.queue.stream, maxlen=0, approximate=False)
    probe = one.enqueue("probe")
    wait_until(lambda: one.count(Cell.SUCCEEDED) == 2)
    one.wait_settled()
    assert one.ledger.starts()[probe] == 1


@pytest.mark.parametrize("state", ["", "0", "3", "4", "5", "6", "99", "nonsense", "-1"])
def test_the_state_beside_the_message_does_not_keep_a_task_from_running(worker: Make, state: str) -> None:
    one = worker(HANDLERS).start()
    one.write("t", msg(), state=state)
    one.wait_settled()
    assert one.ledger.starts() == {"t": 1}
    assert one.hash("t") == {}


@pytest.mark.parametrize(
    "fields",
    [
        {"retried": -5},
        {"retried": 2**63 - 1, "max_retry": 2**63 - 1},
        {"retention": -10},
        {"max_retry": -1},
        {"id": "another"},
        {"queue": "another"},
        {"queue": ""},
        {"completed_at": -1, "result": "e30="},
        {"unique_key": "somebody's:key"},
        {"last_err": "x" * 100_000},
        {"more": {"of": ["a later version"]}},
    ],
    ids=str,
)
def test_odd_but_readable_messages_run(worker: Make, fields: dict[str, Any]) -> None:
    """The key names the task and the stream its queue, whatever the message says: chronos-go acknowledged on
    the queue in the message, and an entry of another stream stayed pending until it was dead-lettered.
    """
    one = worker(HANDLERS).start()
    one.redis.set("somebody's:key", "not t")
    one.write("t", msg(**fields))
    one.wait_settled()
    assert one.ledger.starts() == {"t": 1}
    assert one.hash("t") == {}
    assert one.redis.get("somebody's:key") == b"not t"
    one.redis.delete("somebody's:key")


@pytest.mark.parametrize("kind", ["", " ", "a\nb", "ü:✓", "a{b}c", "../../x", "\u0000", "x" * 10_000, "%s%n"])
def test_odd_kinds_are_put_off_like_any_unknown_one(worker: Make, kind: str) -> None:
    one = worker(HANDLERS).start()
    one.write("t", msg(kind=kind, max_retry=0))
    one.wait_settled()
    assert one.ids(State.RETRY) == {"t"}
    assert one.message("t")["kind"] == kind
    assert one.message("t")["retried"] == 0
    assert one.message("t")["last_err"].startswith("no handler for kind ")
    assert len(one.message("t")["last_err"]) <= 2000


def test_a_registered_kind_may_be_odd(worker: Make) -> None:
    kinds = ["ü:✓", "a b", "{x}", "%s"]
    one = worker(HANDLERS, handlers=dict.fromkeys(kinds, "{module}:probe")).start()
    ids = [one.enqueue(kind) for kind in kinds]
    one.wait_settled()
    assert set(one.ledger.starts()) == set(ids)


def test_an_unknown_kind_is_put_off_and_runs_once_somebody_knows_it(worker: Make) -> None:
    one = worker(HANDLERS).start()
    task_id = one.enqueue("late:comer", max_retry=0)
    one.wait_settled()
    delay = one.redis.zscore(one.queue.retry, task_id) - one.redis.time()[0]
    assert 25 < delay < 32
    assert one.drain() == 0
    other = worker(HANDLERS, handlers={"late:comer": "{module}:probe"}).start()
    other.forward()
    other.wait_settled()
    assert other.ledger.starts() == {task_id: 1}


@pytest.mark.parametrize(("since", "ends"), [("1", True), ("nan", False), ("inf", False), ("x", False)])
def test_an_unknown_kind_is_archived_after_a_day_uncharged(worker: Make, since: str, ends: bool) -> None:
    one = worker(HANDLERS).start()
    one.write("t", msg(kind="nobody's"), unknown_since=since)
    one.wait_settled()
    assert one.ids(State.ARCHIVED if ends else State.RETRY) == {"t"}
    assert one.message("t")["retried"] == 0
    assert ("unknown_since" in one.hash("t")) is not ends


def test_an_unknown_kind_that_is_not_to_be_archived_is_dropped_after_a_day(worker: Make) -> None:
    one = worker(HANDLERS).start()
    one.write("t", msg(kind="nobody's", no_archive=True), unknown_since="1")
    one.wait_settled()
    assert one.hash("t") == {}
    assert one.ids(State.ARCHIVED) == set()


@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b"\xff", b"NaN", b'{"a": "b"}', b"[1]", b"1" * 5000, b'{"a":' * 100_000, b'"\\ud800"'],
    ids=lambda p: repr(p[:12]),
)
def test_payloads_that_do_not_fit_are_archived_with_the_error(worker: Make, payload: bytes) -> None:
    one = worker(HANDLERS).start()
    one.write("t", msg(kind="typed", payload=payload))
    probe = one.enqueue("probe")
    one.wait_settled()
    assert one.ledger.starts() == {probe: 1}
    assert one.ids(State.ARCHIVED) == {"t"}
    assert 0 < len(one.message("t")["last_err"]) <= 2000
    (record,) = one.log_records("task archived")
    assert record["task_id"] == "t"


def test_any_number_of_payloads_that_do_not_fit_are_archived(worker: Make) -> None:
    """Each ended within the start of the one before it: with a few hundred in the buffer the stack was at
    its limit, and the worker died of a RecursionError.
    """
    one = worker(HANDLERS, concurrency=500)
    one.enqueue_many("typed", 1200, {"a": "b"})
    one.start()
    one.wait_settled()
    assert len(one.ids(State.ARCHIVED)) == 1200


def test_a_payload_of_64_megabytes_written_by_hand_is_archived_and_delays_nobody(worker: Make) -> None:
    one = worker(HANDLERS).start()
    one.write("huge", msg(payload=b'{"x":"' + b"y" * (64 << 20) + b'"}'))
    probe = one.enqueue("probe")
    one.wait_settled()
    assert one.ledger.starts() == {probe: 1}
    assert one.ids(State.ARCHIVED) == {"huge"}
    assert b"max_payload" in one.hash("huge")["error"]
    assert one.count(Cell.LEASES_LOST) == 0


def test_long_payloads_within_the_limit_run_beside_short_ones(worker: Make) -> None:
    one = worker(HANDLERS, max_payload="64MiB")
    ids = [one.enqueue("probe", {"x": "y" * (5 << 20)}) for _ in range(6)]
    ids += one.enqueue_many("probe", 100)
    one.start()
    one.wait_settled()
    assert one.ledger.starts() == dict.fromkeys(ids, 1)
    assert one.slots() == []


def test_a_task_written_by_hand_is_seen_as_its_key_and_stream_say(worker: Make) -> None:
    one = worker(HANDLERS).start()
    one.write("the-key", msg(id="liar", kind="shows", queue="elsewhere", retention=60, retried=2))
    one.wait_settled()
    assert one.ids(State.COMPLETED) == {"the-key"}
    message = one.message("the-key")
    assert json.loads(base64.b64decode(message["result"])) == ["the-key", "shows", "default", 3]
    assert (message["id"], message["queue"]) == ("the-key", "default")
