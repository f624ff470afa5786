"""Charges a card: a handler whose effect must not happen twice, made idempotent by ``task.id``.

A worker can be killed after the money has moved and before the success is in Redis; then the task runs again.
No queue can prevent that, only the handler can notice. ``task.id`` is the same over all attempts, so the
charge is stored under it, in the same transaction as the effect: either both are there or neither. The second
run finds the first one's row and returns what that one returned.

Where the effect is elsewhere (a payment provider), send ``task.id`` along as the idempotency key: it is what
such keys are made for.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from chronosd import SkipRetry, Task

_TABLES = """
CREATE TABLE IF NOT EXISTS charges (task_id TEXT PRIMARY KEY, account TEXT NOT NULL, cents INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS balances (account TEXT PRIMARY KEY, cents INTEGER NOT NULL);
"""


@dataclass
class Charge:
    """What a producer enqueues."""

    account: str
    cents: int
    receipt_s: float = 0.0
    """How long the (invented) receipt printer takes, after the money has moved."""


def charge(task: Task[Charge]) -> str:
    """Takes the money once, however often it is called."""
    wanted = task.args
    if wanted.cents <= 0:
        raise SkipRetry(f"cannot charge {wanted.cents} cents")
    booked = book(task.id, wanted)
    time.sleep(wanted.receipt_s)
    return "charged" if booked else "charged before"


def book(task_id: str, wanted: Charge) -> bool:
    """Moves the money unless it has been moved for this task; whether it did."""
    # the second `database` is a transaction: committed as a whole, or not at all
    with closing(connect()) as database, database:
        booked = database.execute(
            "INSERT INTO charges VALUES (?, ?, ?) ON CONFLICT (task_id) DO NOTHING",
            (task_id, wanted.account, wanted.cents),
        ).rowcount
        if booked:
            database.execute(
                "INSERT INTO balances VALUES (?, ?)"
                " ON CONFLICT (account) DO UPDATE SET cents = cents + excluded.cents",
                (wanted.account, wanted.cents),
            )
        return bool(booked)


def connect() -> sqlite3.Connection:
    """The database: ``$EXAMPLE_DATA/payments.sqlite3``, by default in a private temporary directory."""
    default = Path(tempfile.gettempdir()) / f"chronosd-example-{os.geteuid()}"
    folder = Path(os.environ.get("EXAMPLE_DATA") or default)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    database = sqlite3.connect(folder / "payments.sqlite3", timeout=30)
    database.execute("PRAGMA journal_mode = WAL")
    database.executescript(_TABLES)
    return database
