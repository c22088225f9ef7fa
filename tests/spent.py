"""Where the time of a whole run went: seconds per folder, and the slowest tests. The run has a limit of 25 minutes on
two cores, so what is added to it is to be seen."""

from collections import Counter

import pytest

SLOWEST = 15
FEWEST = 500  # tests: nobody asks this of a handful


class Spent:
    def __init__(self) -> None:
        self._folders: Counter[str] = Counter()
        self._tests: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        path = report.nodeid.partition("::")[0]
        self._folders[path.rpartition("/")[0]] += report.duration  # type: ignore[assignment]
        self._tests[report.nodeid] += report.duration  # type: ignore[assignment]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self._tests) < FEWEST:
            return
        terminalreporter.section("where the time went (seconds of all runners)")
        for what, most in ((self._folders, None), (self._tests, SLOWEST)):
            for name, seconds in what.most_common(most):
                terminalreporter.write_line(f"{seconds:8.0f}  {name}")
