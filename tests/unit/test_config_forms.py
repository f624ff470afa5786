"""chronos.yaml as people write it, and what becomes of it."""

from __future__ import annotations

import os

import pytest

from tests.support.config_text import MINIMAL, problems, read


def test_queues_and_handlers_are_enough_and_the_rest_has_the_documented_defaults() -> None:
    config = read(MINIMAL)
    assert config.namespace == "chronos"
    assert config.redis.url == "redis://127.0.0.1:6379/0"
    assert (config.workers, config.concurrency, config.strict_priority) == (2, 64, False)
    assert (config.timeout, config.startup_timeout, config.reload_timeout) == (1800.0, 60.0, 60.0)
    assert config.max_payload == 1 << 20
    assert (config.retry.base, config.retry.cap) == (5.0, 900.0)
    assert (config.recover_min_idle, config.recover_interval) == (30.0, 15.0)
    assert (config.heartbeat_interval, config.forward_interval) == (10.0, 0.1)
    assert (config.shutdown_timeout, config.kill_grace, config.stall_timeout) == (25.0, 5.0, 300.0)
    assert config.max_crashes == 3
    assert (config.janitor.interval, config.janitor.archived_retention) == (60.0, 90 * 86_400.0)
    assert (config.janitor.max_archived, config.janitor.max_completed) == (0, 10_000)
    assert (config.log.level, config.log.format) == ("info", "auto")
    assert (config.http, config.on_dead_letter, config.schedules) == (None, None, {})


def test_every_short_form_means_the_same_as_its_long_form() -> None:
    short = read("redis: redis://h/1\nqueues: {a: 6, b: 1}\nhandlers: {k: 'm:f'}\n")
    long = read(
        "redis: {url: redis://h/1}\nqueues: {a: {weight: 6}, b: {}}\nhandlers: {k: {import: 'm:f'}}\n"
    )
    assert short == long
    assert (
        read("queues: [b, a]\nhandlers: {k: 'm:f'}\n").queues
        == read("queues: {b: 1, a: 1}\nhandlers: {k: 'm:f'}\n").queues
    )


def test_a_list_of_handlers_names_modules() -> None:
    config = read("queues: [default]\nhandlers: [app.tasks, app.reports]\n")
    assert config.handlers == {}
    assert config.handler_modules == ("app.tasks", "app.reports")
    assert config.where("handlers[1]") == "chronos.yaml:2:23"


def test_the_name_of_the_list_form_inside_is_no_key_of_the_file() -> None:
    assert problems(MINIMAL + '"handlers[]": [m]\n') == [
        'chronos.yaml:3:1: handlers[]: unknown key "handlers[]"; did you mean "handlers"?'
    ]


def test_a_handler_takes_from_the_top_level_what_it_does_not_set_itself() -> None:
    config = read(
        "queues: [default]\ntimeout: 1m\nretry: {base: 2s, cap: 10s}\n"
        "handlers:\n  a: m:a\n  b: {import: m:b, timeout: 5s, retry: {cap: 20s}}\n"
    )
    a, b = config.handlers["a"], config.handlers["b"]
    assert (a.timeout, a.retry.base, a.retry.cap) == (60.0, 2.0, 10.0)
    assert (b.timeout, b.retry.base, b.retry.cap) == (5.0, 2.0, 20.0)


def test_paths_start_from_the_directory_of_the_file() -> None:
    config = read(
        MINIMAL
        + "pythonpath: ['.', ../src, /opt/app]\ncontrol_socket: run/c.sock\nredis: {password_file: pw}\n"
    )
    assert config.pythonpath == ("/etc/chronosd", "/etc/src", "/opt/app")
    assert config.control_socket == "/etc/chronosd/run/c.sock"
    assert config.redis.password_file == "/etc/chronosd/pw"
    assert read(MINIMAL).pythonpath == ("/etc/chronosd",)


def test_workers_auto_is_one_per_cpu_that_the_daemon_may_use() -> None:
    assert read(MINIMAL + "workers: auto\n").workers == len(os.sched_getaffinity(0))


def test_a_namespace_is_trimmed_of_colons_as_chronos_go_does() -> None:
    assert read(MINIMAL + "namespace: ':app:'\n").namespace == "app"


def test_two_readings_of_the_same_settings_are_equal_wherever_the_keys_stand() -> None:
    """A reload compares; a comment that moved every line is no change."""
    assert read(MINIMAL) == read("# a comment\n\n" + MINIMAL)
    assert read(MINIMAL) != read(MINIMAL + "workers: 3\n")


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        read(MINIMAL).workers = 3  # type: ignore[misc]


def test_where_gives_the_place_of_a_key_or_of_its_nearest_ancestor() -> None:
    config = read(
        "queues:\n  a.b: 1\n  low: {weight: 1}\nhandlers:\n  email:send: m:f\nmiddleware:\n  - m:g\n"
    )
    assert config.where("queues.a.b") == "chronos.yaml:2:3"
    assert config.where("queues.low.weight") == "chronos.yaml:3:9"
    assert config.where("queues.low.rate_limit") == "chronos.yaml:3:3"
    assert config.where("handlers.email:send") == "chronos.yaml:5:3"
    assert config.where("handlers.email:send.import") == "chronos.yaml:5:3"
    assert config.where("middleware[0]") == config.where("middleware.0") == "chronos.yaml:7:5"
    assert config.where("lifespan") == "chronos.yaml:1:1"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("''", "must not be empty"),
        ("'a b'", r"must not contain braces, *?[] or white space"),
        ("'a{b'", r"must not contain braces, *?[] or white space"),
        ("'a}'", r"must not contain braces, *?[] or white space"),
        ("'a*'", r"must not contain braces, *?[] or white space"),
        (r'"a\tb"', "must not contain control characters"),
        (r'"a\0"', "must not contain control characters"),
        (r'"a\u2028b"', "must not contain control characters"),
        ("q" * 201, "must be at most 200 bytes long"),
    ],
)
def test_queue_names_that_break_keys_are_refused(name: str, reason: str) -> None:
    assert all(f"a queue name {reason}" in p for p in problems(f"queues: {{{name}: 1}}\nhandlers: [m]\n"))
    assert all(f"a queue name {reason}" in p for p in problems(f"queues: [{name}]\nhandlers: [m]\n"))


@pytest.mark.parametrize("kind", ["''", "' a'", "'a '", r'"a\nb"', "k" * 201])
def test_kinds_that_nobody_could_tell_apart_are_refused(kind: str) -> None:
    (problem,) = problems(f"queues: [a]\nhandlers: {{{kind}: 'm:f'}}\n")
    assert ": a kind must " in problem


def test_kinds_may_contain_odd_characters() -> None:
    assert "é/{x} ü*" in read("queues: [a]\nhandlers: {'é/{x} ü*': 'm:f'}\n").handlers


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost", "redis://localhost:6379", "redis://localhost/", "redis://h/15", "redis://[::1]:6379/0",
        "rediss://u:p@h:6380/1", "redis://:p%23w@h", "unix:///run/redis.sock", "unix://:pw@/run/redis.sock?db=2",
        "embedded://", "embedded:///var/lib/chronosd", "redis://h/0?protocol=3",
    ],
)  # fmt: skip
def test_redis_urls_of_every_supported_form_are_taken(url: str) -> None:
    assert read(MINIMAL + f"redis: '{url}'\n").redis.url == url


@pytest.mark.parametrize("scheme", ["redis+sentinel", "redis+cluster"])
def test_sentinel_and_cluster_urls_are_known_but_not_available(scheme: str) -> None:
    (problem,) = problems(MINIMAL + f"redis: {{url: '{scheme}://h:26379/0'}}\n")
    assert f"redis.url: {scheme}:// is not available in this version" in problem


def test_an_import_path_written_with_dots_alone_is_shown_with_its_colon() -> None:
    (problem,) = problems("queues: [a]\nhandlers: {k: app.mail.send}\n")
    assert "did you mean app.mail:send?" in problem


def test_a_heartbeat_has_to_be_shorter_than_half_of_the_idle_time() -> None:
    where = "heartbeat_interval: must be shorter than half of recover_min_idle, "
    assert problems(MINIMAL + "heartbeat_interval: 15s\n") == [f'chronos.yaml:3:1: {where}15s (got "15s")']
    assert problems(MINIMAL + "recover_min_idle: 4s\n") == [
        f"chronos.yaml:3:1: {where}2s (got 10s by default)"
    ]
    read(MINIMAL + "recover_min_idle: 4s\nheartbeat_interval: 1.9s\n")


def test_a_backoff_may_not_start_above_its_cap_inherited_or_not() -> None:
    assert problems(MINIMAL + "retry: {base: 1h}\n") == [
        'chronos.yaml:3:9: retry.base: must not be longer than cap, 15m (got "1h")'
    ]
    assert problems(MINIMAL + "retry:\n  cap: 1s\n") == [
        "chronos.yaml:4:3: retry.base: must not be longer than cap, 1s (got 5s by default)"
    ]
    assert problems("queues: [a]\nhandlers:\n  k: {import: m:f, retry: {base: 20m}}\n") == [
        'chronos.yaml:3:28: handlers.k.retry.base: must not be longer than cap, 15m (got "20m")'
    ]
    read("queues: [a]\nretry: {cap: 1h}\nhandlers:\n  k: {import: m:f, retry: {base: 20m}}\n")


def test_limits_between_keys_are_told_beside_other_mistakes() -> None:
    """All at once: an operator who has mended five mistakes should not meet a sixth."""
    found = problems(
        "queues: [a]\nhandlers: {}\nworkers: 0\nheartbeat_interval: 1h\nretry: {base: 1h}\nwurkers: 1\n"
    )
    assert [problem.split(": ")[1] for problem in found] == [
        "handlers", "workers", "heartbeat_interval", "retry.base", "wurkers",
    ]  # fmt: skip


def test_no_queues_and_no_handlers_is_told_in_either_form() -> None:
    for text in ("queues: {}\nhandlers: {}\n", "queues: []\nhandlers: []\n"):
        assert problems(text) == [
            "chronos.yaml:1:1: queues: must not be empty",
            "chronos.yaml:2:1: handlers: must not be empty",
        ]
    assert problems("workers: 2\n") == [
        "chronos.yaml:1:1: handlers: is required: a mapping of kinds to import paths or a list of modules",
        "chronos.yaml:1:1: queues: is required: a mapping of queues or a list of queue names",
    ]


def test_two_passwords_are_one_too_many() -> None:
    (problem,) = problems(MINIMAL + "redis: {url: 'redis://u:p@h', password_file: pw}\n")
    assert (
        problem
        == "chronos.yaml:3:31: redis.password_file: the URL already contains a password; keep one of the two"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("queues: [a]\nhandlers: {k: {import: 'm:f', max_retry: 3}}\n", "enqueue(..., max_retry=...)"),
        ("queues: [a]\nhandlers: {k: {import: 'm:f', retry: 3}}\n", "such as {base: 5s, cap: 15m} (got 3)"),
        (MINIMAL + "http: 9980\n", 'such as {listen: "127.0.0.1:9980"} (got 9980)'),
        (MINIMAL + "on_dead_letter: alert\n", 'such as {kind: "alert:dead"} (got "alert")'),
        (MINIMAL + "redis: {sentinel: [a]}\n", "Sentinel and Cluster are not available in this version"),
    ],
)
def test_what_other_queues_have_at_that_place_is_answered_with_what_is_written_here(
    text: str, said: str
) -> None:
    (problem,) = problems(text)
    assert said in problem
