"""A database under examination: see a finding, run the commands it prints, see it gone."""

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row
from tests.conftest import wait_until
from typer.testing import CliRunner, Result

from holdfast.cli import app as cli
from holdfast.db.embedded import find_binaries

QUICK = {
    "HOLDFAST_LEASE": "1",
    "HOLDFAST_HEARTBEAT": "0.2",
    "HOLDFAST_DEAD_AFTER": "0.8",
    "HOLDFAST_SWEEP": "0.1",
    "HOLDFAST_POLL": "0.05",
    "HOLDFAST_DRAIN": "0.3",
}
APP = """
import time
from pathlib import Path
from holdfast import Holdfast
from holdfast.runtime.attempts import Attempts

app = Holdfast()


@app.task
def greet(name: str) -> str:
    return name


@app.task
async def vanish(n: int) -> None:
    # An engine with a mistake in it: the attempt ends, and nothing settles it.
    Attempts.conclude = lambda attempts, running, outcome: None


@app.task
def deaf(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.02)
"""


class Case:
    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.listen_url: str | None = None
        self.owner: Path | None = None  # whose user runs pg_ctl
        self._workers: list[subprocess.Popen[bytes]] = []
        (folder / "doctor_app.py").write_text(APP)

    @property
    def env(self) -> dict[str, str]:
        path = os.pathsep.join([str(find_binaries().bin), os.environ.get("PATH", "")])
        listen = {"HOLDFAST_LISTEN_URL": self.listen_url} if self.listen_url else {}
        return {"HOLDFAST_DATABASE_URL": self.url, "PATH": path, "HOLDFAST_ACTOR": "tester", **listen}

    def sql(self, text: str, params: list[Any] | None = None) -> list[dict[str, Any]]:
        with psycopg.connect(self.url, autocommit=True, row_factory=dict_row) as conn:
            cursor = conn.execute(text.encode(), params)
            return cursor.fetchall() if cursor.description is not None else []

    def doctor(self, *words: str) -> Result:
        result = CliRunner().invoke(cli, ["doctor", *words], env=self.env)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    def found(self, code: str, *words: str) -> dict[str, Any] | None:
        """The finding, or None. Its check must have been made."""
        report = json.loads(self.doctor("--json", "--only", code, *words).stdout)
        (check,) = report["checks"]
        assert check["not_checked"] is None, check
        assert {f["code"] for f in check["findings"]} <= {code}
        return check["findings"][0] if check["findings"] else None

    def cure(self, code: str, *words: str) -> dict[str, Any]:
        """See the finding, run the commands that it prints, see it gone."""
        finding = self.found(code, *words)
        assert finding is not None, f"{code} was not found"
        text = self.doctor("--only", code, *words).stdout
        commands = re.findall(r"^ +fix: (.*)$", text, re.MULTILINE)
        assert commands, text
        assert commands == finding["fix"]
        for line in commands:
            self.run(line)
        wait_until(lambda: self.found(code, *words) is None, f"{code} is gone", 15)
        return finding

    def run(self, line: str) -> None:
        """A printed command, as a reader would run it."""
        words = shlex.split(line)
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            if name == "HOLDFAST_LISTEN_URL":
                self.listen_url = value
            else:
                assert name == "HOLDFAST_DATABASE_URL"
                self.url = value
        elif words[:2] == ["holdfast", "worker"]:
            self.start(*words[2:])
        elif words[0] == "holdfast":
            result = CliRunner().invoke(cli, words[1:], env=self.env)
            assert result.exit_code == 0, f"{line}: {result.output} {result.exception}"
        elif words[0] == "pg_ctl":
            self._shell([*self._as_owner(), *words, "-l", "/dev/null", "-w"])
        else:
            assert words[0] == "psql"
            self._shell(["bash", "-c", f"{line} -v ON_ERROR_STOP=1 -q"])

    def _as_owner(self) -> list[str]:
        assert self.owner is not None
        stat = self.owner.stat()
        if os.geteuid() != 0:
            return []
        return ["setpriv", f"--reuid={stat.st_uid}", f"--regid={stat.st_gid}", "--clear-groups"]

    def _shell(self, command: list[str]) -> None:
        done = subprocess.run(
            command, env={**os.environ, **self.env}, capture_output=True, text=True, check=False, cwd="/"
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """A worker process of the app in this test's folder, until the test ends."""
        env = {**os.environ, **self.env, **QUICK, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        command = [sys.executable, "-m", "holdfast", "worker", *words]
        log = (self.folder / "worker.log").open("ab")
        with log:
            process = subprocess.Popen(command, env=env, cwd=self.folder, stdout=log, stderr=log)
        self._workers.append(process)
        return process

    def close(self) -> None:
        for process in self._workers:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait(50)


@contextlib.contextmanager
def transaction(url: str, first: str) -> Iterator[psycopg.Connection[Any]]:
    """A session that did something and then went to lunch."""
    conn = psycopg.connect(url, application_name="lunch")
    conn.execute(first.encode())
    try:
        yield conn
    finally:
        conn.close()
