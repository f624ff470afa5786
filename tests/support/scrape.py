"""What a daemon's web process serves, read as Prometheus reads it; counters are watched for going down."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException

from prometheus_client.parser import text_string_to_metric_families

from tests.support.daemon import Daemon
from tests.support.waiting import wait_until

Series = tuple[str, frozenset[tuple[str, str]]]
_GROWING = ("_total", "_bucket", "_count", "_sum")


def address(daemon: Daemon) -> str:
    """Where a daemon with ``http: {listen: "127.0.0.1:0"}`` listens."""
    records = wait_until(lambda: daemon.log_records("listening for http"), what="the web address")
    return str(records[-1]["address"])


def get(where: str, path: str, timeout_s: float = 10.0) -> tuple[int, str]:
    """Status and body; a connection that ends early (its web process was killed) is made again."""
    until = time.monotonic() + timeout_s
    while True:
        try:
            with urllib.request.urlopen(f"http://{where}{path}", timeout=timeout_s) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except (ConnectionError, urllib.error.URLError, HTTPException):
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def scrape(where: str) -> dict[Series, float]:
    """Every series of ``/metrics``."""
    status, text = get(where, "/metrics")
    assert status == 200, text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(series: Mapping[Series, float], name: str, **labels: str) -> int:
    """The sum of all series of that name with these labels."""
    wanted = set(labels.items())
    return int(sum(value for (found, has), value in series.items() if found == name and wanted <= has))


class Scraper:
    """Scrapes in a thread, again and again; ``fallen`` says which counters ever went down, or vanished."""

    def __init__(self, where: str, every_s: float = 0.1) -> None:
        self.fallen: list[str] = []
        self.scrapes = 0
        self.error: BaseException | None = None
        self._where = where
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        before: dict[Series, float] = {}
        try:
            while not self._over.wait(self._every_s):
                found = scrape(self._where)
                for series, value in before.items():
                    if series[0].endswith(_GROWING) and found.get(series, -1) < value:
                        self.fallen.append(f"{series}: {value} to {found.get(series)}")
                before = found
                self.scrapes += 1
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        """Ends it; raises what it met."""
        self._over.set()
        self._thread.join(30)
        if self.error is not None:
            raise self.error
