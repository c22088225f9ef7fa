"""Results, figures to reach, plots and the documents made of them: no server."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from holdfast.bench import svg
from holdfast.bench.__main__ import NotQuiet, publish
from holdfast.bench.machine import build
from holdfast.bench.plots import PLOTS, draw
from holdfast.bench.quiet import unrest
from holdfast.bench.report import Report, figure, read
from holdfast.bench.scaling import scaling
from holdfast.bench.scenarios.idle import made
from holdfast.bench.targets import TARGETS, shares_of_limit, verdicts
from holdfast.errors import ConfigurationError

ROOT = Path(__file__).resolve().parents[2]
KEYS = {"scenario", "variant", "unit", "median", "min", "max", "runs"}


def test_figures_of_a_busy_or_uneven_machine_are_not_to_be_published() -> None:
    meta = {"load_at_start": 0.9, "machine": {"cores": 2}}
    report = Report(dict(meta))
    report.add("drain", "async-1", "jobs/s", 90, 100, 114)
    report.add("drain", "async-1 worker CPU", "us/job", 1, 10, 20)  # only rates are compared
    report.add("steady", "rate over-time", "jobs/s", 1, 10, 20)  # one curve
    assert unrest(report) == []
    report.add("drain", "async-1", "jobs/s", 80)
    report.meta["load_at_start"] = 1.5
    assert unrest(report) == [
        "others were at work when it began (load 1.5 on 2 cores)",
        "drain async-1 differs by 36% between its rounds",
    ]


def test_a_build_says_what_it_says_of_itself() -> None:
    assert "optimised" in build("'--prefix=/x' '--enable-optimizations' '--with-lto'")
    assert "does not say that it is optimised" in build("'--prefix=/x'")


def test_nothing_is_written_of_a_machine_that_was_not_quiet(tmp_path: Path) -> None:
    report = Report({"load_at_start": 9.0, "machine": {"cores": 2}, "runs": {}})
    report.add("drain", "async-1", "jobs/s", 90, 100, 110)
    path = tmp_path / "x.json"
    with pytest.raises(
        NotQuiet, match="the machine was not quiet, and nothing is written: others were at work"
    ):
        publish(report, Report(), path)
    assert not path.exists()
    report.meta["load_at_start"] = 0.1
    publish(report, Report(), path)
    assert read(path).median("drain", "async-1") == 100


def full() -> Report:
    """Results of every scenario that a target or a plot reads."""
    report = Report(
        {"runs": {"horizon": {"sizes": {"horizon": 100}}, "memory": {"sizes": {"memory": 5_000_000}}}}
    )
    report.add("limit", "batch-100", "jobs/s", 80_000, 90_000, 100_000)
    report.add("limit", "batch-500", "jobs/s", 110_000, 100_000, 90_000)
    report.add("drain", "async-1", "jobs/s", 60_000, 70_000, 59_000)
    report.add("drain", "async-1 worker CPU", "us/job", 7.5, 8.5, 7.0)
    report.add("drain", "ordered-1", "jobs/s", 29_000)
    report.add("peers", "graphile-worker", "jobs/s", 50_000)
    report.add("peers", "pgqueuer", "jobs/s", 17_000)
    report.add("peers", "graphile-worker latency p50", "ms", 4.0)
    report.add("latency", "start p50", "ms", 2.0)
    report.add("latency", "start distribution", "ms", *[n / 10 for n in range(1, 200)])
    report.add("backlog", "waiting-10k", "jobs/s", 50_000)
    report.add("backlog", "waiting-10k claim p99", "ms", 3)
    report.add("backlog", "waiting-1M", "jobs/s", 46_000)
    report.add("horizon", "last / first", "x", 0.85)
    report.add("horizon", "rate over-time", "jobs/s", *range(1000, 1020))
    report.add("memory", "rss over-jobs", "MB", *[50.0] * 20)
    report.add("idle", "workers-1", "statements/s per worker", 0.4)
    report.add("idle", "workers-2", "statements/s per worker", 0.6)
    return report


def test_the_json_has_exactly_the_promised_shape(tmp_path: Path) -> None:
    full().write(tmp_path / "deep" / "results.json")
    found = json.loads((tmp_path / "deep" / "results.json").read_text())
    assert set(found) == {"meta", "results"}
    assert all(set(r) == KEYS for r in found["results"])
    (limit,) = [r for r in found["results"] if r["variant"] == "batch-500"]
    assert limit == {
        "scenario": "limit",
        "variant": "batch-500",
        "unit": "jobs/s",
        "median": 100_000,
        "min": 90_000,
        "max": 110_000,
        "runs": [110_000, 100_000, 90_000],
    }
    assert read(tmp_path / "deep" / "results.json").as_json() == found


def test_another_run_replaces_its_own_scenarios_and_keeps_the_others() -> None:
    before, now = full(), Report({"date": "today", "runs": {"drain": {"repeats": 2}}})
    now.add("drain", "async-1", "jobs/s", 1.0)
    both = now.replace(before)
    assert both.median("drain", "async-1") == 1.0
    assert both.find("drain", "ordered-1") is None  # of another run: it would be no ratio of one run
    assert both.median("limit", "batch-500") == 100_000
    assert set(both.meta["runs"]) == {"drain", "horizon", "memory"}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"meta": {}, "results": [{}]}'])
def test_a_file_that_holds_something_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(ConfigurationError, match="no results of holdfast bench"):
        read(tmp_path / "other.json")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read(tmp_path / "missing.json")


def test_targets_are_ratios_of_medians_in_one_report() -> None:
    found = {v.name: v for v in verdicts(full())}
    limit = found["drain, one process, of `limit`"]
    assert limit.value == pytest.approx(0.6)
    assert limit.reached
    assert found["worker CPU per job"].value == 7.5
    assert found["worker CPU per job"].reached
    assert found["ordered by key, of unordered"].value == pytest.approx(29 / 60)
    assert not found["ordered by key, of unordered"].reached
    assert found["drain against the best peer"].value == pytest.approx(1.2)
    assert not found["drain against the best peer"].reached
    assert found["drain against the best Python peer"].value == pytest.approx(60 / 17)
    assert not found["drain against the best Python peer"].reached
    assert found["largest backlog, of the smallest"].value == pytest.approx(0.92)
    assert not found["horizon: last fifth by first"].reached
    assert found["latency p50, by the best peer's"].value == 0.5
    assert found["statements of an idle worker"].value == 0.6  # the worse of the two
    assert found["bulk through our COPY, of COPY"].word == "not measured"


def test_a_stall_in_one_round_is_in_the_figure_though_it_is_in_no_median() -> None:
    report = Report()
    report.add("drain", "ordered-1", "jobs/s", 50_000, 40_000, 50_000)
    report.add("drain", "ordered-2", "jobs/s", 55_000, 10_000, 55_000)
    found = {v.name: v for v in verdicts(report)}["ordered by key, two processes of one, worst round"]
    assert (found.value, found.reached) == (0.25, False)


def test_every_drain_is_a_share_of_the_best_of_limit() -> None:
    assert dict(shares_of_limit(full())) == {"async-1": pytest.approx(0.6), "ordered-1": pytest.approx(0.29)}
    assert shares_of_limit(Report()) == []


def test_our_own_run_among_the_peers_counts_before_our_own_scenario() -> None:
    report = full()
    report.add("peers", "holdfast", "jobs/s", 100_000)
    found = {v.name: v.value for v in verdicts(report)}
    assert found["drain against the best peer"] == 2.0
    assert found["drain, one process, of `limit`"] == pytest.approx(0.6)


def test_every_target_of_an_empty_report_is_not_measured() -> None:
    assert {v.word for v in verdicts(Report())} == {"not measured"}
    assert len(verdicts(Report())) == len(TARGETS)


def test_plots_are_valid_xml_and_the_same_each_time(tmp_path: Path) -> None:
    first = draw(full(), tmp_path / "a")
    assert {p.stem for p in first} == set(PLOTS)
    for path in first:
        root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert "nan" not in path.read_text(encoding="utf-8")
    again = draw(full(), tmp_path / "b")
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in again]


def test_nothing_is_drawn_without_data(tmp_path: Path) -> None:
    assert draw(Report(), tmp_path) == []


def test_names_in_a_plot_are_text(tmp_path: Path) -> None:
    text = svg.bars("a < b", "jobs/s", [("<script>", 1.0), ("holdfast", 2.0)], "holdfast")
    assert "<script>" not in text
    ElementTree.fromstring(text)


def test_axes_end_at_round_numbers() -> None:
    assert svg.linear("", [41_230.0]).ticks == [0, 10_000, 20_000, 30_000, 40_000, 50_000]
    assert svg.linear("", [0.0]).most > 0
    assert svg.logarithmic("", [10_000, 1_000_000]).ticks == [10_000, 100_000, 1_000_000]


def test_figures_are_written_as_a_person_reads_them() -> None:
    assert [figure(v) for v in (41_230.4, 12.44, 1.304, 0.0312)] == ["41,230", "12.4", "1.30", "0.0312"]


def test_the_documents_hold_the_figures_of_the_results() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/performance.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_scenario_has_its_place_in_the_document() -> None:
    from holdfast.bench.scenarios import SCENARIOS

    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    for name in SCENARIOS:
        assert f"<!-- figures: {name} -->" in text, name


def test_every_figure_that_is_not_reached_has_its_reason() -> None:
    text = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    reasons = text.partition("Why some are not:")[2].partition("<!-- figures: plots")[0]
    missing = [
        verdict.name
        for verdict in verdicts(read(ROOT / "docs/performance/results.json"))
        if verdict.word == "not reached" and f"**{verdict.name}**" not in reasons
    ]
    assert not missing


def test_a_peer_that_was_left_out_is_named_with_the_reason(tmp_path: Path) -> None:
    report = full()
    report.meta["runs"]["peers"] = {
        "command": "x",
        "date": "2026-01-01",
        "left_out": {"dbos": "npm is not installed"},
    }
    spec = importlib.util.spec_from_file_location("performance", ROOT / "scripts/performance.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert "Not measured: dbos: npm is not installed." in module.scenario(report, "peers")


def test_better_than_a_peer_is_less_than_it() -> None:
    report = Report()
    for name in ("holdfast", "graphile-worker"):
        report.add("peers", f"{name} latency p50", "ms", 2.0)
    found = {v.name: v for v in verdicts(report)}["latency p50, by the best peer's"]
    assert (found.wanted, found.value, found.reached) == ("< 1 x", 1.0, False)


def test_statements_that_a_server_forgot_are_not_counted_below_nothing() -> None:
    assert made({"a": 10, "b": 90}, {"a": 12, "c": 1}) == 3
    assert made({"a": 10}, {"a": 4}) == 4


def test_the_model_of_more_cores_names_its_first_ceiling() -> None:
    report = Report({"machine": {"cores": 2}})
    assert scaling(report) == []  # nothing was measured
    report.add("drain", "async-1", "jobs/s", 60_000.0)
    report.add("drain", "async-1 worker CPU", "us/job", 12.0)
    report.add("drain", "async-1 server CPU", "us/job", 8.0)
    one, two, eight, large = scaling(report)
    assert one.rate == pytest.approx(1e6 / 12)
    assert (one.processes, one.ceiling, one.measured) == (1, "a thread of Python in each process", 60_000.0)
    assert two.rate == pytest.approx(1e5)
    assert (two.ceiling, two.measured) == ("cores", None)
    assert eight.rate == pytest.approx(4 / 12 * 1e6)
    assert (eight.cores, eight.ceiling) == (8, one.ceiling)
    assert large.wal is None
    report.add("wal", "WAL: claim, settle and archive", "bytes/job", 2000.0)
    *_, large = scaling(report)
    assert large.rate == pytest.approx(5e5)
    assert (large.cores, large.ceiling) == (32, "WAL, at 1,000 MB/s")
    assert large.wal == pytest.approx(1000)
