"""The text under a task's hash field ``msg``: chronos-go's fields, in its order, with its omissions.

Go producers and workers read what is written here and the other way round, so nothing of ours is added
(further hash fields are the place for that) and nothing of Go's is dropped. The fields of chains and groups
are only carried here, in `Message.workflow`; :mod:`chronosd.broker.workflow` knows what they mean. Golden
tests hold this module to dumps of a real chronos-go 1.2.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NoReturn

import orjson

from chronosd.broker.payload import go_escapes
from chronosd.errors import MessageError
from chronosd.states import State

DEFAULT_MAX_RETRY: Final = 25
"""How often a failure is retried where nobody says otherwise; as chronos-go has it."""

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1

# fields of chains and groups, after unique_key, in Go's order around `result`
_BEFORE_RESULT: dict[str, type] = {
    "chain": list,
    "chain_id": str,
    "chain_index": int,
    "group_id": str,
    "group_queue": str,
    "group_callback": dict,
}
_AFTER_RESULT: dict[str, type] = {
    "prev_result": str,
    "group_results": list,
    "group_index": int,
    "group_size": int,
    "group_member_id": str,
    "group_cb_chain": list,
}
_WORKFLOW = _BEFORE_RESULT | _AFTER_RESULT
_LINK_ORDER = ("kind", "payload", "queue", "max_retry", "no_archive", "retention", "delay", "group")
_ALWAYS = 10  # fields that Go never omits


@dataclass(slots=True)
class Message:
    """A task as it stands in Redis, without its state (the hash field ``state`` holds that)."""

    id: str
    kind: str
    queue: str
    payload: bytes
    """The JSON of the arguments (base64 only on the wire)."""
    retried: int = 0
    max_retry: int = DEFAULT_MAX_RETRY
    no_archive: bool = False
    unique_key: str = ""
    """The full key of the unique lock, namespace included; empty if there is none."""
    last_err: str = ""
    retention: int = 0
    """Seconds for which a completed task is kept."""
    completed_at: int = 0
    """Unix seconds; 0 unless completed and retained."""
    result: bytes | None = None
    """The JSON of the result."""
    workflow: dict[str, Any] = field(default_factory=dict)
    """Chain and group fields as they were read; empty for a task of its own."""


def decode(raw: bytes) -> Message:
    """Read a ``msg`` as tolerantly as a Go reader: unknown fields and nulls are fine, wrong types are not.

    Raises:
        MessageError: it is not a message; the text says why, in one line.
    """
    try:
        fields = orjson.loads(raw)
    except ValueError as exc:
        raise MessageError(f"not JSON: {exc}") from None
    if type(fields) is not dict:
        raise MessageError(f"not a JSON object but {_json_type(fields)}")
    if len(fields) != _ALWAYS:
        return _decode_carefully(fields)
    try:  # the plain task as Go and chronosd write it: exactly the fields that are never omitted
        id_, kind, queue = fields["id"], fields["kind"], fields["queue"]
        retried, max_retry = fields["retried"], fields["max_retry"]
        no_archive, unique_key = fields["no_archive"], fields["unique_key"]
        if (
            type(id_) is str
            and type(kind) is str
            and type(queue) is str
            and type(retried) is int
            and type(max_retry) is int
            and type(no_archive) is bool
            and type(unique_key) is str
            and fields["group_index"] is not False
            and fields["group_index"] == 0
            and type(fields["group_index"]) is int
            and type(fields["state"]) is int
            and max_retry <= _INT64_MAX
            and retried <= _INT64_MAX
        ):
            payload = a2b_base64(fields["payload"], strict_mode=True)
            return Message(
                id_, kind, queue, payload, retried, max_retry, no_archive, unique_key, "", 0, 0, None, {}
            )
    except (KeyError, TypeError, ValueError):
        pass  # the careful reader takes what is merely unusual and names what is wrong
    return _decode_carefully(fields)


def encode(message: Message, state: State) -> bytes:
    """Write *message* as Go would, with *state* as the state at this write.

    Raises:
        MessageError: a text in it is not valid Unicode (a lone surrogate).
    """
    fields: dict[str, Any] = {
        "id": message.id,
        "kind": message.kind,
        "payload": b2a_base64(message.payload, newline=False).decode(),
        "queue": message.queue,
        "state": int(state),
        "retried": message.retried,
        "max_retry": message.max_retry,
        "no_archive": message.no_archive,
        "unique_key": message.unique_key,
    }
    if message.last_err:
        fields["last_err"] = message.last_err
    if message.retention:
        fields["retention"] = message.retention
    if message.completed_at:
        fields["completed_at"] = message.completed_at
    if message.workflow or message.result:
        _add_workflow(fields, message)
    else:
        fields["group_index"] = 0
    try:
        return go_escapes(orjson.dumps(fields))
    except TypeError as exc:
        raise MessageError(f"task {ascii(message.id)[:100]} cannot be written: {exc}") from None


def encode_new(
    id_: str,
    kind: str,
    queue: str,
    payload: bytes,
    max_retry: int,
    no_archive: bool,
    retention: int,
    state: State,
    *,
    is_uuid: bool = False,
) -> bytes:
    """What `encode` makes of a new task, faster: most of the text is the same for all of a kind.

    ``is_uuid`` says that the id is one, so that nothing in it has to be escaped.
    """
    head, middle, tail = _frame(kind, queue, max_retry, no_archive, retention, int(state))
    id_text = id_.encode() if is_uuid else go_escapes(orjson.dumps(id_))[1:-1]
    return b"".join((head, id_text, middle, b2a_base64(payload, newline=False), tail))


@lru_cache(maxsize=1024)
def _frame(
    kind: str, queue: str, max_retry: int, no_archive: bool, retention: int, state: int
) -> tuple[bytes, bytes, bytes]:
    """The text before the id, between id and payload, and after the payload. ``state`` is a State's value,
    for members of enums are slow to hash."""
    text = encode(Message("", kind, queue, b"", 0, max_retry, no_archive, retention=retention), State(state))
    # neither mark can stand inside a string: its quotes would be escaped
    head, _, rest = text.partition(b'","kind":')
    middle, _, tail = rest.partition(b'"payload":""')
    return head, b'","kind":' + middle + b'"payload":"', b'"' + tail


def _add_workflow(fields: dict[str, Any], message: Message) -> None:
    workflow = message.workflow
    for name in _BEFORE_RESULT:
        if workflow.get(name):
            fields[name] = workflow[name]
    if message.result:
        fields["result"] = b2a_base64(message.result, newline=False).decode()
    for name in _AFTER_RESULT:
        if name == "group_index":
            fields[name] = workflow.get(name, 0)
        elif workflow.get(name):
            fields[name] = workflow[name]


def _decode_carefully(fields: dict[str, Any]) -> Message:
    _take(fields, "state", int, 0)  # not kept: it is stale; but a Go reader would stumble over a wrong type
    message = Message(
        id=_take(fields, "id", str, ""),
        kind=_take(fields, "kind", str, ""),
        queue=_take(fields, "queue", str, ""),
        payload=_take_base64(fields, "payload"),
        retried=_take(fields, "retried", int, 0),
        max_retry=_take(fields, "max_retry", int, 0),
        no_archive=_take(fields, "no_archive", bool, False),
        unique_key=_take(fields, "unique_key", str, ""),
        last_err=_take(fields, "last_err", str, ""),
        retention=_take(fields, "retention", int, 0),
        completed_at=_take(fields, "completed_at", int, 0),
        result=_take_base64(fields, "result") or None,
        workflow={},
    )
    for name in _WORKFLOW.keys() & fields.keys():
        value = _take(fields, name, _WORKFLOW[name], None)
        if value:
            message.workflow[name] = value
    if message.workflow:
        _check_workflow(message.workflow)
    return message


def _check_workflow(workflow: dict[str, Any]) -> None:
    if "prev_result" in workflow:
        _take_base64(workflow, "prev_result")
    for index, result in enumerate(workflow.get("group_results", ())):
        if result is not None:
            _take_base64({f"group_results[{index}]": result}, f"group_results[{index}]")
    for name in ("chain", "group_cb_chain"):
        if name in workflow:
            workflow[name] = [_link(link, f"{name}[{index}]") for index, link in enumerate(workflow[name])]
    if "group_callback" in workflow:
        workflow["group_callback"] = _link(workflow["group_callback"], "group_callback")


def _link(link: Any, path: str) -> dict[str, Any]:
    """A chain link in Go's field order: Redis' own JSON encoder, used for callbacks, knows no order."""
    if type(link) is not dict:
        _wrong(path, "an object", link)
    for name, expected in (("kind", str), ("queue", str), ("max_retry", int), ("no_archive", bool)):
        _take(link, name, expected, None, f"{path}.")
    for name in ("retention", "delay"):
        _take(link, name, int, None, f"{path}.")
    _take_base64(link, "payload", f"{path}.")
    ordered = {name: link[name] for name in _LINK_ORDER if link.get(name) is not None}
    group = _take(link, "group", list, None, f"{path}.")
    if group:
        ordered["group"] = [_link(member, f"{path}.group[{index}]") for index, member in enumerate(group)]
    return ordered


def _take(fields: dict[str, Any], name: str, expected: type, default: Any, path: str = "") -> Any:
    value = fields.get(name)
    if value is None:
        return default
    if type(value) is not expected:
        _wrong(path + name, _NAMES[expected], value)
    if type(value) is int and not _INT64_MIN <= value <= _INT64_MAX:
        _wrong(path + name, "a 64-bit integer", value)
    return value


def _take_base64(fields: dict[str, Any], name: str, path: str = "") -> bytes:
    text = _take(fields, name, str, "", path)
    try:
        return a2b_base64(text, strict_mode=True)
    except ValueError as exc:
        raise MessageError(f"{path}{name} is not padded standard base64: {exc}") from None


_NAMES: dict[type, str] = {
    str: "a string",
    int: "an integer",
    bool: "true or false",
    list: "an array",
    dict: "an object",
}


def _json_type(value: Any) -> str:
    return "null" if value is None else _NAMES.get(type(value), "a number with a fraction")


def _wrong(path: str, expected: str, value: Any) -> NoReturn:
    found = str(value) if type(value) in (int, float) else _json_type(value)
    raise MessageError(f"{path} must be {expected}, not {found}")
