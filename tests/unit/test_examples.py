"""The example handlers, run without a queue: as an application would test its own."""

from __future__ import annotations

import smtplib
import sqlite3
import time
from contextlib import closing
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import orjson
import pytest

from chronosd.config.load import load as load_config
from chronosd.handlers import load as load_handlers
from chronosd.outcome import Failed, Postponed, Rejected, Succeeded
from chronosd.testing import run
from handlers_example import email, flaky, images, ledger, payments, reports, wrong
from tests.support.daemon import ROOT


@pytest.mark.parametrize("name", ["chronos.yaml", "dev.yaml"])
def test_every_handler_that_a_shipped_configuration_names_can_be_imported(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    registry = load_handlers(load_config(ROOT / "config" / name))
    assert {"email:send", "image:resize", "payment:charge"} <= registry.handlers.keys()


def test_a_mail_to_an_address_succeeds_without_a_mail_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SMTP_HOST", raising=False)
    assert run(email.send_email, {"to": "a@b.c"}) == Succeeded()


@pytest.mark.parametrize("address", ["", "nobody", "@b.c", "a@", "a b@c.d", "a@b.c\nBcc: all@b.c"])
def test_a_mail_to_no_address_is_rejected_at_once(address: str) -> None:
    assert isinstance(run(email.send_email, {"to": address}), Rejected)


def test_the_message_id_is_the_same_for_every_attempt_of_a_task() -> None:
    first, second = (email.compose(email.Email("a@b.c"), "<7@x>")["Message-ID"] for _ in range(2))
    assert first == second == "<7@x>"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (smtplib.SMTPRecipientsRefused({"a@b.c": (550, b"no such user")}), Rejected),
        (smtplib.SMTPRecipientsRefused({"a@b.c": (450, b"mailbox busy")}), Failed),
        (smtplib.SMTPSenderRefused(501, b"bad sender", "x"), Rejected),
        (smtplib.SMTPDataError(451, b"try again"), Failed),
        (ConnectionRefusedError("refused"), Failed),
    ],
)
def test_what_a_mail_server_refuses_for_good_is_not_tried_again(
    error: Exception, expected: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(message: EmailMessage, host: str) -> None:
        raise error

    monkeypatch.setenv("SMTP_HOST", "mail.example:25")
    monkeypatch.setattr(email, "_deliver", refuse)
    assert isinstance(run(email.send_email, {"to": "a@b.c"}), expected)


def picture(path: Path, width: int, height: int, colour: bytes = b"\x10\x20\x30") -> Path:
    images.write_ppm(path, width, height, colour * (width * height))
    return path


def test_a_picture_is_scaled_to_the_width_and_keeps_its_proportions(tmp_path: Path) -> None:
    source, target = picture(tmp_path / "big.ppm", 120, 60), tmp_path / "small.ppm"
    outcome = run(images.resize, {"source": str(source), "target": str(target), "width": 30})
    assert outcome == Succeeded(b'{"height":15,"width":30}')
    assert images.read_ppm(target) == (30, 15, b"\x10\x20\x30" * 450)


def test_a_picture_is_never_scaled_up(tmp_path: Path) -> None:
    source, target = picture(tmp_path / "big.ppm", 8, 4), tmp_path / "small.ppm"
    run(images.resize, {"source": str(source), "target": str(target)})
    assert images.read_ppm(target)[:2] == (8, 4)


def test_resizing_twice_leaves_one_picture_and_nothing_else(tmp_path: Path) -> None:
    source, target = picture(tmp_path / "big.ppm", 16, 16), tmp_path / "small.ppm"
    for _ in range(2):
        run(images.resize, {"source": str(source), "target": str(target), "width": 4})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big.ppm", "small.ppm"]


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"P6 10 10 255\nshort", b"P6 0 0 255\n"])
def test_what_is_no_picture_is_rejected(content: bytes, tmp_path: Path) -> None:
    source = tmp_path / "broken.ppm"
    source.write_bytes(content)
    outcome = run(images.resize, {"source": str(source), "target": str(tmp_path / "small.ppm")})
    assert isinstance(outcome, Rejected)


def test_a_picture_that_is_not_there_yet_is_tried_again(tmp_path: Path) -> None:
    outcome = run(images.resize, {"source": str(tmp_path / "later.ppm"), "target": str(tmp_path / "x.ppm")})
    assert isinstance(outcome, Failed)


def test_a_payload_of_the_wrong_type_is_rejected_with_the_field() -> None:
    outcome = run(images.resize, {"source": "a.ppm", "target": "b.ppm", "width": "wide"})
    assert isinstance(outcome, Rejected)
    assert "width" in outcome.error


def test_a_report_says_the_same_every_time() -> None:
    first, second = (run(reports.build, {"month": "2026-02", "orders": 100}) for _ in range(2))
    assert isinstance(first, Succeeded)
    assert first == second
    assert first.result is not None
    assert orjson.loads(first.result)["orders"] == 100


@pytest.mark.parametrize("args", [{"month": "February"}, {"month": "2026-02", "orders": 1}])
def test_a_report_that_cannot_be_is_rejected(args: dict[str, Any]) -> None:
    assert isinstance(run(reports.build, args), Rejected)


def test_the_flaky_service_answers_after_its_failures() -> None:
    args = {"failures": 2}
    outcomes = [run(flaky.fetch, args, attempt=attempt) for attempt in (1, 2, 3)]
    assert [type(one) for one in outcomes] == [Failed, Failed, Succeeded]


def test_a_busy_service_costs_no_retry() -> None:
    outcome = run(flaky.fetch, {"busy_until": time.time() + 60, "failures": 0})
    assert isinstance(outcome, Postponed)
    assert (outcome.delay_s, outcome.charge) == (0.25, False)


def test_the_wrong_one_is_rejected() -> None:
    assert run(wrong.always_wrong, {"account": "7"}) == Rejected("account '7' was closed")


def test_a_card_is_charged_once_per_task_however_often_the_handler_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXAMPLE_DATA", str(tmp_path))
    said = [run(payments.charge, {"account": "a", "cents": 100}, id=task_id) for task_id in ("1", "1", "2")]
    assert said == [Succeeded(b'"charged"'), Succeeded(b'"charged before"'), Succeeded(b'"charged"')]
    assert balance(tmp_path, "a") == 200


def test_nothing_is_charged_if_the_second_half_of_the_transaction_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXAMPLE_DATA", str(tmp_path))
    with closing(payments.connect()) as database:
        database.execute("DROP TABLE balances")
        # a view of that name: the tables are not made anew, and nothing can be inserted
        database.execute("CREATE VIEW balances AS SELECT 'a' AS account, 0 AS cents")
    with pytest.raises(sqlite3.OperationalError):
        payments.book("1", payments.Charge("a", 100))
    with closing(sqlite3.connect(tmp_path / "payments.sqlite3")) as database:
        assert database.execute("SELECT count(*) FROM charges").fetchone() == (0,)


def balance(folder: Path, account: str) -> int:
    with closing(sqlite3.connect(folder / "payments.sqlite3")) as database:
        query = "SELECT cents FROM balances WHERE account = ?"
        cents: int = database.execute(query, (account,)).fetchone()[0]
        return cents


def test_the_ledger_notes_start_and_end_of_both_sorts_of_handlers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ledger.VARIABLE, str(tmp_path / "ledger"))
    monkeypatch.setattr(ledger, "_fd", -1)
    layers = (ledger.record, ledger.record_sync)
    run(reports.build, {"month": "2026-02", "orders": 10}, id="r", middleware=layers)
    run(wrong.always_wrong, {}, id="w", middleware=layers)
    lines = [line.split() for line in (tmp_path / "ledger").read_text().splitlines()]
    assert [(line[0], line[4]) for line in lines] == [
        ("start", "r"),
        ("end", "r"),
        ("start", "w"),
        ("fail", "w"),
    ]
