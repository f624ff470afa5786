"""Logs: whole lines, bounded, with the task's context, never waiting for their reader."""

from __future__ import annotations

import asyncio
import contextvars
import fcntl
import json
import logging
import os
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from chronosd import log
from chronosd.logsink import MAX_LINE, Sink
from chronosd.task import Task
from tests.support.waiting import at_most


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    """A file that the logs of the test go to."""
    path = tmp_path / "log"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    log.configure("info", "json", fd=fd)
    yield path
    log.bind_task(None)
    log.configure("info", "json")
    for handler in logging.getLogger().handlers[:]:
        if type(handler).__module__ == "chronosd.log":
            logging.getLogger().removeHandler(handler)
    logging.captureWarnings(False)
    os.close(fd)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe of one page, so that it is full soon."""
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
    yield read_end, write_end
    for end in (read_end, write_end):
        try:
            os.close(end)
        except OSError:
            pass  # the test has closed it


def a_task() -> Task[None]:
    return Task("t-1", "email:send", "mail", None, attempt=2)


def test_a_line_says_when_what_and_who(target: Path) -> None:
    log.get_logger("worker").info("started", slots=4)
    (line,) = lines(target)
    assert line["event"] == "started"
    assert line["level"] == "info"
    assert line["logger"] == "worker"
    assert line["slots"] == 4
    assert line["pid"] == os.getpid()
    assert line["timestamp"].endswith("Z")


def test_the_bound_task_is_on_every_line_the_handlers_own_logging_included(target: Path) -> None:
    log.bind_task(a_task())
    log.get_logger("worker").info("ours")
    logging.getLogger("application").warning("theirs %d", 1, extra={"user": 7})
    for line in lines(target):
        assert (line["task_id"], line["kind"], line["queue"], line["attempt"]) == (
            "t-1",
            "email:send",
            "mail",
            2,
        )
    assert lines(target)[1]["event"] == "theirs 1"
    assert lines(target)[1]["logger"] == "application"
    assert lines(target)[1]["user"] == 7


def test_each_asyncio_task_and_thread_has_its_own_binding(target: Path) -> None:
    async def one(number: int) -> None:
        log.bind_task(Task(f"t-{number}", "k", "q", None))
        await asyncio.sleep(0)
        log.get_logger("x").info("step", number=number)

    async def main() -> None:
        await asyncio.gather(*(one(number) for number in range(5)))

    asyncio.run(main())
    thread = threading.Thread(target=log.get_logger("x").info, args=("unbound",))
    log.bind_task(a_task())
    thread.start()
    thread.join()
    found = lines(target)
    assert {line["task_id"] for line in found[:5]} == {f"t-{line['number']}" for line in found[:5]}
    assert "task_id" not in found[5]


def test_what_is_below_the_level_is_not_written(target: Path) -> None:
    log.get_logger("x").debug("no")
    logging.getLogger("y").debug("no")
    assert lines(target) == []
    assert not log.enabled("debug")
    assert log.enabled("warning")


def test_configuring_again_replaces_level_and_fields(target: Path, tmp_path: Path) -> None:
    """A worker configures after the fork what the supervisor had configured before."""
    logger = log.get_logger("x")
    logger.info("one")
    fd = os.open(tmp_path / "second", os.O_WRONLY | os.O_CREAT)
    log.configure("debug", "json", fd=fd, worker=3)
    logger.debug("two")
    logging.getLogger("y").info("three")
    os.close(fd)
    assert [line["event"] for line in lines(target)] == ["one"]
    assert [(line["event"], line["worker"]) for line in lines(tmp_path / "second")] == [
        ("two", 3),
        ("three", 3),
    ]


def test_an_application_that_configures_structlog_does_not_change_our_lines(target: Path) -> None:
    """Its processors may print, and so block; and what they make of our lines is anybody's guess."""
    logger = log.get_logger("x")

    def refuse(*_: Any) -> Any:
        raise AssertionError("our line went through the application's processors")

    structlog.configure(processors=[refuse], wrapper_class=structlog.BoundLogger)
    logger.info("ours", n=1)
    logger.debug("not this")
    assert [(line["event"], line["n"], line["logger"]) for line in lines(target)] == [("ours", 1, "x")]


def test_an_application_that_only_uses_structlog_gets_the_context(target: Path) -> None:
    log.bind_task(a_task())
    structlog.get_logger().bind(user=7).info("theirs")
    structlog.get_logger().debug("not this")
    (line,) = lines(target)
    assert (line["event"], line["user"], line["task_id"]) == ("theirs", 7, "t-1")


def test_extra_fields_do_not_displace_ours(target: Path) -> None:
    logging.getLogger("y").warning("text", extra={"level": "fatal", "event": "other", "timestamp": 0})
    (line,) = lines(target)
    assert (line["level"], line["event"], line["level_"]) == ("warning", "text", "fatal")


def test_passwords_in_urls_are_masked_wherever_they_stand(target: Path) -> None:
    logger = log.get_logger("x")
    try:
        raise ConnectionError("cannot reach redis://user:hunter2@host:6379/0")
    except ConnectionError:
        logger.exception("at redis://:hunter2@host", url="rediss://u:hunter2@h/0")
    logging.getLogger("y").error("redis+sentinel://u:hunt@er2@h1:26379,h2:26379/mymaster")
    text = target.read_text()
    assert "hunter2" not in text
    assert "er2" not in text
    assert "rediss://u:***@h/0" in text


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("redis://:pw@h", "redis://:***@h"),
        ("redis://user:p:w@h:1/0", "redis://user:***@h:1/0"),
        ("redis://user@h:1/0", "redis://user@h:1/0"),
        ("unix:///run/redis.sock?db=1", "unix:///run/redis.sock?db=1"),
        ("unix://u:pw@/run/redis.sock", "unix://u:***@/run/redis.sock"),
        ("no url: a@b", "no url: a@b"),
    ],
)
def test_a_url_is_masked(url: str, masked: str) -> None:
    assert log.mask(url) == masked


class BrokenRepr:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def test_values_that_json_cannot_hold_are_logged_all_the_same(target: Path) -> None:
    circle: list[Any] = []
    circle.append(circle)
    logger = log.get_logger("x")
    logger.info("one", big=2**80, surrogate="\ud800", small=3)
    logger.info("two", broken=BrokenRepr(), circle=circle, set={1}, bytes=b"\xff")
    one, two = lines(target)
    assert one["big"] == str(2**80)
    assert one["small"] == 3
    assert "RuntimeError" in two["broken"]


def test_a_mistake_in_a_log_call_fails_nobody(target: Path) -> None:
    (ours,) = [one for one in logging.getLogger().handlers if type(one).__module__ == "chronosd.log"]
    ours.handle(logging.makeLogRecord({"name": "y", "msg": "%d files", "args": ("three",), "levelno": 30}))
    (line,) = lines(target)
    assert line["event"].startswith("%d files")


def test_warnings_are_log_lines(target: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)
        logging.captureWarnings(True)
        warnings.warn("deprecated thing", stacklevel=1)
    (line,) = lines(target)
    assert "deprecated thing" in line["event"]


@pytest.mark.parametrize("format", ["json", "console"])
def test_no_line_is_longer_than_a_pipe_takes_in_one_piece(tmp_path: Path, target: Path, format: str) -> None:
    fd = os.open(tmp_path / "long", os.O_WRONLY | os.O_CREAT)
    log.configure("info", format, fd=fd)
    logger = log.get_logger("x")
    logger.info("e" * 100_000)
    logger.info("many", **{f"field{number}": "v" * 100 for number in range(500)})
    logger.info("nested", value={"x": ["y" * 50_000]})
    logger.info("bytes", value="é\x01" * 3000)
    logger.info("names", **{"n" * 5000: 1})
    os.close(fd)
    data = (tmp_path / "long").read_bytes()
    assert data.count(b"\n") >= 5
    assert max(len(line) + 1 for line in data.splitlines()) <= MAX_LINE
    if format == "json":
        assert [line["event"][:6] for line in lines(tmp_path / "long")] == [
            "eeeeee",
            "many",
            "nested",
            "bytes",
            "names",
        ]


def test_of_a_long_traceback_the_end_is_kept(target: Path) -> None:
    def recurse(depth: int) -> None:
        if depth == 0:
            raise ValueError("the cause " + "x" * 50)
        [recurse(depth - 1) for _ in range(1)]

    try:
        recurse(200)
    except ValueError:
        log.get_logger("x").exception("failed")
    (line,) = lines(target)
    assert "ValueError: the cause" in line["exception"]


def test_a_group_too_deep_for_a_traceback_is_logged(target: Path) -> None:
    exc: BaseException = ValueError("inner")
    for _ in range(5000):
        exc = BaseExceptionGroup("g", [exc])
    log.get_logger("x").error("failed", exc_info=exc)
    (line,) = lines(target)
    assert line["event"] == "failed"
    assert line["exception"]


def test_a_reader_that_has_stopped_blocks_nobody_and_is_told_what_it_missed(pipe: tuple[int, int]) -> None:
    """A stuck log reader stopped whole daemons: the pipe filled up and the next write slept for ever."""
    read_end, write_end = pipe
    sink = Sink(write_end)
    began = time.monotonic()
    while sink.write(b"x" * 1023):  # four fill the page
        assert time.monotonic() - began < at_most(5)
    for _ in range(10):
        assert not sink.write(b"lost")
    assert sink.dropped == 11
    assert len(os.read(read_end, 65536)) % 1024 == 0  # whole lines only
    assert sink.write(b"after")
    notice, after = os.read(read_end, 65536).splitlines()
    assert json.loads(notice) == {"event": "log lines dropped", "count": 11}
    assert after == b"after"
    sink.close()


def test_the_flags_of_the_shared_descriptor_are_left_alone(pipe: tuple[int, int]) -> None:
    """O_NONBLOCK belongs to the open file: set on stderr it breaks whoever else writes there."""
    _, write_end = pipe
    before = fcntl.fcntl(write_end, fcntl.F_GETFL)
    sink = Sink(write_end)
    sink.write(b"x")
    assert fcntl.fcntl(write_end, fcntl.F_GETFL) == before
    sink.close()


def test_a_reader_that_has_gone_is_no_error(pipe: tuple[int, int]) -> None:
    read_end, write_end = pipe
    sink = Sink(write_end)
    os.close(read_end)
    assert not sink.write(b"x")
    assert sink.dropped == 1
    sink.close()


def test_a_closed_descriptor_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    os.close(write_end)
    sink = Sink(write_end)
    assert not sink.write(b"x")
    sink.close()


def test_a_full_disk_is_no_error() -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    sink = Sink(fd)
    assert not sink.write(b"x")
    sink.close()
    os.close(fd)


def test_a_line_that_a_socket_took_in_part_is_finished_before_the_next() -> None:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
    sink = Sink(ours.fileno())
    written = [number for number in range(200) if sink.write(b"%04d" % number + b"x" * 3000)]
    assert sink.dropped
    received = b""
    theirs.settimeout(0.2)
    try:
        while data := theirs.recv(65536):
            received += data
            written += [900] if sink.write(b"0900") else []
            if received.endswith(b"0900\n"):
                break
    except TimeoutError:
        pass
    whole = [line for line in received.splitlines(keepends=True) if line.endswith(b"\n")]
    assert all(
        line[:4].isdigit() and line[4:].strip(b"x\n") == b"" for line in whole if not line.startswith(b"{")
    )
    assert {int(line[:4]) for line in whole if not line.startswith(b"{")} <= set(written)
    assert ours.getblocking()
    sink.close()
    ours.close()
    theirs.close()


def test_a_file_opened_for_appending_stays_so(tmp_path: Path) -> None:
    path = tmp_path / "log"
    fds = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for _ in range(2)]
    sinks = [Sink(fd) for fd in fds]
    for number in range(100):
        sinks[number % 2].write(b"line %d" % number)
    assert len(path.read_bytes().splitlines()) == 100
    for fd in fds:
        os.close(fd)


def test_under_the_journal_each_line_carries_its_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Path
) -> None:
    fd = os.open(tmp_path / "journal", os.O_WRONLY | os.O_CREAT)
    status = os.fstat(fd)
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
    log.configure("debug", "json", fd=fd)
    logger = log.get_logger("x")
    for level in ("debug", "info", "warning", "error", "critical"):
        getattr(logger, level)("x" * 10_000)
    logging.getLogger("y").error("z")
    os.close(fd)
    written = (tmp_path / "journal").read_bytes().splitlines()
    assert [line[:3] for line in written] == [b"<7>", b"<6>", b"<4>", b"<3>", b"<2>", b"<3>"]
    assert all(json.loads(line[3:])["event"] for line in written)
    assert max(len(line) + 1 for line in written) <= MAX_LINE


def test_a_child_forked_while_another_thread_logs_can_log(tmp_path: Path) -> None:
    """A handler that forks must not inherit a lock that nobody in the child will ever release."""
    fd = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    sink = Sink(fd)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with sink._lock:
            held.set()
            done.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    child = os.fork()
    if child == 0:
        sink.write(b"from the child")
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    done.set()
    thread.join()
    os.close(fd)
    assert status == 0
    assert (tmp_path / "log").read_bytes() == b"from the child\n"


def test_a_context_copied_for_a_callback_keeps_the_task(target: Path) -> None:
    log.bind_task(a_task())
    context = contextvars.copy_context()
    log.bind_task(None)
    assert log.current_task() is None
    assert context.run(log.current_task) is not None
