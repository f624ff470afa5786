"""Logs: structlog, one line per event, and never in the way of a task.

A log line is worth less than a task. So a line is written only if its reader takes it at once, else it is
dropped and counted; a reader that was stopped, a full disk or a restarted journald blocks nobody. Lines are
at most `MAX_LINE` bytes, which is also what a pipe takes in one piece, so that the lines of the supervisor
and its workers, which share a pipe, never interleave.

The task that is running is bound through one context variable that holds the `Task` itself: binding costs
the hot path a fifth of a microsecond, and its fields become text only when a line is really written. The
handlers' own ``logging`` calls go through the same path and carry the same fields.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, MutableMapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import orjson
import structlog
from structlog.typing import FilteringBoundLogger

from chronosd.logsink import MAX_LINE, Sink
from chronosd.task import Task
from chronosd.trace import trace_id

__all__ = ["MAX_LINE", "bind_task", "configure", "current_task", "dropped", "enabled", "get_logger", "mask"]

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}
_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}  # syslog's, for journald

_EventDict = MutableMapping[str, Any]

_task: ContextVar[Task[Any] | None] = ContextVar("chronosd_task", default=None)

_PASSWORD = re.compile(r"(://[^\s/?#:@\"']*):[^\s\"']*@")
_MASKED = r"\1:***@"

# what a LogRecord has by itself; anything else came in through `extra`
_RECORD_FIELDS = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def bind_task(task: Task[Any] | None) -> None:
    """Makes ``task`` the one that log lines of this context (thread, asyncio task) are about."""
    _task.set(task)


def current_task() -> Task[Any] | None:
    """The task bound to this context; for logging filters of one's own."""
    return _task.get()


def mask(text: str) -> str:
    """``text`` with the passwords of the URLs in it replaced by ``***``.

    Rather too much is masked than too little: a password may hold an ``@`` that should have been escaped.
    """
    return _PASSWORD.sub(_MASKED, text) if "://" in text and "@" in text else text


def dropped() -> int:
    """How many lines this process has dropped because nobody took them."""
    return _sink.dropped


def get_logger(name: str) -> FilteringBoundLogger:
    """A structlog logger whose lines say ``logger=name``; structlog's own configuration does not touch it.

    A call below the threshold still costs about two microseconds; a hot path asks `enabled` once.
    """
    # Handlers' modules may call structlog.configure() for themselves. Our lines would then go through their
    # processors, and could block; so nothing here is left to the global configuration.
    logger: FilteringBoundLogger = structlog.wrap_logger(
        _NOWHERE,
        processors=_PROCESSORS,
        wrapper_class=_wrapper,
        context_class=dict,
        cache_logger_on_first_use=False,  # the level may change
        logger_name=name,
    )
    return logger


def enabled(level: str) -> bool:
    """Whether lines of ``level`` are written since the last `configure`."""
    return _LEVELS[level] >= _threshold


def configure(level: str = "info", format: str = "auto", *, fd: int = 2, **fields: Any) -> None:
    """Sends structlog and the standard library's ``logging`` to ``fd``; may be called again at any time.

    Args:
        level: debug, info, warning, error or critical.
        format: ``json``, ``console``, or ``auto``: console on a terminal, else JSON.
        fd: the descriptor to write to; it is not closed, and its flags are left alone.
        fields: go on every line of this process, e.g. ``worker=3``.
    """
    global _sink, _render, _common, _threshold, _filtering
    _threshold = _LEVELS[level]
    terminal = os.isatty(fd)
    old, _sink = _sink, Sink(fd, _notice)
    old.close()
    _common = {"pid": os.getpid(), **fields}
    _render = _console(colors=terminal) if format == "console" or (format == "auto" and terminal) else _json
    _filtering = structlog.make_filtering_bound_logger(_threshold)
    structlog.configure(  # for handlers that use structlog and do not configure it
        processors=_PROCESSORS,
        wrapper_class=_filtering,
        logger_factory=lambda *_: _NOWHERE,
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, _StdlibHandler):
            root.removeHandler(handler)
    root.addHandler(_StdlibHandler())
    root.setLevel(_threshold)
    logging.captureWarnings(True)


def _write_event(_logger: Any, level: str, event: _EventDict) -> Any:
    """The end of structlog's chain: completes the event, renders it and writes it."""
    _write(level, event)
    raise structlog.DropEvent


def _make_wrapper(logger: Any, **given: Any) -> Any:
    return _filtering(logger, **given)


_wrapper: Any = _make_wrapper  # a function where structlog expects a class: it is only ever called

_PROCESSORS = [structlog.contextvars.merge_contextvars, _write_event]
_NOWHERE = object()  # the logger that structlog wraps; the last processor has written by then


class _StdlibHandler(logging.Handler):
    """Sends records of the standard library's ``logging`` the same way as ours."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except BaseException as exc:  # "%d" with a string: a mistake in a log call fails no task
            text = f"{record.msg!s:.500} (its arguments do not fit: {type(exc).__name__})"
        event: _EventDict = {"event": text, "logger": record.name}
        for name, value in record.__dict__.items():
            if name not in _RECORD_FIELDS:
                event.setdefault(name, value)
        if record.exc_info:
            event["exc_info"] = record.exc_info
        elif record.exc_text:
            event["exception"] = record.exc_text
        level = next((name for name, floor in reversed(_LEVELS.items()) if record.levelno >= floor), "debug")
        _write(level, event)

    def createLock(self) -> None:  # noqa: N802 - the base class's name
        self.lock = None  # the sink has its own; one lock less to find held after a fork


def _write(level: str, event: _EventDict) -> None:
    try:
        line = _line(level, event)
    except BaseException as exc:  # a value that breaks every renderer must not fail who logs it
        why = type(exc).__name__
        line = _render({"level": level, "event": "log event could not be rendered", "error": why})
    _sink.write(line, _PRIORITIES.get(level, 6))


def _line(level: str, event: _EventDict) -> bytes:
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
    head: dict[str, Any] = {"timestamp": now, "level": level, "event": event.pop("event", "")}
    if "logger_name" in event:  # structlog cannot bind `logger` at the start
        event["logger"] = event.pop("logger_name")
    exc_info = event.pop("exc_info", None)
    if exc_info:
        event["exception"] = _traceback(exc_info)
    task = _task.get()
    if task is not None:
        head |= {"task_id": task.id, "kind": task.kind, "queue": task.queue, "attempt": task.attempt}
        if task.trace:
            head["trace_id"] = trace_id(task.trace)
    for name in ("timestamp", "level"):
        if name in event:  # from a handler's `extra`; ours mean something to whoever reads the log
            event[f"{name}_"] = event.pop(name)
    head.update(event)
    for name, value in _common.items():
        head.setdefault(name, value)
    for name, value in head.items():
        if isinstance(value, str):
            head[name] = mask(value)
    room = _sink.room
    line = _render(head)
    for limit in (1500, 400, 100):
        if len(line) <= room:
            return line
        head = {name: _shortened(value, limit) for name, value in head.items()} | {"shortened": True}
        line = _render(head)
    if len(line) <= room:
        return line
    # so many fields that even short ones are too much
    kept = ("timestamp", "level", "event", "logger", "task_id", "kind", "shortened")
    return _render({name: head[name] for name in kept if name in head})


def _shortened(value: Any, limit: int) -> Any:
    if value is None or isinstance(value, int | float):
        return value
    text = value if isinstance(value, str) else _safe_repr(value)
    if len(text) <= limit:
        return value if isinstance(value, str) else text
    # both ends: of a traceback the last lines say most, of a message the first
    return f"{text[: limit // 3]} … {text[-(limit * 2 // 3) :]}"


def _traceback(exc_info: Any) -> str:
    if isinstance(exc_info, tuple):
        exc_info = exc_info[1]
    exc = exc_info if isinstance(exc_info, BaseException) else sys.exc_info()[1]
    if exc is None:
        return ""
    try:
        return "".join(traceback.format_exception(exc, limit=-20)).rstrip("\n")
    except BaseException:  # a group nested a thousand deep, a broken __str__ in a metaclass
        return f"{type(exc).__name__} (its traceback cannot be shown)"


def _safe_repr(value: object) -> str:
    try:
        return str.__str__(repr(value))
    except BaseException as exc:
        return f"<{type(value).__name__} whose repr raised {type(exc).__name__}>"


def _json(event: _EventDict) -> bytes:
    try:
        return orjson.dumps(event, _safe_repr, orjson.OPT_NON_STR_KEYS)
    except (TypeError, ValueError, RecursionError):
        # integers beyond 64 bits, lone surrogates, circles
        plain = {_utf8(str(name)): _plain(value) for name, value in event.items()}
        return orjson.dumps(plain)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    return _utf8(value if isinstance(value, str) else _safe_repr(value))


def _utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _console(*, colors: bool) -> Callable[[_EventDict], bytes]:
    # the plain formatter: rich's tracebacks show local variables, and those hold arguments
    renderer = structlog.dev.ConsoleRenderer(
        colors=colors, exception_formatter=structlog.dev.plain_traceback, pad_event_to=0
    )

    def render(event: _EventDict) -> bytes:
        copy = {name: value if isinstance(value, str) else _safe_repr(value) for name, value in event.items()}
        return _utf8(str(renderer(None, "", copy))).encode()

    return render


def _notice(count: int) -> bytes:
    return _line("warning", {"event": "log lines dropped", "count": count})


_sink = Sink(2, _notice)
_render: Callable[[_EventDict], bytes] = _json
_common: dict[str, Any] = {}
_threshold = logging.INFO
_filtering: Any = structlog.make_filtering_bound_logger(logging.INFO)
