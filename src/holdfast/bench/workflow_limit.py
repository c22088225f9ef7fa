"""The statements of a run with no Python per run: start, claim, five records, settle with its end. Only what the server
takes is counted, from the sending of a statement to its answer, over one connection."""

import json
import time
from typing import Any
from uuid import uuid4

from ..model.job import ClaimedJob
from ..model.outcome import Completed, Settlement
from ..model.state import COMPLETED
from ..model.worker import WorkerIdentity
from ..shapes.workflows import store
from ..shapes.workflows.ends import end_statement
from ..shapes.workflows.journal import Record
from ..shapes.workflows.rows import plain_row
from ..store.claim import claim
from ..store.settle import settle_batch
from ..store.statement import Flow, Statement
from ..store.workers import register
from .raw import Engine

STEPS = 5
QUEUE = "workflows"
START = (
    "SELECT s.run_id::text FROM holdfast.workflow_start_many("
    "'five', (SELECT array_agg(jsonb_build_object('n', n)) FROM generate_series(1, $1) AS n),"
    " version => 1, queue => 'workflows') s"
)


class Timed:
    """An engine that adds up what it waited for."""

    def __init__(self, url: str) -> None:
        self._engine = Engine(url)
        self.seconds = 0.0

    def run(self, text: str, parameters: list[Any]) -> None:
        began = time.perf_counter()
        self._engine.run(text, parameters)
        self.seconds += time.perf_counter() - began

    def ask(self, what: Statement[Any]) -> Any:
        began = time.perf_counter()
        cursor = self._engine.ask(what)
        self.seconds += time.perf_counter() - began
        return what.decode(cursor.fetchall() if cursor.description else [])

    def drive(self, flow: Flow[Any]) -> None:
        answer: Any = None
        try:
            while True:
                answer = self.ask(flow.send(answer))
        except StopIteration:
            pass

    def close(self) -> None:
        self._engine.conn.close()


def limit(url: str, batch: int, rounds: int) -> float:
    """Runs per second, `batch` of them in each statement."""
    engine = Timed(url)
    try:
        worker = WorkerIdentity.create()
        engine.ask(register(worker, queues=[QUEUE], tasks=["five"], concurrency=1, release="bench"))
        for _ in range(2):
            _round(engine, worker.id, batch)
        engine.seconds = 0.0
        for _ in range(rounds):
            _round(engine, worker.id, batch)
        return batch * rounds / engine.seconds
    finally:
        engine.close()


def _round(engine: Timed, worker: str, batch: int) -> None:
    engine.run(START, [batch])
    claimed: list[ClaimedJob] = engine.ask(
        claim(QUEUE, worker, uuid4(), lease=60, limit=batch, marks=[(0, None)])
    )
    if len(claimed) != batch:
        raise RuntimeError(f"{batch} runs were started, and {len(claimed)} of them claimed")
    for n in range(STEPS - 1):
        row = Record(f"nothing#{n}", "step", "done", n, "1", began=time.time())
        written = engine.ask(store.record(QUEUE, [store.Entry(job, [row], None) for job in claimed]))
        if written.missing:
            raise RuntimeError(f"{len(written.missing)} records were refused")
    engine.run("BEGIN", [])
    engine.drive(settle_batch([Settlement(job, Completed("1")) for job in claimed], worker))
    last = json.dumps({"rows": [plain_row(Record("nothing#4", "step", "done", 4, "1", began=time.time()))]})
    ends = {job.id_text: (COMPLETED, "1", None) for job in claimed}
    engine.ask(end_statement(ends, [(job, last) for job in claimed]))
    engine.run("COMMIT", [])
