"""The web process over a page that a test fills: what it serves, and what it says when something is wrong."""

from __future__ import annotations

import asyncio
import copy
import importlib.util
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

from chronosd.config.load import parse
from chronosd.metrics import BUCKETS, FAMILIES, PROCESSED, End
from chronosd.page import Page, WebSpec, web_problem
from chronosd.supervisor.descriptors import Descriptors
from chronosd.supervisor.web import Web
from chronosd.web.app import build, not_ready
from chronosd.web.rates import Rates

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
BUCKETS_HIT = [2, 1, *[0] * (BUCKETS - 3), 4]

DOCUMENT: dict[str, Any] = {
    "at": 1_800_000_000.0,
    "status": {
        "state": "running",
        "status": "2 of 2 workers running",
        "version": "1",
        "config": "/etc/chronosd/chronos.yaml",
        "namespace": "chronos",
        "pid": 42,
        "uptime_s": 3725.0,
        "revision": 3,
        "ready": 2,
        "target": 2,
        "redis": {"reached": True, "error": "", "away_s": None},
        "reload": {"last": {"ok": False, "at": 1_799_999_000.0, "problems": ["chronos.yaml:3:1: no <b>"]}},
        "workers": [
            {
                "index": 0,
                "pid": 43,
                "state": "fetching",
                "role": "running",
                "uptime_s": 10.0,
                "tasks": {"running": 3, "claimed": 1},
                "completed": 17,
                "beat_age_s": 0.1,
                "rss_bytes": 50 << 20,
            }
        ],
        "coming": [],
        "leaving": [],
    },
    "counters": [
        [PROCESSED, ["default", "<script>alert(1)</script>", "succeeded"], 90],
        [PROCESSED, ["default", "<script>alert(1)</script>", "archived"], 10],
        ["chronos_worker_exits_total", ["died", "9"], 2],
    ],
    "histograms": [["chronos_task_latency_seconds", ["default"], BUCKETS_HIT, 12.5]],
    "gauges": [["chronos_queue_tasks", ["default", "pending"], 7], ["chronos_redis_up", [], 1]],
    "queues": [
        {
            "name": "default",
            "pending": 7,
            "active": 4,
            "scheduled": 0,
            "retry": 1,
            "archived": 10,
            "completed": 0,
            "paused": True,
            "oldest_pending_s": 61.0,
            "oldest_pending_idle_s": 2.0,
            "served": True,
            "unserved": False,
        }
    ],
    "schedules": [{"name": "nightly", "leader": True, "fired_at": 1_799_990_000}],
}


@pytest.fixture
def page() -> Page:
    one = Page()
    one.beat(time.monotonic_ns())
    one.write({**DOCUMENT, "at": time.time()})
    return one


def get(page: Page, path: str, accept: str = "") -> tuple[int, dict[str, str], str]:
    """One request to the application: status, headers, body."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"test"), (b"accept", accept.encode())]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
    }
    scope |= {
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
    }
    asyncio.run(build(page, Rates())(scope, receive, send))
    start, *bodies = sent
    found = {name.decode(): value.decode() for name, value in start["headers"]}
    return start["status"], found, b"".join(m.get("body", b"") for m in bodies).decode()


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found: list[Sample] = [sample for family in parse_text(text) for sample in family.samples]
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in found}


def labels(**named: str) -> frozenset[tuple[str, str]]:
    return frozenset(named.items())


def test_every_metric_is_exposed_with_its_type_also_before_it_has_a_series(page: Page) -> None:
    _, headers, text = get(page, "/metrics")
    assert headers["content-type"].startswith("text/plain")
    types = {family.name: family.type for family in parse_text(text)}
    assert types == {family.name.removesuffix("_total"): family.type for family in FAMILIES}


def test_counters_gauges_and_histograms_have_their_values(page: Page) -> None:
    found = samples(get(page, "/metrics")[2])
    kind = "<script>alert(1)</script>"
    assert found[PROCESSED, labels(queue="default", kind=kind, outcome="succeeded")] == 90
    assert found["chronos_worker_exits_total", labels(reason="died", signal="9")] == 2
    assert found["chronos_queue_tasks", labels(queue="default", state="pending")] == 7
    name = "chronos_task_latency_seconds"
    assert found[f"{name}_bucket", labels(queue="default", le="0.001")] == 2
    assert found[f"{name}_bucket", labels(queue="default", le="300.0")] == 3
    assert found[f"{name}_bucket", labels(queue="default", le="+Inf")] == 7
    assert found[f"{name}_count", labels(queue="default")] == 7
    assert found[f"{name}_sum", labels(queue="default")] == 12.5
    assert found["chronos_loop_age_seconds", labels(loop="supervisor")] < 60


def test_a_scraper_that_asks_for_openmetrics_gets_it(page: Page) -> None:
    _, headers, text = get(page, "/metrics", accept=OPENMETRICS)
    assert headers["content-type"].startswith("application/openmetrics-text")
    assert len(list(parse_openmetrics(text))) == len(FAMILIES)


def test_the_dashboard_shows_everything_and_escapes_what_it_is_given(page: Page) -> None:
    status, headers, text = get(page, "/")
    assert status == 200
    for shown in (
        "2 of 2 workers running",
        "nightly",
        "1m1s",
        "paused",
        "50 MiB",
        "Last reload failed",
        "1h2m5s",
    ):
        assert shown in text, shown
    assert "<script" not in text
    assert "no &lt;b&gt;" in text
    assert 'http-equiv="refresh"' in text
    assert "//" not in text.replace("<!doctype html>", "")  # nothing comes from elsewhere
    assert "default-src 'none'" in headers["content-security-policy"]
    assert get(page, "/static/style.css")[0] == 200


def test_alive_is_who_turns(page: Page) -> None:
    assert get(page, "/livez")[0] == 200
    page.beat(time.monotonic_ns() - int(11e9))
    status, _, text = get(page, "/livez")
    assert status == 503
    assert "has not turned for 11 s" in text


def test_only_who_has_redis_and_a_worker_is_ready(page: Page) -> None:
    assert get(page, "/readyz")[::2] == (200, "ok\n")
    away = copy.deepcopy(DOCUMENT)
    away["at"] = time.time()
    away["status"]["redis"] = {"reached": False, "error": "refused", "away_s": 3.0}
    away["status"] |= {"ready": 0, "state": "stopping"}
    page.write(away)
    status, _, text = get(page, "/readyz")
    assert status == 503
    assert text == "redis is away: refused; no worker is ready (stopping)\n"
    assert get(page, "/livez")[0] == 200


def test_who_has_a_redis_that_takes_no_writes_is_not_ready() -> None:
    refused = copy.deepcopy(DOCUMENT)
    refused["status"]["redis"]["error"] = "OOM command not allowed"
    assert not_ready(refused, refused["at"] + 1) == ["redis takes no writes: OOM command not allowed"]


def test_a_page_that_has_grown_old_is_no_readiness() -> None:
    assert not_ready(None, 0.0) == ["starting"]
    assert not_ready(DOCUMENT, DOCUMENT["at"] + 11) == ["the supervisor says nothing any more"]
    assert not_ready(DOCUMENT, DOCUMENT["at"] + 1) == []


@pytest.mark.parametrize("path", ["/metrics", "/"])
def test_before_the_first_page_there_is_nothing_to_show(path: str) -> None:
    page = Page()
    page.beat(time.monotonic_ns())
    assert get(page, path)[0] == 503
    assert get(page, "/livez")[0] == 200


@pytest.mark.parametrize(
    "path", ["/metricsx", "/static/../app.py", "/static/%2e%2e/app.py", "/../etc/passwd"]
)
def test_there_is_nothing_else(page: Page, path: str) -> None:
    assert get(page, path)[0] == 404


def test_rates_are_of_the_last_minute() -> None:
    rates = Rates()
    for second in range(0, 200, 2):
        count = 10 * second if second < 150 else 1500  # ten a second, and then none
        rates.take({"at": 1000.0 + second, "counters": [[PROCESSED, ["q", "k", "succeeded"], count]]})
    (row,) = rates.rows()
    assert row.per_s == pytest.approx((1500 - 10 * 138) / 60)
    assert row.totals == {end.label: 1500 if end is End.SUCCEEDED else 0 for end in End}
    assert Rates().rows() == []


# -- without it -----------------------------------------------------------------------------------------


def test_without_the_extra_one_line_says_where_it_is_asked_for_and_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "queues: [default]\nhandlers: {job: 'app:job'}\nhttp: {listen: '127.0.0.1:9980'}\n"
    config = parse(text, source="chronos.yaml", base=Path("/"), env={})
    assert web_problem(config) is None
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else find(name))
    assert web_problem(config) == ("chronos.yaml:3:1: http: needs uvicorn: pip install 'chronosd[web]'")
    without = text.replace("{listen: '127.0.0.1:9980'}", "null")
    off = parse(without, source="chronos.yaml", base=Path("/"), env={})
    assert web_problem(off) is None


# -- the page -------------------------------------------------------------------------------------------


def test_another_process_reads_whole_documents_while_they_change() -> None:
    page = Page()
    page.write({"n": 0, "text": ""})
    reader = os.fork()
    if reader == 0:
        code = 1
        try:
            code = read_many(page)
        finally:
            os._exit(code)
    n, status = 0, None
    while status is None:
        n += 1
        page.write({"n": n, "text": "x" * (n % 3000)})
        ended, told = os.waitpid(reader, os.WNOHANG)
        status = os.waitstatus_to_exitcode(told) if ended else None
    assert status == 0


def read_many(page: Page) -> int:
    """Reads until 2000 documents have been written; 0 if every one that was seen was whole."""
    until, seen = time.monotonic() + 20, 0
    while seen < 2000:
        if time.monotonic() > until:
            return 3
        document = page.read()
        if document is None:
            continue  # the writer was put to sleep in the middle of a document, for longer than is waited for
        if len(document["text"]) != document["n"] % 3000 or document["n"] < seen:
            return 2
        seen = document["n"]
    return 0


def test_a_writer_that_died_while_it_wrote_leaves_no_document_and_no_hang() -> None:
    page = Page()
    page.write({"n": 1})
    page._cells[0] |= 1  # as it stands in between
    assert page.read() is None
    assert page.write({"n": 2})
    assert page.read() == {"n": 2}


def test_what_does_not_fit_leaves_the_page_as_it_was() -> None:
    page = Page(size=4096)
    assert page.write({"n": 1})
    assert not page.write({"text": "x" * 5000})
    assert page.read() == {"n": 1}


def test_a_web_process_that_does_not_go_is_killed() -> None:
    """One that hung when a reload moved it kept its port for as long as the daemon ran."""
    config = parse(
        "queues: [q]\nhandlers: {k: m:f}\nhttp: {listen: 127.0.0.1:0}\n",
        source="chronos.yaml",
        base=Path("/"),
    )
    reader, writer = os.pipe()

    def deaf(_: WebSpec) -> int:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(writer, str(os.getpid()).encode())
        signal.pause()
        return 0

    descriptors = Descriptors()
    web = Web(config, deaf, abandon=lambda: None, descriptors=descriptors)
    try:
        assert web.due_at == 0.0
        web.tick(time.monotonic())
        pid = int(os.read(reader, 20))
        web.apply(config.model_copy(update={"http": None}))
        web.tick(time.monotonic())
        assert web.is_child(pid)
        web.tick(web.due_at)
        while web.is_child(pid):
            descriptors.dispatch(descriptors.wait(10))
        assert web.due_at == float("inf")
    finally:
        web.stop()
        descriptors.close()
        os.close(reader)
        os.close(writer)
