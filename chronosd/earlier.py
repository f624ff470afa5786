"""What a task of a chain or group finds of the tasks before it: their results, validated when asked for."""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from chronosd.broker.payload import encode_result
from chronosd.signature import HandlerError, InvalidPayload, validator


class Earlier:
    """The results that a message carries.

    Args:
        workflow: `Message.workflow`.
    """

    __slots__ = ("_workflow",)

    def __init__(self, workflow: Mapping[str, Any]) -> None:
        self._workflow = workflow

    def prev_result(self, wanted: Any) -> Any:
        """See `chronosd.Task.prev_result`."""
        return _validated(self._workflow.get("prev_result"), wanted, "the previous result")

    def group_results(self, wanted: Any) -> list[Any]:
        """See `chronosd.Task.group_results`."""
        size = self._workflow.get("group_results", ())
        return [_validated(raw, wanted, f"result {index} of the group") for index, raw in enumerate(size)]


def earlier_of(prev_result: Any = None, group_results: Sequence[Any] | None = None) -> Earlier | None:
    """What a task would find of tasks that returned these values; None is no result."""
    workflow: dict[str, Any] = {}
    if prev_result is not None:
        workflow["prev_result"] = _encoded(prev_result)
    if group_results is not None:
        workflow["group_results"] = [None if one is None else _encoded(one) for one in group_results]
    return Earlier(workflow) if workflow else None


def _encoded(value: Any) -> str:
    return b2a_base64(encode_result(value), newline=False).decode()


def _validated(raw: str | None, wanted: Any, what: str) -> Any:
    payload = a2b_base64(raw) if raw else b"null"
    if payload == b"null":  # what a Go handler without a result leaves
        return None
    try:
        return _validator(wanted)(payload)
    except InvalidPayload as error:
        raise InvalidPayload(str(error).replace("the payload", what, 1)) from None


def _validator(wanted: Any) -> Callable[[bytes], Any]:
    try:
        return _cached_validator(wanted)
    except TypeError:  # a type that cannot be hashed
        return _made_validator(wanted)


def _made_validator(wanted: Any) -> Callable[[bytes], Any]:
    try:
        return validator(wanted)
    except HandlerError as error:
        raise InvalidPayload(f"a result of a type that {error}") from None


_cached_validator = lru_cache(maxsize=256)(_made_validator)
