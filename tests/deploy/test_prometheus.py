"""The alert rules for Prometheus and the dashboard for Grafana."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

from kestrelmq.client import Client
from tests.support.server import running_server

_DEPLOY = Path(__file__).parents[2] / "deploy"
_RULES = _DEPLOY / "prometheus" / "kestrelmq.rules.yml"
_DASHBOARD = _DEPLOY / "grafana" / "kestrelmq.json"
_METRIC = re.compile(r"\bkestrelmq_\w+")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of all metrics of a server whose queue is used."""
    with running_server(tmp_path_factory.mktemp("server")) as server:
        with Client(server.address) as client:
            client.put("jobs", b"hello")
            assert client.get("jobs") == b"hello"
        with urlopen(f"http://127.0.0.1:{server.ports['admin']}/metrics") as reply:
            shown = reply.read().decode()
    return set(re.findall(r"^kestrelmq_\w+", shown, re.MULTILINE))


def alerts() -> dict[str, dict[str, Any]]:
    """Return the rules by the name of their alert."""
    [group] = yaml.safe_load(_RULES.read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


@pytest.mark.parametrize(
    "arguments",
    [["check", "rules", _RULES], ["test", "rules", _RULES.with_suffix(".test.yml")]],
    ids=["check", "test"],
)
def test_prometheus_accepts_the_rules(arguments: list[str]) -> None:
    """`promtool test` plays the metrics of a story, and looks which alerts fire when."""
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_has_a_severity_and_a_story() -> None:
    """Alertmanager chooses by the severity whom to wake up."""
    severities = {name: rule["labels"]["severity"] for name, rule in alerts().items()}
    assert set(severities.values()) == {"critical", "warning"}
    assert severities["KestrelDown"] == "critical"
    assert severities["KestrelDeadLetters"] == "warning"
    stories = yaml.safe_load(_RULES.with_suffix(".test.yml").read_text())["tests"]
    told: dict[str, set[bool]] = {name: set() for name in severities}
    for story in stories:
        for check in story["alert_rule_test"]:
            told[check["alertname"]].add("exp_alerts" in check)
    # Each fires, and does not always.
    assert all(outcomes == {True, False} for outcomes in told.values())


def test_the_rules_ask_for_metrics_that_there_are(exported: set[str]) -> None:
    """A rule with a name that nothing exports would never fire."""
    wanted = set(_METRIC.findall(" ".join(rule["expr"] for rule in alerts().values())))
    assert wanted
    assert wanted <= exported


def test_the_dashboard_asks_for_metrics_that_there_are(exported: set[str]) -> None:
    """Nor would a panel with one show anything."""
    dashboard = json.loads(_DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [one["query"] for one in dashboard["templating"]["list"]]
    wanted = set(_METRIC.findall(" ".join(queries)))
    assert len(wanted) > len(dashboard["panels"])
    assert wanted <= exported


def test_the_queries_of_the_dashboard_can_be_parsed(tmp_path: Path) -> None:
    """Promtool reads them as rules, with values in the place of Grafana's variables."""
    queries = [
        target["expr"].replace("$instance", "a").replace("$queue", "jobs")
        for panel in json.loads(_DASHBOARD.read_text())["panels"]
        for target in panel["targets"]
    ]
    rules = [{"record": f"panel_{number}", "expr": query} for number, query in enumerate(queries)]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
