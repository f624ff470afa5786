"""The recipes in README.md do what they say. (Django's is tried in test_django.py.)"""

from __future__ import annotations

from typing import Any

import pytest

from chronosd import Client, DuplicateTask, Task
from chronosd.testing import RecordingClient, Succeeded
from tests.conftest import OF_THE_SESSION
from tests.support.readme import recipe


async def greet(task: Task[dict[str, str]]) -> str:
    return f"hello, {task.args['name']}"


def sign_up(client: Any, name: str) -> None:
    client.enqueue("email:welcome", {"name": name}, unique="1h")


def test_the_tests_in_readme_pass(chronosd_server: Any) -> None:
    OF_THE_SESSION.add(chronosd_server.pid)
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


def test_the_workflows_in_readme_come_to_their_ends() -> None:
    functions, found, calls = recipe("Workflows", "python").partition("pages = ")
    names: dict[str, Any] = {}
    exec(functions, names)
    handlers = {
        kind: names[kind.partition(":")[2]] for kind in ("page:fetch", "page:total", "report:publish")
    }
    client = names["client"] = RecordingClient(inline=True, handlers=handlers)
    exec(found + calls, names)
    assert client.enqueued[2].outcome == Succeeded(b"30")
    assert client.enqueued[-1].outcome == Succeeded(b'"30 lines"')
    assert len(client.enqueued) == 8
