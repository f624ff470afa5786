"""Arguments and results as JSON bytes: what is written, what is refused and where it says the fault lies."""

from __future__ import annotations

import enum
import hashlib
import json
import math
import uuid
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from chronosd.broker.payload import decode_args, encode_args, encode_result, go_escapes
from chronosd.errors import InvalidTask, MessageError, PayloadTooLarge


class Address(BaseModel):
    zip: str
    city: str


class Mail(BaseModel):
    to: str
    n: int
    extra: dict[str, Any] = Field(default_factory=dict)
    home: Address | None = None


@dataclass
class GoMail:
    to: str
    n: int


@dataclass
class Nested:
    z: int
    _private: int = 2
    inner: GoMail = field(default_factory=lambda: GoMail("x", 1))
    mapping: dict[str, int] = field(default_factory=lambda: {"b": 1, "a": 2})


class Typed(TypedDict):
    b: int
    a: int


class Colour(enum.Enum):
    RED = "red"


def test_a_go_struct_and_a_dataclass_of_the_same_fields_have_the_same_bytes_and_so_the_same_unique_hash() -> (
    None
):
    payload = encode_args(GoMail(to="<u>&é ", n=1))
    assert payload == '{"to":"\\u003cu\\u003e\\u0026é ","n":1}'.encode()
    assert hashlib.sha256(payload).hexdigest() == (
        "842a8241e90501d36bbb162cadde6cb2beb3ea197853b45ed13305c374d9a8ec"
    )


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (None, b"null"),
        ({}, b"{}"),
        ({"b": 1, "a": [1, 2.5, "x", True, None]}, b'{"a":[1,2.5,"x",true,null],"b":1}'),
        ({"b": {"d": 1, "c": 2}, "a": 0}, b'{"a":0,"b":{"c":2,"d":1}}'),
        ((1, 2), b"[1,2]"),
        (Typed(b=1, a=2), b'{"a":2,"b":1}'),
        ({"i": 2**64 - 1, "j": -(2**63)}, b'{"i":18446744073709551615,"j":-9223372036854775808}'),
        ({"line": "\u2028\u2029<>&\x00"}, b'{"line":"\\u2028\\u2029\\u003c\\u003e\\u0026\\u0000"}'),
        (Mail(to="a", n=1), b'{"to":"a","n":1,"extra":{},"home":null}'),
        (
            Mail(to="a", n=1, extra={"b": 1, "a": 2}, home=Address(zip="1", city="B")),
            b'{"to":"a","n":1,"extra":{"a":2,"b":1},"home":{"zip":"1","city":"B"}}',
        ),
        ({"mail": [Mail(to="a", n=1)]}, b'{"mail":[{"to":"a","n":1,"extra":{},"home":null}]}'),
        (Nested(1), b'{"z":1,"_private":2,"inner":{"to":"x","n":1},"mapping":{"a":2,"b":1}}'),
        ({"s": {"c", "a", "b"}}, b'{"s":["a","b","c"]}'),
        (Colour.RED, b'"red"'),
        ({"d": Decimal("1.10"), "p": Path("/a")}, b'{"d":"1.10","p":"/a"}'),
        (uuid.UUID(int=1), b'"00000000-0000-0000-0000-000000000001"'),
        (datetime(2026, 1, 2, tzinfo=UTC), b'"2026-01-02T00:00:00+00:00"'),
        (date(2026, 1, 2), b'"2026-01-02"'),
        (timedelta(minutes=5), b'"PT5M"'),
        (b"text", b'"text"'),
    ],
)
def test_args_become_compact_json_with_sorted_dicts_and_fields_in_declared_order(
    args: Any, expected: bytes
) -> None:
    assert encode_args(args) == expected


class Aliased(BaseModel):
    ratio: float = Field(serialization_alias="Ratio")
    options: dict[str, int] = Field(serialization_alias="opts", default_factory=dict)


def test_aliases_name_the_fields_and_the_dicts_under_them_are_sorted() -> None:
    assert encode_args(Aliased(ratio=1.5, options={"b": 1, "a": 2})) == b'{"Ratio":1.5,"opts":{"a":2,"b":1}}'


circle: list[Any] = []
circle.append(circle)
deep: list[Any] = []
for _ in range(400):
    deep = [deep]


class BrokenStrError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Hostile(BaseModel):
    x: int = 1

    def __getattribute__(self, name: str) -> Any:
        if name == "__dict__":
            raise BrokenStrError
        return super().__getattribute__(name)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"a": math.nan}, "args.a: nan"),
        ({"a": [1, {"b": math.inf}]}, "args.a[1].b: inf"),
        ({"a": (-math.inf,)}, "args.a[0]: -inf"),
        (math.nan, "args: nan"),
        (Aliased(ratio=math.nan), "args.Ratio: nan"),
        ({"m": Aliased(ratio=math.nan), "n": None}, "args.m.Ratio: nan"),
        ({"a": 2**64}, "args.a: an integer beyond 64 bits"),
        ([-(2**63) - 1], "args[0]: an integer beyond 64 bits"),
        (Mail(to="a", n=2**70), "args.n: an integer beyond 64 bits"),
        (GoMail("a", 2**70), "args.n: an integer beyond 64 bits"),
        ({"a": "x\ud800"}, "args.a: a lone surrogate"),
        ({"\ud800": 1}, "args: the key '\\ud800' holds a lone surrogate"),
        ({1: "a"}, "args: the key 1 must be a string"),
        ({"a": {None: 1}}, "args.a: the key None must be a string"),
        (circle, "nested too deep"),
        (deep, "nested too deep"),
        ({"a": object()}, "args: cannot be stored as JSON"),
        ({"a": b"\xff"}, "args: cannot be stored as JSON"),
        (lambda: 0, "args: cannot be stored as JSON"),
        (Hostile(), "args"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_the_path_to_it(args: Any, message: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        encode_args(args)
    text = str(caught.value)
    assert message in text
    assert text.isprintable()
    assert len(text) < 500


def test_a_result_names_itself_and_is_bounded() -> None:
    assert encode_result(None) == b"null"
    assert encode_result({"a": 1}) == b'{"a":1}'
    with pytest.raises(InvalidTask, match=r"^result\.a: nan"):
        encode_result({"a": math.nan})
    with pytest.raises(PayloadTooLarge, match="12 bytes"):
        encode_result("x" * 10, max_bytes=11)


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b'{"n":130775545883395173}', {"n": 130775545883395173}),
        (b"9223372036854775807", 2**63 - 1),
        (b"18446744073709551616", 2**64),
        (b"-9223372036854775809", -(2**63) - 1),
        (b"[1e-320,[],{},[[]],0.1234567890123456789]", [1e-320, [], {}, [[]], 0.12345678901234568]),
        (b'"1234567890123456789012"', "1234567890123456789012"),
        (b'"\\u0000"', "\x00"),
        (b"1" * 400, int("1" * 400)),
    ],
)
def test_numbers_keep_their_value_whatever_their_length(raw: bytes, value: Any) -> None:
    decoded = decode_args(raw)
    assert decoded == value
    assert type(decoded) is type(value)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"NaN",
        b"Infinity",
        b"[1e400]",
        b"[1e400,12345678901234567890]",
        b"[NaN,12345678901234567890]",
        b'["\\ud800",12345678901234567890]',
        b'["\xff",12345678901234567890]',
        b'"\\ud800"',
        b"1" * 5000,
        b"[" * 100_000,
        b"[" * 100_000 + b"1" * 20,
    ],
)
def test_a_payload_that_is_not_json_raises_message_error_and_nothing_else(raw: bytes) -> None:
    with pytest.raises(MessageError) as caught:
        decode_args(raw)
    assert len(str(caught.value)) < 300


json_texts = st.text(st.characters(exclude_categories=("Cs",)))
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | json_texts,
    lambda children: st.lists(children) | st.dictionaries(json_texts, children),
    max_leaves=20,
)


@given(json_values)
def test_args_survive_the_wire_and_read_alike_by_any_json_reader(args: Any) -> None:
    raw = encode_args(args)
    assert decode_args(raw) == args
    assert json.loads(raw) == args
    assert go_escapes(raw) == raw


@given(st.dictionaries(json_texts, json_values))
def test_the_order_of_a_dict_s_keys_does_not_change_the_bytes(args: dict[str, Any]) -> None:
    assert encode_args(args) == encode_args(dict(reversed(args.items())))
