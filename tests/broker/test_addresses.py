"""Names of servers, with a name service that lies down: what was once found is not forgotten."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from chronosd.broker import addresses
from chronosd.broker.commands import plain
from chronosd.broker.connect import probe
from chronosd.broker.runner import AsyncRunner, SyncRunner
from chronosd.errors import BrokerUnavailable
from tests.support.proxy import Proxy
from tests.support.waiting import at_most


class NameService:
    """Answers for one name of the test's own; every other goes to the system."""

    def __init__(self, ask: Any) -> None:
        self.name = f"redis-{uuid.uuid4().hex[:8]}.invalid"
        self.leads_to = "127.0.0.1"
        self.mode = "answer"
        self.asked = 0
        self.end = threading.Event()
        self._ask = ask

    def getaddrinfo(self, host: str, *args: Any, **options: Any) -> Any:
        if host != self.name:
            return self._ask(host, *args, **options)
        self.asked += 1
        if self.mode == "hang":
            self.end.wait(20)
        if self.mode != "answer":
            raise socket.gaierror(socket.EAI_AGAIN, "temporary failure")
        return self._ask(self.leads_to, *args, **options)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameService]:
    service = NameService(socket.getaddrinfo)
    monkeypatch.setattr(socket, "getaddrinfo", service.getaddrinfo)
    yield service
    service.end.set()


PING = plain("PING")


@pytest.mark.parametrize("mode", ["fail", "hang"])
def test_a_worker_reconnects_while_the_name_service_is_down(
    names: NameService, proxy: Proxy, mode: str
) -> None:
    """The name had been looked up anew for each connection: one reset, and a daemon beside a healthy Redis
    did nothing until the name service was back."""

    async def main() -> None:
        runners = [AsyncRunner(proxy.url.replace("127.0.0.1", names.name)) for _ in range(3)]
        for runner in runners:
            await runner.run(PING)
        names.mode, names.asked = mode, 0
        for _ in range(2):
            proxy.mode = "reset"
            proxy.mode = "pass"
            began_at = time.monotonic()
            answers = await asyncio.gather(*(runner.run(PING) for runner in runners))
            assert answers == [b"PONG"] * 3
            assert time.monotonic() - began_at < at_most(2 * addresses.LOOKUP_S)
        if mode == "hang":
            assert names.asked == 1, "each hung look-up holds a thread that others need"
        names.end.set()
        for runner in runners:
            await runner.aclose()

    asyncio.run(main())


def test_a_name_that_leads_elsewhere_is_followed(names: NameService) -> None:
    async def main() -> None:
        assert await addresses.resolve(names.name, 1) == ["127.0.0.1"]
        names.leads_to = "127.0.0.2"
        assert await addresses.resolve(names.name, 1) == ["127.0.0.2"]
        names.mode = "fail"
        assert await addresses.resolve(names.name, 1) == ["127.0.0.2"]

    asyncio.run(main())
    assert addresses.look_up(names.name, 1) == ["127.0.0.2"]


def test_a_name_never_found_is_an_error_in_one_line(names: NameService, proxy: Proxy) -> None:
    names.mode = "fail"
    url = proxy.url.replace("127.0.0.1", names.name)

    async def main() -> None:
        with pytest.raises(BrokerUnavailable, match=names.name):
            await AsyncRunner(url).run(PING)

    asyncio.run(main())
    with pytest.raises(BrokerUnavailable, match=names.name):
        probe(url, None, 2.0)


@pytest.mark.parametrize("mode", ["fail", "hang"])
def test_a_probe_goes_where_the_name_last_led(names: NameService, proxy: Proxy, mode: str) -> None:
    url = proxy.url.replace("127.0.0.1", names.name)
    address = probe(url, None, 2.0)
    runner = SyncRunner(url, address=address)  # what the supervisor does with it
    assert runner.run(PING) == b"PONG"
    runner.close()
    names.mode = mode
    assert probe(url, None, 2.0) == address == "127.0.0.1"
