"""Worker processes of a test: started, watched, signalled, and in the end all of them gone."""

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.conftest import wait_until, within
from tests.crash.nursery import Forked, nursery, plain_environment

from holdfast.testing import Kit

ROOT = Path(__file__).parents[2]
RUN = """
import asyncio
from {module} import app
asyncio.run(app.run_worker())
"""
LEASE, HEARTBEAT, DEAD_AFTER, SWEEP, POLL = 1.5, 0.3, 1.2, 0.2, 0.05
TIMINGS = {"lease": LEASE, "heartbeat": HEARTBEAT, "dead_after": DEAD_AFTER, "sweep": SWEEP, "poll": POLL}


@dataclass(frozen=True)
class Note:
    kind: str
    job: UUID
    generation: int
    fence: str
    attempt: int
    pid: int
    at: float


def lines(file: Path) -> list[dict[str, Any]]:
    """The JSON lines written so far; a line that is being written is left for the next look."""
    if not file.exists():
        return []
    whole = file.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in whole]


class WorkerProcess:
    def __init__(self, command: list[str] | str, env: dict[str, str], folder: Path, number: int) -> None:
        """`command`: of a process of its own, or the text of a program for a forked one (nursery.py)."""
        self._folder = folder
        self._log = folder / f"output-{number}"
        self._process: subprocess.Popen[bytes] | Forked
        with self._log.open("wb") as log:
            if isinstance(command, str):
                self._process = nursery().start(command, env, log)
                return
            self._process = subprocess.Popen(
                command,
                env=env,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self, number: int = signal.SIGKILL) -> None:
        self._process.send_signal(number)

    def wait(self, seconds: float = 20.0) -> int:
        """The exit code; a failed test with the output when it does not come."""
        try:
            return self._process.wait(within(seconds))
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"still running after {within(seconds):g} s:\n{self.output[-4000:]}"
            ) from None

    def end(self) -> None:
        """Whatever it does, it is gone after this."""
        if self.is_running:
            self._process.kill()  # also ends a stopped process
        self._process.wait(30)

    def events(self, name: str) -> list[dict[str, Any]]:
        return [e for e in lines(self._folder / f"events-{self.pid}") if e["name"] == name]

    def every_event(self) -> list[dict[str, Any]]:
        return lines(self._folder / f"events-{self.pid}")

    @property
    def is_ready(self) -> bool:
        if not self.is_running:
            raise AssertionError(f"the worker ended with {self._process.returncode}:\n{self.output[-4000:]}")
        return bool(self.events("worker.started"))

    def until_ready(self) -> "WorkerProcess":
        wait_until(lambda: self.is_ready, "the worker is registered", 30)
        return self


class Scene:
    """One test: its database, its folder of notes and gates, its workers."""

    def __init__(self, kit: Kit, folder: Path) -> None:
        self.kit = kit
        self.folder = folder
        self._workers: list[WorkerProcess] = []

    def start(
        self,
        *,
        concurrency: int = 4,
        failpoints: str = "",
        url: str | None = None,
        command_line: bool = False,
        words: tuple[str, ...] = (),
        program: str = RUN,
        ready: bool = True,
        env: dict[str, str] | None = None,
        module: str = "tests.crash.crash_app",
        **settings: float,
    ) -> WorkerProcess:
        """A worker process with short timings, or those in `settings`. `ready`: wait until it is in the registry.
        `words`: more for the command line."""
        environment = plain_environment() | {
            "HOLDFAST_DATABASE_URL": url or self.kit.url,
            "HOLDFAST_CONCURRENCY": f"{concurrency}",
            "CRASH_FOLDER": f"{self.folder}",
        }
        for name, value in (TIMINGS | settings).items():
            environment[f"HOLDFAST_{name.upper()}"] = f"{value}"
        if failpoints:
            environment["HOLDFAST_FAILPOINTS"] = failpoints
        command: list[str] | str = program.replace("{module}", module)
        if command_line or words:
            command = [sys.executable, "-m", "holdfast", "worker", f"{module}:app", *words]
        elif any(
            name.startswith("PYTHON") for name in env or {}
        ):  # an interpreter reads these when it starts
            command = [sys.executable, "-c", program.replace("{module}", module)]
        worker = WorkerProcess(command, environment | (env or {}), self.folder, len(self._workers))
        self._workers.append(worker)
        return worker.until_ready() if ready else worker

    def open(self, gate: str) -> None:
        (self.folder / f"gate-{gate}").touch()

    def notes(self, kind: str, job: UUID | None = None) -> list[Note]:
        every = [Note(**{**line, "job": UUID(line["job"])}) for line in lines(self.folder / "notes")]
        return [n for n in every if n.kind == kind and job in (None, n.job)]

    def until_noted(self, kind: str, job: UUID, count: int = 1, seconds: float = 20.0) -> list[Note]:
        def found() -> list[Note]:
            notes = self.notes(kind, job)
            return notes if len(notes) >= count else []

        return wait_until(found, f"{count} notes {kind!r} of {job}", seconds)

    def ledger(self) -> Counter[UUID]:
        """How often each job wrote the ledger, and committed."""
        return Counter(row["job_id"] for row in self.kit.sql("SELECT job_id FROM ledger"))

    def until_status(self, job: UUID, status: str, seconds: float = 20.0) -> dict[str, Any]:
        wait_until(lambda: self.kit.job(job)["status"] == status, f"job {job} is {status}", seconds)
        return self.kit.job(job)

    def until_finished(self, seconds: float = 30.0) -> list[dict[str, Any]]:
        """Every job, once none is live."""
        try:
            wait_until(
                lambda: not self.kit.sql("SELECT 1 AS one FROM holdfast.work LIMIT 1"),
                "every job is finished",
                seconds,
            )
        except AssertionError as error:
            rest = self.kit.sql(
                "SELECT id, task, status, claimed_by, attempts FROM holdfast.jobs WHERE completed_at IS NULL LIMIT 5"
            )
            outputs = "\n".join(f"--- {w.pid}\n{w.output[-3000:]}" for w in self._workers[-3:])
            raise AssertionError(f"{error}\n{rest}\n{outputs}") from None
        return self.kit.jobs()

    def workers(self) -> dict[str, str]:
        """Identity -> status, as the registry has it."""
        return {r["id"]: r["status"] for r in self.kit.sql("SELECT id, status FROM holdfast.workers")}

    def end(self) -> None:
        for worker in self._workers:
            worker.end()


def settle_down(seconds: float) -> None:
    """Give a wrong thing time to happen. Only for proving that something does not."""
    time.sleep(seconds)
