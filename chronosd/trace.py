"""Trace context, as W3C has it: which trace a task belongs to, from the enqueue call to its handler and on.

It travels beside the message, in the fields ``traceparent`` and ``tracestate`` of the task's hash, so it
stays the same over retries, crashes, dead-lettering and another run, and goes on to what follows the task. It
is taken from the call (``trace=``), else from the current OpenTelemetry span if that library is in use, else
from `use`, which is also what a handler runs under: what it enqueues belongs to its own task's trace.

Source: https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from chronosd.errors import InvalidTask

_PARENT = re.compile("[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
_STATE = re.compile("[!-~ ]{0,512}")
_NOTHING = ("0" * 32, "0" * 16)

_current: ContextVar[str] = ContextVar("chronosd_trace", default="")


def checked(traceparent: str, tracestate: str = "") -> str:
    """Both in one text, ``<traceparent>`` or ``<traceparent> <tracestate>``. Raises InvalidTask."""
    match = _PARENT.fullmatch(traceparent) if isinstance(traceparent, str) else None
    if match is None or match[1] == _NOTHING[0] or match[2] == _NOTHING[1]:
        raise InvalidTask(f"trace: {ascii(traceparent)[:80]} is no traceparent (00-<trace id>-<span id>-01)")
    if not tracestate:
        return traceparent
    if not isinstance(tracestate, str) or not _STATE.fullmatch(tracestate):
        raise InvalidTask("trace: a tracestate has at most 512 printable ASCII characters")
    return f"{traceparent} {tracestate}"


def stored(text: bytes | None) -> str:
    """What a hash held, if it is a trace context; else nothing: whoever wrote it, no task fails for it."""
    if not text:
        return ""
    parent, _, state = text.decode("ascii", "replace").partition(" ")
    try:
        return checked(parent, state)
    except InvalidTask:
        return ""


def trace_id(trace: str) -> str:
    """The id of the whole trace: 32 hexadecimal digits."""
    return trace[3:35]


@contextmanager
def use(traceparent: str, tracestate: str = "") -> Iterator[None]:
    """Enqueue calls inside belong to this trace, in this thread or asyncio task. Raises InvalidTask."""
    token = _current.set(checked(traceparent, tracestate))
    try:
        yield
    finally:
        _current.reset(token)


def bind(trace: str) -> None:
    """As `use`, for the rest of this context: what a worker does before it calls a handler."""
    _current.set(trace)


def current() -> str:
    """What an enqueue call without ``trace=`` belongs to; empty for nothing."""
    api = sys.modules.get("opentelemetry.trace")
    if api is not None and (found := _of_span(api)):
        return found
    return _current.get()


def _of_span(api: Any) -> str:
    try:
        context = api.get_current_span().get_span_context()
        if not context.is_valid:
            return ""
        parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
        return checked(parent, context.trace_state.to_header())
    except Exception:  # whatever has been registered there: no task is refused for its trace
        return ""
