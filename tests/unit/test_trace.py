"""Trace context: what is one, where an enqueue call finds it, and what a worker makes of it."""

from __future__ import annotations

import contextvars
import json
import os
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from chronosd import InvalidTask, Task, log, trace
from chronosd.submission import Drafter

ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{ID}-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "x",
        PARENT.upper(),
        PARENT[:-1],
        f"{PARENT} ",
        f"{PARENT}\n",
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-{ID}-{'0' * 16}-01",
        5,
        None,
    ],
)
def test_what_is_no_traceparent_is_refused_when_given_and_ignored_when_stored(wrong: Any) -> None:
    with pytest.raises(InvalidTask, match="is no traceparent"):
        trace.checked(wrong)
    stored = wrong.encode() if isinstance(wrong, str) else None
    assert trace.stored(stored) == ("" if wrong != f"{PARENT} " else PARENT)


def test_a_tracestate_goes_along_if_it_is_one() -> None:
    both = f"{PARENT} congo=t61rcWkgMzE,rojo=1"
    assert trace.checked(PARENT, "congo=t61rcWkgMzE,rojo=1") == both
    assert trace.stored(both.encode()) == both
    assert trace.trace_id(both) == ID
    for wrong in ("a" * 513, "ü", "a\nb"):
        with pytest.raises(InvalidTask, match="tracestate"):
            trace.checked(PARENT, wrong)


def of(drafter: Drafter, **options: Any) -> str:
    return drafter.draft("job", {}, **options).new.trace


def test_a_task_belongs_to_the_trace_it_was_given_else_to_that_of_its_surroundings() -> None:
    drafter, other = Drafter("n", 1000), PARENT.replace("4b", "5c")
    assert of(drafter) == ""
    assert of(drafter, trace=PARENT) == PARENT
    with trace.use(other, "a=b"):
        assert of(drafter) == f"{other} a=b"
        assert of(drafter, trace=PARENT) == PARENT
        assert of(drafter, trace="") == ""
        assert of(drafter, unique="1m") == f"{other} a=b"
        found: list[str] = []
        thread = threading.Thread(target=lambda: found.append(of(drafter)))
        thread.start()
        thread.join()
        assert found == [""]  # a thread is no part of it, unless it was given the context
        contextvars.copy_context().run(lambda: found.append(of(drafter)))
        assert found[1] == f"{other} a=b"
    assert of(drafter) == ""
    with pytest.raises(InvalidTask, match="no traceparent"):
        of(drafter, trace="nonsense")


def test_the_current_span_of_opentelemetry_comes_first_where_that_library_is_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The library is no dependency and is not imported; its interface is what is asked."""
    api: Any = ModuleType("opentelemetry.trace")
    state = SimpleNamespace(to_header=lambda: "vendor=1")
    context = SimpleNamespace(
        is_valid=True, trace_id=int(ID, 16), span_id=0xF067AA0BA902B7, trace_flags=1, trace_state=state
    )
    api.get_current_span = lambda: SimpleNamespace(get_span_context=lambda: context)
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", api)
    other = PARENT.replace("4b", "5c")
    with trace.use(other):
        assert trace.current() == f"{PARENT} vendor=1"
        context.is_valid = False
        assert trace.current() == other
        api.get_current_span = None  # something else of that name
        assert trace.current() == other


def test_the_lines_of_a_task_with_a_trace_carry_its_id(tmp_path: Path) -> None:
    path = tmp_path / "log"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        log.configure("info", "json", fd=fd)
        for context in (f"{PARENT} a=b", ""):
            log.bind_task(Task("t", "job", "q", None, trace=context))
            log.get_logger("test").info("hello")
    finally:
        log.bind_task(None)
        log.configure()
        os.close(fd)
    first, second = map(json.loads, path.read_text().splitlines())
    assert first["trace_id"] == ID
    assert "trace_id" not in second
