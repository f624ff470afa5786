"""What changes from one configuration to the next, and what a running daemon refuses to change."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronosd.config.diff import Difference, difference
from chronosd.config.load import parse

BASE = "queues: {default: 3, low: 1}\nhandlers: {mail: 'app:mail', image: 'app:image'}\n"


def change(old: str, new: str) -> Difference:
    read = [parse(text, source="chronos.yaml", base=Path("/etc/chronosd")) for text in (old, new)]
    return difference(*read)


def test_the_same_settings_in_another_order_are_no_change() -> None:
    again = "# moved\nhandlers: {image: 'app:image', mail: 'app:mail'}\nqueues: {low: 1, default: 3}\n"
    assert change(BASE, again) == Difference((), (), (), ())


def test_queues_that_come_go_and_change_are_told() -> None:
    found = change(BASE, BASE.replace("{default: 3, low: 1}", "{default: 5, fast: 2}"))
    assert found.lines == (
        "queues.default.weight: 3 to 5",
        "queues.low: removed",
        "queues.fast: added (weight 2)",
    )
    assert found.queues_removed == ("low",)


def test_handlers_that_come_go_and_change_are_told() -> None:
    handlers = "{mail: {import: 'app:send', timeout: 2m}, x: 'app:x'}"
    found = change(BASE, BASE.replace("{mail: 'app:mail', image: 'app:image'}", handlers))
    assert found.lines == (
        "handlers.mail.import: app:mail to app:send",
        "handlers.mail.timeout: 30m to 2m",
        "handlers.image: removed",
        "handlers.x: added (app:x)",
    )
    assert found.kinds_removed == ("image",)


def test_what_follows_a_dead_letter_is_told() -> None:
    one = BASE + "on_dead_letter: {kind: alert}\n"
    assert change(BASE, one).lines == ("on_dead_letter: none to alert in queue default",)
    assert change(one, one.replace("alert", "page")).lines == ("on_dead_letter.kind: alert to page",)
    assert change(one, BASE).lines == ("on_dead_letter: alert in queue default to none",)


def test_the_address_of_the_web_page_is_told() -> None:
    one = BASE + "http: {listen: '127.0.0.1:9980'}\n"
    assert change(BASE, one).lines == ("http: none to 127.0.0.1:9980",)
    assert change(one, BASE).lines == ("http: 127.0.0.1:9980 to none",)


def test_limits_are_told_in_the_units_of_the_file() -> None:
    limits = "workers: 4\nshutdown_timeout: 90s\nmax_payload: 2MiB\n"
    more = "log: {level: debug}\nstrict_priority: true\n"
    assert change(BASE, f"{BASE}{limits}{more}").lines == (
        "workers: 2 to 4",
        "strict_priority: false to true",
        "max_payload: 1MiB to 2MiB",
        "shutdown_timeout: 25s to 1m30s",
        "log.level: info to debug",
    )


def test_modules_instead_of_a_mapping_are_told_as_handlers() -> None:
    found = change(BASE, "queues: {default: 3, low: 1}\nhandlers: [app.tasks]\n")
    assert "handlers: [] to [app.tasks]" in found.lines
    assert found.kinds_removed == ("mail", "image")


@pytest.mark.parametrize(
    ("line", "path", "place"),
    [
        ("namespace: other", "namespace", "3:1"),
        ("name: blue", "name", "3:1"),
        ("control_socket: run/c.sock", "control_socket", "3:1"),
        ("redis: redis://other/0", "redis.url", "3:1"),
        ("redis: {url: 'redis://other/0'}", "redis.url", "3:9"),
    ],
)
def test_what_cannot_change_in_a_running_daemon_is_refused_with_a_sentence(
    line: str, path: str, place: str
) -> None:
    (said,) = change(BASE, f"{BASE}{line}\n").refused
    assert said.startswith(f"chronos.yaml:{place}: {path}: cannot change while the daemon runs (from ")
    assert said.endswith(". Restart it")
    assert change(f"{BASE}{line}\n", f"{BASE}{line}\nworkers: 7\n").refused == ()


def test_no_password_is_told() -> None:
    found = change(f"{BASE}redis: redis://:secret@h/0\n", f"{BASE}redis: redis://u:secr@et2@h/0\n")
    assert "secr" not in "".join((*found.lines, *found.refused))
    assert len(found.refused) == 1
