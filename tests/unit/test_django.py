"""The Django helpers, with a real Django on a SQLite file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chronosd.contrib.django import enqueue_on_commit, fresh_connections, setup
from chronosd.errors import InvalidTask
from chronosd.testing import RecordingClient, Succeeded, run


@pytest.fixture(scope="module", autouse=True)
def django_project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    from django.conf import settings
    from django.db import connections

    folder: Path = tmp_path_factory.mktemp("django")
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "db")}},
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
    assert run(handler, middleware=[fresh_connections]) == Succeeded(b"true")
    connection.ensure_connection()
    connection.close_at = 0.0
    run(lambda task: None, middleware=[fresh_connections])
    assert connection.connection is None
