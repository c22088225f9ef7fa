"""docs/claims.md as data, and the rule that a claimed test may not be skipped.

A row is `| sentence | `test id` or `command` ... |`. A test id is `path::name`; everything after the name in brackets is a
parameter and does not count.
"""

import ast
import functools
import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CLAIMS = ROOT / "docs" / "claims.md"


@functools.cache
def rows() -> tuple[tuple[str, tuple[str, ...]], ...]:
    found = []
    for line in CLAIMS.read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and not line.startswith(("| sentence", "|---")):
            sentence, shown = [cell.strip() for cell in line.strip("|").split(" | ", 1)]
            found.append((sentence, tuple(re.findall(r"`([^`]+)`", shown))))
    return tuple(found)


def claimed_tests() -> set[str]:
    return {shown for _, all_shown in rows() for shown in all_shown if "::" in shown}


SUITE = ROOT / "src" / "holdfast" / "testing" / "conformance.py"  # its tests are those of every transport


@functools.cache
def names_in(path: Path) -> frozenset[str]:
    """Every test function of a file, `Class::method` for methods."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}::{m.name}"
                for m in node.body
                if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            if any("transport_conformance" in ast.dump(base) for base in node.bases):
                suite = {name for name in names_in(SUITE) if name.startswith("Conformance::")}
                found |= {name.replace("Conformance", node.name, 1) for name in suite}
        elif isinstance(node, ast.Assign):  # a state machine is a test by assignment
            found |= {t.id for t in node.targets if isinstance(t, ast.Name)}
    return frozenset(found)


class SkippedClaims:
    """In CI, a skipped test that a claim names fails the run."""

    def __init__(self) -> None:
        self.skipped: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.split("[")[0]
        if report.skipped and name in claimed_tests():
            self.skipped.add(name)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.skipped and os.environ.get("CI"):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for name in sorted(self.skipped):
            terminalreporter.write_line(f"claimed in docs/claims.md, but skipped: {name}", red=True)
