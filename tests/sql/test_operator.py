"""The operator: one verb runs sync and async, in the name of the actor that the surface gives."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from tests.sql.support import Conn, enqueue

from holdfast.db.database import Database
from holdfast.db.faults import LockTimeout
from holdfast.errors import ConfigurationError
from holdfast.model.actor import Actor
from holdfast.operate import bulk
from holdfast.operate.job_acts import RETRY, cancel_verb
from holdfast.operate.operator import Operator
from holdfast.operate.procedure import Procedure, actor, block, run, settings, wait
from holdfast.store import jobs
from holdfast.store.search import JobFilter
from holdfast.testing import Kit


def actors(conn: Conn) -> list[Any]:
    return conn.execute("SELECT actor, action, count FROM holdfast.audit ORDER BY id").fetchall()


async def test_a_verb_runs_sync_and_async(akit: Kit, conn: Conn) -> None:
    ann, bob = Operator(akit.database, "ann"), Operator(akit.database, "bob")
    assert (await asyncio.to_thread(ann.pause_queue, "inbox")).changed
    assert (await bob.resume_queue.arun("inbox")).changed
    assert actors(conn) == [("ann", "queue pause", 1), ("bob", "queue resume", 1)]
    assert await bob.queue_names.arun() == await asyncio.to_thread(ann.queue_names)


async def test_an_act_in_many_transactions_runs_async(
    akit: Kit, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BATCH", 2)
    enqueue(conn, 5)
    operator, verb, seen = Operator(akit.database, "ann"), cancel_verb(), list[int]()
    done = await operator.act_on_all.arun(
        verb, await operator.select.arun(verb, JobFilter(task="work")), seen.append
    )
    assert (done.results, seen) == ({"cancelled": 5}, [2, 4, 5])
    assert actors(conn) == [("ann", "jobs cancel", 5)]


async def test_an_async_act_waits_for_who_holds_a_job_and_gives_up(
    akit: Kit, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "WAIT", 0.1)
    (job_id,) = enqueue(conn)
    with conn.transaction():
        conn.execute("SELECT 1 FROM holdfast.work WHERE id = %s FOR UPDATE", [job_id])
        with pytest.raises(LockTimeout, match="another session holds"):
            await Operator(akit.database, "ann").act_on.arun(cancel_verb(), [job_id])
    assert (await Operator(akit.database, "ann").act_on.arun(cancel_verb(), [job_id])).count == 1


async def test_errors_of_a_verb_are_the_same_async(akit: Kit) -> None:
    with pytest.raises(ConfigurationError, match="there is no job"):
        await Operator(akit.database, "ann").act_on.arun(RETRY, [uuid4()])


async def test_every_kind_of_step(akit: Kit) -> None:
    def steps() -> Procedure[list[object]]:
        yield from wait(0)
        names = yield from run(jobs.queue_names)
        embedded = yield from block(lambda database: database.is_embedded)
        return [names, embedded, (yield from actor()), (yield from settings())]

    operator = Operator(akit.database, "ann\0")
    expected = [["inbox"], akit.database.is_embedded, Actor("ann\ufffd"), akit.database.settings]
    assert await operator.arun(steps()) == expected
    assert await asyncio.to_thread(operator.run, steps()) == expected


def test_a_procedure_handles_the_error_of_a_step(database: Database) -> None:
    def steps() -> Procedure[str]:
        try:
            yield from block(lambda _: 1 // 0)
        except ZeroDivisionError as error:
            return str(error)
        return "no error"

    assert "zero" in Operator(database, "ann").run(steps())
