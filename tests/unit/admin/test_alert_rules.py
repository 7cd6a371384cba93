"""The alert rules for Prometheus in the documentation."""

import asyncio
import re
from pathlib import Path

from kestrelmq.admin.prometheus import Exposition
from tests.support.turning import Turning

_DOCUMENT = Path(__file__).parents[3] / "docs" / "operations.md"


def rules() -> dict[str, str]:
    """Return the text of each rule, by the name of its alert."""
    text = _DOCUMENT.read_text().partition("### Alerts")[2].partition("```yaml")[2]
    rules = text.partition("```")[0].split("- alert: ")[1:]
    return {name: rule for name, _, rule in (one.partition("\n") for one in rules)}


def test_every_rule_has_a_severity() -> None:
    """Prometheus' Alertmanager chooses by it whom to wake up."""
    severities = {
        name: re.findall(r"labels: { severity: (critical|warning) }", rule)
        for name, rule in rules().items()
    }
    assert severities["KestrelDown"] == ["critical"]
    assert severities["KestrelDeadLetters"] == ["warning"]
    assert {len(found) for found in severities.values()} == {1}


def test_the_rules_ask_for_metrics_that_there_are(tmp_path: Path) -> None:
    """A rule with a name that nothing exports would never fire."""
    with Turning(tmp_path) as turning:
        turning.collection.obtain("jobs")
        shown = b"".join(asyncio.run(Exposition(turning.context).render())).decode()
    wanted = set(re.findall(r"\bkestrelmq_\w+", "".join(rules().values())))
    assert wanted
    assert wanted <= set(re.findall(r"^kestrelmq_\w+", shown, re.MULTILINE))
