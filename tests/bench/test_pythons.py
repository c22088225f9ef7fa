"""The interpreters of the machine are found, asked how they were built, and measured side by side."""

import sys
from pathlib import Path

import bench.pythons
import pytest
from scripts import interpreters

from holdfast.bench.context import Bench, Sizes, dress
from holdfast.bench.report import Report
from holdfast.bench.server import Server
from holdfast.testing import TestServer

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


def test_every_release_is_found_once_and_says_how_it_was_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "3.12.9" / "bin" / "python3.12"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(
        interpreters,
        "_places",
        lambda: [broken, Path(sys.executable), Path(sys.executable), tmp_path / "none"],
    )
    (found,) = interpreters.every()
    assert (found.version, found.program) == (HERE, Path(sys.executable))
    assert found.release == sys.version.split()[0]
    assert interpreters.interpreters() == {HERE: Path(sys.executable)}


def test_each_is_measured_on_the_same_server_and_one_that_cannot_be_is_left_out(
    holdfast_server: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place of an environment for each: that of the tests."""
    here = interpreters.Interpreter(HERE, "here", Path(sys.executable), "--enable-optimizations")
    gone = interpreters.Interpreter(HERE, "gone", Path(sys.executable), "")

    def environment(name: str, program: Path) -> Path:
        if name == "gone":
            raise OSError("nothing can be installed")
        return program

    monkeypatch.setattr(bench.pythons, "every", lambda: [here, gone])
    monkeypatch.setattr(bench.pythons, "environment", environment)
    server = Server(holdfast_server.url("postgres"), copies=True)
    try:
        server.prepare(dress)
        measured = Bench(server, Report({"runs": {}}), Sizes(jobs=300), repeats=1, only=("async-1",))
        bench.pythons.run(measured)
    finally:
        server.close()
    names = {result.variant for result in measured.report.of("pythons")}
    assert names == {"here loop", "here async-1", "here async-1 worker CPU"}
    assert all(result.median > 0 for result in measured.report.of("pythons"))
    said = measured.report.meta["runs"]["pythons"]
    assert said["settings"] == {"here": "CPython, optimised"}
    assert said["left_out"] == {"gone": "nothing can be installed"}
