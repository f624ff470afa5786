"""Boots a private systemd: run as a script by :mod:`tests.support.systemd`, which says what it is good for.

Two processes. The keeper (this script) makes a mount namespace and a cgroup, forks, and waits; when it ends,
or is told to, everything ends and nothing is left. Its child is process 1 of namespaces of its own: it lays a
writable layer in memory over the machine's files, mounts what systemd expects to find, and becomes systemd.

argv: a directory to mount things on, and a JSON list of [source, target] to be seen read-only inside. Prints
the process id of the new process 1; a failure is one line on stderr and exit status 1.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import signal
import stat
import sys
import time
from pathlib import Path
from typing import NoReturn

SYSTEMD = ("/usr/lib/systemd/systemd", "/lib/systemd/systemd")
PREFIX = "chronosd-test-systemd-"
UNITS = "/run/private-systemd/units"
TARGETS = {
    "sysinit.target": "Wants=systemd-journald.service",
    "sockets.target": "Wants=systemd-journald.socket systemd-journald-dev-log.socket",
    "basic.target": "Requires=sysinit.target\nWants=sockets.target\nAfter=sysinit.target sockets.target",
    "multi-user.target": "Requires=basic.target\nAfter=basic.target\nAllowIsolate=yes",
    "network-online.target": "After=network.target",
    **dict.fromkeys(
        ("network.target", "local-fs.target", "paths.target", "timers.target", "slices.target"), ""
    ),
    **dict.fromkeys(("shutdown.target", "umount.target", "final.target"), "DefaultDependencies=no"),
}
"""All that the default dependencies of a service ask for; the machine's own services stay out."""
JOURNAL = ("systemd-journald.service", "systemd-journald.socket", "systemd-journald-dev-log.socket")
JOURNAL_CONF = """\
[Journal]
Storage=volatile
ReadKMsg=no
Audit=
RateLimitIntervalSec=0
ForwardToSyslog=no
ForwardToWall=no
"""
DEVICES = {"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9}  # all of major number 1

# <sched.h>, <sys/mount.h>, <sys/prctl.h>
NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWPID = 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x20000000
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC = 1, 2, 4, 8, 32, 4096, 16384
PRIVATE, SHARED = 1 << 18, 1 << 20
DETACH = 2
PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    if result != 0:
        why = os.strerror(ctypes.get_errno())
        hint = " (a container has to be a privileged one)" if ctypes.get_errno() == errno.EPERM else ""
        raise OSError(f"{what}: {why}{hint}")


def mount(source: str, target: Path, kind: str = "", flags: int = 0, options: str = "") -> None:
    if not target.exists():
        target.mkdir(parents=True)
    words = [word.encode() or None for word in (source, str(target), kind)]
    check(_libc.mount(*words, ctypes.c_ulong(flags), options.encode() or None), f"mount {kind or source}")


def unshare(flags: int) -> None:
    check(_libc.unshare(flags), "unshare")


def die_with_parent(signum: int, parent: int) -> None:
    _libc.prctl(PDEATHSIG, signum, 0, 0, 0)
    if os.getppid() not in (parent, 0):  # 0: a parent outside of our process id namespace
        os._exit(1)


# -- the keeper ---------------------------------------------------------------------------------------


def keep(work: Path, binds: list[tuple[str, str]]) -> int:
    unshare(NEWNS)
    mount("", Path("/"), flags=REC | PRIVATE)
    mount("private-systemd", work, "tmpfs", NOSUID, "mode=0755")
    mount("cgroup2", work / "cgroup", "cgroup2")
    home = work / "cgroup" / own_cgroup().lstrip("/")
    remove_stale(home)
    cgroup = home / f"{PREFIX}{os.getpid()}"
    cgroup.mkdir()
    try:
        (cgroup / "cgroup.procs").write_text("0")  # "0": the writer, whatever its id is here
        unshare(NEWCGROUP | NEWUTS | NEWIPC | NEWPID)
        keeper = os.getpid()
        pid = os.fork()
        if pid == 0:
            die_with_parent(signal.SIGKILL, keeper)
            become_systemd(work, binds)
        (home / "cgroup.procs").write_text("0")

        def end(*_: object) -> None:
            os.kill(pid, signal.SIGKILL)  # process 1 of its namespace: the kernel ends all that is in it

        signal.signal(signal.SIGTERM, end)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        print(pid, flush=True)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        remove_cgroup(cgroup)


def own_cgroup() -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return line[3:]
    raise OSError(f"this kernel has no cgroup v2: {Path('/proc/self/cgroup').read_text()!r}")


def remove_stale(home: Path) -> None:
    """What a keeper that was killed itself could not remove."""
    for left in home.glob(f"{PREFIX}*"):
        if not Path("/proc", left.name.removeprefix(PREFIX)).exists():
            remove_cgroup(left)


def remove_cgroup(top: Path) -> None:
    for _ in range(500):
        with contextlib.suppress(OSError):  # busy for a moment after the last process in it has been reaped
            for directory, _, _ in os.walk(top, topdown=False):
                os.rmdir(directory)
        if not top.exists():
            return
        time.sleep(0.01)


# -- process 1 ----------------------------------------------------------------------------------------


def become_systemd(work: Path, binds: list[tuple[str, str]]) -> NoReturn:
    try:
        os.setsid()
        unshare(NEWNS)  # the keeper still needs the files as they are
        root = work / "root"
        for directory in ("upper", "layer", "root"):
            (work / directory).mkdir(mode=0o755)
        layers = f"lowerdir=/,upperdir={work}/upper,workdir={work}/layer"
        mount("overlay", root, "overlay", options=layers)
        for source, target in binds:
            inside = root / target.lstrip("/")
            mount(source, inside, flags=BIND | REC)
            mount(source, inside, flags=BIND | REMOUNT | RDONLY)
        mount_kernel(root)
        mount_devices(root / "dev")
        mount("run", root / "run", "tmpfs", NOSUID | NODEV, "mode=755")
        write_units(root)
        os.chdir(root)
        # the old root ends up on top of the new one, and is taken off
        check(_libc.pivot_root(b".", b"."), "pivot_root")
        check(_libc.umount2(b".", DETACH), "umount")
        os.chdir("/")
        mount("", Path("/"), flags=REC | SHARED)  # else a service does not see what is mounted for it later
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        log = os.open("/dev/null", os.O_RDWR)
        for descriptor in (0, 1):
            os.dup2(log, descriptor)
        program = next(path for path in SYSTEMD if os.access(path, os.X_OK))
        os.execve(program, [program, "--system", "--unit=multi-user.target", "--show-status=no"], ENVIRON)
    except BaseException as error:
        print(f"cannot boot a private systemd: {error}", file=sys.stderr, flush=True)
    os._exit(1)


ENVIRON = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "container": "chronosd-tests",
    "SYSTEMD_UNIT_PATH": f"/etc/systemd/system:/run/systemd/system:/run/systemd/transient:{UNITS}",
    "SYSTEMD_GENERATOR_PATH": "/run/private-systemd/none",
    "SYSTEMD_LOG_TARGET": "journal",
    "SYSTEMD_COLORS": "0",
}


def mount_kernel(root: Path) -> None:
    """Its own /proc; and nothing in /sys or /proc/sys can be changed for the whole machine."""
    mount("proc", root / "proc", "proc", NOSUID | NODEV | NOEXEC)
    for name in ("sys", "sysrq-trigger"):
        path = root / "proc" / name
        if path.exists():
            mount(str(path), path, flags=BIND)
            mount(str(path), path, flags=BIND | REMOUNT | RDONLY)
    mount("sysfs", root / "sys", "sysfs", RDONLY | NOSUID | NODEV | NOEXEC)
    mount("cgroup2", root / "sys/fs/cgroup", "cgroup2", NOSUID | NODEV | NOEXEC)


def mount_devices(dev: Path) -> None:
    mount("dev", dev, "tmpfs", NOSUID, "mode=755")
    os.umask(0)
    for name, minor in DEVICES.items():
        os.mknod(dev / name, stat.S_IFCHR | 0o666, os.makedev(1, minor))
    os.mknod(dev / "tty", stat.S_IFCHR | 0o666, os.makedev(5, 0))
    os.umask(0o022)
    mount("devpts", dev / "pts", "devpts", NOSUID | NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    mount("shm", dev / "shm", "tmpfs", NOSUID | NODEV, "mode=1777")
    links = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "console": "null"}
    links |= {name: f"/proc/self/fd/{fd}" for fd, name in enumerate(("stdin", "stdout", "stderr"))}
    for name, target in links.items():
        (dev / name).symlink_to(target)


def write_units(root: Path) -> None:
    own = root / UNITS.lstrip("/")
    own.mkdir(parents=True)
    for name, lines in TARGETS.items():
        (own / name).write_text(f"[Unit]\n{lines}\n")
    theirs = next(root / path.lstrip("/") for path in SYSTEMD if (root / path.lstrip("/")).exists()).parent
    for name in JOURNAL:
        text = (theirs / "system" / name).read_text()
        (own / name).write_text(text.replace("systemd-journald-audit.socket", ""))
    etc = root / "etc/systemd"
    hide(etc / "system")
    for directory in ("system", "journald.conf.d"):
        (etc / directory).mkdir(parents=True, exist_ok=True)
    (etc / "journald.conf.d" / "private.conf").write_text(JOURNAL_CONF)
    (root / "etc/hostname").write_text("private\n")
    machine_id = root / "etc/machine-id"
    machine_id.unlink(missing_ok=True)
    machine_id.write_text(Path("/proc/sys/kernel/random/uuid").read_text().replace("-", ""))


def hide(directory: Path) -> None:
    """Removes what the machine has there, in the layer over it."""
    for path, directories, files in os.walk(directory, topdown=False):
        for name in files:
            os.unlink(os.path.join(path, name))
        for name in directories:
            inside = os.path.join(path, name)
            os.unlink(inside) if os.path.islink(inside) else os.rmdir(inside)


def main() -> int:
    # until there is something to end: the pytest that started us may be gone by then
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    die_with_parent(signal.SIGTERM, int(sys.argv[3]))
    try:
        return keep(Path(sys.argv[1]), json.loads(sys.argv[2]))
    except OSError as error:
        print(f"cannot boot a private systemd: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
