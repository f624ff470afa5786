"""The recipe for tests in README.md does what it says. (Django's is tried in test_django.py.)"""

from __future__ import annotations

from typing import Any

import pytest

from chronosd import Client, DuplicateTask, Task
from tests.support.readme import recipe


async def greet(task: Task[dict[str, str]]) -> str:
    return f"hello, {task.args['name']}"


def sign_up(client: Any, name: str) -> None:
    client.enqueue("email:welcome", {"name": name}, unique="1h")


def test_the_tests_in_readme_pass(chronosd_server: Any) -> None:
    names: dict[str, Any] = {
        "Client": Client,
        "DuplicateTask": DuplicateTask,
        "greet": greet,
        "pytest": pytest,
        "sign_up": sign_up,
    }
    exec(recipe("Tests", "python"), names)
    tests = {name: test for name, test in names.items() if name.startswith("test_")}
    assert len(tests) == 3
    for test in tests.values():
        test(*[chronosd_server] * test.__code__.co_argcount)
