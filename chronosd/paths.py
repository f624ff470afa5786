"""Where things lie on this machine: configuration, runtime directory, state directory, sockets.

The daemon and every command that talks to it compute the same answers from the same inputs, so nothing
here depends on who asks. Directories that chronosd makes are private (0700).
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from chronosd.errors import ChronosError, ConfigError

DOT_DIR = ".chronosd"
CONTROL_SOCKET = "control.sock"
SYSTEM_CONFIG = Path("/etc/chronosd/chronos.yaml")
SYSTEM_RUNTIME = Path("/run")
# sun_path has 108 bytes with the NUL; the rest is room for servers that bind a temporary name beside it
MAX_SOCKET_PATH = 100

_GITIGNORE = "# made by chronosd: what lies here belongs to one machine\n*\n"


class Located(Protocol):
    """What is needed of a configuration to find its daemon."""

    @property
    def path(self) -> Path: ...
    @property
    def base(self) -> Path: ...
    @property
    def name(self) -> str | None: ...
    @property
    def namespace(self) -> str: ...
    @property
    def control_socket(self) -> str | None: ...


def find_config(explicit: str | Path | None = None) -> Path:
    """The configuration file to use: *explicit*, else the first of the usual places that exists.

    The places are ``$CHRONOSD_CONFIG``, ``./chronos.yaml``, ``/etc/chronosd/chronos.yaml``. A file that was
    named (as argument or in the environment) is returned whether or not it exists: reading it gives the
    better error.

    Raises:
        ConfigError: nothing was named and none of the places has a file.
    """
    named = explicit or os.environ.get("CHRONOSD_CONFIG")
    if named:
        return Path(named)
    for place in (Path("chronos.yaml"), SYSTEM_CONFIG):
        if place.is_file():
            return place
    ways = f"name one with -c FILE or $CHRONOSD_CONFIG, or make ./chronos.yaml or {SYSTEM_CONFIG}"
    raise ConfigError([f"no configuration: {ways}"])


def runtime_dir(config_path: Path | None, name: str | None, namespace: str) -> Path:
    """The directory for what lives as long as the daemon: boards, instance lock, control socket.

    ``$RUNTIME_DIRECTORY`` (systemd's, used as it is), else ``$XDG_RUNTIME_DIR/chronosd-<name or hash>``,
    else ``.chronosd/run`` beside the configuration (``.chronosd/run-<name>`` if there is a name). The hash
    is of the configuration's absolute path and the namespace. The directory is created, 0700.

    Raises:
        ChronosError: it cannot be created, or it is somebody else's.
    """
    directory = _runtime_place(config_path, name, namespace)
    if first_of_list(os.environ.get("RUNTIME_DIRECTORY")) is not None:
        make_dirs(directory)
        return directory
    if directory.parent.name == DOT_DIR:
        private_dir(directory.parent, ignored=True, may_be_link=True)
    return private_dir(directory)


def control_socket(config: Located) -> Path:
    """The path of the daemon's control socket: the configured one, else ``control.sock`` where it runs.

    Nothing is created; who binds it calls :func:`private_dir` on its parent unless that is configured.
    """
    if config.control_socket:
        return config.base / config.control_socket
    return socket_path(_runtime_place(config.path, config.name, config.namespace), CONTROL_SOCKET)


def control_sockets(config: Located | None = None) -> list[Path]:
    """Where a command may look for a running daemon, most likely place first; only sockets that exist.

    Besides the configuration's own place these are ``/run/chronosd/`` and ``/run/chronosd-*/``, where a
    daemon under systemd has its socket and the shell of an operator has no ``$RUNTIME_DIRECTORY``.
    """
    places = [control_socket(config)] if config is not None else []
    for directory in (SYSTEM_RUNTIME / "chronosd", *sorted(SYSTEM_RUNTIME.glob("chronosd-*"))):
        places.append(directory / CONTROL_SOCKET)
    found: dict[Path, None] = {}
    for place in places:
        try:
            if place.is_socket():
                found[place] = None
        except PermissionError:
            continue  # another user's daemon is none that we could talk to
    return list(found)


def state_dir(base: Path) -> Path:
    """The directory for what must survive: ``$STATE_DIRECTORY`` (systemd's), else ``.chronosd`` in *base*."""
    return first_of_list(os.environ.get("STATE_DIRECTORY")) or Path(os.path.abspath(base)) / DOT_DIR


def socket_path(directory: Path, name: str) -> Path:
    """``directory/name``, or a stand-in under the system's temporary directory where that is too long.

    The kernel refuses socket paths of 108 bytes and more. The stand-in lies in a private directory whose
    name is derived from *directory*, so that everybody finds the same one. It is not created here: see
    :func:`private_dir`.
    """
    direct = directory / name
    if len(os.fsencode(direct)) <= MAX_SOCKET_PATH:
        return direct
    real = os.path.realpath(directory)
    try:
        owner = os.stat(real).st_uid  # not ours: root must find the socket of the daemon's user
    except OSError:
        owner = os.geteuid()
    short = f"chronosd-{owner}-{short_hash(real)}"
    for temporary in (tempfile.gettempdir(), "/tmp"):
        stand_in = Path(temporary) / short / name
        if len(os.fsencode(stand_in)) <= MAX_SOCKET_PATH:
            break
    return stand_in


def private_dir(
    path: Path, *, ignored: bool = False, may_be_link: bool = False, known: Collection[str] | None = None
) -> Path:
    """Makes *path* a directory that only its owner can enter (0700), with its parents; returns it.

    Args:
        ignored: put a ``.gitignore`` in, so that state beside a project is never committed.
        may_be_link: a link to a directory will do; never so in a directory that others can write to.
        known: names of what chronosd itself keeps there. A directory that holds anything else, and was not
            made by chronosd, is refused rather than closed to the others who use it.

    Raises:
        ChronosError: it cannot be made, is a link or a file, belongs to somebody else, or holds
            something else.
    """
    try:
        make_dirs(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.stat() if may_be_link else path.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise ChronosError(f"{path} is not a directory")
        if status.st_uid != os.geteuid():
            raise ChronosError(f"{path} belongs to user {status.st_uid}, not to {os.geteuid()} who runs this")
        note = path / ".gitignore"
        if known is not None and not _is_marked(note):
            others = sorted({entry.name for entry in path.iterdir()}.difference(known))
            if others:
                raise ChronosError(
                    f"{path} holds other things ({', '.join(others[:3])}): name a directory of its own"
                )
        if stat.S_IMODE(status.st_mode) != 0o700:
            path.chmod(0o700)
        if ignored and not note.exists():
            note.write_text(_GITIGNORE)
    except OSError as error:
        raise ChronosError(f"cannot use the directory {path}: {error.strerror or error}") from None
    return path


def make_dirs(path: Path) -> None:
    """Creates *path* and its parents, the missing ones with 0700.

    Raises:
        ChronosError: that is not possible.
    """
    try:
        if not path.is_dir():
            if path.parent != path:
                make_dirs(path.parent)
            path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ChronosError(f"cannot make the directory {path}: {error.strerror or error}") from None


def first_of_list(value: str | None) -> Path | None:
    """The first directory of systemd's colon-separated list, or None if it is unset or empty."""
    first = (value or "").split(":")[0]
    return Path(first) if first else None


def short_hash(text: str) -> str:
    """Ten hex digits that stand for *text* in a file name."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:10]


def _runtime_place(config_path: Path | None, name: str | None, namespace: str) -> Path:
    given = first_of_list(os.environ.get("RUNTIME_DIRECTORY"))
    if given is not None:
        return given
    file = Path(os.path.abspath(config_path)) if config_path is not None else Path.cwd() / "chronos.yaml"
    session = os.environ.get("XDG_RUNTIME_DIR")
    if session and _is_ours(Path(session)):
        return Path(session) / f"chronosd-{name or short_hash(f'{file}|{namespace}')}"
    return file.parent / DOT_DIR / (f"run-{name}" if name else "run")


def _is_ours(path: Path) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _is_marked(note: Path) -> bool:
    try:
        return note.read_text() == _GITIGNORE
    except (OSError, UnicodeDecodeError):
        return False
