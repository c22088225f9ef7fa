"""Worker processes: real ones, ready before the clock runs, each with its processor time and memory."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from .fill import Load, Watcher, held
from .postgres_cpu import server_cpu

_START = 60.0


@dataclass(frozen=True, slots=True)
class Look:
    cpu: float  # seconds of processor time, all threads
    rss: int  # bytes
    jobs: int
    blocks: int  # of memory that Python objects use


def environment(url: str) -> dict[str, str]:
    """Default settings: nothing of the user's own holdfast.toml or variables, but for where PostgreSQL is."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_") or k == "HOLDFAST_PG_BIN"}
    return {**kept, "HOLDFAST_DATABASE_URL": url, "HOLDFAST_CONFIG": os.devnull}


class Process:
    """One worker process and the lines it speaks."""

    def __init__(self, url: str, words: list[str], python: str = sys.executable) -> None:
        command = [python, "-m", "holdfast.bench.worker_app", *words]
        self._process = subprocess.Popen(
            command,
            env=environment(url),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None,
            text=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(None)

    def hear(self, patience: float = _START) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=patience)
        except queue.Empty:
            raise TimeoutError(f"a worker process sent nothing for {patience:g} s") from None
        if line is None:
            raise ChildProcessError(f"a worker process ended by itself, exit code {self._process.wait(10)}")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, what: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self.hear()

    def look(self) -> Look:
        found = self.ask("look")
        return Look(found["cpu"], found["rss"], found["jobs"], found["blocks"])

    def check(self) -> None:
        if self._process.poll() is not None:
            raise ChildProcessError(f"a worker process ended by itself, exit code {self._process.returncode}")

    def stop(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(40)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._listener.join(10)


class Crew:
    def __init__(self, url: str, members: list[Process]) -> None:
        self.url = url
        self.members = members

    def look(self) -> list[Look]:
        return [member.look() for member in self.members]

    def check(self) -> None:
        for member in self.members:
            member.check()

    def times(self) -> list[tuple[float, float, float]]:
        """Of each timed job: sent, began, settled (the clock of the machine)."""
        return [(a, b, c) for member in self.members for a, b, c in member.ask("times")["times"]]

    def forget(self) -> None:
        for member in self.members:
            member.ask("forget")


@contextlib.contextmanager
def crew(
    url: str,
    *,
    queues: list[str],
    processes: int = 1,
    concurrency: int = 10,
    timed: bool = False,
    python: str = sys.executable,
) -> Iterator[Crew]:
    """So many worker processes that are in the registry. They drain and leave at the end."""
    words = (
        [f"--queue={name}" for name in queues]
        + [f"--concurrency={concurrency}"]
        + (["--timed"] if timed else [])
    )
    members: list[Process] = []
    try:
        members.extend(Process(url, words, python) for _ in range(processes))
        for member in members:
            member.hear()
        yield Crew(url, members)
    finally:
        for member in members:
            member.stop()


@dataclass(frozen=True, slots=True)
class Drained:
    seconds: float  # from the commit of the load until the last job has left the queue
    cpu: float  # seconds of all workers
    jobs: int
    server: float | None  # seconds of all its processes; None: it is elsewhere

    @property
    def rate(self) -> float:
        return self.jobs / self.seconds


def warm(workers: Crew, load: Load) -> None:
    """Run some jobs of the kind first: imports, plans and connections are there when the clock runs."""
    drain(workers, replace(load, count=min(load.count, 2000)))


def drain(workers: Crew, load: Load) -> Drained:
    """Commit a load under a crew that waits for it, and time it until the last job is gone."""
    with (
        held(workers.url, load) as commit,
        Watcher(workers.url) as watcher,
        psycopg.connect(workers.url, autocommit=True) as conn,
    ):
        before, server = workers.look(), server_cpu(conn)
        began = watcher.now()
        last = commit()
        watcher.gone(load.queue, last, workers.check)
        ended = watcher.empty(load.queue, workers.check)
        after, later = workers.look(), server_cpu(conn)
    cpu = sum(b.cpu - a.cpu for a, b in zip(before, after, strict=True))
    return Drained(
        ended - began, cpu, load.count, None if server is None or later is None else later - server
    )
