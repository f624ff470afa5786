"""Where handlers are that are not on the main thread's stack: coroutines that wait, and other threads.

Asked of a loop that turns. What a signal handler can do for other threads may crash a busy process, and no
thread's stack shows a coroutine that is suspended.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection, Iterable, Iterator
from types import FrameType
from typing import Any

from chronosd.worker.run import Run

_MOST_PARTS = 150
_MOST_FRAMES = 50


def stacks(runs: Iterable[Run], entries: Collection[tuple[str, str]]) -> str:
    """The stacks of the runs of these entries (queue name, entry id) that are suspended; if none are named,
    of all of them, and of the other threads. In the form of faulthandler's, most recent call first.
    """
    parts: list[str] = [] if entries else list(_threads())
    for run in runs:
        if run.aio is None or (entries and (run.message.queue, run.entry.decode()) not in entries):
            continue
        frames = list(_frames(run.aio.get_coro()))[:_MOST_FRAMES]
        parts.append(_part(f"Task {run.message.id} of kind {run.message.kind}, waiting", frames[::-1]))
        if len(parts) >= _MOST_PARTS:
            break
    return "".join(parts)


def _threads() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, innermost in sys._current_frames().items():
        if ident == threading.get_ident():
            continue
        frames: list[FrameType] = []
        frame: FrameType | None = innermost
        while frame is not None and len(frames) < _MOST_FRAMES:
            frames.append(frame)
            frame = frame.f_back
        yield _part(f"Thread {names.get(ident, ident)}", frames)


def _part(title: str, frames: Iterable[FrameType]) -> str:
    lines = [f'  File "{f.f_code.co_filename}", line {f.f_lineno} in {f.f_code.co_name}' for f in frames]
    return "\n".join([f"{title} (most recent call first):", *lines]) + "\n\n"


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
