"""The Grafana dashboard and the alert rules: every metric that they name exists, and promtool accepts the rules."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from gateway.app.supervisor import SupervisorPages
from gateway.config.schema import Secret
from gateway.observe.metrics import Metrics, Nodes, Sizes
from tests.docs.pages import ROOT

DASHBOARD = ROOT / "config/grafana/dashboard.json"
RULES = ROOT / "config/prometheus/alerts.yaml"
RULE_TESTS = ROOT / "config/prometheus/alerts_test.yaml"
_NAME = re.compile(r"\bmlc_gateway_\w+")
_SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


def series() -> set[str]:
    """Return the names of all series of a gateway and its supervisor."""
    metrics = Metrics()
    metrics.registry.register(Nodes(list))
    metrics.registry.register(Sizes(int, int))
    supervisor = SupervisorPages(1, None, Secret())  # type: ignore[arg-type]
    families = [*metrics.registry.collect(), *supervisor._registry.collect()]
    return {f"{family.name}{suffix}" for family in families for suffix in _SUFFIXES[family.type]}


def expressions(panels: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the queries of a dashboard."""
    for panel in panels:
        for target in panel.get("targets", ()):
            yield target["expr"]
        yield from expressions(panel.get("panels", []))


def test_every_metric_of_the_dashboard_exists_and_most_metrics_are_on_it() -> None:
    document = json.loads(DASHBOARD.read_text())
    variables = [json.dumps(one) for one in document["templating"]["list"]]
    named = set(_NAME.findall(" ".join([*expressions(document["panels"]), *variables])))
    known = series()
    assert named <= known, named - known
    families = {re.sub("_(bucket|sum|count)$", "", name) for name in known}
    shown = {re.sub("_(bucket|sum|count)$", "", name) for name in named}
    assert families - shown == {
        "mlc_gateway_cluster_copies_total",
        "mlc_gateway_node_pool_rebuilds_total",
        "mlc_gateway_worker_restarts_total",
    }, "they have alerts"


def test_panels_have_different_ids_and_do_not_overlap() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_every_metric_of_the_rules_exists() -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    named = set(_NAME.findall(" ".join(rule["expr"] for rule in rules)))
    assert named <= series(), named - series()
    texts = " ".join(text for rule in rules for text in rule["annotations"].values())
    assert set(_NAME.findall(texts)) <= series()
    assert all(set(rule["annotations"]) == {"summary", "action"} and rule["labels"]["severity"] for rule in rules)


def test_every_rule_has_a_test() -> None:
    alerts = [rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    silent, firing = yaml.safe_load(RULE_TESTS.read_text())["tests"]
    assert [one["alertname"] for one in silent["alert_rule_test"]] == alerts
    assert [sample["labels"].split('"')[1] for sample in firing["promql_expr_test"][0]["exp_samples"]] == alerts


@pytest.mark.parametrize("command", [["check", "rules", RULES], ["test", "rules", RULE_TESTS]])
def test_promtool_accepts_the_rules(command: list[Any]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        if os.environ.get("MLC_REQUIRE_PROMTOOL") == "1":
            pytest.fail("promtool is not installed (Debian's package prometheus)")
        pytest.skip("promtool is not installed (Debian's package prometheus)")
    result = subprocess.run([promtool, *command], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_promtool_reads_the_queries_of_the_dashboard(tmp_path: Any) -> None:
    """As recording rules, with values in place of Grafana's variables."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian's package prometheus)")
    found = expressions(json.loads(DASHBOARD.read_text())["panels"])
    queries = [one.replace("$__rate_interval", "5m").replace("$job", ".*").replace("$instance", ".*") for one in found]
    rules = [{"record": f"query_{number}", "expr": query} for number, query in enumerate(queries)]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    result = subprocess.run([promtool, "check", "rules", path], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
