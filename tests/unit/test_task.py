"""What a handler is given."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from chronosd.task import Task


def test_the_deadline_is_an_aware_datetime() -> None:
    task = Task("id", "kind", "queue", {}, deadline_at=1_700_000_000.5)
    assert task.deadline == datetime(2023, 11, 14, 22, 13, 20, 500_000, tzinfo=UTC)
    assert Task("id", "kind", "queue", {}).deadline is None


def test_the_repr_does_not_show_the_arguments() -> None:
    assert "secret" not in repr(Task("id", "kind", "queue", {"password": "secret"}))


def test_a_task_takes_no_other_attribute() -> None:
    task = Task("id", "kind", "queue", {})
    with pytest.raises(AttributeError):
        task.retires = 3  # type: ignore[attr-defined]
