"""The process and its routes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jinja2
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from chronosd import log
from chronosd.durations import format_duration
from chronosd.metrics import End
from chronosd.page import Page, WebSpec
from chronosd.web.metrics import PageCollector, exposition
from chronosd.web.rates import Rates

STUCK_S = 10.0
"""The supervisor's loop turns at least once a second, and no turn takes longer than a few."""

_SAMPLE_S = 2.0
_MOST_CONNECTIONS = 200
_PATIENCE_S = 5.0
"""How long a connection may be open without a whole request."""
_HERE = Path(__file__).parent
_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; style-src 'self'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)

_log = log.get_logger("chronosd.web")


def run(spec: WebSpec) -> int:
    """Serves until it is told to go; returns the exit code. Called in a forked process."""
    log.configure(spec.log_level, spec.log_format, role="web")
    asyncio.run(_serve(spec))
    return 0


class _Protocol(H11Protocol):
    """As uvicorn's, which waits for a first request for ever: connections on which nothing is asked would
    keep health checks out."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch = self.loop.call_later(_PATIENCE_S, self._look, None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch.cancel()
        super().connection_lost(exc)

    def _look(self, before: RequestResponseCycle | None) -> None:
        if self.cycle is before and (before is None or before.response_complete):
            self.transport.abort()  # no request in all that time, or half of one
        else:
            self._watch = self.loop.call_later(_PATIENCE_S, self._look, self.cycle)


class _Server(uvicorn.Server):
    """As uvicorn's, but signals are ours: it is a child that obeys its supervisor's TERM alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(spec: WebSpec) -> None:
    rates = Rates()
    config = uvicorn.Config(
        build(spec.page, rates),
        http=_Protocol,
        log_config=None,
        log_level="warning",  # that it starts and stops says the supervisor
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)

    def leave() -> None:
        server.should_exit = True

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, leave)
    sampling = loop.create_task(_sample(spec.page, rates))
    await server.serve(sockets=[spec.listening])
    sampling.cancel()


async def _sample(page: Page, rates: Rates) -> None:
    while True:
        document = page.read()
        if document is not None:
            rates.take(document)
        await asyncio.sleep(_SAMPLE_S)


def build(page: Page, rates: Rates) -> ASGIApp:
    """The routes over one page."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    sheet = (_HERE / "static" / "style.css").read_bytes()
    templates.filters |= {"span": _span, "size": _size, "ago": _ago}

    def read() -> Mapping[str, Any]:
        document = page.read()
        if document is None:
            raise HTTPException(503, "the supervisor has not said anything yet")
        return document

    async def livez(_: Request) -> Response:
        age_s = page.beat_age_s()
        if age_s > STUCK_S:
            return _said(503, f"the supervisor's loop has not turned for {age_s:.0f} s")
        return _said(200, "ok")

    async def readyz(_: Request) -> Response:
        missing = not_ready(page.read(), time.time())
        return _said(503 if missing else 200, "; ".join(missing) or "ok")

    async def metrics(request: Request) -> Response:
        collector = PageCollector(read, page.beat_age_s)
        body, content_type = exposition(collector, request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    async def dashboard(_: Request) -> Response:
        document = read()
        rates.take(document)
        text = templates.get_template("dashboard.html").render(
            **document,
            outcomes=[end.label for end in End],
            rows=rates.rows()[:200],
            now=time.time(),
            stuck_s=age_s if (age_s := page.beat_age_s()) > STUCK_S else None,
        )
        return HTMLResponse(text)

    async def style(_: Request) -> Response:
        return Response(sheet, media_type="text/css")

    return Starlette(
        routes=[
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
            Route("/", dashboard),
            Route("/static/style.css", style),
        ],
        middleware=[Middleware(_Headers)],
        exception_handlers={Exception: _fault},
    )


def not_ready(document: Mapping[str, Any] | None, now: float) -> list[str]:
    """Why no work can be done, in words; empty if it can."""
    if document is None:
        return ["starting"]
    if now - document["at"] > STUCK_S:
        return ["the supervisor says nothing any more"]
    status = document["status"]
    reasons = []
    redis = status["redis"]
    if not redis["reached"]:
        reasons.append(f"redis is away: {redis['error'] or 'not reached yet'}")
    elif redis["error"]:
        reasons.append(f"redis takes no writes: {redis['error']}")
    if not status["ready"]:
        reasons.append(f"no worker is ready ({status['state']})")
    return reasons


def _said(code: int, text: str) -> Response:
    return PlainTextResponse(f"{text}\n", code)


async def _fault(_: Request, error: Exception) -> Response:
    _log.error("request failed", exc_info=error)
    return _said(500, "internal error")


class _Headers:
    """On every response: nothing is kept, nothing but our own style sheet is loaded, nobody frames it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_more(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        await self._app(scope, receive, send_more)


def _span(seconds: float | None) -> str:
    """Seconds for people; empty for none."""
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds >= 0.01 else "0 s"
    return format_duration(float(round(seconds)))


def _ago(at: float | None, now: float) -> str:
    return "" if at is None else f"{_span(max(now - at, 0.0))} ago"


def _size(count: float) -> str:
    return f"{count / 2**20:.0f} MiB"
