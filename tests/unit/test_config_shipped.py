"""The files that come with chronosd are right and complete."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from chronosd.config import json_schema
from chronosd.config.load import load
from chronosd.config.schema import Config
from chronosd.config.shorthand import MODULES

CONFIG = Path(__file__).parents[2] / "config"


@pytest.fixture(autouse=True)
def _no_server_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHRONOSD_REDIS_URL", raising=False)


def test_the_annotated_file_is_right_and_its_values_are_the_defaults() -> None:
    config = load(CONFIG / "chronos.yaml")
    own = {"queues", "handlers", "pythonpath"}
    for key, info in Config.model_fields.items():
        if key not in own and info.alias != MODULES:
            assert getattr(config, key) == info.default, key


def test_the_annotated_file_has_every_key() -> None:
    text = (CONFIG / "chronos.yaml").read_text()
    keys = [info.alias or key for key, info in Config.model_fields.items() if info.alias != MODULES]
    for key in keys:
        assert re.search(rf"^{key}:", text, re.MULTILINE), key
    for key in ("password_file", "max_in_flight", "rate_limit", "max_archived", "max_completed", "misfire"):
        assert key in text


def test_both_files_serve_the_examples_with_the_repository_importable() -> None:
    for name in ("chronos.yaml", "dev.yaml"):
        config = load(CONFIG / name)
        assert config.pythonpath == (str(CONFIG.parent),)
        assert config.handlers["email:send"].path == "handlers_example.email:send_email"
        assert set(config.handlers) == {
            "email:send", "image:resize", "report:build", "flaky:fetch", "always:wrong", "payment:charge",
        }  # fmt: skip
        assert set(config.queues) == {"critical", "default", "low"}


def test_the_development_file_brings_its_own_server_and_logs_for_people() -> None:
    config = load(CONFIG / "dev.yaml")
    assert config.redis.url == "embedded://"
    assert config.log.format == "console"


def test_the_shipped_json_schema_is_current() -> None:
    """Mend it with ``python -m chronosd.config.json_schema > config/chronos.schema.json``."""
    assert json.loads((CONFIG / "chronos.schema.json").read_text()) == json_schema.json_schema()
    assert (CONFIG / "chronos.schema.json").read_text() == json_schema.text()


def test_the_json_schema_explains_every_key_and_knows_the_short_forms() -> None:
    schema = json_schema.json_schema()
    assert schema["required"] == ["queues", "handlers"]
    sections = [schema, *schema["$defs"].values()]
    for section in sections:
        assert section["additionalProperties"] is False
        for key, value in section["properties"].items():
            assert value.get("description"), key
    forms = {
        key: [form.get("type") for form in schema["properties"][key]["anyOf"]]
        for key in ("queues", "handlers")
    }
    assert forms == {"queues": ["object", "array"], "handlers": ["object", "array"]}
