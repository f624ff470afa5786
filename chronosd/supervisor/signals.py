"""Signals, caught from the first instant on and acted upon only in the loop.

The command line calls :func:`catch_early` before it imports anything that takes time: a SIGHUP or SIGTERM
that arrives while modules load must neither kill the process nor be forgotten. A handler only counts; the
loop asks for what has come with :func:`take`. So no handler can meet the worker table half changed, and
nothing is logged, forked or reaped from inside one.

This module imports nothing that takes time to import.
"""

from __future__ import annotations

import os
import signal
import socket
from types import FrameType

ACTED_ON: tuple[signal.Signals, ...] = (
    signal.SIGQUIT,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGCHLD,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGTSTP,
    signal.SIGCONT,
)
"""Every signal the supervisor catches, the most urgent first: the order in which they are handed out."""

IGNORED_IN_CHILD: tuple[signal.Signals, ...] = (
    # A terminal and `systemctl kill` send these to everybody; only the supervisor acts on them.
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGTSTP,
)

_counts: dict[int, int] = {}
_wakeup: tuple[socket.socket, socket.socket] | None = None


def catch_early() -> None:
    """Catches every signal of :data:`ACTED_ON`. Safe to call again.

    Undoes what a launcher may have left: SIGCHLD ignored (the kernel would then reap the workers itself,
    and their exit status would be lost) and signals blocked.
    """
    global _wakeup
    if _wakeup is None:
        _wakeup = socket.socketpair()
        for end in _wakeup:
            end.setblocking(False)
    for signum in ACTED_ON:
        signal.signal(signum, _note)
    # The byte that C writes wakes the selector; what came is in _counts, which cannot overflow.
    signal.set_wakeup_fd(_wakeup[1].fileno(), warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


_UNDOES = {signal.SIGTSTP: signal.SIGCONT, signal.SIGCONT: signal.SIGTSTP}
"""As in the kernel, the later one of the two takes the earlier one back, if that has not been acted on."""


def _note(signum: int, _frame: FrameType | None) -> None:
    if signum in _UNDOES:
        _counts.pop(_UNDOES[signal.Signals(signum)], None)
    _counts[signum] = _counts.get(signum, 0) + 1


def fileno() -> int:
    """The descriptor that becomes readable when a signal has come."""
    assert _wakeup is not None, "catch_early() first"
    return _wakeup[0].fileno()


def drain() -> None:
    """Empties the wake-up descriptor, once it is readable. What has come is for :func:`take`."""
    assert _wakeup is not None, "catch_early() first"
    try:
        while _wakeup[0].recv(4096):
            pass
    except BlockingIOError:
        pass  # empty


def take() -> list[tuple[signal.Signals, int]]:
    """What has come since the last call, most urgent first, each with how often."""
    came: list[tuple[signal.Signals, int]] = []
    if not _counts:
        return came
    for signum in ACTED_ON:
        # pop is atomic with respect to handlers: they run between bytecodes, in this thread
        if (count := _counts.pop(signum, 0)) > 0:
            came.append((signum, count))
    return came


def release() -> None:
    """Back to the defaults: for a process that catches signals and then does not become a supervisor."""
    global _wakeup
    signal.set_wakeup_fd(-1)
    for signum in ACTED_ON:
        signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)
    _counts.clear()
    _close_wakeup()


def block() -> set[signal.Signals | int]:
    """Blocks every signal, for a fork; returns the mask that :func:`unblock` puts back."""
    return signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())


def unblock(mask: set[signal.Signals | int]) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def reset_in_child() -> None:
    """A forked child's dispositions, set while everything is still blocked.

    TERM is the default until the worker installs its own handler: a child that is told to stop before it
    has begun simply ends. None of the parent's handlers is left, and the wake-up descriptor is not
    written any more: a signal to the child would wake its parent.
    """
    signal.set_wakeup_fd(-1)
    for signum in ACTED_ON:
        signal.signal(signum, signal.SIG_IGN if signum in IGNORED_IN_CHILD else signal.SIG_DFL)
    _counts.clear()
    _close_wakeup()


def _close_wakeup() -> None:
    global _wakeup
    if _wakeup is not None:
        for end in _wakeup:
            end.close()
        _wakeup = None


def describe(signum: int) -> str:
    """``SIGKILL`` for 9; the number for one without a name."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def send(pid: int, signum: int) -> bool:
    """Sends; False if there is no such process."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return False
    return True
