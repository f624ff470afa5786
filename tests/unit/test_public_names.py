"""What ``import chronosd`` offers, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import chronosd

NAMES = [
    "AsyncClient",
    "BrokerError",
    "BrokerRefused",
    "BrokerUnavailable",
    "Chain",
    "ChainInfo",
    "ChronosError",
    "Client",
    "ConfigError",
    "DuplicateTask",
    "EnqueueError",
    "Group",
    "GroupInfo",
    "Inspector",
    "InvalidTask",
    "Kind",
    "MessageError",
    "PayloadTooLarge",
    "ResultTimeout",
    "RetryIn",
    "SkipRetry",
    "State",
    "Task",
    "TaskActive",
    "TaskFailed",
    "TaskIdConflict",
    "TaskInfo",
    "TaskNotFound",
]


def test_the_public_names_are_frozen() -> None:
    assert chronosd.__all__ == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_exists_and_is_documented(name: str) -> None:
    assert getattr(chronosd, name).__doc__
    assert name in dir(chronosd)


def test_the_version_is_that_of_the_installed_package() -> None:
    assert chronosd.__version__.count(".") == 2


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Forwarder'"):
        chronosd.Forwarder  # noqa: B018 - the access is what is tested


def test_importing_the_package_imports_nothing_else() -> None:
    # the daemon catches signals before it imports anything of weight
    code = """
import sys
before = set(sys.modules)
import chronosd
print(sorted(m for m in sys.modules.keys() - before if m.partition(".")[0] not in sys.stdlib_module_names))
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "['chronosd']"
