"""Task arguments and results as JSON bytes, written the way chronos-go writes them.

The bytes are part of the contract: a unique key is the hash of them, so the same arguments must give the
same bytes in every process and in Go. Hence compact JSON, Go's HTML escapes, the keys of dicts sorted (as
Go sorts its maps) and the fields of models and dataclasses in their declared order (as Go's structs).

What JSON would change in silence is refused here, at the producer, where somebody can still mend it: NaN
and infinity (orjson writes ``null``), integers beyond 64 bits, keys that are not strings, lone surrogates.
"""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from typing import Any, NoReturn

import orjson
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from chronosd.errors import InvalidTask, MessageError, PayloadTooLarge

MAX_RESULT_BYTES = 1024 * 1024
"""Go dead-letters a task whose result is larger."""

INT_MIN, INT_MAX = -(2**63), 2**64 - 1

_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS
# orjson reads a longer integer as a float, without a word; 19 digits are the first that may not fit. Looked
# for in a copy with every digit a zero: for short texts a quarter of what a regular expression takes.
_LONG_NUMBER = b"0" * 19
_DIGITS_AS_ZERO = bytes.maketrans(b"123456789", b"000000000")


def encode_args(args: Any) -> bytes:
    """The payload bytes of *args*: a dict, dataclass, pydantic model, or anything pydantic can serialise.

    Raises:
        InvalidTask: something in it cannot be stored as it is; the text names the path to the value.
    """
    return _encode(args, "args")


def encode_result(value: Any, max_bytes: int = MAX_RESULT_BYTES) -> bytes:
    """The bytes of a handler's return value (``None`` is ``null``, which Go counts as a result).

    Raises:
        InvalidTask: it cannot be stored as it is; the text names the path to the value.
        PayloadTooLarge: it is longer than *max_bytes*.
    """
    raw = _encode(value, "result")
    if len(raw) > max_bytes:
        raise PayloadTooLarge(f"the result is {len(raw)} bytes long, at most {max_bytes} are kept")
    return raw


def decode_args(raw: bytes) -> Any:
    """The JSON value in *raw*. Integers of any length keep their value.

    Raises:
        MessageError: it is not JSON, is nested too deep, or holds a number that no float can hold.
    """
    try:
        is_long = _LONG_NUMBER in raw.translate(_DIGITS_AS_ZERO)
        return _loads_exact(raw) if is_long else orjson.loads(raw)
    except (ValueError, RecursionError) as exc:
        raise MessageError(f"the payload is not JSON: {str(exc)[:200]}") from None


def go_escapes(raw: bytes) -> bytes:
    """Apply the escapes that Go's encoding/json adds for HTML: ``< > &`` and U+2028, U+2029."""
    # scans that find nothing cost less than one regular expression
    raw = raw.replace(b"<", b"\\u003c").replace(b">", b"\\u003e").replace(b"&", b"\\u0026")
    if raw.isascii():
        return raw
    return raw.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")


def _encode(value: Any, name: str) -> bytes:
    try:
        raw = orjson.dumps(value, _fragment, _OPTIONS)
    except Exception as exc:  # whatever a serialiser written by somebody else raises
        _refuse(value, name, exc)
    # NaN and infinity come out as null, so only a text with a null in it is worth a second look
    if b"null" in raw:
        problem = _find_problem(_plain(value), name, 0)
        if problem is not None:
            raise InvalidTask(problem)
    return go_escapes(raw)


def _fragment(value: Any) -> orjson.Fragment:
    """Called by orjson for what it does not know: models, dataclasses, sets, decimals, paths ..."""
    return orjson.Fragment(orjson.dumps(_plain(value)))


def _plain(value: Any) -> Any:
    return _arranged(value, to_jsonable_python(value))


def _arranged(original: Any, dumped: Any) -> Any:
    """Sort what was a dict or a set in *original*; fields of models and dataclasses keep their order.

    pydantic turns all of them into dicts and lists, so the two are walked side by side; where a custom
    serialiser changed the shape, its output is taken as it is.
    """
    if isinstance(dumped, dict):
        if isinstance(original, BaseModel) or is_dataclass(original):
            values = _field_values(original)
            return {key: _arranged(values.get(key), value) for key, value in dumped.items()}
        if isinstance(original, dict):
            children = {str(key): value for key, value in original.items()}
            return {key: _arranged(children.get(key), dumped[key]) for key in sorted(dumped)}
        return {key: dumped[key] for key in sorted(dumped)}
    if isinstance(dumped, list):
        if isinstance(original, (list, tuple)) and len(original) == len(dumped):
            return [_arranged(*pair) for pair in zip(original, dumped, strict=True)]
        if isinstance(original, (set, frozenset)):
            # the order of a set differs between processes, and unique keys hash these bytes
            return sorted(dumped, key=repr)
    return dumped


def _field_values(original: Any) -> dict[str, Any]:
    """Field values by the name they are written under."""
    if not isinstance(original, BaseModel):
        return {field.name: getattr(original, field.name, None) for field in fields(original)}
    values = dict(original.__dict__)
    for name, field in type(original).model_fields.items():
        if field.serialization_alias is not None and name in values:
            values[field.serialization_alias] = values[name]
    return values


def _refuse(value: Any, name: str, cause: Exception) -> NoReturn:
    problem = None
    try:
        # as it was given first: turned into plain values, a key that is no string would look fine
        problem = _find_problem(value, name, 0) or _find_problem(_plain(value), name, 0)
    except Exception as exc:  # serialisers and attributes of other people's classes
        cause = exc
    raise InvalidTask(problem or f"{name}: cannot be stored as JSON: {_one_line(cause)}") from None


def _one_line(exc: Exception) -> str:
    try:
        text = " ".join(str(exc).split())
    except Exception:  # a broken __str__ must not hide the refusal
        text = ""
    return (text or type(exc).__name__).encode(errors="replace").decode()[:300]


def _find_problem(value: Any, path: str, depth: int) -> str | None:
    """The first thing in *value* that JSON cannot hold, as one line that begins with the path to it."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{path}: {value} cannot be stored as JSON"
    if isinstance(value, int):
        return (
            None
            if INT_MIN <= value <= INT_MAX
            else f"{path}: an integer beyond 64 bits; store it as a string"
        )
    if isinstance(value, str):
        return f"{path}: a lone surrogate cannot be stored as UTF-8" if _has_surrogate(value) else None
    if depth > 250:
        return f"{path[:200]}...: nested too deep (or in a circle)"
    if isinstance(value, dict):
        for key, child in value.items():
            if not isinstance(key, str):
                return f"{path}: the key {ascii(key)[:100]} must be a string (JSON has no other keys)"
            if _has_surrogate(key):
                return f"{path}: the key {ascii(key)[:100]} holds a lone surrogate"
            problem = _find_problem(child, f"{path}.{key[:100]}", depth + 1)
            if problem is not None:
                return problem
    elif isinstance(value, (list, tuple)):
        for index, child in enumerate(value):
            problem = _find_problem(child, f"{path}[{index}]", depth + 1)
            if problem is not None:
                return problem
    elif isinstance(value, BaseModel) or is_dataclass(value):
        return _find_problem(_field_values(value), path, depth + 1)
    return None


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _loads_exact(raw: bytes) -> Any:
    value = json.loads(raw.decode(), parse_float=_finite, parse_constant=_no_constant)
    # the standard library lets lone surrogates through, orjson does not: keep to one rule
    json.dumps(value, ensure_ascii=False).encode()
    return value


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("number out of range")
    return number


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")
