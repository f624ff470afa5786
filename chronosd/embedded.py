"""The embedded server: a private Valkey (or Redis) that the daemon runs for itself, for ``embedded://``.

It is an ordinary server process with a state directory, reached over a unix socket in it. Who wants one
calls :func:`acquire` (or :meth:`EmbeddedServer.start`); a lock file makes many starters share one server:
the one who gets the lock starts it and owns it, the others attach. The server inherits the lock, so that it
stays taken until the last write is on disk, even when the owner was killed; who starts next waits for that
instead of opening the same files a second time. When an attached server ends, its pidfd says so to
everybody, and whoever starts again first is the next owner.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from chronosd import embedded_binary, embedded_child, paths
from chronosd.embedded_socket import SOCKET, find_socket, is_embedded, ping, resolve, socket_url, state_dir
from chronosd.errors import ChronosError

__all__ = ["EmbeddedServer", "acquire", "find_binary", "is_embedded", "resolve", "state_dir"]

_LOCK = "server.lock"
_LOG = "server.log"
_KNOWN = {_LOCK, _LOG, SOCKET, ".gitignore", "appendonlydir", "dump.rdb", "run"}


def acquire(url: str, base: Path, *, timeout_s: float = 10.0) -> EmbeddedServer | None:
    """Starts the server that *url* names, or attaches to the one that runs; None for other URLs.

    Raises:
        ChronosError: no binary, no access to the directory, or no answer within *timeout_s*.
    """
    return EmbeddedServer(state_dir(url, base)).start(timeout_s) if is_embedded(url) else None


def find_binary() -> Path:
    """The server binary: ``$CHRONOSD_SERVER``, else the ``embedded`` extra's, else one on PATH.

    Raises:
        ChronosError: there is none of at least version 7.0; the one line says how to get one.
    """
    named = os.environ.get("CHRONOSD_SERVER")
    if named:
        if reason := _unusable(Path(named)):
            raise ChronosError(f"$CHRONOSD_SERVER: {reason}")
        return Path(named)
    reasons = ["no server binary for embedded://"]
    for candidate in embedded_binary.candidates():
        reason = _unusable(candidate)
        if reason is None:
            return candidate
        reasons.append(reason)
    raise ChronosError(f"{'; '.join(reasons)}: {embedded_binary.HOW_TO_GET}")


class EmbeddedServer:
    """One embedded server, started by this process or shared with the process that started it.

    Args:
        state_dir: where it keeps its files; made private (0700), with a ``.gitignore`` of its own.
        binary: the server to run; default :func:`find_binary`, looked for when it is needed.
        extra_args: further server options; they win over the usual ones.

    ``start`` blocks until the server answers. A supervisor that must not block calls ``begin`` and then
    ``ready`` until it is true. The thread that starts the server must outlive it: the kernel ties the
    server's life to that thread (PR_SET_PDEATHSIG).
    """

    def __init__(
        self, state_dir: Path, *, binary: Path | None = None, extra_args: Sequence[str] = ()
    ) -> None:
        self.state_dir = Path(os.path.abspath(state_dir))
        self.owned = False
        self._binary = binary
        self._is_checked = False
        self._extra_args = tuple(extra_args)
        self._socket = find_socket(self.state_dir)
        self._lock: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None
        self._pidfd: int | None = None

    @property
    def url(self) -> str:
        """The ``unix://`` URL that clients connect to."""
        return socket_url(self._socket)

    @property
    def pid(self) -> int | None:
        """The server's process id, or None before it is known and after ``stop``."""
        return self._pid

    @property
    def pidfd(self) -> int | None:
        """A descriptor that is readable once the server has ended, or None as for ``pid``."""
        return self._pidfd

    def start(self, timeout_s: float = 10.0) -> Self:
        """Starts the server or attaches to the running one, and waits until it answers.

        Raises:
            ChronosError: it did not within *timeout_s*, or ended; nothing is left running then.
        """
        deadline = time.monotonic() + timeout_s
        try:
            self.begin()
            while True:
                if not self.owned:  # ours is not begun twice: that would hide why it ended
                    self.begin()
                if self.ready():
                    return self
                if time.monotonic() >= deadline:
                    whose = "" if self.owned else ", and another process has its lock"
                    raise ChronosError(
                        f"embedded server in {self.state_dir} did not answer within {timeout_s:g} s{whose}"
                        + self._last_words()
                    )
                time.sleep(0.005)
        except BaseException:
            self.kill()
            raise

    def begin(self) -> bool:
        """Starts the server if nobody has, without waiting for it; whether this process owns it now.

        False: another process has the lock; call again until ``ready``.

        Raises:
            ChronosError: no binary, no access, or it cannot be executed.
        """
        if self._pidfd is not None and self.poll() is None:
            return self.owned
        self._forget_process()
        if self._take_lock():
            try:
                self._spawn()
            except BaseException:
                self._drop_lock()
                raise
        return self.owned

    def ready(self, timeout_s: float = 0.2) -> bool:
        """Whether the server answers commands (it does not while it loads); blocks *timeout_s* at most.

        Raises:
            ChronosError: the server that this process started has ended.
        """
        if self.owned and (code := self.poll()) is not None:
            self.kill()
            raise ChronosError(
                f"embedded server in {self.state_dir} ended with {_describe_exit(code)}{self._last_words()}"
            )
        if not self.owned:
            self._socket = find_socket(self.state_dir)
        peer = ping(self._socket, timeout_s)
        if peer is None:
            return False
        if self._pidfd is None:
            try:
                self._pidfd = os.pidfd_open(peer)
            except OSError:  # it ended meanwhile
                return False
            self._pid = peer
        return True

    def poll(self) -> int | None:
        """None while the server runs; else its exit status (negative: the signal; 0 if it was not ours)."""
        if self._pidfd is None:
            return 0
        if not _is_readable(self._pidfd, 0.0):
            return None
        return self._process.wait() if self._process is not None else 0

    def stop(self, timeout_s: float = 10.0) -> None:
        """Ends the server if this process owns it (TERM, after *timeout_s* KILL), else just detaches.

        After TERM the server has everything it acknowledged on disk.
        """
        self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> None:
        """Like ``stop``, with SIGKILL: the state is what the disk has."""
        self._end(signal.SIGKILL, 0.0)

    def forget(self) -> None:
        """For a forked child: closes the descriptors that it inherited and leaves the server alone."""
        if self._process is not None:
            self._process.returncode = 0  # not the child's to wait for
        self._forget_process()
        self._drop_lock()

    def __enter__(self) -> Self:
        return self if self._pidfd is not None else self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _take_lock(self) -> bool:
        paths.private_dir(self.state_dir, ignored=True, may_be_link=True, known=_KNOWN)
        if self._lock is None:
            import fcntl  # not on every platform that imports this module to resolve a URL

            lock = os.open(self.state_dir / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                return False
            self._lock = lock
        return True

    def _spawn(self) -> None:
        assert self._lock is not None
        if self._binary is None:
            self._binary = find_binary()
        elif not self._is_checked and (reason := _unusable(self._binary)):
            raise ChronosError(reason)
        self._is_checked = (
            True  # not at every restart: who keeps the server going must not wait for an answer
        )
        self._socket = self._place_socket()
        with embedded_child.open_log(self.state_dir / _LOG) as log, embedded_child.signals_blocked():
            try:
                self._process = subprocess.Popen(
                    [
                        str(self._binary),
                        *embedded_child.options(self.state_dir, self._socket),
                        *self._extra_args,
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self.state_dir,
                    env=embedded_child.environment(),
                    pass_fds=(self._lock,),
                    start_new_session=True,  # a terminal's Ctrl-C is for the daemon, which stops it last
                    preexec_fn=embedded_child.child_setup(os.getpid()),
                )
            except (OSError, subprocess.SubprocessError) as error:
                raise ChronosError(f"cannot run {self._binary}: {error}") from None
        self._pid = self._process.pid
        self._pidfd = os.pidfd_open(self._process.pid)
        self.owned = True

    def _place_socket(self) -> Path:
        place = paths.socket_path(self.state_dir, SOCKET)
        link = self.state_dir / SOCKET
        if place != link:
            # the link lets others find it although their temporary directory may be another one
            paths.private_dir(place.parent)
            link.unlink(missing_ok=True)
            link.symlink_to(place)
        return place

    def _end(self, first: signal.Signals, timeout_s: float) -> None:
        if self.owned and self._pidfd is not None:
            for signum, patience_s in ((first, timeout_s), (signal.SIGKILL, 10.0)):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, signum)
                    signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)  # one that is stopped ends too
                if _is_readable(self._pidfd, patience_s):
                    break
            if self._process is not None:
                self._process.wait()
            self._remove_socket()
        self._forget_process()
        self._drop_lock()

    def _remove_socket(self) -> None:
        self._socket.unlink(missing_ok=True)
        if self._socket.parent != self.state_dir:
            (self.state_dir / SOCKET).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self._socket.parent.rmdir()

    def _forget_process(self) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)
        self._pid = self._pidfd = self._process = None
        self.owned = False

    def _drop_lock(self) -> None:
        # closed, not unlocked: a server that still runs shares the lock and must keep it
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _last_words(self) -> str:
        try:
            lines = (self.state_dir / _LOG).read_text(errors="replace").splitlines()
        except OSError:
            return ""
        said = [line.strip() for line in lines[-20:] if line.strip()]
        return f": {said[-1][-200:]} (all of it in {self.state_dir / _LOG})" if said else ""


def _unusable(binary: Path) -> str | None:
    """Why *binary* will not do, in one line, or None if it will."""
    try:
        said = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, errors="replace", timeout=10, check=False
        ).stdout
    except FileNotFoundError:
        return f"{binary} does not exist"
    except (OSError, subprocess.SubprocessError) as error:
        return f"{binary} cannot be run ({error})"
    return embedded_binary.objection(binary, said)


def _is_readable(descriptor: int, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))


def _describe_exit(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit status {code}"
