"""The shipped unit under a real systemd: what it promises, and what it lets handlers do."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator

import pytest
import redis as redis_py

from chronosd import Client
from tests.support.service import Service
from tests.support.systemd import SHIPPED, Machine
from tests.support.waiting import wait_until

MakeService = Callable[..., Service]
UNITS = ("chronosd.service", "chronosd@mail.service")


@pytest.fixture
def client(redis_url: str, namespace: str) -> Iterator[Client]:
    with Client(redis_url, namespace=namespace) as one:
        yield one


@pytest.fixture
def login(redis: redis_py.Redis, namespace: str) -> Iterator[tuple[str, str]]:
    """A user of the server and its password."""
    user, password = f"user-{namespace}", f"secret-{namespace}"
    redis.acl_setuser(user, enabled=True, passwords=[f"+{password}"], keys=["*"], commands=["+@all"])
    yield user, password
    redis.acl_deluser(user)


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_has_nothing_to_say_about_the_units(machine: Machine, unit: str) -> None:
    directory = machine.root / f"etc/systemd/system/{unit}.d"
    shutil.copytree(SHIPPED / "chronosd.service.d", directory)
    try:
        done = machine.run("systemd-analyze", "verify", "--man=no", unit, check=False)
    finally:
        shutil.rmtree(directory)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("unit", UNITS)
def test_what_is_exposed_is_at_most_a_tenth_and_a_half(machine: Machine, unit: str) -> None:
    done = machine.run("systemd-analyze", "security", "--no-pager", "--threshold=15", unit, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    exposure = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert exposure is not None
    assert float(exposure[1]) <= 1.5, done.stdout


PROBE = """
import ctypes, json, mmap, os, socket, subprocess, sys, threading
from chronosd import Task

def attempt(action):
    try:
        action()
        return "ok"
    except BaseException as error:
        return getattr(error, "errno", None) or repr(error)

def write(path):
    return lambda: open(path, "w").close()

def notify():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.sendto(b"STOPPING=1\\nSTATUS=said by a handler", "/run/systemd/notify")

def connect(address):
    socket.create_connection(tuple(address), timeout=5).close()

def executable_memory():
    mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC).close()

def thread():
    one = threading.Thread(target=int)
    one.start()
    one.join()

def probe(task: Task[dict]) -> None:
    program = "import json, os; print(json.dumps(dict(os.environ)))"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
    report = {
        "environ": dict(os.environ),
        "child": json.loads(child.stdout),
        "no_new_privileges": status["NoNewPrivs"],
        "capabilities": status["CapEff"].strip("0"),
        "filtered": status["Seccomp"],
        "user": os.getuid(),
        "umask": status["Umask"],
        "notify": attempt(notify),
        "state": attempt(write(os.environ["STATE_DIRECTORY"] + "/by-a-handler")),
        "tmp": attempt(write("/tmp/by-a-handler")),
        "etc": attempt(write("/etc/by-a-handler")),
        "home": attempt(lambda: os.listdir("/root")),
        "network": attempt(lambda: connect(task.args["server"])),
        "executable_memory": attempt(executable_memory),
        "thread": attempt(thread),
        "packet": attempt(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
        "refused": attempt(lambda: os.setpriority(os.PRIO_PROCESS, 0, 5)),
        "clock": attempt(lambda: __import__("time").clock_settime(0, 0)),
    }
    with open(os.environ["STATE_DIRECTORY"] + "/report.new", "w") as file:
        json.dump(report, file)
    os.rename(file.name, os.environ["STATE_DIRECTORY"] + "/report")
"""


def test_a_handler_can_do_its_work_and_nothing_else_and_cannot_speak_for_the_service(
    service: MakeService, client: Client
) -> None:
    one = service()
    one.write_handlers(PROBE)
    one.write_config(handlers={"probe": "handlers:probe"})
    one.start()
    port = int(one.redis_url.rpartition(":")[2].partition("/")[0])
    client.enqueue("probe", {"server": ["127.0.0.1", port]})
    path = one.state_dir / "report"
    wait_until(path.exists, what="the report", timeout_s=20)
    report = json.loads(path.read_text())

    own = {"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_FDS", "LISTEN_PID"}
    assert not own & report["environ"].keys()
    assert not own & report["child"].keys()
    expected = {
        "no_new_privileges": "1",
        "capabilities": "",
        "filtered": "2",
        "umask": "0077",
        "state": "ok",
        "tmp": "ok",
        "etc": 30,  # EROFS
        "home": 13,
        "network": "ok",
        "executable_memory": "ok",
        "thread": "ok",
        "packet": 97,  # EAFNOSUPPORT
        # an error in the handler, never SIGSYS, which would count against the task as a crash
        "refused": 1,
        "clock": 1,
    }
    assert {key: report[key] for key in expected} == expected
    assert report["user"] != 0
    assert not (one.machine.root / "tmp/by-a-handler").exists()
    # what a handler told systemd was not heard
    assert one.show("ActiveState", "NRestarts") == ("active", "0")
    assert "said by a handler" not in one.show("StatusText")[0]


def test_instances_run_side_by_side_each_with_its_own_file_and_directories(
    service: MakeService, client: Client
) -> None:
    mail, image = service(unit="chronosd@mail"), service(unit="chronosd@image")
    mail.write_config(queues={"mail": 1})
    image.write_config(queues={"image": 1})
    mail.start()
    image.start()
    ids = {
        one: client.enqueue("count", {}, queue=queue).id for one, queue in ((mail, "mail"), (image, "image"))
    }
    for one, task_id in ids.items():
        wait_until(lambda one=one: one.ledger.ends(), what=f"a task of {one.unit}")  # type: ignore[misc]
        assert set(one.ledger.ends()) == {task_id}
        assert (one.machine.root / "run" / one.name).stat().st_mode & 0o777 == 0o700
    mail.systemctl("stop")
    assert mail.show("ActiveState", "Result") == ("inactive", "success")
    assert image.show("ActiveState") == ("active",)


def test_a_user_made_for_the_run_is_enough(service: MakeService, client: Client) -> None:
    one = service()
    one.drop_in("dynamic", "DynamicUser=yes", "User=chronosd-dynamic", "Group=")
    one.start()
    task = client.enqueue("count")
    wait_until(lambda: one.ledger.ends() == {task.id: 1}, what="the task")
    owner = os.stat(f"/proc/{one.main_pid}").st_uid
    assert 61184 <= owner <= 65519  # systemd's range for them
    one.systemctl("restart")  # its state directory is its own again
    again = client.enqueue("count")
    wait_until(lambda: set(one.ledger.ends()) == {task.id, again.id}, what="the second task")


def test_the_password_comes_as_a_credential_that_the_configuration_need_not_name(
    service: MakeService, login: tuple[str, str], client: Client
) -> None:
    user, password = login
    one = service()
    credential = one.machine.root / "etc/credstore/redis-password"
    credential.write_text(password + "\n")
    credential.chmod(0o600)
    one.write_config(redis=one.redis_url.replace("//", f"//{user}@"))
    one.start()
    task = client.enqueue("count")
    wait_until(lambda: one.ledger.ends() == {task.id: 1}, what="the task")
    assert password not in one.journal_text()
    assert password not in one.systemctl("show").stdout


def test_lines_reach_the_journal_with_their_priorities(service: MakeService, client: Client) -> None:
    one = service()
    one.write_config(log={"level": "debug"})
    one.start()
    client.enqueue("count", {"fail": 1})
    client.enqueue("wrong")
    wait_until(lambda: "permanently wrong" in one.journal_text("-p", "err"), what="the error")
    by_priority: dict[str, set[str]] = {}
    for entry in one.journal(f"_SYSTEMD_UNIT={one.unit}.service"):
        event = json.loads(entry["MESSAGE"])  # the prefix is journald's, and gone
        by_priority.setdefault(entry["PRIORITY"], set()).add(event["level"])
        assert entry["SYSLOG_IDENTIFIER"] == "chronosd"
    assert by_priority["3"] == {"error"}
    assert by_priority["4"] == {"warning"}
    assert by_priority["6"] == {"info"}
    assert by_priority["7"] == {"debug"}
