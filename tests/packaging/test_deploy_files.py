"""The files of examples/deploy and of the repository: they are valid, run nothing as root, and name commands that exist."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.surface.test_runbook_doc import parse

from holdfast import Settings
from holdfast.cli import app
from holdfast.distribution import VERSION

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "deploy"
KUBERNETES = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text(encoding="utf-8")))
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
PROBES = {"startupProbe": "/startupz", "livenessProbe": "/livez", "readinessProbe": "/readyz"}


def command(words: list[str]) -> None:
    assert words[0] == "holdfast", words
    parse(shlex.join(words))


def dockerfile() -> list[tuple[str, str]]:
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(None, 1)[0], line.split(None, 1)[1].strip()) for line in lines]


def test_the_dockerfile_runs_a_worker_as_nobody_with_a_health_check() -> None:
    lines = dockerfile()
    known = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "ENV", "EXPOSE", "HEALTHCHECK", "CMD"}
    assert {name for name, _ in lines} == known
    (user,) = (rest for name, rest in lines if name == "USER")
    assert int(user) > 0
    after = lines[lines.index(("USER", user)) :]
    assert "RUN" not in {name for name, _ in after}
    (cmd,) = (rest for name, rest in lines if name == "CMD")
    command(json.loads(cmd))
    (check,) = (rest for name, rest in lines if name == "HEALTHCHECK")
    words = json.loads(check[check.index("[") :])
    assert words[:2] == ["python", "-c"]
    compile(words[2], "health", "exec")
    assert "/livez" in words[2]


def test_compose_waits_for_the_database_and_the_schema() -> None:
    services: dict[str, Any] = COMPOSE["services"]
    assert list(services) == ["database", "migrate", "worker"]
    for name in ("migrate", "worker"):
        command(services[name]["command"])
        assert int(services[name]["user"]) > 0
    assert services["migrate"]["depends_on"] == {"database": {"condition": "service_healthy"}}
    assert services["worker"]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
    assert services["database"]["healthcheck"]["test"][1] == "pg_isready"
    assert "/livez" in services["worker"]["healthcheck"]["test"][-1]
    assert float(services["worker"]["stop_grace_period"].removesuffix("s")) >= Settings().drain + 10
    environment = services["worker"]["environment"]
    assert environment == services["migrate"]["environment"]
    assert "$" not in environment["HOLDFAST_DATABASE_URL"], (
        "a password in an address would have to be encoded"
    )
    assert environment["PGPASSWORD"] == services["database"]["environment"]["POSTGRES_PASSWORD"]
    assert set(COMPOSE["volumes"]) == {v.split(":")[0] for v in services["database"]["volumes"]}


def test_kubernetes_has_probes_no_root_and_grace_enough() -> None:
    assert [d["kind"] for d in KUBERNETES] == ["Job", "Deployment", "PodDisruptionBudget"]
    for document in KUBERNETES[:2]:
        pod = document["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        (container,) = pod["containers"]
        command(container["command"])
    image = KUBERNETES[0]["spec"]["template"]["spec"]["containers"][0]["image"]
    assert KUBERNETES[0]["metadata"]["name"].endswith(
        f"-{image.partition(':')[2]}"
    )  # a second release is another Job
    pod = KUBERNETES[1]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] >= Settings().drain + 10
    (container,) = pod["containers"]
    (port,) = container["ports"]
    for probe, path in PROBES.items():
        assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}
    labels = KUBERNETES[1]["spec"]["template"]["metadata"]["labels"]
    assert KUBERNETES[1]["spec"]["selector"]["matchLabels"] == labels
    assert KUBERNETES[2]["spec"]["selector"]["matchLabels"] == labels


def test_keda_scales_that_deployment() -> None:
    import typer.testing

    done = typer.testing.CliRunner().invoke(app, ["monitoring", "keda"])
    scaled, authentication = yaml.safe_load_all(done.stdout)
    assert scaled["spec"]["scaleTargetRef"]["name"] == KUBERNETES[1]["metadata"]["name"]
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]


def test_the_unit_of_systemd_is_one(tmp_path: Path) -> None:
    text = (FOLDER / "worker.service").read_text(encoding="utf-8")
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[method-assign,assignment]
    unit.read_string(text)
    service = unit["Service"]
    program, *rest = shlex.split(service["ExecStart"])
    command([Path(program).name, *rest])
    assert service["User"] != "root"
    assert int(service["TimeoutStopSec"]) > Settings().drain + 10
    assert (
        unit["Unit"]["StartLimitIntervalSec"] == "0"
    )  # else it gives up after five starts within ten seconds
    if shutil.which("systemd-analyze") is None:
        return
    here = tmp_path / "worker.service"  # with a program and a folder that this machine has
    here.write_text(
        text.replace("/srv/shop/.venv/bin/holdfast", shutil.which("true") or "/bin/true"), encoding="utf-8"
    )
    done = subprocess.run(["systemd-analyze", "verify", here], capture_output=True, text=True, check=False)
    assert not re.search(r"worker\.service:\d*:? ?(Unknown|Failed to parse|Invalid)", done.stderr), (
        done.stderr
    )


def test_the_documents_quote_these_files() -> None:
    text = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    for name in ("Dockerfile", "compose.yaml", "kubernetes.yaml", "worker.service"):
        assert f"<!-- file: examples/deploy/{name} -->" in text


def test_the_citation_has_the_version_and_the_license_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(cited)
    assert (cited["version"], cited["license"]) == (VERSION, project["license"])


@pytest.mark.parametrize("name", ["bug", "wish"])
def test_an_issue_has_a_form(name: str) -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(form)
    for part in form["body"]:
        assert part["type"] in ("markdown", "textarea", "input")
        assert ("value" if part["type"] == "markdown" else "label") in part["attributes"]
