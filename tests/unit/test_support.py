"""The harness itself: a relay or a ledger that lies would make every other test worthless."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest
import redis as redis_py

from tests.conftest import OF_THE_SESSION
from tests.support.daemon import ROOT
from tests.support.ledger import Ledger
from tests.support.processes import gone, paused, strays
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until


@pytest.fixture
def peer(proxy: Proxy) -> Iterator[socket.socket]:
    """A raw connection through the relay."""
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as connection:
        yield connection


def test_a_passing_relay_carries_large_values_both_ways(proxy: Proxy, namespace: str) -> None:
    value = bytes(range(256)) * 40_000
    with redis_py.Redis.from_url(proxy.url) as client:
        client.set(namespace, value)
        assert client.get(namespace) == value


def test_a_mute_relay_answers_nothing_until_it_passes_again(proxy: Proxy, peer: socket.socket) -> None:
    proxy.mode = "mute"
    peer.sendall(b"PING\r\n")
    peer.settimeout(0.2)
    with pytest.raises(TimeoutError):
        peer.recv(7)
    proxy.mode = "pass"
    peer.settimeout(10)
    assert peer.recv(7) == b"+PONG\r\n"


def test_a_dripping_relay_sends_a_byte_a_second(proxy: Proxy, peer: socket.socket) -> None:
    proxy.mode = "drip"
    begun = time.monotonic()
    peer.sendall(b"PING\r\n")
    assert [peer.recv(7), peer.recv(7)] == [b"+", b"P"]
    assert time.monotonic() - begun > 0.9
    proxy.mode = "pass"
    assert peer.recv(7) == b"ONG\r\n"


def test_a_resetting_relay_resets_old_and_new_connections(proxy: Proxy, peer: socket.socket) -> None:
    peer.sendall(b"PING\r\n")
    assert peer.recv(7) == b"+PONG\r\n"
    proxy.mode = "reset"
    with pytest.raises(ConnectionResetError):
        peer.recv(7)
    with pytest.raises(ConnectionError):
        ping_once(proxy.port)


def ping_once(port: int) -> bytes:
    """What a new connection answers; a RST shows in whichever of the calls comes after it."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"PING\r\n")
        return connection.recv(7)


def test_a_swallowing_relay_executes_and_says_nothing(
    proxy: Proxy, peer: socket.socket, redis: redis_py.Redis, namespace: str
) -> None:
    proxy.mode = "swallow"
    peer.sendall(b"INCR " + namespace.encode() + b"\r\n")
    wait_until(lambda: redis.get(namespace) == b"1")
    proxy.mode = "pass"
    peer.sendall(b"PING\r\n")
    assert peer.recv(64) == b"+PONG\r\n"


def test_a_refusing_relay_can_come_back_on_its_port(proxy: Proxy, peer: socket.socket) -> None:
    proxy.mode = "refuse"
    assert peer.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
    proxy.mode = "pass"
    with redis_py.Redis.from_url(proxy.url) as client:
        assert client.ping()


def test_a_ledger_keeps_every_line_of_concurrent_writers(ledger: Ledger) -> None:
    code = """
import sys
from tests.support.daemon import ROOT
from tests.support.ledger import Ledger
ledger = Ledger(sys.argv[1])
for number in range(500):
    with ledger.run(f"{sys.argv[2]}-{number}", 1):
        pass
"""
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(ledger.path), name], cwd=ROOT) for name in "abc"
    ]
    assert [writer.wait(30) for writer in writers] == [0, 0, 0]
    assert len(ledger.starts()) == len(ledger.ends()) == 1500
    assert set(ledger.starts().values()) == {1}


def test_a_ledger_has_no_end_for_what_was_left_by_an_exception(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="told"), ledger.run("id", 3):
        raise ValueError("told")
    assert [(entry.id, entry.attempt, entry.what) for entry in ledger.entries()] == [("id", 3, "start")]


def test_what_a_test_leaves_running_is_found_and_ended_even_if_orphaned() -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '61'], stdout=subprocess.DEVNULL).pid)"
    orphan = int(subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE).stdout)
    wait_until(lambda: psutil.Process(orphan).cmdline() == ["sleep", "61"])
    assert strays(OF_THE_SESSION) == [f"{orphan}: sleep 61"]
    assert gone(orphan)


def test_a_paused_process_goes_on_afterwards() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with paused(process.pid):
            process.stdin.write(b"hello\n")
            process.stdin.flush()
        assert process.stdout.readline() == b"hello\n"
