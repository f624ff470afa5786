"""The alert rules and the dashboard that are shipped: they can be read, and ask for what is exported."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from chronosd.metrics import FAMILIES
from chronosd.paths import __file__ as inside
from chronosd.states import State

CONFIG = Path(inside).resolve().parents[1] / "config"
RULES = CONFIG / "prometheus-rules.yaml"
DASHBOARD = CONFIG / "grafana-dashboard.json"
OF_HISTOGRAMS = ("_bucket", "_sum", "_count")
OF_PROMETHEUS = {"job", "instance", "le"}


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    yield from (target["expr"] for panel in panels() for target in panel["targets"])
    yield from (one["query"] for one in json.loads(DASHBOARD.read_text())["templating"]["list"])


def exported() -> dict[str, set[str]]:
    """Labels by name, with the names of a histogram's parts."""
    found: dict[str, set[str]] = {}
    for family in FAMILIES:
        for suffix in OF_HISTOGRAMS if family.type == "histogram" else ("",):
            found[family.name + suffix] = set(family.labels)
    return found


def test_what_they_ask_for_is_exported_and_has_the_labels_they_ask_for() -> None:
    known = exported()
    asked = 0
    for expression in expressions():
        for name, matchers in re.findall(r"\b(chronos_\w+)(?:\{([^}]*)\})?", expression):
            assert name in known, expression
            labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
            assert labels <= known[name] | OF_PROMETHEUS, expression
            asked += 1
        grouped = {word for words in re.findall(r"by \(([^)]*)\)", expression) for word in words.split(", ")}
        names = re.findall(r"\bchronos_\w+", expression)
        for label in grouped - OF_PROMETHEUS:
            assert any(label in known[name] for name in names), expression
    assert asked > 40


def test_every_metric_is_on_the_dashboard() -> None:
    text = " ".join(target["expr"] for panel in panels() for target in panel["targets"])
    missing = [family.name for family in FAMILIES if family.name not in text]
    assert missing == []


def test_states_and_outcomes_in_them_are_words_of_ours() -> None:
    from chronosd.metrics import End

    known = {state.label for state in State} | {"ready", "target"}
    for expression in expressions():
        assert set(re.findall(r'state="(\w+)"', expression)) <= known
        assert set(re.findall(r'outcome="(\w+)"', expression)) <= {end.label for end in End}


def test_each_alert_says_what_is_wrong_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    wanted = ("DeadLettersGrow", "QueueLatency", "OldestPendingIdle", "WorkerCrashLoop", "RedisAway")
    for name in (*wanted, "SchedulerWithoutLeader"):
        assert f"Chronos{name}" in names
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical"), rule
        assert rule["annotations"]["summary"], rule
        assert rule["annotations"]["description"], rule


def test_the_dashboard_has_no_overlapping_panels_and_no_source_of_its_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        assert panel["datasource"]["uid"] == "${datasource}"
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids)


def test_prometheus_itself_takes_every_expression_where_its_tool_is_there(tmp_path: Path) -> None:
    """Where there is no promtool the expressions are at least balanced; .ci/run gets it."""
    for expression in expressions():
        for opening, closing in ("()", "{}", "[]"):
            assert expression.count(opening) == expression.count(closing), expression
    tool = shutil.which("promtool")
    if tool is None:
        return
    shown = [target["expr"] for panel in panels() for target in panel["targets"]]
    written = [re.sub(r"\$__\w+", "5m", text).replace("$job", ".*").replace("$queue", ".*") for text in shown]
    made = [{"record": f"panel:{i}", "expr": text} for i, text in enumerate(written)]
    of_dashboard = tmp_path / "dashboard.yaml"
    of_dashboard.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": made}]}))
    for path, count in ((RULES, len(rules())), (of_dashboard, len(made))):
        checked = subprocess.run(
            [tool, "check", "rules", str(path)], capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert f"{count} rules found" in checked.stdout
