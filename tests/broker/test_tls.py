"""``rediss://``: both runners over TLS, and what they must not trust."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator

import pytest

from chronosd.broker.commands import plain
from chronosd.broker.connect import probe
from chronosd.broker.runner import AsyncRunner, SyncRunner
from chronosd.errors import BrokerUnavailable
from tests.support.tls import CERTIFICATE, TlsEnd
from tests.support.waiting import at_most

TRUSTED = f"ssl_ca_certs={CERTIFICATE}"


@pytest.fixture
def end(redis_url: str) -> Iterator[TlsEnd]:
    with TlsEnd(redis_url) as one:
        yield one


def ask(url: str, *, asynchronous: bool, address: str = "", times: int = 1, timeout_s: float = 10.0) -> bytes:
    async def main() -> bytes:
        runner = AsyncRunner(url, timeout_s=timeout_s)
        try:
            for _ in range(times):
                answer: bytes = await runner.run(plain("ECHO", "x"))
            return answer
        finally:
            await runner.aclose()

    if asynchronous:
        return asyncio.run(main())
    runner = SyncRunner(url, timeout_s=timeout_s, address=address)
    try:
        for _ in range(times):
            answer: bytes = runner.run(plain("ECHO", "x"))
        assert len(runner._idle) == 1
        return answer
    finally:
        runner.close()


both = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


@both
def test_a_server_with_a_trusted_certificate_is_talked_to(end: TlsEnd, asynchronous: bool) -> None:
    assert ask(end.url(TRUSTED), asynchronous=asynchronous, times=3) == b"x"


@both
@pytest.mark.parametrize("query", ["", "ssl_cert_reqs=required"])
def test_a_certificate_that_nobody_vouches_for_is_refused(
    end: TlsEnd, asynchronous: bool, query: str
) -> None:
    with pytest.raises(BrokerUnavailable, match="certificate verify failed") as caught:
        ask(end.url(query), asynchronous=asynchronous)
    assert not caught.value.maybe_enqueued


@both
def test_a_certificate_for_another_name_is_refused_unless_told_otherwise(
    end: TlsEnd, asynchronous: bool
) -> None:
    with pytest.raises(BrokerUnavailable, match="certificate verify failed"):
        ask(end.url(TRUSTED, host="127.0.0.1"), asynchronous=asynchronous)
    for query in (f"{TRUSTED}&ssl_check_hostname=false", "ssl_cert_reqs=none"):
        assert ask(end.url(query, host="127.0.0.1"), asynchronous=asynchronous) == b"x"


def test_a_probed_address_is_connected_to_and_the_name_still_checked(end: TlsEnd) -> None:
    address = probe(end.url(TRUSTED), None, 5)
    assert address == "127.0.0.1"
    assert ask(end.url(TRUSTED), asynchronous=False, address=address) == b"x"


@both
def test_a_server_that_never_answers_the_handshake_costs_the_deadline(asynchronous: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"rediss://127.0.0.1:{mute.getsockname()[1]}/0"
        begin = time.monotonic()
        with pytest.raises(BrokerUnavailable):
            ask(url, asynchronous=asynchronous, timeout_s=0.3)
        assert time.monotonic() - begin < at_most(2.3)
