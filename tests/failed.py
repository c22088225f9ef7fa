"""The names of the tests that failed, for whoever runs them once more (scripts/run_tests.py)."""

import os
from pathlib import Path

import pytest

VARIABLE = "HOLDFAST_TEST_FAILED"


class FailedNames:
    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{report.nodeid}\n")


def wanted_names() -> FailedNames | None:
    """Nothing that a test starts inherits the wish."""
    path = os.environ.pop(VARIABLE, None)
    return None if path is None else FailedNames(Path(path))
