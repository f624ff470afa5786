"""The options of an enqueue call: what they become, and what is refused before anything is sent."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from chronosd.broker.message import decode
from chronosd.delivery import BATCH_BYTES, CHECKED_FIRST, Bulk, batched
from chronosd.errors import InvalidTask, PayloadTooLarge
from chronosd.kinds import Kind
from chronosd.states import State
from chronosd.submission import Draft, Drafter, new_id

DRAFTER = Drafter("chronos", 1024)


def draft(kind: Any = "mail:send", args: Any = None, **options: Any) -> Draft:
    return DRAFTER.draft(kind, args, **options)


def test_a_task_without_options_is_go_s_default_task() -> None:
    made = DRAFTER.draft("mail:send", {"n": 1})
    message = decode(made.new.msg)
    assert (message.kind, message.queue, message.max_retry) == ("mail:send", "default", 25)
    assert (message.no_archive, message.retention, message.payload) == (False, 0, b'{"n":1}')
    assert uuid.UUID(message.id).version == 4
    assert (made.new.delay_ms, made.new.at_ms, made.new.nonce) == (0, None, "")
    assert made.state is State.PENDING


@dataclass
class Mail:
    """Go's struct of the dumps."""

    to: str
    n: int


def _go_tasks() -> list[Any]:
    wire = Path(__file__).parent.parent / "data" / "wire"
    found = []
    names = ("plain", "options", "delayed", "pause", "same_id_twice", "recover_0_crashed")
    for name in (*names, "unique", "unique_delayed"):
        for value in json.loads((wire / f"{name}.json").read_text()).values():
            if value["type"] == "hash":
                found.append(pytest.param(value["fields"]["msg"], id=f"{name}-{value['msg_decoded']['id']}"))
    return found


@pytest.mark.parametrize("msg", _go_tasks())
def test_the_message_is_byte_for_byte_that_of_a_go_producer_with_the_same_options(msg: str) -> None:
    go = json.loads(msg)
    made = DRAFTER.draft(
        go["kind"],
        Mail(**json.loads(base64.b64decode(go["payload"]))),
        queue=go["queue"],
        max_retry=go["max_retry"],
        delay=30 if go["state"] == State.SCHEDULED else None,
        unique="10m" if go["unique_key"] else None,
        retention=go.get("retention"),
        task_id=go["id"],
        discard=go["no_archive"],
    )
    assert made.new.msg.decode() == msg


def test_a_task_without_arguments_carries_an_empty_object() -> None:
    assert decode(DRAFTER.draft("ping").new.msg).payload == b"{}"
    assert decode(DRAFTER.draft("ping", None).new.msg).payload == b"null"


def test_every_option_reaches_the_message() -> None:
    made = draft(queue="low", max_retry=3, delay="1.5s", retention="1h", task_id="my id", discard=True)
    message = decode(made.new.msg)
    assert (message.id, message.queue, message.max_retry) == ("my id", "low", 3)
    assert (message.no_archive, message.retention) == (True, 3600)
    assert made.new.delay_ms == 1500
    assert made.state is State.SCHEDULED
    assert b'"state":6' in made.new.msg
    assert made.new.nonce


def test_a_custom_id_carries_a_nonce_of_its_own_every_time() -> None:
    assert draft(task_id="a").new.nonce != draft(task_id="a").new.nonce


def test_a_kind_brings_its_own_options_and_the_call_overrides_them() -> None:
    kind: Kind[Any] = Kind("mail:send", queue="mail", max_retry=5, retention="1m", discard=True)
    own = decode(draft(kind).new.msg)
    assert (own.queue, own.max_retry, own.retention, own.no_archive) == ("mail", 5, 60, True)
    message = decode(draft(kind, queue="q", max_retry=0, retention=0, discard=False).new.msg)
    assert (message.queue, message.max_retry, message.retention, message.no_archive) == ("q", 0, 0, False)


@pytest.mark.parametrize(
    ("retention", "seconds"),
    [(None, 0), (0, 0), (0.1, 1), ("1ms", 1), (1.9, 1), ("1h", 3600), (timedelta(minutes=1), 60)],
)
def test_retention_is_rounded_as_go_does(retention: Any, seconds: int) -> None:
    assert decode(draft(retention=retention).new.msg).retention == seconds


@pytest.mark.parametrize(
    ("delay", "ms"),
    [
        ("5m", 300_000),
        (0.0001, 1),
        (0.1, 100),
        (1.0005, 1001),
        (timedelta(microseconds=1), 1),
        (0, 0),
        (-5, 0),
        ("-1h", 0),
        (timedelta(days=-1), 0),
    ],
)
def test_a_delay_is_rounded_up_to_milliseconds_and_a_negative_one_is_none(delay: Any, ms: int) -> None:
    made = draft(delay=delay)
    assert made.new.delay_ms == ms
    assert made.state is (State.SCHEDULED if ms else State.PENDING)


@pytest.mark.parametrize(
    ("unique", "ms"), [("1h", 3_600_000), (1.9, 1900), (0.0001, 1), (timedelta(minutes=1), 60_000)]
)
def test_a_unique_lock_lives_its_milliseconds_and_at_least_one(unique: Any, ms: int) -> None:
    made = draft(unique=unique, args={"n": 1})
    assert made.new.lock_ms == ms
    digest = hashlib.sha256(b'{"n":1}').hexdigest()
    assert made.new.lock == f"chronos:{{default}}:unique:mail:send:{digest}"
    assert decode(made.new.msg).unique_key == made.new.lock


def test_a_kind_is_unique_unless_the_call_says_otherwise() -> None:
    kind: Kind[Any] = Kind("k", unique="1h")
    assert draft(kind).new.lock_ms == 3_600_000
    assert draft(kind, unique="5m").new.lock_ms == 300_000
    assert (draft(kind, unique=False).new.lock, draft("k", unique=False).new.lock) == ("", "")


@pytest.fixture(params=["UTC", "Asia/Kathmandu", "America/New_York"])
def _process_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("_process_zone")
@pytest.mark.parametrize(
    "at",
    [
        datetime(2040, 1, 2, 3, 4, 5, 678000, tzinfo=UTC),
        datetime(2040, 1, 2, 3, 4, 5, 678000, tzinfo=UTC).astimezone(ZoneInfo("Asia/Kathmandu")),
        datetime(2040, 1, 1, 22, 4, 5, 678000, tzinfo=timezone(timedelta(hours=-5))),
        2209086245.678,
    ],
)
def test_at_is_the_same_instant_whatever_its_zone_and_the_process_s(at: Any) -> None:
    assert draft(at=at).new.at_ms == 2209086245678


@pytest.mark.parametrize("at", [datetime.max.replace(tzinfo=UTC), 253402300799])
def test_the_last_instant_of_the_calendar_can_be_waited_for(at: Any) -> None:
    made = draft(at=at)
    assert made.state is State.SCHEDULED
    assert made.new.at_ms in (253402300799000, 253402300800000)


@pytest.mark.parametrize(
    "at", [0, -1, -1e300, datetime(1, 1, 1, tzinfo=UTC), datetime(2001, 1, 1, tzinfo=UTC)]
)
def test_a_past_instant_means_now(at: Any) -> None:
    made = draft(at=at)
    assert made.state is State.PENDING
    assert made.new.at_ms is not None
    assert made.new.at_ms >= 0


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"kind": ""}, "kind: must not be empty"),
    ({"kind": "a\x00b"}, r"kind: 'a\\x00b' holds control characters"),
    ({"kind": "a\nb"}, "kind: .* control characters"),
    ({"kind": "a\x7f"}, "kind: .* control characters"),
    ({"kind": "\ud800"}, "kind: .* lone surrogates"),
    ({"kind": "k" * 513}, "kind: must have at most 512 characters"),
    ({"kind": None}, r"kind: must be a string \(got None\)"),
    ({"kind": b"mail"}, "kind: must be a string"),
    ({"kind": print}, "kind: must be the name that chronos.yaml gives the function, or a Kind"),
    ({"queue": ""}, "queue: must not be empty"),
    ({"queue": "a{b}"}, "queue: "),
    ({"queue": "a b"}, "queue: "),
    ({"queue": "a\x00"}, "queue: "),
    ({"queue": 1}, "queue: must be a string"),
    ({"task_id": ""}, "task_id: must not be empty"),
    ({"task_id": "a\x00"}, "task_id: .* control characters"),
    ({"task_id": "\udfff"}, "task_id: .* lone surrogates"),
    ({"task_id": 7}, "task_id: must be a string"),
    ({"max_retry": 1.0}, "max_retry: must be a whole number"),
    ({"max_retry": True}, "max_retry: must be a whole number"),
    ({"max_retry": "3"}, "max_retry: must be a whole number"),
    ({"max_retry": 2**31}, "max_retry: must be a whole number up to"),
    ({"delay": math.nan}, "delay: must be a duration"),
    ({"delay": math.inf}, "delay: must be a duration"),
    ({"delay": "5 parsecs"}, "delay: must be a duration"),
    ({"delay": True}, "delay: must be a duration"),
    ({"delay": 1e12}, "delay: .*"),
    ({"delay": 1, "at": 1}, "delay, at: give one of them"),
    ({"at": datetime(2040, 1, 1)}, "at: the datetime has no time zone"),
    ({"at": math.nan}, "at: nan is no instant"),
    ({"at": math.inf}, "at: inf is no instant"),
    ({"at": -math.inf}, "at: -inf is no instant"),
    ({"at": 1_796_014_020_000}, "at: .* must be in seconds, not milliseconds"),
    ({"at": "2040-01-01T00:00:00Z"}, "at: must be an aware datetime or unix seconds"),
    ({"at": True}, "at: must be an aware datetime or unix seconds"),
    ({"at": timedelta(1)}, "at: must be an aware datetime or unix seconds"),
    ({"retention": -1}, "retention: must not be negative"),
    ({"retention": math.nan}, "retention: must be a duration"),
    ({"discard": 1}, "discard: must be true or false"),
    ({"unique": 0}, "unique: must be longer than 0"),
    ({"unique": True}, "unique: "),
    ({"args": {"a": math.nan}}, r"args\.a: nan cannot be stored as JSON"),
    ({"args": {"a": 2**64}}, r"args\.a: an integer beyond 64 bits"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[f"{call}"[:60] for call, _ in WRONG])
def test_a_wrong_option_is_refused_with_its_name_and_what_is_expected(
    call: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidTask, match=f"^{message}") as caught:
        draft(**call)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "kind", ["email:send", "ümlaut 😀", "a/b{c}*?[]", "white space", "a\u2028b", "a\u200db"]
)
def test_a_kind_may_hold_odd_characters(kind: str) -> None:
    assert decode(draft(kind).new.msg).kind == kind


def test_arguments_beyond_max_payload_are_refused_with_both_sizes() -> None:
    assert draft(args="x" * 1022)
    with pytest.raises(PayloadTooLarge, match="mail:send: the arguments are 1025 bytes long, at most 1024"):
        draft(args="x" * 1023)


def test_max_payload_may_be_written_as_a_size() -> None:
    assert Drafter("chronos", "1KiB").max_payload == 1024
    with pytest.raises(InvalidTask, match="max_payload: must be a size"):
        Drafter("chronos", "1 parsec")


def test_ids_are_random_uuids_of_version_4() -> None:
    ids = {new_id() for _ in range(1000)}
    assert len(ids) == 1000
    for id_ in ids:
        parsed = uuid.UUID(id_)
        assert (str(parsed), parsed.version, parsed.variant) == (id_, 4, uuid.RFC_4122)


def test_an_option_that_other_queues_have_is_answered_with_its_name_here() -> None:
    with pytest.raises(TypeError, match=r"^unknown option 'countdown'; did you mean 'delay'\?$"):
        DRAFTER.draft("k", {}, countdown=5)


def test_a_wrong_entry_of_many_is_named_by_its_index() -> None:
    cases: list[tuple[Any, str]] = [
        (("k", {}, {"queu": "low"}), r"tasks\[1\]: unknown option 'queu'; did you mean 'queue'\?"),
        (("k", {}, {"retries": 1}), r"tasks\[1\]: unknown option 'retries'; did you mean 'max_retry'\?"),
        (("k", {}, "low"), r"tasks\[1\]: must be \(kind, args\)"),
        ((), r"tasks\[1\]: must be \(kind, args\)"),
        ("kind", r"tasks\[1\]: must be \(kind, args\)"),
        (("k", {"a": math.inf}), r"tasks\[1\]: args\.a: inf"),
    ]
    for wrong, message in cases:
        with pytest.raises(InvalidTask, match=f"^{message}"):
            Bulk(DRAFTER, [("k", {}), wrong])


def test_many_tasks_go_in_batches_of_one_queue_of_at_most_500() -> None:
    tasks = [("k", {"n": n}, {"queue": "low" if n % 3 else "high"}) for n in range(3000)]
    batches = list(Bulk(DRAFTER, tasks).batches())
    assert all(len(batch) <= 500 and len({draft.queue.name for draft in batch}) == 1 for batch in batches)
    assert len(batches) == 6
    for queue in ("low", "high"):
        order = [one.index for batch in batches for one in batch if one.queue.name == queue]
        assert order == sorted(order)


def test_a_batch_carries_at_most_four_megabytes_unless_one_task_is_larger() -> None:
    drafter = Drafter("chronos", 16 << 20)
    sizes = [1 << 20] * 7 + [9 << 20, 10]
    batches = list(batched(drafter.draft("k", "x" * size) for size in sizes))
    assert [len(batch) for batch in batches] == [2, 2, 2, 1, 1, 1]
    for batch in batches:
        assert len(batch) == 1 or sum(len(one.new.msg) for one in batch) <= BATCH_BYTES


def test_a_long_iterable_is_not_held_in_memory_before_it_is_sent() -> None:
    drawn = 0

    def endless() -> Any:
        nonlocal drawn
        while True:
            drawn += 1
            yield ("k", {})

    bulk = Bulk(DRAFTER, endless())
    next(bulk.batches())
    assert drawn <= CHECKED_FIRST + 501
