"""Errors are searched as they are shown: what is masked in them is found by nobody who reads them masked, nor does where a
search stops tell of it."""

from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.sql.support import Conn, end, enqueue, register, take, take_one

from holdfast.db.database import Database
from holdfast.model.outcome import DeadLettered, ErrorText, Failed
from holdfast.operate import search as searching
from holdfast.operate.dead import redrive_verb
from holdfast.operate.job_acts import RETRY
from holdfast.operate.operations import carry_on
from holdfast.operate.operator import Operator
from holdfast.operate.procedure import Procedure
from holdfast.store import dead, search
from holdfast.store.dead import DeadFilter
from holdfast.store.search import JobFilter

SAID = "psp.example: password=hunter2, diagnosis='gout', order {}"
HIDDEN = ("hunter2", "password=h", "gout", "diagnosis='g", "=hunter2, diag")
NOWHERE = ("hunter3", "password=x", "gone", "diagnosis='x", "=hunter3, diag")
SEEN = ("PSP.example", "order 1", "password=", "password=••••••••, diagnosis=••••••••, order", "••, order 1")


@pytest.fixture
def ann(database: Database) -> Operator:
    return Operator(database, "ann")


@pytest.fixture
def failed(conn: Conn) -> list[UUID]:
    """12 jobs that wait for their next attempt, and 12 dead letters."""
    worker = register(conn)
    made = enqueue(conn, 24, max_attempts=9)
    for n, job in enumerate(take(conn, worker, limit=24)):
        error = ErrorText("ValueError", SAID.format(n), "")
        end(conn, job.grant, Failed(error, 3600.0) if n % 2 else DeadLettered(error), worker)
    return made


def wanted(kind: type[Any], error: str, **more: Any) -> Any:
    return kind(error=error, masked=("diagnosis",), **more)


@pytest.mark.parametrize("step", [10_000, 5, 1])
def test_what_is_masked_is_found_by_nobody(
    ann: Operator, failed: list[UUID], step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "ERRORS", step)
    monkeypatch.setattr(dead, "ERRORS", step)
    for error in HIDDEN:
        assert len(ann.list_jobs(JobFilter(error=error)).jobs) == 24  # whoever may read it all
        assert ann.list_jobs(wanted(JobFilter, error)).jobs == [], error
        assert ann.list_dead(wanted(DeadFilter, error)).dead_letters == []
        assert ann.group_dead(wanted(DeadFilter, error)).groups == []
        assert ann.preview_all(RETRY, wanted(JobFilter, error)).count.count == 0
        assert ann.preview_dead(redrive_verb(), wanted(DeadFilter, error)).count.count == 0
    for error in SEEN:
        assert ann.list_jobs(wanted(JobFilter, error)).jobs, error
        assert ann.list_dead(wanted(DeadFilter, error.replace("1", "2"))).dead_letters, error
    assert [g.count for g in ann.group_dead(wanted(DeadFilter, "psp")).groups] == [12]


def test_few_errors_are_masked_at_a_time(
    ann: Operator, failed: list[UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the page: a dashboard masks them on the loop that serves everybody."""
    for module, query, place in ((dead, "list_dead", 3), (search, "search_dead", 3)):
        monkeypatch.setattr(module, "ERRORS", 2)
        named = module.named
        asked: list[Any] = []

        def noting(name: str, params: Any, decode: Any, named: Any = named, asked: Any = asked) -> Any:
            asked.append((name, params))
            return named(name, params, decode)

        monkeypatch.setattr(module, "named", noting)
        if module is dead:
            assert len(ann.list_dead(wanted(DeadFilter, "psp"), limit=50).dead_letters) == 12
        else:
            assert len(ann.list_jobs(wanted(JobFilter, "psp", states=("dead_letter",)), limit=50).jobs) == 12
        limits = [params[place] for name, params in asked if name == query]
        assert (len(limits) > 5, set(limits)) == (True, {2})


def test_pages_of_a_masked_search_are_whole(
    ann: Operator, failed: list[UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "ERRORS", 2)
    monkeypatch.setattr(dead, "ERRORS", 2)
    monkeypatch.setattr(search, "MASKED", 4)
    monkeypatch.setattr(dead, "MASKED", 4)
    found: list[UUID] = []
    after = None
    while True:
        page = ann.list_jobs(wanted(JobFilter, "psp"), after=after, limit=5)
        found += [job.id for job in page.jobs]
        after = page.next
        if after is None:
            break
    assert found == sorted(failed, reverse=True)
    buried: list[UUID] = []
    place = None
    while True:
        letters = ann.list_dead(wanted(DeadFilter, "psp"), after=place, limit=5)
        buried += [line.id for line in letters.dead_letters]
        place = letters.next
        if place is None:
            break
    assert (len(buried), len(set(buried))) == (12, 12)


@pytest.mark.parametrize("kept", [(), ("scheduled",), ("dead_letter",), ("processing",)])
def test_where_a_search_stops_does_not_tell_what_is_masked(
    conn: Conn, ann: Operator, failed: list[UUID], kept: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step, in which each row has the secret or none has it."""
    worker = register(conn, "busy")
    for n in range(9):
        enqueue(conn, 1)
        take_one(conn, worker)
        conn.execute("UPDATE holdfast.work SET last_error = %s WHERE status = 'processing'", [SAID.format(n)])
    monkeypatch.setattr(search, "ERRORS", 2)
    monkeypatch.setattr(search, "MASKED", 4)
    monkeypatch.setattr(dead, "ERRORS", 2)
    monkeypatch.setattr(dead, "MASKED", 4)
    monkeypatch.setattr("holdfast.operate.dead.PATIENCE", -1.0)
    for error, other in zip(HIDDEN, NOWHERE, strict=True):
        first, second = (_step(ann, wanted(JobFilter, text, states=kept or None)) for text in (error, other))
        assert first == second
        assert (first.found, first.cut) == ([], True)
        one, two = (ann.list_dead(wanted(DeadFilter, text), limit=3) for text in (error, other))
        assert one == two
        assert (one.dead_letters, one.cut) == ([], True)


def _step(ann: Operator, asked: JobFilter) -> searching.Finding:
    def look() -> Procedure[searching.Finding]:
        return (yield from searching.find(asked, limit=3, patience=0))

    return ann.run(look())


def test_what_runs_in_the_background_searches_as_it_was_shown(
    conn: Conn, database: Database, ann: Operator, failed: list[UUID]
) -> None:
    """The workers that carry it on know no more than its row says."""
    for verb, kind, error, count in (
        (RETRY, JobFilter, "hunter2", 0),
        (redrive_verb(), DeadFilter, "gout", 0),
        (redrive_verb(), DeadFilter, "psp", 12),
    ):
        begun = ann.begin_operation(verb, wanted(kind, error))
        ann.run(carry_on("w", uuid4(), begun.id))
        found = ann.find_operation(begun.id)
        assert (found.state, found.looked_at, found.total.count) == ("done", count, count), found
        assert found.selection["masked"] == ["diagnosis"]


def test_names_stand_only_beside_an_error() -> None:
    assert JobFilter(queue="mail", masked=("b", "a")).given() == {"queue": "mail"}
    assert JobFilter(error="x", masked=("b", "a", "b")).given() == {"error": "x", "masked": ("a", "b")}
    assert DeadFilter(masked=("a",)).given() == {}
