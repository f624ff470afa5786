"""What commands print, and that nothing in Redis can play with the terminal."""

from __future__ import annotations

import pytest

from chronosd.cli import output


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\nb", "a\\nb"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\ud800", "\\ud800"),
        ("grüße", "grüße"),
        (None, "-"),
        (1.25, "1.2"),
    ],
)
def test_cells_are_safe_to_print(value: object, text: str) -> None:
    assert output.shown(value) == text


def test_a_table_on_a_pipe_is_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["NAME", "COUNT"], [["a", 1], ["longer", 1000]], right=["COUNT"])
    assert capsys.readouterr().out == "NAME    COUNT\na           1\nlonger   1000\n"


def test_an_empty_table_is_its_header(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["NAME", "COUNT"], [])
    assert capsys.readouterr().out == "NAME  COUNT\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": 1}, '{"a":1}'),
        (2**70, "1180591620717411303424"),
        ({"x": [2**70, "\ud800"]}, '{"x": [1180591620717411303424, "\\ud800"]}'),
        (float("inf"), "null"),
    ],
)
def test_whatever_redis_holds_has_a_json_text(value: object, text: str) -> None:
    assert output.json_text(value) == text


def test_fields_without_a_value_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_fields([("a", 1), ("bcd", "x"), ("gone", None), ("empty", "")])
    assert capsys.readouterr().out == "a    1\nbcd  x\n"


@pytest.mark.parametrize(
    ("at", "text"), [(None, None), (0, None), (1772355600, "2026-03-01T09:00:00Z"), (1e300, "1e+300")]
)
def test_an_instant_is_utc_and_any_score_has_a_text(at: float | None, text: str | None) -> None:
    assert output.instant(at) == text
