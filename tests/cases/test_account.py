"""The account of the cases is true: what it names is there."""

from __future__ import annotations

import re
from pathlib import Path

from tests import cases

_FOLDERS = {"b": "broker", "d": "daemon", "u": "unit", "c": "cases"}


def test_every_test_that_the_account_names_exists() -> None:
    account = cases.__doc__ or ""
    _, _, lines = account.partition("\nA. ")
    tests = Path(__file__).parents[1]
    named = 0
    for folder, module, names in re.findall(
        r"\b([bduc]) (test_\w+)(?:: ((?:[a-z0-9_.]+(?:, *\n? *|;)?)+))?", lines
    ):
        source = tests / _FOLDERS[folder] / f"{module}.py"
        assert source.is_file(), source
        for name in re.findall(r"[a-z0-9]+(?:_[a-z0-9]+){2,}", names):
            assert f"def test_{name}" in source.read_text(), f"{name} is not in {source}"
            named += 1
    assert named > 25


def test_every_weak_spot_has_its_entry_in_its_place() -> None:
    _, _, lines = (cases.__doc__ or "").partition("\nWeak spots of chronos-go, by their numbers\n")
    assert [int(number) for number in re.findall(r"^ {4}(\d+) ", lines, re.MULTILINE)] == [*range(1, 30)]
