"""chronos.yaml as people write it, and what becomes of it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import yaml

from chronosd.config.load import compose, load, parse
from chronosd.config.schema import Config, RedisConfig
from chronosd.errors import ConfigError

MINIMAL = "queues: [default]\nhandlers: {'email:send': 'app.mail:send'}\n"


def read(text: str, **env: str) -> Config:
    return parse(text, source="chronos.yaml", base=Path("/etc/chronosd"), env=env)


def problems(text: str, **env: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(text, **env)
    assert all("\n" not in problem for problem in caught.value.problems)
    return list(caught.value.problems)


# ---- forms ------------------------------------------------------------------------------------------


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


# ---- YAML types -------------------------------------------------------------------------------------


def test_scalars_have_the_types_of_yaml_1_2() -> None:
    """PyYAML's default reads 017 as 15, 1:30 as 90, no as false and 1_000 as 1000."""
    config = read(MINIMAL + "workers: 017\nconcurrency: 0o20\nmax_crashes: 0x1F\nname: no\nnamespace: on\n")
    assert (config.workers, config.concurrency, config.max_crashes) == (17, 16, 31)
    assert (config.name, config.namespace) == ("no", "on")
    assert problems(MINIMAL + "timeout: 1:30\n")[0].endswith('(got "1:30")')
    assert problems(MINIMAL + "strict_priority: no\n")[0].endswith('(got "no"); write false')
    assert problems(MINIMAL + "on: true\n") == ['chronos.yaml:3:1: on: unknown key "on"']


def test_core_tags_are_allowed_where_they_fit_and_no_others() -> None:
    config = read(
        MINIMAL + "name: !!str 5\nworkers: !!int '3'\nlog: !!map {}\npythonpath: !!seq [.]\nsetup: !!null ~\n"
    )
    assert (config.name, config.workers) == ("5", 3)
    assert problems(MINIMAL + "workers: !!int many\n") == [
        "chronos.yaml:3:1: workers: does not fit its tag !!int"
    ]
    assert problems(MINIMAL + "name: !!python/object/apply:os.system [id]\n") == [
        "chronos.yaml:3:1: name: the tag !!python/object/apply:os.system is not allowed here",
    ]
    assert problems(MINIMAL + "name: !env HOME\n") == [
        "chronos.yaml:3:1: name: the tag !env is not allowed here"
    ]


# ---- duplicates and merge keys ----------------------------------------------------------------------


def test_a_duplicate_key_is_told_with_both_lines_at_any_depth() -> None:
    """PyYAML keeps the last one silently: a whole queue disappears."""
    text = (
        "queues:\n  emails: 3\n  low:\n    weight: 1\n    weight: 2\n  emails: 1\n"
        "handlers:\n  a: m:f\n  a: m:g\n  'a': m:h\n"
    )
    assert problems(text) == [
        'chronos.yaml:5:5: queues.low.weight: duplicate key "weight" (first at line 4)',
        'chronos.yaml:6:3: queues.emails: duplicate key "emails" (first at line 2)',
        'chronos.yaml:9:3: handlers.a: duplicate key "a" (first at line 8)',
        'chronos.yaml:10:3: handlers.a: duplicate key "a" (first at line 8)',
    ]


def test_a_queue_or_module_listed_twice_is_told() -> None:
    assert problems("queues:\n- a\n- b\n- a\nhandlers: [m, m]\n") == [
        'chronos.yaml:4:3: queues[2]: duplicate queue "a" (first at line 2)',
        'chronos.yaml:5:15: handlers[1]: duplicate module "m" (first at line 5)',
    ]


def test_merge_keys_merge_and_own_keys_win() -> None:
    config = read(
        "queues:\n  a: &base {weight: 3}\n  b: {<<: *base}\n  c:\n    weight: 5\n    <<: *base\n"
        "  d: {<<: [*base, {weight: 9}]}\nhandlers: [m]\n"
    )
    assert {name: queue.weight for name, queue in config.queues.items()} == {"a": 3, "b": 3, "c": 5, "d": 3}


def test_a_mistake_in_a_merged_mapping_is_told_where_it_is_written() -> None:
    text = "queues:\n  a: &base\n    weight: 0\n  b:\n    <<: *base\nhandlers: [m]\n"
    assert problems(text) == [
        "chronos.yaml:3:5: queues.a.weight: must be at least 1 (got 0)",
        "chronos.yaml:3:5: queues.b.weight: must be at least 1 (got 0)",
    ]
    assert problems("queues: {a: {<<: 5}}\nhandlers: [m]\n") == [
        "chronos.yaml:1:14: queues.a.<<: must be a mapping or a list of mappings to merge"
    ]
    assert problems("queues: &q\n  <<: *q\n  a: 1\nhandlers: [m]\n") == [
        "chronos.yaml:2:7: *q stands inside what it names"
    ]


def test_keys_that_are_no_text_are_told() -> None:
    assert problems("queues:\n  2024: 1\n  true: 1\n  [a]: 1\nhandlers: [m]\n") == [
        'chronos.yaml:2:3: queues.2024: a key must be text; quote it ("2024") if it is meant as a name',
        'chronos.yaml:3:3: queues.true: a key must be text; quote it ("true") if it is meant as a name',
        "chronos.yaml:4:3: queues: a key must be plain text",
    ]
    assert read("queues: {'2024': 1}\nhandlers: [m]\n").queues["2024"].weight == 1


# ---- expansion --------------------------------------------------------------------------------------


def test_variables_expand_after_parsing_and_before_typing() -> None:
    text = "queues: {'${Q}': '${W}'}\nhandlers: {'${K:-job}': '${M:-m}:f'}\n"
    text += "workers: ${N}\nname: ${N}\nsetup: ${S:-}\n"
    config = read(text, Q="mail", W="7", N="4")
    assert config.queues["mail"].weight == 7
    assert config.handlers["job"].path == "m:f"
    assert (config.workers, config.name, config.setup) == (4, "4", None)
    # what a variable holds is a value and never structure
    assert problems(MINIMAL + "name: ${X}\n", X="a\nworkers: 9") == [
        "chronos.yaml:3:1: name: must be 1 to 64 letters, digits, dots, hyphens or underscores, "
        'not a dot or hyphen first (got the value of "${X}")'
    ]


def test_a_default_stands_in_for_an_unset_or_empty_variable() -> None:
    assert read(MINIMAL + "name: ${X:-blue}\n").name == "blue"
    assert read(MINIMAL + "name: ${X:-blue}\n", X="").name == "blue"
    assert read(MINIMAL + "name: ${X:-blue}\n", X="green").name == "green"
    assert read(MINIMAL + "redis: redis://u:${X:-a:-b}@h\n").redis.url == "redis://u:a:-b@h"


def test_two_dollars_are_one_and_a_lone_dollar_is_itself() -> None:
    config = read(MINIMAL + "redis: redis://u:$$a$b$${X}@h\n")
    assert config.redis.url == "redis://u:$a$b${X}@h"


def test_values_of_variables_are_never_shown() -> None:
    secret = "hunter2"
    text = "redis: ${U}\nqueues: {'${U}': 0, a: '${U}'}\nhandlers: {k: '${U}', '${U}': 5}\n"
    text += "'${U}': 1\nlog: {level: '${U}'}\n"
    for bad in (f"redis://u:{secret}@[::1", f"{secret} x", f"redis://:{secret}#@h"):
        found = problems(text, U=bad)
        assert len(found) >= 6
        assert not any(secret in problem for problem in found)


def test_passwords_written_in_the_file_are_masked_in_messages() -> None:
    for url in (
        "redis://u:hunter2@h:x",
        "redis://:hun/hunter2@h:x",
        "redis://:a@hunter2@[::1",
        "rdis://u:hunter2@h",
    ):
        (problem,) = problems(MINIMAL + f"redis: '{url}'\n")
        assert "hunter2" not in problem
        assert "***" in problem
    (problem,) = problems(MINIMAL + "redis: 'redis://h:x/0?password=hunter2&db=1'\n")
    assert "hunter2" not in problem


# ---- names, URLs, limits between keys ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("''", "must not be empty"),
        ("'a b'", "must not contain braces or white space"),
        ("'a{b'", "must not contain braces or white space"),
        ("'a}'", "must not contain braces or white space"),
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


# ---- the password -----------------------------------------------------------------------------------


def test_the_password_is_the_only_line_of_its_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2\n")
    assert RedisConfig(password_file=str(secret)).password() == "hunter2"
    for broken in (b"", b"\n", b"a\nb\n", b"\xff\n"):
        secret.write_bytes(broken)
        with pytest.raises(ConfigError, match=r"redis\.password_file: "):
            RedisConfig(password_file=str(secret)).password()
    secret.unlink()
    with pytest.raises(ConfigError, match=r"redis\.password_file: cannot read .*secret: No such file"):
        RedisConfig(password_file=str(secret)).password()


def test_the_password_may_come_as_a_credential_of_systemd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    assert RedisConfig().password() is None
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert RedisConfig().password() is None
    (tmp_path / "redis-password").write_text("hunter2")
    assert RedisConfig().password() == "hunter2"
    assert RedisConfig(url="redis://u:own@h").password() is None


# ---- files ------------------------------------------------------------------------------------------


def test_a_file_is_called_in_messages_as_it_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "chronos.yaml").write_text(MINIMAL + "workers: 0\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load("conf/chronos.yaml")
    assert caught.value.problems == ("conf/chronos.yaml:3:1: workers: must be at least 1 (got 0)",)


def test_relative_paths_keep_to_the_directory_of_the_link_and_not_of_its_target(tmp_path: Path) -> None:
    """Kubernetes swaps a symbolic link to change a mounted configuration."""
    for version in ("v1", "v2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "chronos.yaml").write_text(MINIMAL + f"name: {version}\n")
    link = tmp_path / "chronos.yaml"
    link.symlink_to("v1/chronos.yaml")
    first = load(link)
    link.unlink()
    link.symlink_to("v2/chronos.yaml")
    second = load(link)
    assert (first.name, second.name) == ("v1", "v2")
    assert first.base == second.base == tmp_path
    assert first.path == link
    assert first.pythonpath == second.pythonpath == (str(tmp_path),)


def test_a_relative_file_name_gives_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.yaml").write_text(MINIMAL)
    monkeypatch.chdir(tmp_path)
    config = load("c.yaml")
    assert (config.path, config.base, config.pythonpath) == (tmp_path / "c.yaml", tmp_path, (str(tmp_path),))


def test_a_bom_and_windows_line_ends_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "chronos.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + MINIMAL.replace("\n", "\r\n").encode())
    assert load(path).queues.keys() == {"default"}
    path.write_bytes(b"\xef\xbb\xbf" + (MINIMAL + "workers: 0\n").replace("\n", "\r\n").encode())
    with pytest.raises(ConfigError, match=r":3:1: workers: must be at least 1 \(got 0\)$"):
        load(path)
    path.write_bytes(b"\xef\xbb\xbfworkers: 0\nworkers: 1\n" + MINIMAL.encode())
    with pytest.raises(ConfigError, match=r":2:1: workers: duplicate key"):
        load(path)


def one_line(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path)
    (problem,) = caught.value.problems
    assert "\n" not in problem
    assert problem.startswith(f"{path}:")
    return problem.removeprefix(f"{path}:")


def test_what_is_no_readable_file_is_one_line(tmp_path: Path) -> None:
    assert one_line(tmp_path / "none.yaml") == " cannot be read: No such file or directory"
    assert one_line(tmp_path) == " is a directory, not a file"
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert one_line(fifo) == " is not a regular file"
    assert one_line(Path("/dev/null")) == " is not a regular file"
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert "cannot be read: " in one_line(loop)


def test_what_is_no_utf_8_text_is_one_line_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "chronos.yaml"
    path.write_bytes("queues: [a]\nname: é\n".encode("latin-1"))
    assert one_line(path) == "2:7: is not valid UTF-8 (byte 0xe9)"
    path.write_bytes(MINIMAL.encode("utf-16"))
    assert one_line(path) == "1:1: is UTF-16; save it as UTF-8"
    path.write_bytes(MINIMAL.encode() + b"name: a\0b\n")
    assert one_line(path) == "3:8: control character U+0000; remove it"


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "chronos.yaml"
    with path.open("wb") as file:
        file.truncate(50_000_000)
    started = time.monotonic()
    assert one_line(path) == " is 50,000,000 bytes long; a configuration has at most 524,288"
    assert time.monotonic() - started < 1


def test_a_file_of_a_thousand_handlers_loads_in_no_time(tmp_path: Path) -> None:
    path = tmp_path / "chronos.yaml"
    path.write_text(
        "queues: [a]\nhandlers:\n" + "".join(f"  kind:{i}: app.mod{i}:run\n" for i in range(1000))
    )
    started = time.monotonic()
    assert len(load(path).handlers) == 1000
    assert time.monotonic() - started < 2


def test_more_mistakes_than_anyone_reads_are_counted() -> None:
    found = problems("queues:\n" + "  a: 1\n" * 3000 + "handlers: [m]\n")
    assert len(found) == 1001
    assert found[-1] == "chronos.yaml: 1,999 more problems"


def test_libyaml_and_pure_python_make_no_difference() -> None:
    text = (Path(__file__).parents[2] / "config" / "chronos.yaml").read_text()
    nodes = {repr(compose(text, loader)) for loader in (yaml.SafeLoader, yaml.CSafeLoader)}
    assert len(nodes) == 1
