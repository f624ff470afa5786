"""Where async handlers are that wait: no thread's stack shows a coroutine that is suspended."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from types import FrameType
from typing import Any

from chronosd.worker.execute import Run

_MOST_RUNS = 50
_MOST_FRAMES = 50


def stacks(runs: Iterable[Run], entries: Collection[tuple[str, str]]) -> str:
    """The stacks of the runs of these entries (queue name, entry id) that are suspended; of any, if none are
    named. In the form of faulthandler's, most recent call first.
    """
    parts: list[str] = []
    for run in runs:
        if run.aio is None or (entries and (run.message.queue, run.entry.decode()) not in entries):
            continue
        frames = list(_frames(run.aio.get_coro()))[:_MOST_FRAMES]
        lines = [f'  File "{f.f_code.co_filename}", line {f.f_lineno} in {f.f_code.co_name}' for f in frames]
        title = f"Task {run.message.id} of kind {run.message.kind}, waiting (most recent call first):"
        parts.append("\n".join([title, *reversed(lines)]) + "\n\n")
        if len(parts) == _MOST_RUNS:
            break
    return "".join(parts)


def _frames(awaited: Any) -> Iterator[FrameType]:
    """From the outermost coroutine to the one that waits, as far as each tells what it awaits."""
    while awaited is not None:
        for frame, following in (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom")):
            if getattr(awaited, frame, None) is not None:
                yield getattr(awaited, frame)
                awaited = getattr(awaited, following)
                break
        else:  # the worker's trampoline, or the end: a future, or an async generator, which tells no more
            awaited = getattr(awaited, "coroutine", None)
