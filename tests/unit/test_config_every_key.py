"""Every key of the schema, broken in every way, in every style of writing, all in one file each time.

The table says for each key what is right and what is wrong with it; files are generated from it with one
mistake per key, and each mistake has to be told at the line and column of its key, under its path. A key
that is added to the schema fails the first test until it is in the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from chronosd.config.load import parse
from chronosd.config.schema import Config
from chronosd.config.shorthand import MODULES
from chronosd.errors import ConfigError
from tests.support.config_table import KEYS, SECTIONS
from tests.support.config_writer import STYLES, Pairs, Written, pairs, write

Expected = list[tuple[str, re.Pattern[str]]]


def problems(text_of_file: str) -> list[tuple[int, int, str, str]]:
    """What is said of a file: line, column, path, sentence."""
    with pytest.raises(ConfigError) as caught:
        parse(text_of_file, source="chronos.yaml", base=Path("/etc/chronosd"), env={"SET": "x"})
    found = []
    for line in caught.value.problems:
        assert "\n" not in line
        match = re.fullmatch(r"chronos\.yaml:(\d+):(\d+): ([^ ]+): (.*)", line)
        assert match, line
        found.append((int(match[1]), int(match[2]), match[3], match[4]))
    return found


def expect(written: Written, broken: dict[str, str], occurrence: int = 0) -> None:
    """Each broken path is told once, at its key, in words that match; and nothing else is told."""
    found = {path: (line, column, sentence) for line, column, path, sentence in problems(written.text)}
    missing, surplus = set(broken) - set(found), {p: found[p] for p in set(found) - set(broken)}
    assert not missing, f"{missing} in {written.text}"
    assert not surplus, f"{surplus} in {written.text}"
    for path, pattern in broken.items():
        line, column, sentence = found[path]
        assert (line, column) == written.marks[path][occurrence], (path, written.text)
        assert re.search(pattern, sentence), (path, sentence)


def good(*without: str) -> list[tuple[str, str]]:
    return [(path, key.good) for path, key in KEYS.items() if path not in without]


# ---- the tests --------------------------------------------------------------------------------------


def schema_paths(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[tuple[str, bool]]:
    """Every path of the schema and whether it is a section; names stand for what users name."""
    names = {"queues": "low", "handlers": "job", "schedules": "tick"}
    for attribute, info in model.model_fields.items():
        key = info.alias or attribute
        if key == MODULES:
            continue
        path = prefix + key
        sections = [info.annotation, *get_args(info.annotation)]
        section = next((s for s in sections if isinstance(s, type) and issubclass(s, BaseModel)), None)
        if key in names and section is not None and prefix == "":
            yield path, True
            path += "." + names[key]
        yield path, section is not None
        if section is not None:
            yield from schema_paths(section, path + ".")


def test_the_table_has_every_key_of_the_schema() -> None:
    paths = list(schema_paths())
    assert {path for path, section in paths if not section} == set(KEYS)
    assert {path for path, section in paths if section} == set(SECTIONS)


@pytest.mark.parametrize("style", STYLES)
def test_the_right_values_of_the_table_are_right(style: str) -> None:
    values = good(*(p for p in KEYS if p.split(".")[0] == "http"))
    written = write(style, values)
    config = parse(written.text, source="chronos.yaml", base=Path("/etc/chronosd"), env={})
    for path, marks in written.marks.items():
        assert config.where(path) == f"chronos.yaml:{marks[0][0]}:{marks[0][1]}"


WRONG = list(zip_longest(*([(path, value) for value in key.wrong] for path, key in KEYS.items())))
LOW = list(zip_longest(*([(path, value) for value in key.low] for path, key in KEYS.items())))
HIGH = list(zip_longest(*([(path, value) for value in key.high] for path, key in KEYS.items())))


def broken_by(row: tuple[tuple[str, str] | None, ...]) -> tuple[list[tuple[str, str]], dict[str, str]]:
    broken = dict(pair for pair in row if pair is not None)
    return [(path, broken.get(path, key.good)) for path, key in KEYS.items()], broken


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("row", WRONG, ids=range(len(WRONG)))
def test_every_key_of_a_wrong_type_is_told_at_its_key(style: str, row: Any) -> None:
    values, broken = broken_by(row)
    said = (
        r"must be |must not |the URL|a URL |the path of the URL |a unix:// URL|such as|a kind |a queue name "
    )
    expect(write(style, values), dict.fromkeys(broken, said))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("row", LOW, ids=range(len(LOW)))
def test_every_key_below_its_range_is_told_at_its_key(style: str, row: Any) -> None:
    values, broken = broken_by(row)
    expect(
        write(style, values),
        {p: rf"^must be at least \d.* \(got .*{re.escape(v)}" for p, v in broken.items()},
    )


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("row", HIGH, ids=range(len(HIGH)))
def test_every_key_above_its_range_is_told_at_its_key(style: str, row: Any) -> None:
    values, broken = broken_by(row)
    expect(
        write(style, values), {p: rf"^must be at most \d.* \(got .*{re.escape(v)}" for p, v in broken.items()}
    )


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("index", range(4))
def test_every_section_that_is_no_section_is_told_at_its_key(style: str, depth: int, index: int) -> None:
    broken = {path: bad[index] for path, bad in SECTIONS.items() if path.count(".") == depth - 1}
    whole_sections = tuple(path + "." for path in broken)
    values = [(p, v) for p, v in good() if not p.startswith(whole_sections)]
    written = write(style, [*values, *broken.items()])
    forms = "must be (a mapping|a URL or a mapping|a weight or a mapping|an import path or a mapping)"
    expect(written, dict.fromkeys(broken, forms + r".* \(got "))


@pytest.mark.parametrize("style", STYLES)
def test_every_key_written_twice_is_told_at_the_second_with_the_line_of_the_first(style: str) -> None:
    twice = [pair for pair in good() for _ in range(2)]
    written = write(style, twice)
    first = {path: marks[0][0] for path, marks in written.marks.items()}
    keys = {p: re.escape(f'duplicate key "{p.rpartition(".")[2]}" (first at line {first[p]})') for p in KEYS}
    expect(written, keys, occurrence=1)


@pytest.mark.parametrize("style", STYLES)
def test_every_section_written_twice_is_told_at_the_second(style: str) -> None:
    for depth in (0, 1, 2):
        tree = pairs(good())
        paths = {path for path in SECTIONS if path.count(".") == depth}
        written = Written()
        STYLES[style](written, doubled(tree, paths))
        expect(written, {p: rf'^duplicate key "{p.rpartition(".")[2]}"' for p in paths}, occurrence=1)


def doubled(tree: Pairs, paths: set[str]) -> Pairs:
    out: Pairs = []
    for path, value in tree:
        inner = doubled(value, paths) if isinstance(value, list) else value
        out += [(path, inner)] * (2 if path in paths else 1)
    return out


@pytest.mark.parametrize("style", STYLES)
def test_every_key_misspelt_is_unknown_and_the_right_one_is_named(style: str) -> None:
    sections = [p for p in SECTIONS if p not in ("queues.low", "handlers.job", "schedules.tick")]
    names = [path for path in [*KEYS, *sections] if not path.startswith("schedules.tick.args")]
    misspelt = {path: path + "x" for path in names}
    written = write(style, [*good(), *((wrong, "1") for wrong in misspelt.values())])
    expected = {}
    for path, wrong in misspelt.items():
        key = path.rpartition(".")[2]
        expected[wrong] = f'^unknown key "{key}x"; did you mean "{key}"\\?$'
    expect(written, expected)


EXPANSIONS = {
    '"${NO_SUCH_VARIABLE}"': "^the environment variable NO_SUCH_VARIABLE is not set; set it or write",
    '"a${NO_SUCH_VARIABLE}b"': "^the environment variable NO_SUCH_VARIABLE is not set; set it or write",
    '"${SET} ${SET"': r"^\$\{SET is not closed; write \$\$ for a dollar sign$",
    '"${}"': r"^must be \$\{NAME\} or \$\{NAME:-default\} \(got \$\{\}\)$",
    '"${SET-x}"': r"^must be \$\{NAME\} or \$\{NAME:-default\} \(got \$\{SET-x\}\)$",
    '"${1ST}"': r"^must be \$\{NAME\} or \$\{NAME:-default\} \(got \$\{1ST\}\)$",
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("bad", EXPANSIONS)
def test_every_key_with_a_bad_expansion_is_told_at_its_key(style: str, bad: str) -> None:
    keys = [path for path in KEYS if path != "schedules.tick.args"]
    written = write(style, [(path, bad) for path in keys])
    expect(written, dict.fromkeys(keys, EXPANSIONS[bad]))


@pytest.mark.parametrize("style", STYLES)
def test_every_key_that_expands_to_nonsense_is_told_without_the_value(style: str) -> None:
    values = [(path, '"${SET}<&>${SET}"') for path in KEYS if path != "schedules.tick.args"]
    # any text is right for these in this version
    free = {"redis.password_file", "control_socket"}
    free |= {"on_dead_letter.kind", "on_dead_letter.queue", "schedules.tick.kind", "schedules.tick.queue"}
    free |= {"namespace"}
    written = write(style, values)
    expected = {
        path: r"\(got the value of \"\$\{SET\}<&>\$\{SET\}\"\)$" for path, _ in values if path not in free
    }
    expect(written, expected)


@pytest.mark.parametrize("style", STYLES)
def test_every_key_takes_its_right_value_from_the_environment(style: str) -> None:
    values = [(path, key.good) for path, key in KEYS.items() if not key.good.startswith(("[", "{"))]
    values = [(p, v) for p, v in values if v != "null" and p.split(".")[0] != "http"]
    env = {path.replace(".", "_").upper(): value for path, value in values}
    written = write(style, [(path, f'"${{{path.replace(".", "_").upper()}}}"') for path, _ in values])
    plain = parse(write(style, values).text, source="chronos.yaml", base=Path("/x"), env={})
    assert parse(written.text, source="chronos.yaml", base=Path("/x"), env=env) == plain
