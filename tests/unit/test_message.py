"""The message codec, held to dumps of a real chronos-go (tests/data/wire)."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronosd.broker.message import Message, decode, encode, encode_new
from chronosd.errors import MessageError
from chronosd.states import State

WIRE = Path(__file__).parent.parent / "data" / "wire"
# fmt: off
FIELD_ORDER = [
    "id", "kind", "payload", "queue", "state", "retried", "max_retry", "no_archive", "unique_key", "last_err",
    "retention", "completed_at", "chain", "chain_id", "chain_index", "group_id", "group_queue",
    "group_callback", "result", "prev_result", "group_results", "group_index", "group_size",
    "group_member_id", "group_cb_chain",
]
# fmt: on


def go_messages() -> list[Any]:
    found = {}
    for path in sorted(WIRE.glob("*.json")):
        for key, value in json.loads(path.read_text()).items():
            if value["type"] == "hash" and "msg" in value["fields"]:
                found[value["fields"]["msg"]] = f"{path.stem}-{key.rpartition(':t:')[2]}"
    return [pytest.param(raw.encode(), id=name) for raw, name in found.items()]


def plain(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": "a",
        "kind": "mail:send",
        "payload": "e30=",
        "queue": "default",
        "state": 1,
        "retried": 0,
        "max_retry": 25,
        "no_archive": False,
        "unique_key": "",
        "group_index": 0,
    }
    return fields | changes


def text(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode()


@pytest.mark.parametrize("raw", go_messages())
def test_every_message_of_go_is_decoded_and_written_again_byte_for_byte(raw: bytes) -> None:
    fields = json.loads(raw)
    again = encode(decode(raw), State(fields["state"]))
    if next(iter(fields)) == "id":
        assert again == raw
    else:
        # a group callback that Redis' own JSON encoder wrote, in no order: the same values, in Go's order
        assert json.loads(again) == fields
    written = list(json.loads(again))
    assert written == [name for name in FIELD_ORDER if name in written]


def test_there_are_dumps_to_compare_with() -> None:
    assert len(go_messages()) > 40


def test_the_links_of_a_callback_written_by_redis_are_put_into_go_s_order() -> None:
    raw = next(
        raw.values[0]
        for raw in go_messages()
        if raw.id and raw.id.startswith("thengroup_2") and raw.id.endswith(":cb")
    )
    assert isinstance(raw, bytes)
    link = decode(raw).workflow["chain"][0]
    assert list(link) == ["kind", "payload", "queue", "max_retry"]


def test_what_go_omits_when_empty_is_omitted() -> None:
    message = Message(id="a", kind="k", queue="q", payload=b"{}", workflow={"chain": [], "prev_result": ""})
    assert encode(message, State.PENDING) == (
        b'{"id":"a","kind":"k","payload":"e30=","queue":"q","state":1,"retried":0,"max_retry":25,'
        b'"no_archive":false,"unique_key":"","group_index":0}'
    )


def test_texts_carry_go_s_escapes_and_nothing_more() -> None:
    message = Message(
        id="a", kind='<&>"\\', queue="q", payload=b"", last_err="boom \x00\b\f\n\r\t\x1b\x7f\u2028\u2029 é 😀"
    )
    raw = encode(message, State.RETRY)
    assert b'"kind":"\\u003c\\u0026\\u003e\\"\\\\"' in raw
    assert '"last_err":"boom \\u0000\\b\\f\\n\\r\\t\\u001b\x7f\\u2028\\u2029 é 😀"'.encode() in raw
    assert decode(raw) == message


def test_a_payload_is_padded_base64_of_the_standard_alphabet() -> None:
    payload = bytes(range(256))
    raw = encode(Message(id="a", kind="k", queue="q", payload=payload), State.PENDING)
    assert json.loads(raw)["payload"] == base64.b64encode(payload).decode()


@pytest.mark.parametrize("name", sorted(plain()))
def test_a_missing_field_reads_as_zero(name: str) -> None:
    fields = plain(retried=1)
    del fields[name]
    message = decode(text(fields))
    zero: dict[str, Any] = {"max_retry": 0, "no_archive": False, "retried": 0, "payload": b""}
    if hasattr(message, name):
        assert getattr(message, name) == zero.get(name, "")


@pytest.mark.parametrize("name", FIELD_ORDER)
def test_null_reads_as_zero(name: str) -> None:
    without = plain()
    without.pop(name, None)
    assert decode(text(plain(**{name: None}))) == decode(text(without))


def test_unknown_fields_order_and_empty_arrays_do_not_matter() -> None:
    fields = dict(reversed(plain(chain=[], group_results=[], extra={"a": [1]}).items()))
    assert decode(text(fields)) == decode(text(plain()))


WRONG: list[tuple[str, Any]] = [
    ("id", 1),
    ("kind", ["a"]),
    ("queue", {"a": 1}),
    ("payload", "e30"),
    ("payload", "_-8="),
    ("payload", "é30="),
    ("payload", 1),
    ("state", "1"),
    ("state", 1.0),
    ("retried", 1.0),
    ("retried", "0"),
    ("retried", True),
    ("max_retry", 1e3),
    ("max_retry", 2**63),
    ("max_retry", 2**64),
    ("max_retry", -(2**63) - 1),
    ("no_archive", 0),
    ("no_archive", "false"),
    ("unique_key", False),
    ("group_index", False),
    ("group_index", 0.0),
    ("last_err", 1),
    ("retention", "1h"),
    ("completed_at", 1.5),
    ("result", "a"),
    ("prev_result", "a"),
    ("chain", {}),
    ("chain", ["a"]),
    ("chain", [{"kind": 1}]),
    ("chain", [{"kind": "k", "payload": "a"}]),
    ("chain", [{"kind": "k", "group": [{"retention": "1"}]}]),
    ("group_callback", []),
    ("group_callback", {"max_retry": 1e15}),
    ("group_results", ["a"]),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_value_that_go_cannot_read_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(MessageError, match=f"^{name}") as caught:
        decode(text(plain(**{name: value})))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b'{"id":"a"',
        b"[]",
        b"null",
        b"1",
        b'"text"',
        b"1e400",
        b"[" * 100_000,
        b'{"id":"\\ud800"}',
        b"NaN",
    ],
)
def test_what_is_no_message_raises_message_error_and_nothing_else(raw: bytes) -> None:
    with pytest.raises(MessageError):
        decode(raw)


def test_a_lone_surrogate_is_refused_and_not_written() -> None:
    with pytest.raises(MessageError, match="cannot be written"):
        encode(Message(id="\ud800", kind="k", queue="q", payload=b""), State.PENDING)


texts = st.text(st.characters(exclude_categories=("Cs",)))
ints = st.integers(0, 2**53)
base64_texts = st.binary(min_size=1).map(lambda raw: base64.b64encode(raw).decode())
delays = st.integers(1, 2**40)
links = st.fixed_dictionaries(
    {"kind": texts, "payload": base64_texts, "queue": texts, "max_retry": ints},
    optional={"no_archive": st.just(True), "retention": delays, "delay": delays},
)
workflows = st.fixed_dictionaries(
    {},
    optional={
        "chain": st.lists(links, min_size=1),
        "chain_id": texts.filter(bool),
        "chain_index": st.integers(1, 2**53),
        "group_callback": links,
        "prev_result": base64_texts,
        "group_results": st.lists(st.none() | base64_texts, min_size=1),
        "group_index": st.integers(1, 2**53),
        "group_cb_chain": st.lists(links, min_size=1),
    },
)
messages = st.builds(
    Message,
    id=texts,
    kind=texts,
    queue=texts,
    payload=st.binary(),
    retried=ints,
    max_retry=ints,
    no_archive=st.booleans(),
    unique_key=texts,
    last_err=texts,
    retention=ints,
    completed_at=ints,
    result=st.none() | st.binary(min_size=1),
    workflow=workflows,
)


@given(messages, st.sampled_from(State))
def test_a_message_survives_the_wire(message: Message, state: State) -> None:
    raw = encode(message, state)
    assert decode(raw) == message
    assert json.loads(raw)["state"] == state
    assert not set(b"<>&") & set(raw)
    again = encode(decode(raw), state)
    assert encode(decode(again), state) == again


@given(
    texts,
    st.text(st.sampled_from('ab-"\\<&é","kind":"payload":""')),
    texts,
    st.binary(),
    ints,
    st.booleans(),
    ints,
    st.sampled_from([State.PENDING, State.SCHEDULED]),
)
def test_the_short_way_to_write_a_new_task_writes_the_same(
    id_: str,
    kind: str,
    queue: str,
    payload: bytes,
    max_retry: int,
    no_archive: bool,
    retention: int,
    state: State,
) -> None:
    message = Message(id_, kind, queue, payload, 0, max_retry, no_archive, retention=retention)
    for one in (message, replace(message, id=kind, kind=id_ or "k")):
        assert encode_new(
            one.id, one.kind, queue, payload, max_retry, no_archive, retention, state
        ) == encode(one, state)


@given(st.binary())
def test_any_bytes_are_a_message_or_a_message_error(raw: bytes) -> None:
    try:
        decode(raw)
    except MessageError:
        pass
