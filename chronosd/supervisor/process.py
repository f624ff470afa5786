"""Forking: the only place that does, and what a child must do before it is anybody else.

A worker is forked, not exec'd: 13 ms instead of 138, and a third of the memory. The price is that the child
begins as a copy of the supervisor, with its descriptors, handlers, environment and buffers. Everything in
:func:`_enter_child` is there because its absence has hurt some daemon: a child that wrote into its parent's
wake-up descriptor, kept its Redis socket, told systemd READY in its place, ran its exit handlers, or lived
on for ever after it.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import mmap
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import setproctitle

from chronosd.supervisor import signals

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
STACK = signal.SIGUSR2
"""Has a child dump the Python stack of its main thread."""
ALL_STACKS = signal.SIGRTMIN + 7
"""Has it dump those of all its threads. Only just before a kill: a few of these crash a busy process."""
_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)
_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]

_OOM_SCORE = 100
"""Thousandths of all memory: so much larger than it is the kernel takes a child to be."""
_OOM_SCORE_MOST = 1000

_SIGNAL_STACK_BYTES = 256 << 10
_signal_stack = mmap.mmap(-1, _SIGNAL_STACK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
_signal_stack_address = ctypes.addressof(ctypes.c_char.from_buffer(_signal_stack))


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended."""

    code: int | None
    """Its exit status, or None if a signal ended it (or nobody can tell)."""
    signal: int | None
    max_rss_bytes: int = 0

    @property
    def is_fault(self) -> bool:
        """A signal that the process's own code raised, such as a segmentation fault."""
        return self.signal in _FAULTS

    def __str__(self) -> str:
        if self.signal is not None:
            return f"killed by signal {self.signal} ({signals.describe(self.signal)})"
        return "ended, nobody knows how" if self.code is None else f"exited with code {self.code}"


@dataclass(slots=True)
class Child:
    """A forked process: its pid and a descriptor that becomes readable when it dies."""

    pid: int
    pidfd: int

    def fileno(self) -> int:
        return self.pidfd

    def send(self, signum: int) -> bool:
        """Signals it through the pidfd, which can never hit a stranger; False if it is gone."""
        if self.pidfd < 0:
            return False
        try:
            signal.pidfd_send_signal(self.pidfd, signum)
        except ProcessLookupError:
            return False
        return True

    def reap(self) -> Exit | None:
        """How it ended, or None while it lives. What it started in its own session dies with it.

        A clean exit spares them: a handler may leave a process running on purpose. After any other end
        its task will run again, and the remains of the first run must not run beside it. They are killed
        while the child is still a zombie, so that its pid, which is their group's, cannot be another's.
        """
        try:
            info = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if info is None:
                return None
            if info.si_code != os.CLD_EXITED or info.si_status != 0:
                self.kill_session()
            _, status, usage = os.wait4(self.pid, 0)
        except ChildProcessError:
            # Somebody else reaped it. It is dead; how it died is not known, which counts as a failure.
            self.close()
            return Exit(None, None)
        self.close()
        code = os.waitstatus_to_exitcode(status)
        rss = usage.ru_maxrss * 1024
        return Exit(code, None, rss) if code >= 0 else Exit(None, -code, rss)

    def kill_session(self) -> None:
        """Kills what it started; only before it is reaped, while its pid cannot be another's."""
        try:
            # No group of that number exists if the child never got as far as setsid: ours is another.
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # nobody is left, or the one that is has changed its user

    def close(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def fork(
    run: Callable[[], int],
    *,
    title: str,
    abandon: Callable[[], None],
    stack_fd: int | None = None,
) -> Child:
    """Forks a child that does ``run()`` and ends with its result as exit code.

    Args:
        abandon: called in the child first of all: closes what belongs to the parent alone.
        stack_fd: where STACK, ALL_STACKS and fatal signals dump the child's Python stacks.

    Raises:
        OSError: no process or descriptor to be had.
    """
    parent = os.getpid()
    mask = signals.block()
    # Objects moved to the permanent generation are not touched by the child's collector, so their pages
    # stay shared.
    gc.freeze()
    try:
        pid = os.fork()
        if pid == 0:
            _be_child(run, parent, mask, title, abandon, stack_fd)
        try:
            return Child(pid, os.pidfd_open(pid))
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
    finally:
        gc.unfreeze()
        signals.unblock(mask)


def _be_child(
    run: Callable[[], int],
    parent: int,
    mask: set[signal.Signals | int],
    title: str,
    abandon: Callable[[], None],
    stack_fd: int | None,
) -> NoReturn:
    code = 1
    try:
        _enter_child(parent, mask, title, abandon, stack_fd)
        code = run()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        # Never back into the parent's code: its exit handlers and finalisers are not ours to run.
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code & 0xFF)


def _enter_child(
    parent: int,
    mask: set[signal.Signals | int],
    title: str,
    abandon: Callable[[], None],
    stack_fd: int | None,
) -> None:
    die_with(parent)
    os.setsid()
    offer_to_the_oom_killer()
    signals.reset_in_child()
    abandon()
    for name in [n for n in os.environ if n == "NOTIFY_SOCKET" or n.startswith("WATCHDOG_")]:
        del os.environ[name]
    if stack_fd is not None:
        # In place before signals are let in: their default action is death.
        faulthandler.register(STACK, file=stack_fd, all_threads=False, chain=False)
        faulthandler.register(ALL_STACKS, file=stack_fd, all_threads=True, chain=False)
        faulthandler.enable(file=stack_fd, all_threads=False)
        enlarge_signal_stack()
    setproctitle.setproctitle(title)
    signals.unblock(mask)


def die_with(parent: int) -> None:
    """Has the kernel kill this process when its parent dies, and ends it if that has already happened."""
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)


def offer_to_the_oom_killer() -> None:
    """Makes this process a better victim than its parent when memory runs out.

    A worker that is killed is replaced and its tasks run again; with the supervisor everything would go.
    """
    try:
        with open("/proc/self/oom_score_adj", "r+") as file:
            score = min(int(file.read()) + _OOM_SCORE, _OOM_SCORE_MOST)
            file.seek(0)
            file.write(f"{score}")
    except (OSError, ValueError):
        pass  # no /proc, or one that may not be written: the kernel chooses by size alone


def prepare() -> None:
    """Once, before the first fork."""
    if faulthandler.is_enabled():
        enlarge_signal_stack()
    become_subreaper()


def become_subreaper() -> None:
    """Orphans of the workers become our children: they are reaped, and die with the unit, not after it."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


class _Stack(ctypes.Structure):
    _fields_ = (("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def enlarge_signal_stack() -> None:
    """Gives signal handlers 256 KiB instead of the few that faulthandler sets aside for them.

    Where faulthandler is on, all of Python's handlers run on its stack, one inside the other when several
    signals come at once (after a fork they do: they were blocked). On a processor with wide registers one
    frame takes 3 to 11 KiB, so three signals overflow it, and the process dies of a segmentation fault
    somewhere else entirely.
    """
    stack = _Stack(_signal_stack_address, 0, _SIGNAL_STACK_BYTES)
    if _libc.sigaltstack(ctypes.byref(stack), None) != 0:
        raise OSError(ctypes.get_errno(), "sigaltstack")


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def reap_strangers(known: Callable[[int], bool]) -> int:
    """Reaps dead children that nobody here started (orphans land on a subreaper and on pid 1); counts them.

    Only looks before it takes: the status of a known child belongs to whoever started it, and a stranger's
    exit code must never be read as a worker's.
    """
    reaped = 0
    while True:
        try:
            info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return reaped
        if info is None or known(info.si_pid):
            # A known one hides the strangers behind it until it has been reaped: SIGCHLD or not, the
            # loop asks again.
            return reaped
        os.waitpid(info.si_pid, 0)
        reaped += 1
