"""The alert rules and the dashboard: they are valid, and speak of metrics and pages that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from tests.processes import PATIENCE
from tests.test_docs import anchors, in_first_column, read
from tests.test_house import CHECKOUT
from tests.test_prometheus import everything, scraped, series_of

__all__ = ["everything"]

FOLDER = CHECKOUT / "docs" / "prometheus"
RULES = (FOLDER / "alerts.yml").read_text()
ALERTS: dict[str, str] = dict(
    re.findall(
        r"^      - alert: (\w+)\n(.*?)(?=^      - alert: |\Z)", RULES, re.DOTALL | re.MULTILINE
    )
)
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
VARIABLES = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
EXPRESSIONS = [
    *[target["expr"] for panel in PANELS for target in panel["targets"]],
    *[each["query"]["query"] for each in VARIABLES.values() if each["type"] == "query"],
]
WIDTH = 24  # of a dashboard, in the grid's columns

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="needs promtool")


def promtool(*arguments: str | Path) -> str:
    """Run the tool that comes with Prometheus, and return what it says; it must be content."""
    done = subprocess.run(
        [str(PROMTOOL), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def metrics_in(text: str) -> set[str]:
    """Return the metrics that an expression names."""
    return set(re.findall(r"\bjobqueue_\w+", text))


@pytest.fixture
def exported(everything: None, client: Client) -> set[str]:
    """The names of all samples of a real scrape."""
    return {name for name, _ in series_of(scraped(client))}


@pytest.mark.django_db
class TestMetrics:
    def test_that_the_alerts_name_are_exported(self, exported: set[str]) -> None:
        assert len(metrics_in(RULES)) > 5
        assert metrics_in(re.sub(r"#.*|runbook:.*|jobqueue\.contrib\S*", "", RULES)) <= exported

    def test_that_the_dashboard_names_are_exported(self, exported: set[str]) -> None:
        named = {metric for text in EXPRESSIONS for metric in metrics_in(text)}
        assert len(named) > 10
        assert named <= exported

    def test_that_are_exported_are_described(self, exported: set[str]) -> None:
        families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in exported}
        described = {code.partition("{")[0] for code in in_first_column(read("operations.md"))}
        assert {name for name in described if name.startswith("jobqueue_")} == families


class TestAlerts:
    def test_are_those_of_the_issue(self) -> None:
        assert set(ALERTS) == {
            "JobqueueOldestAge",
            "JobqueueDeadLettersGrowing",
            "JobqueueNoWorker",
            "JobqueueExpiredLeases",
            "JobqueueFailureRate",
            "JobqueueNearLease",
            "JobqueuePausedTooLong",
            "JobqueueMetricsAbsent",
        }

    @pytest.mark.parametrize("name", ALERTS)
    def test_say_how_bad_it_is_and_what_to_do(self, name: str) -> None:
        body = ALERTS[name]
        assert re.search(r"^          severity: (critical|warning)$", body, re.MULTILINE)
        for key in ("expr", "for", "summary", "description"):
            assert re.search(rf"^ +{key}: \S", body, re.MULTILINE), key
        [(page, anchor)] = re.findall(r"^          runbook: docs/(\S+)#(\S+)$", body, re.MULTILINE)
        assert anchors(page)[anchor] == 1

    @pytest.mark.parametrize("name", ALERTS)
    def test_are_tested_and_described(self, name: str) -> None:
        assert f"alertname: {name}\n        exp_alerts:" in (FOLDER / "alerts_test.yml").read_text()
        assert f"`{name}`" in read("operations.md")

    @needs_promtool
    def test_are_valid(self) -> None:
        assert f"{len(ALERTS)} rules found" in promtool("check", "rules", FOLDER / "alerts.yml")

    @needs_promtool
    def test_fire_when_they_should_and_not_before(self) -> None:
        promtool("test", "rules", FOLDER / "alerts_test.yml")


class TestDashboard:
    def test_is_one_of_a_present_grafana(self) -> None:
        assert DASHBOARD["schemaVersion"] >= 42
        assert {"title", "uid", "tags", "time", "refresh", "annotations"} <= set(DASHBOARD)
        assert "id" not in DASHBOARD  # Grafana gives it one

    def test_has_panels_with_all_that_they_need(self) -> None:
        assert len({panel["id"] for panel in PANELS}) == len(PANELS)
        for panel in PANELS:
            assert panel["title"]
            assert panel["type"] in {"stat", "timeseries", "heatmap", "bargauge"}
            assert set(panel["gridPos"]) == {"x", "y", "w", "h"}
            assert {"defaults", "overrides"} <= set(panel["fieldConfig"])
            refs = [target["refId"] for target in panel["targets"]]
            assert refs
            assert len(set(refs)) == len(refs)

    def test_asks_the_data_source_and_queues_that_were_chosen(self) -> None:
        assert set(VARIABLES) == {"datasource", "job", "queue"}
        for each in [*PANELS, *(target for panel in PANELS for target in panel["targets"])]:
            assert each["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for text in EXPRESSIONS:
            assert '{job=~"$job"' in text or text == "label_values(jobqueue_up, job)"

    def test_shows_first_what_wakes_people_up(self) -> None:
        first, second, *others = PANELS
        assert (first["title"], second["title"]) == ("Oldest age", "Dead letters")
        for other in others:
            if other["type"] == "stat":
                assert area(other) < area(first) == area(second)

    def test_has_panels_that_do_not_overlap(self) -> None:
        for panel in PANELS:
            assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= WIDTH
        for one, other in combinations(PANELS, 2):
            assert not cells(one) & cells(other), (one["title"], other["title"])

    def test_names_parts_of_the_runbook_that_there_are(self) -> None:
        told = [re.search(r"Runbook: (.+)\.$", panel["description"]) for panel in PANELS]
        parts = [found[1].replace(" ", "-") for found in told if found]
        assert len(parts) > 3
        for part in parts:
            assert anchors("operations.md")[part] == 1

    @needs_promtool
    def test_has_expressions_that_prometheus_understands(self, tmp_path: Path) -> None:
        rules = [
            {"record": f"expression:{number}", "expr": text.replace("$__rate_interval", "5m")}
            for number, text in enumerate(EXPRESSIONS)
            if not text.startswith("label_values")
        ]
        file = tmp_path / "rules.yml"  # JSON is YAML, too
        file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
        assert f"{len(rules)} rules found" in promtool("check", "rules", file)


def area(panel: dict[str, Any]) -> int:
    """Return how large a panel is."""
    return int(panel["gridPos"]["w"] * panel["gridPos"]["h"])


def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
    """Return the cells of the grid that a panel covers."""
    place = panel["gridPos"]
    return {
        (place["x"] + right, place["y"] + down)
        for right in range(place["w"])
        for down in range(place["h"])
    }
