"""Runs without code: what owners and senders write, statement by statement."""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from holdfast.db.executors import drive
from holdfast.model.job import Grant
from holdfast.shapes.workflows import store
from holdfast.shapes.workflows.journal import Record, Wait
from holdfast.store.statement import Flow, Statement

QUEUE = "workflows"
TYPE = "checkout"
Row = dict[str, Any]


@dataclass
class Runs:
    """On one connection in autocommit mode."""

    conn: psycopg.Connection[Row]

    @classmethod
    def on(cls, dsn: str) -> "Runs":
        runs = cls(psycopg.Connection[Row].connect(dsn, autocommit=True, row_factory=dict_row))
        runs.conn.execute("SELECT holdfast.create_queue(%s)", [QUEUE])
        return runs

    def run(self, what: Statement[Any] | Flow[Any]) -> Any:
        with self.conn.transaction():
            return drive(self.conn, what)

    def one(self, text: str, *params: object) -> Any:
        found = self.conn.execute(text, params).fetchone()
        return None if found is None else next(iter(found.values()))

    def start(self, key: str | None = None, **options: Any) -> UUID:
        names = "".join(f", {name} => %s" for name in options)
        text = f"SELECT run_id FROM holdfast.workflow_start(%s, '{{}}', %s, 1, %s{names})"
        found = self.one(text, TYPE, key or str(uuid.uuid4()), QUEUE, *options.values())
        assert isinstance(found, UUID)
        return found

    def key(self, run: UUID) -> str:
        return str(self.one("SELECT key FROM holdfast.workflow_runs WHERE id = %s", run))

    def claim(self, run: UUID) -> Grant:
        """As a claim does it, for this run alone."""
        token = uuid.uuid4()
        generation = self.one(
            "UPDATE holdfast.work SET status = 'processing', hold_reason = NULL, claim_token = %s,"
            " lease_generation = lease_generation + 1 WHERE queue = %s AND id = %s AND status <> 'processing'"
            " AND available_at <= holdfast.now() RETURNING lease_generation",
            token,
            QUEUE,
            run,
        )
        assert generation is not None, "it is not due"
        return Grant(QUEUE, run, generation, token)

    def started(self, **options: Any) -> Grant:
        return self.claim(self.start(**options))

    def take_over(self, grant: Grant) -> Grant:
        """As a sweep and another claim do it."""
        self.conn.execute("UPDATE holdfast.work SET status = 'pending' WHERE id = %s", [grant.id])
        return self.claim(grant.id)

    def record(self, grant: Grant, *rows: Record, shown: str | None = None) -> store.Written:
        written = self.run(store.record(QUEUE, [store.Entry(grant, rows, shown)]))
        assert isinstance(written, store.Written)
        return written

    def decide(self, grant: Grant, wait: Wait, rows: Sequence[Record] = ()) -> store.Decision:
        (found,) = self.run(store.decide(QUEUE, [(grant, wait, rows)]))
        assert isinstance(found, store.Decision)
        return found

    def suspend(self, grant: Grant, *waits: Wait) -> str:
        (answer,) = self.run(store.suspend(QUEUE, [(grant, waits)]))
        return str(answer)

    def signal(self, run: UUID, name: str = "go", payload: object = 1, key: str | None = None) -> str:
        text = "SELECT holdfast.workflow_signal(%s, %s, %s, %s, %s)"
        return str(self.one(text, TYPE, self.key(run), name, json.dumps(payload), key))

    def work(self, run: UUID) -> Row | None:
        text = "SELECT *, available_at <= holdfast.now() AS due FROM holdfast.work WHERE id = %s"
        return self.conn.execute(text, [run]).fetchone()

    def is_due(self, run: UUID) -> bool:
        found = self.work(run)
        return found is not None and found["status"] == "pending" and found["due"]

    def steps(self, run: UUID) -> list[Row]:
        text = "SELECT * FROM holdfast.workflow_steps WHERE run_id = %s ORDER BY n"
        return self.conn.execute(text, [run]).fetchall()

    def of(self, run: UUID) -> Row:
        found = self.conn.execute("SELECT * FROM holdfast.workflow_runs WHERE id = %s", [run]).fetchone()
        assert found is not None
        return found


def step(key: str = "charge", result: str | None = "1", **values: Any) -> Record:
    return Record(key, values.pop("kind", "step"), values.pop("outcome", "done"), 0, result, **values)


def waits(name: str = "go", key: str = "wait", **values: Any) -> Wait:
    return Wait(key, 0, "signal", name, **values)
