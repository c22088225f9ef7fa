"""The dashboard, the alert rules and the KEDA object: valid, true to what is exposed, and in the wheel."""

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.observe import yaml_lines
from tests.observe.support import ready, with_port

from holdfast import ConfigurationError, Holdfast
from holdfast.observe import files
from holdfast.testing import Kit

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "monitoring.md"
WORDS = {  # of PromQL
    *("by", "on", "and", "or", "unless", "sum", "max", "min", "rate", "increase", "delta", "absent", "topk"),
    *(
        "histogram_quantile",
        "le",
        "queue",
        "state",
        "status",
        "outcome",
        "task",
        "service",
        "instance",
        "subscription",
    ),
}


def panels() -> list[dict[str, Any]]:
    return list(json.loads(files.dashboard())["panels"])


def rules() -> list[dict[str, Any]]:
    (group,) = yaml_lines.load(files.alert_rules())["groups"]
    return list(group["rules"])


def expressions() -> list[str]:
    return [t["expr"] for p in panels() for t in p["targets"]] + [r["expr"] for r in rules()]


def metrics_in(expression: str) -> set[str]:
    """Every name in it that is no word of the language, no label and no value."""
    bare = re.sub(r'"[^"]*"|\[[^\]]*\]|\b\d[\w.]*', " ", expression)
    return {word for word in re.findall(r"[A-Za-z_]\w*", bare) if word not in WORDS}


def test_names_are_found_in_expressions() -> None:
    assert metrics_in('max by (queue) (rate(a_b{state="x"}[5m])) > 300 unless on () c_total') == {
        "a_b",
        "c_total",
    }


def test_every_metric_that_they_ask_for_is_exposed(app: Holdfast, holdfast_kit: Callable[..., Kit]) -> None:
    asked = set().union(*(metrics_in(expression) for expression in expressions()))
    assert len(asked) > 15
    with ready(holdfast_kit(app, with_port())) as port:
        families = list(text_string_to_metric_families(port.get("/metrics").text))
    exposed = {f.name for f in families if f.type == "gauge"}
    exposed |= {f"{f.name}_total" for f in families if f.type == "counter"}
    exposed |= {f"{f.name}_bucket" for f in families if f.type == "histogram"}
    assert asked <= exposed


def test_every_label_and_value_that_they_ask_for_is_documented() -> None:
    """A selector with a typing error matches nothing, for ever and in silence."""
    rows = re.findall(
        r"^\| `(holdfast_\w+)` \| \w+ \| ([\w, ]*) ?\| (.*) \|$", DOCUMENT.read_text(), re.MULTILINE
    )
    labels = {name: ({word.strip() for word in given.split(",")}, text) for name, given, text in rows}
    for expression in expressions():
        for name, selector in re.findall(r"(holdfast_\w+)\{([^}]*)\}", expression):
            known, text = labels[name.removesuffix("_bucket")]
            for label, value in re.findall(r'(\w+)\s*(?:=~|!=|=)\s*"([^"]*)"', selector):
                assert label in known, f"{name} has no label {label}"
                assert label == "queue" or f"`{value}`" in text, f"{name} has no {label} {value}"


def test_the_dashboard_uses_the_data_source_that_one_chooses() -> None:
    found = json.loads(files.dashboard())
    assert found["uid"] == "holdfast"
    (source,) = [v for v in found["templating"]["list"] if v["type"] == "datasource"]
    assert (source["name"], source["query"]) == ("datasource", "prometheus")
    for panel in panels():
        assert panel["title"]
        assert panel["description"]
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_the_dashboard_has_no_overlaps() -> None:
    taken: set[tuple[int, int]] = set()
    assert len({p["id"] for p in panels()}) == len(panels())
    for panel in panels():
        at = panel["gridPos"]
        cells = {(at["x"] + dx, at["y"] + dy) for dx in range(at["w"]) for dy in range(at["h"])}
        assert not taken & cells, panel["title"]
        assert all(x < 24 for x, _ in cells)
        taken |= cells


def test_the_dashboard_shows_what_one_asks_first() -> None:
    titles = {p["title"] for p in panels()}
    assert titles >= {
        *("Depth by queue", "Oldest due job by queue", "Throughput by outcome", "Run time", "Wait time"),
        *("Dead letters", "Workers", "Utilisation", "Lost leases and sweeps", "Snapshot age"),
    }
    for title in ("Run time", "Wait time"):
        (panel,) = [p for p in panels() if p["title"] == title]
        assert [t["legendFormat"] for t in panel["targets"]] == ["p50", "p95", "p99"]


@pytest.mark.parametrize("rule", rules(), ids=lambda r: r["alert"])
def test_every_alert_says_what_is_wrong_and_where_to_read_on(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"]["summary"]
    assert f"`{rule['alert']}`" in DOCUMENT.read_text(encoding="utf-8")
    file, _, section = rule["annotations"]["runbook_url"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    assert section in {re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-") for h in headings}


def test_the_alerts_cover_what_goes_wrong() -> None:
    asked = " ".join(r["expr"] for r in rules())
    for name in (
        *(
            "queue_oldest_due_seconds",
            "dead_letters",
            "queue_workers",
            "expired_claims",
            "loop_blocked_total",
        ),
        *("snapshot_age_seconds", "claim_failures_total", "workflow_diverged_seconds"),
    ):
        assert f"holdfast_{name}" in asked
    assert 'outcome="lost"' in asked


def test_the_scaled_object() -> None:
    scaled, login = yaml_lines.documents(files.scaled_object("big_mail", "mailer", 20, 50))
    assert (scaled["kind"], scaled["metadata"]["name"]) == ("ScaledObject", "holdfast-big-mail")
    assert scaled["spec"]["scaleTargetRef"] == {"name": "mailer"}
    assert scaled["spec"]["maxReplicaCount"] == 50
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["metadata"] == {
        "query": "SELECT holdfast.scaler_backlog('big_mail', 1000)",
        "targetQueryValue": "20",
        "activationTargetQueryValue": "0",
    }
    assert trigger["authenticationRef"]["name"] == login["metadata"]["name"]


@pytest.mark.parametrize(
    ("queue", "deployment", "text"),
    [
        ("Big Mail'", "worker", "queue must be a name of 1 to 40 lower-case letters"),
        (
            "inbox",
            "My Worker",
            "'My Worker' cannot be the name of a Deployment. Use small letters, digits and -",
        ),
    ],
)
def test_names_that_cannot_be(queue: str, deployment: str, text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        files.scaled_object(queue, deployment, 1, 1)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("dashboard",), files.dashboard()),
        (("alerts",), files.alert_rules()),
        (
            ("keda", "-q", "bulk", "--deployment", "d", "--per-worker", "3", "--most", "2"),
            files.scaled_object("bulk", "d", 3, 2),
        ),
    ],
)
def test_the_command_prints_them(words: tuple[str, ...], expected: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "monitoring", *words], capture_output=True, text=True, check=True
    )
    assert done.stdout == expected


def test_the_command_refuses_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "monitoring", "keda", "-q", "No'"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("holdfast: queue must be a name of ")


def test_the_examples_in_the_document_are_yaml() -> None:
    examples = re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == 3
    pod, scrape, _ = (yaml_lines.documents(example) for example in examples)
    (container,) = pod[0]["containers"]
    paths = {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    assert paths == {"/startupz", "/livez", "/readyz"}
    assert scrape[0]["scrape_configs"][0]["relabel_configs"][0]["regex"] == container["ports"][0]["name"]


def test_the_tracing_example_of_the_document_runs(kit: Kit) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    (block,) = re.findall(r"<!-- skip: a tracer provider[^\n]*-->\n```python\n(.*?)```", text, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", f"url = {kit.url!r}\n{block}\napp.close()"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "traceparent" in kit.jobs("send_receipt")[0]["metadata"]


def test_they_are_in_the_wheel(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        inside = {name: archive.read(name).decode() for name in archive.namelist() if "/observe/" in name}
    assert inside["holdfast/observe/grafana/holdfast.json"] == files.dashboard()
    assert inside["holdfast/observe/alerts/holdfast.yml"] == files.alert_rules()
    assert "holdfast/observe/keda/scaledobject.yml" in inside
