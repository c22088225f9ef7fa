"""The tests of signals also pass in a run that was started with nohup, or in the background of a script."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IGNORE = (
    "import os, signal, sys; [signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, signal.SIGHUP)]; "
)
CHILD = "import signal; print(signal.getsignal(signal.SIGHUP).name, signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"


@pytest.mark.parametrize("words", [[], ["-n", "1"]], ids=["alone", "by a worker"])
def test_what_a_test_starts_has_the_usual_signals(words: list[str]) -> None:
    """This very file again, from a process that ignores them."""
    if os.environ.get("HOLDFAST_TEST_INNER"):
        done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["SIG_DFL", "False"]
        os.kill(
            os.getpid(), signal.SIGHUP
        )  # and we ourselves do not mind one, as whoever started us wanted it
        return
    test = f"{__file__}::test_what_a_test_starts_has_the_usual_signals"
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words, test]
    done = subprocess.run(
        [sys.executable, "-c", IGNORE + "os.execv(sys.argv[1], sys.argv[1:])", *run],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if "XDIST" not in k} | {"HOLDFAST_TEST_INNER": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
