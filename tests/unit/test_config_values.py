"""What stands in scalars and keys: YAML 1.2 types, duplicates, merge keys, expansions, secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronosd.config.schema import RedisConfig
from chronosd.errors import ConfigError
from tests.support.config_text import MINIMAL, problems, read


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
