"""Texts that are no YAML, or more YAML than a configuration needs: one line, with its place and a remedy."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from chronosd.config.load import SyntaxProblem, compose, parse
from chronosd.errors import ConfigError
from tests.support.waiting import at_most


def problem(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, source="chronos.yaml", base=Path("/x"), env={})
    (line,) = caught.value.problems
    assert "\n" not in line
    return line.removeprefix("chronos.yaml:")


COLON = (
    'a colon cannot stand here; quote a value that starts with * or @ or ends with ":", or that contains ": "'
)
NO_KEY = "a key cannot stand here: wrong indentation, or a colon is missing in the line above"
INDENT = "is not indented as the lines above it, or a quote or colon is missing or too much"
NO_ESCAPE = "is not YAML: while scanning a double-quoted scalar: found unknown escape character 'q'"
OPEN = "a comma is missing, or the end of what {} opened in line {}; quote values with any of {{}}[],"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("queues:\n\tlow: 1\n", "2:1: a tab cannot be used here; indent with spaces"),
        ("queues:\n  low:\n\t  weight: 1\n", "3:1: a tab cannot be used here; indent with spaces"),
        ("cron: * * * * *\n", '1:7: a value that starts with * must be quoted ("*...")'),
        ("cron: */5 * * * *\n", '1:7: a value that starts with * must be quoted ("*...")'),
        ("a: *all\n", '1:4: unknown alias *all; a value that starts with * must be quoted ("*all")'),
        ("a: @daily\n", "1:4: a value that starts with @ must be quoted"),
        ("a: `x`\n", "1:4: a value that starts with ` must be quoted"),
        ("handlers:\n  email:send: mail:\n", f"2:19: {COLON} (here the value of email:send)"),
        ("a: b: c\n", f"1:5: {COLON} (here the value of a)"),
        ("a: {w: ${W}}\n", "1:9: a ${...} inside { } or [ ] must be quoted"),
        ("a: [${W}]\n", "1:6: a ${...} inside { } or [ ] must be quoted"),
        ("a: 1\n b: 2\n", f"2:3: {NO_KEY}"),
        ("queues\n  low: 1\n", f"2:6: {NO_KEY}"),
        ("a: - b\n", "1:4: a list cannot begin here; put the - on a line of its own"),
        ("a: [1, 2\nb: 3\n", f"2:2: {OPEN.format('[', 1)}"),
        ("a: {b: 1\n", f"2:1: {OPEN.format('{', 1)}"),
        ("a: 'b\n", "1:4: the closing quote of this value is missing"),
        ("a: 'b'c\n", f"1:7: {INDENT}"),
        ("- a\nb: 1\n", f"2:1: {INDENT}"),
        ("a: 1\n---\nb: 1\n", "2:1: a second document begins here; the file must have only one"),
        ("", "1:1: the file is empty; queues and handlers are required"),
        ("# only a comment\n", "1:1: the file is empty; queues and handlers are required"),
        ("---\n", "2:1: must be a mapping of keys such as queues and handlers (got nothing)"),
        ("- a\n- b\n", "1:1: must be a mapping of keys such as queues and handlers (got a list)"),
        ("\n\nword\n", "3:1: must be a mapping of keys such as queues and handlers (got \"word\")"),
        ("a: &x [*x]\n", "1:8: *x stands inside what it names"),
        ('a: "\\q"\n', f"1:6: {NO_ESCAPE}"),
        ("a: \x07\n", "1:4: control character U+0007; remove it"),
    ],
)  # fmt: skip
def test_a_text_that_is_no_yaml_is_one_line_that_names_the_remedy(text: str, said: str) -> None:
    assert problem(text) == said


def test_aliases_that_multiply_are_stopped(caplog: pytest.LogCaptureFixture) -> None:
    """Nine lists of nine aliases, nine deep: 387 million values out of 600 bytes."""
    names = "abcdefghi"
    bomb = "a: &a [" + ", ".join(["x"] * 9) + "]\n"
    bomb += "".join(f"{n}: &{n} [{', '.join(['*' + m] * 9)}]\n" for m, n in pairwise(names))
    started = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        parse(bomb, source="chronos.yaml", base=Path("/x"), env={})
    assert any("value number 100,000, aliases followed: too many" in p for p in caught.value.problems)
    assert len(caught.value.problems) < 20
    assert time.monotonic() - started < at_most(5)


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_nesting_without_end_is_stopped_and_never_overflows_a_stack(opening: str) -> None:
    for depth in (100, 2_000, 20_000, 150_000):
        started = time.monotonic()
        assert problem("a:\n  " + opening * depth).split(":")[0].isdigit()
        assert time.monotonic() - started < at_most(10)


@given(
    st.text(alphabet=st.sampled_from("ab:*&![]{}#|>'\"%@`-?,. \t\n\r$\\01~<é\u2028\ufeff\x00"), max_size=60)
)
@example("a: !<\n")
@example("? ")
@example("!!set {a}")
@example("&a")
@example("'\\ud800'")
@example('"\\ud800"')
def test_any_text_is_a_configuration_or_a_list_of_lines(text: str) -> None:
    problems: tuple[str, ...] = ("f:1:1: none",)
    try:
        parse(text, source="f", base=Path("/x"), env={})
    except ConfigError as error:
        problems = error.problems
    assert problems
    assert all(line.startswith("f:") and line.isprintable() for line in problems)


@given(st.text(alphabet=st.sampled_from("ab:*&[]{}'\"- \n01~<,."), max_size=40))
def test_pythons_parser_and_libyaml_see_the_same_nodes(text: str) -> None:
    def seen(loader: object) -> str | None:
        try:
            return repr(compose(text, loader))
        except SyntaxProblem:
            return None

    slow, fast = seen(yaml.SafeLoader), seen(yaml.CSafeLoader)
    # what only one of them takes is taken where it is installed; what both take means the same
    assert slow is None or fast is None or slow == fast
