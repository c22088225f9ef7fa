"""The peers scenario: pinned, each in a database of its own; a peer that fails stops no other and becomes no figure."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from bench.peers import PEERS, Peer, PeerFailed, measure, once
from bench.peers.run import describe, fresh_database
from bench.peers.workflows import IN_FLIGHT, others, own, run_count

from bench import peers
from holdfast.bench.report import Report
from holdfast.bench.targets import verdicts
from holdfast.testing import TestServer

WORKS = """
import json, sys
import psycopg
mode, url, jobs, settings = sys.argv[1:]
with psycopg.connect(url) as connection:
    connection.execute("CREATE TABLE here (n int)")
found = {"seconds": 0.5, "cpu": 0.25} if mode == "drain" else {"p50": 1.5, "p99": 2.5}
print("noise")
print(json.dumps({"jobs": int(jobs), **found}))
"""
BREAKS = "import sys; print('some talk'); sys.exit('the schema cannot be installed: no such type')"


@pytest.fixture
def admin(holdfast_server: TestServer) -> str:
    return holdfast_server.url("postgres")


def fake(folder: Path, name: str, text: str) -> Peer:
    """A peer that needs no environment; its adapter is a real process on a real database."""
    script = folder / f"{name}.py"
    script.write_text(text)
    return Peer(
        name, "python", "1.0", (), script, share=0.5, drain={"batch": {"size": 5}}, latency={"poll": 0.1}
    )


def databases(admin: str) -> set[str]:
    """Those made for peers."""
    with psycopg.connect(admin) as connection:
        names = connection.execute("SELECT datname FROM pg_database WHERE datname LIKE 'holdfast\\_peer\\_%'")
        return {str(name) for (name,) in names}


def test_the_table_is_complete_and_pinned() -> None:
    assert set(PEERS) == {
        "graphile-worker",
        "pg-boss",
        "pgqueuer",
        "awa-pg",
        "procrastinate",
        "dbos",
        "chancy",
        "absurd",
    }
    for name, peer in PEERS.items():
        pin = re.compile(
            r"^[\w.-]+(\[[\w,]+\])?==\d[\w.]*$" if peer.language == "python" else r"^[\w-]+@\d+\.\d+\.\d+$"
        )
        assert peer.packages, name
        assert all(pin.match(package) for package in peer.packages), name
        assert peer.packages[0].endswith(peer.version), name
        assert peer.adapter.is_file(), name
        assert 0 < peer.share <= 1, name
        assert peer.drain, name
        assert peer.latency, name


def test_every_adapter_belongs_to_a_peer() -> None:
    folder = Path(peers.__file__).parent / "adapters"
    shared = {"common", "closed_loop"}
    scripts = {
        path for path in folder.iterdir() if path.suffix in {".py", ".mjs"} and path.stem not in shared
    }
    of_workflows = {peer.adapter for n in IN_FLIGHT for peer in (own(n), *others(n).values())}
    assert scripts == {peer.adapter for peer in (peers.OWN, *PEERS.values())} | of_workflows


@pytest.mark.parametrize("in_flight", IN_FLIGHT)
def test_the_peers_of_workflows_are_those_of_the_table(in_flight: int) -> None:
    """The same versions in the same environments, and their settings are told."""
    assert set(others(in_flight)) == {"dbos", "absurd"}
    for name, peer in others(in_flight).items():
        assert (peer.packages, peer.version) == (PEERS[name].packages, PEERS[name].version)
        assert describe(peer, "workflow", [{"jobs": 7}]).startswith(f"in_flight={in_flight} ")
        assert run_count(peer, in_flight, 2000) >= min(2 * in_flight, 40)


def test_workflows_are_compared_with_the_best_peer_of_the_same_run() -> None:
    report = Report()
    for name, rate, p50 in (("holdfast", 600.0, 8.0), ("dbos", 100.0, 10.0), ("absurd", 50.0, 20.0)):
        for in_flight in IN_FLIGHT:
            report.add("workflow-peers", f"{name} in-flight-{in_flight}", "steps/s", rate * in_flight)
            report.add("workflow-peers", f"{name} in-flight-{in_flight} p50", "ms", p50)
    found = {verdict.name: verdict for verdict in verdicts(report) if verdict.value is not None}
    assert {name: (v.value, v.word) for name, v in found.items()} == {
        "workflows, 50 in flight, by the best peer": (6.0, "reached"),
        "500 in flight, by the best peer": (6.0, "not reached"),
        "p50 of 1 in flight, by the best peer's": (0.8, "reached"),
    }


def test_our_own_workflows_are_measured_as_the_others_are(admin: str, tmp_path: Path) -> None:
    found = once(admin, own(50), "workflow", 100, tmp_path)
    assert found["jobs"] == 100
    assert min(found["seconds"], found["p50"], found["cpu"]) > 0


def test_a_peer_that_fails_is_reported_with_its_reason_and_the_others_go_on(
    admin: str, tmp_path: Path
) -> None:
    table = {name: fake(tmp_path, name, text) for name, text in (("broken", BREAKS), ("fine", WORKS))}
    found = list(measure(admin, 1000, 2, ["broken", "fine"], tmp_path / "cache", table=table))

    assert [(result.peer, result.measure) for result in found] == [
        (peer, measure) for peer in ("broken", "fine") for measure in ("drain", "latency_p50", "latency_p99")
    ]
    for result in found[:3]:
        assert result.values == []
        assert "no such type" in str(result.error)
    drain, p50, p99 = found[3:]
    assert (drain.values, drain.unit, drain.cpu, drain.error) == ([1000.0] * 2, "jobs/s", [500.0] * 2, None)
    assert (p50.values, p99.values, p50.unit) == ([1.5] * 2, [2.5] * 2, "ms")
    assert drain.settings == "batch.size=5 jobs=500"
    assert p50.settings == "poll=0.1"
    assert not any("broken" in name or "fine" in name for name in databases(admin))


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ("print('done')", "gave no figures"),
        ("pass", "gave no figures"),
        ('print(\'{"jobs": 7, "seconds": 1, "cpu": 1}\')', "not complete"),
        ('print(\'{"jobs": 500, "seconds": 0, "cpu": 1}\')', "not complete"),
    ],
)
def test_what_is_not_a_whole_run_gives_no_figure(admin: str, tmp_path: Path, says: str, reason: str) -> None:
    with pytest.raises(PeerFailed, match=reason):
        once(admin, fake(tmp_path, "odd", says), "drain", 500, tmp_path)


def test_runs_before_a_failure_are_kept_and_the_result_says_so(admin: str, tmp_path: Path) -> None:
    counted = f"""
from pathlib import Path
runs = Path({str(tmp_path / "runs")!r})
runs.touch()
runs.write_text(runs.read_text() + "x")
if len(runs.read_text()) == 2:
    raise SystemExit("out of luck")
""" + WORKS.strip()
    peer = fake(tmp_path, "moody", counted)
    (result,) = measure(admin, 1000, 3, ["moody"], tmp_path, modes=["drain"], table={"moody": peer})
    assert result.values == [1000.0]
    assert result.error == "run 2 of 3: drain failed: out of luck"


def test_a_peer_that_cannot_be_installed_is_reported(
    admin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    results = list(measure(admin, 100, 1, ["pg-boss"], tmp_path / "cache"))
    assert len(results) == 3
    assert all((result.error, result.values) == ("npm is not installed", []) for result in results)


def test_an_unknown_name_is_refused(admin: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"No such peer: nobody\. There are: graphile-worker"):
        list(measure(admin, 100, 1, ["nobody"], tmp_path))


def test_the_database_is_dropped_also_when_its_user_dies_in_it(admin: str) -> None:
    left: list[psycopg.Connection] = []
    with pytest.raises(PeerFailed), fresh_database(admin, "some-peer") as url:
        left.append(psycopg.connect(url))
        name = left[0].info.dbname
        assert name in databases(admin)
        raise PeerFailed("gone")
    assert name not in databases(admin)
    left[0].close()


@pytest.mark.long
def test_a_real_peer_is_installed_and_measured(admin: str, tmp_path: Path) -> None:
    cache = Path(os.environ.get("HOLDFAST_BENCH_DIR", tmp_path / "bench")) / "peers"
    argv = [
        "--url",
        admin,
        "--jobs",
        "1000",
        "--repeats",
        "1",
        "--only",
        "drain",
        "--folder",
        str(cache),
        "pgqueuer",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "bench.peers", *argv],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    assert result["error"] is None
    assert (result["peer"], result["measure"]) == ("pgqueuer", "drain")
    assert result["values"][0] > 100
    assert not any("pgqueuer" in name for name in databases(admin))
