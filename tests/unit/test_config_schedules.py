"""``schedules`` of chronos.yaml: what is told about two keys at once, and about the arguments."""

from __future__ import annotations

import pytest

from chronosd.broker.schedule import schedules_of
from chronosd.config.diff import difference
from chronosd.cron import Cron, Every
from tests.support.config_text import MINIMAL, problems, read


def with_schedules(*lines: str) -> str:
    return MINIMAL + "schedules:\n" + "".join(f"  {line}\n" for line in lines)


def test_a_cron_in_a_zone_and_an_interval_are_read_into_rules() -> None:
    config = read(
        with_schedules(
            'nightly: {cron: "0 3 * * *", timezone: Europe/Berlin, kind: "email:send", args: {b: 1, a: [x]}}',
            "ping: {every: 1m30s, kind: ping, queue: low, misfire: fire_once}",
            'go: {cron: "CRON_TZ=Asia/Seoul 0 9 * * *", kind: k}',
            'also: {cron: "@every 2h", kind: k}',
        )
    )
    nightly, ping, go, also = schedules_of(config)
    assert isinstance(nightly.rule, Cron)
    assert nightly.rule.spec == "CRON_TZ=Europe/Berlin 0 3 * * *"
    assert (nightly.queue, nightly.misfire, nightly.payload) == ("default", "skip", b'{"a":["x"],"b":1}')
    assert (ping.rule, ping.queue, ping.misfire, ping.payload) == (Every(90), "low", "fire_once", b"{}")
    assert go.rule.timezone == "Asia/Seoul"
    assert also.rule == Every(7200)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["a: {kind: k}"], "8:3: schedules.a: needs one of cron and every"),
        (
            ['a: {kind: k, cron: "@daily", every: 1h}'],
            "8:32: schedules.a.every: must not stand beside cron; keep one of the two",
        ),
        (
            ["a: {kind: k, every: 1h, timezone: UTC}"],
            "8:27: schedules.a.timezone: must not stand beside every: an interval has no zone",
        ),
        (
            ['a: {kind: k, cron: "TZ=UTC 0 0 * * *", timezone: UTC}'],
            "8:42: schedules.a.timezone: must not stand beside a cron that is an interval or names a zone"
            " itself",
        ),
        (
            ["a: {kind: k, every: 1500ms}"],
            '8:16: schedules.a.every: must be a whole number of seconds (got "1500ms")',
        ),
        (
            ['a: {kind: k, cron: "0 0 30 2 *"}'],
            "8:16: schedules.a.cron: must be five cron fields such as 0 3 * * *; no month has that day"
            ' (got "0 0 30 2 *")',
        ),
        (
            ['a: {kind: k, cron: "0 0 * * *", timezone: Europe/Berlni}'],
            "8:35: schedules.a.timezone: must be the name of a time zone such as Europe/Berlin; did you mean"
            ' Europe/Berlin? (got "Europe/Berlni")',
        ),
        (
            ["a: {kind: k, every: 1h, args: {x: [1, .nan]}}"],
            "8:27: schedules.a.args: schedules.a.args.x[1] must be a finite number",
        ),
        (
            ["a: {kind: k, every: 1h, args: {x: 18446744073709551616}}"],
            "8:27: schedules.a.args: cannot be the arguments of a task: Integer exceeds 64-bit range",
        ),
        (
            ["a: {kind: k, every: 60s, args: {x: 1, y: 2}}", "b: {kind: k, every: 1m, args: {y: 2, x: 1}}"],
            "9:3: schedules.b: is the same as schedules.a: kind, times, queue and args; drop one of the two",
        ),
        (["a b: {kind: k, every: 1h, jitter: 1}"], 'schedules.a b.jitter: unknown key "jitter"'),
        ([r'"a\tb": {kind: k, every: 1h}'], "a name must not contain control characters"),
    ],
)
def test_what_is_wrong_with_a_schedule_is_told_where_it_stands(lines: list[str], told: str) -> None:
    text = with_schedules(*lines).replace("queues:", "\n\n\n\nqueues:", 1)
    (problem,) = problems(text)
    assert told in problem


def test_arguments_larger_than_max_payload_are_refused_as_they_are_sent() -> None:
    fits = f"max_payload: 100B\n{with_schedules('a: {every: 1h, kind: k, args: {x: ' + 'y' * 80 + '}}')}"
    assert read(fits).schedules["a"].args == {"x": "y" * 80}
    (problem,) = problems(fits.replace("y" * 80, '"' + "<" * 40 + '"'))
    assert "schedules.a.args: must be at most max_payload, 100B, as JSON" in problem


def test_variables_are_expanded_in_times_and_not_under_args() -> None:
    text = with_schedules('a: {cron: "${WHEN}", kind: k, args: {x: "${WHEN}"}}')
    config = read(text, WHEN="@daily")
    assert config.schedules["a"].cron == "@daily"
    assert config.schedules["a"].args == {"x": "${WHEN}"}


def test_a_reload_tells_which_schedules_change() -> None:
    before = read(with_schedules("a: {every: 1h, kind: k}", "b: {every: 2h, kind: k}"))
    after = read(with_schedules("a: {every: 30s, kind: k}", 'c: {cron: "@daily", kind: k}'))
    assert difference(before, after).lines == (
        "schedules.a.every: 1h to 30s",
        "schedules.b: removed",
        "schedules.c: added (k, @daily)",
    )
