"""The Django helpers, with a real Django on a SQLite file."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chronosd import handlers
from chronosd.config.load import load
from chronosd.contrib.django import close_connections, close_connections_async, enqueue_on_commit, setup
from chronosd.errors import InvalidTask
from chronosd.testing import RecordingClient, Succeeded, run, run_async
from tests.support.readme import recipe


@pytest.fixture(scope="module", autouse=True)
def django_project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    from django.conf import settings
    from django.db import connections

    folder: Path = tmp_path_factory.mktemp("django")
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "db")}},
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes"],
        LOGGING_CONFIG=None,
        USE_TZ=True,
    )
    setup()
    yield
    connections.close_all()


def test_a_task_is_enqueued_when_the_transaction_has_committed() -> None:
    """Enqueued within it, a task may run before its row can be seen."""
    from django.db import transaction

    client = RecordingClient()
    with transaction.atomic():
        enqueue_on_commit(client, "email:welcome", {"user_id": 1}, queue="mail")
        assert client.enqueued == []
    (task,) = client.enqueued
    assert (task.kind, task.args, task.queue) == ("email:welcome", {"user_id": 1}, "mail")


def test_a_task_of_a_transaction_that_is_rolled_back_is_not_enqueued() -> None:
    from django.db import transaction

    client = RecordingClient()
    with transaction.atomic():
        enqueue_on_commit(client, "email:welcome")
        transaction.set_rollback(True)
    assert client.enqueued == []


def test_without_a_transaction_it_is_enqueued_at_once() -> None:
    client = RecordingClient()
    enqueue_on_commit(client, "email:welcome")
    assert [task.args for task in client.enqueued] == [{}]


def test_arguments_that_cannot_be_stored_are_refused_while_there_is_something_to_roll_back() -> None:
    from django.db import transaction

    client = RecordingClient()
    with pytest.raises(InvalidTask), transaction.atomic():
        enqueue_on_commit(client, "email:welcome", {"n": float("nan")})


def test_a_connection_that_is_too_old_is_closed_around_each_task() -> None:
    """A worker thread lives for days; a connection that the server dropped failed every task after it."""
    from django.db import connection

    def handler(task: object) -> bool:
        return connection.connection is None

    connection.ensure_connection()
    connection.close_at = 0.0  # what CONN_MAX_AGE comes to
    assert run(handler, middleware=[close_connections]) == Succeeded(b"true")
    connection.ensure_connection()
    connection.close_at = 0.0
    run(lambda task: None, middleware=[close_connections])
    assert connection.connection is None


def test_the_connection_of_async_handlers_is_closed_as_well() -> None:
    """Their queries run in a thread of Django's own; what closed in another one closed nothing."""
    from asgiref.sync import sync_to_async
    from django.db import connection

    def open_and_age() -> None:
        connection.ensure_connection()
        connection.close_at = 0.0

    async def handler(task: object) -> bool:
        is_closed = await sync_to_async(lambda: connection.connection is None)()
        await sync_to_async(open_and_age)()
        return is_closed

    async def tasks() -> list[Any]:
        await sync_to_async(open_and_age)()
        outcomes = [await run_async(handler, middleware=[close_connections_async]) for _ in range(2)]
        return [*outcomes, await sync_to_async(lambda: connection.connection is None)()]

    assert asyncio.run(tasks()) == [Succeeded(b"true"), Succeeded(b"true"), True]


def test_the_recipe_in_readme_works() -> None:
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.db import transaction

    call_command("migrate", verbosity=0)
    client = RecordingClient()
    exec(recipe("Django", "python"), {"transaction": transaction, "User": User, "client": client})
    (task,) = client.enqueued
    assert (task.kind, task.args) == ("email:welcome", {"user_id": User.objects.get(username="ada").pk})


def test_the_configuration_in_readme_wraps_handlers_of_both_kinds(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text("async def one(task): ...\ndef two(task): ...\n")
    file = tmp_path / "chronos.yaml"
    file.write_text(
        recipe("Django", "yaml") + "queues: [default]\nhandlers: {one: 'jobs:one', two: 'jobs:two'}\n"
    )
    loaded = handlers.load(load(file))
    assert list(loaded.middleware) == [close_connections, close_connections_async]
