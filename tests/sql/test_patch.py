"""One merge patch over many dead letters: each fits its handler afterwards, or stays as it is and is named before."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from tests.sql.support import BOOM, Conn, end, enqueue, one, register, take

from holdfast import Holdfast
from holdfast.cli.refusals import words
from holdfast.db.database import Database
from holdfast.errors import ConfigurationError, InvalidPayload
from holdfast.model.outcome import DeadLettered
from holdfast.operate.dead import redrive_verb
from holdfast.operate.operator import Operator
from holdfast.operate.patch import merged, patch_verb
from holdfast.store import dead as store
from holdfast.store.dead import DeadFilter, DeadPayload
from holdfast.store.statement import Statement


@pytest.fixture
def ann(database: Database) -> Operator:
    return Operator(database, "ann")


@pytest.fixture
def buried(conn: Conn) -> list[UUID]:
    """Five, with n from 0 to 4; the last has a text there."""
    worker = register(conn)
    made = enqueue(conn, 5)
    for job in take(conn, worker, limit=5):
        end(conn, job.grant, DeadLettered(BOOM), worker)
    big = "0.1234567890123456789012345678901234567890"  # more than a float holds
    conn.execute(f"UPDATE holdfast.dead_letters SET payload = payload || '{{\"keep\": {big}}}'".encode())
    conn.execute(
        'UPDATE holdfast.dead_letters SET payload = payload || \'{"n": "many"}\' WHERE id = %s', [made[4]]
    )
    return made


def shop() -> Any:
    app = Holdfast("postgresql://unused.invalid/none")

    @app.task(name="work", masked=["iban"])
    def work(n: int, keep: float = 0, note: str = "", iban: str = "") -> None:
        pass

    return app.tasks.definition


def payloads(conn: Conn) -> list[Any]:
    found: list[Any] = one(conn, "SELECT jsonb_agg(payload - 'keep' ORDER BY id) FROM holdfast.dead_letters")
    return found


def test_a_merge_patch_is_as_the_standard_says() -> None:
    """The examples of RFC 7396."""
    for value, patch, result in [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ]:
        assert merged(value, patch) == result, (value, patch)


def test_each_that_fits_is_patched_and_the_others_are_left_and_named(
    conn: Conn, ann: Operator, buried: list[UUID]
) -> None:
    patch, known = {"note": "again", "iban": "DE02"}, shop()
    before = payloads(conn)
    (unfit,) = ann.unfit_of(patch, DeadFilter(), known)
    assert (unfit.id, "parameter 'n' of work must be int" in unfit.why) == (buried[4], True)
    assert payloads(conn) == before
    verb = patch_verb(patch, known, ["iban"])
    done = ann.act_on_all(verb, ann.select_dead(DeadFilter()))
    assert (done.count, done.results) == (4, {"patched": 4, "does_not_fit": 1})
    assert payloads(conn) == [*({**was, **patch} for was in before[:4]), before[4]]
    assert one(conn, "SELECT payload->>'keep' FROM holdfast.dead_letters LIMIT 1").endswith("1234567890")
    (entry,) = ann.list_audit().entries
    assert (entry.action, entry.count) == ("dead patch", 4)
    assert entry.selection == {"all": True, "patch": {"note": "again", "iban": "••••••••"}}
    again = ann.act_on_all(patch_verb(patch, known), ann.select_dead(DeadFilter()))
    assert (again.count, again.results, again.audit) == (0, {"same": 4, "does_not_fit": 1}, None)
    ann.act_on_all(redrive_verb(), ann.select_dead(DeadFilter()))
    assert one(conn, "SELECT count(*) FROM holdfast.work WHERE payload->>'note' = 'again'") == 4


def test_a_patch_may_mend_what_did_not_fit(conn: Conn, ann: Operator, buried: list[UUID]) -> None:
    known = shop()
    assert ann.unfit_of({"n": 7}, [buried[4]], known) == []
    assert ann.act_on(patch_verb({"n": 7}, known), [buried[4]]).results == {"patched": 1}
    assert payloads(conn)[4] == {"n": 7}
    assert len(ann.unfit_of({"n": None}, DeadFilter(), known)) == 5  # it is needed


def test_what_cannot_be_stored_changes_nothing(conn: Conn, ann: Operator, buried: list[UUID]) -> None:
    before = payloads(conn)
    with pytest.raises(ConfigurationError) as caught:
        patch_verb({})
    assert "say what to change" in words(caught.value)
    with pytest.raises(InvalidPayload):
        patch_verb({"n": "\ud800"})
    done = ann.act_on_all(patch_verb({"note": "x" * 262_100}), ann.select_dead(DeadFilter()))
    assert done.results == {"does_not_fit": 5}
    conn.execute("UPDATE holdfast.dead_letters SET task = 'holdfast.webhook'")
    assert len(ann.unfit_of({"event": "x"}, DeadFilter())) == 5
    (waiting,) = enqueue(conn)
    with pytest.raises(ConfigurationError, match="is no dead letter: it is pending"):
        ann.act_on(patch_verb({"n": 1}), [waiting])
    with pytest.raises(ConfigurationError, match="'dead patch' does not run in the background"):
        ann.begin_operation(patch_verb({"n": 1}), DeadFilter())
    assert payloads(conn) == before
    assert ann.list_audit().entries == []


def test_a_number_is_no_truth(conn: Conn, ann: Operator, buried: list[UUID]) -> None:
    """To Python 1 equals True; to a handler and to JSON it does not."""
    done = ann.act_on(patch_verb({"n": True}), [buried[1]])
    assert done.results == {"patched": 1}
    assert payloads(conn)[1] == {"n": True}


def test_payloads_are_read_some_bytes_at_a_time(
    ann: Operator, buried: list[UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand payloads of the largest size are a quarter of a gigabyte."""
    assert store.portions([], 100) == []
    sizes = [(job_id, size) for job_id, size in zip(buried, (60, 40, 1, 500, 3), strict=True)]
    assert store.portions(sizes, 100) == [buried[:2], buried[2:3], buried[3:4], buried[4:]]
    monkeypatch.setattr("holdfast.operate.patch.AT_A_TIME", 1)
    read: list[int] = []

    def reading(job_ids: Sequence[UUID]) -> Statement[list[DeadPayload]]:
        read.append(len(job_ids))
        return dead_payloads(job_ids)

    dead_payloads = store.dead_payloads
    monkeypatch.setattr(store, "dead_payloads", reading)
    assert [one.id for one in ann.unfit_of({"n": "many"}, buried, shop())] == buried[:4]
    selection = ann.select_dead(DeadFilter())
    done = ann.act_on_all(patch_verb({"note": "x"}), selection)
    assert (done.count, read) == (5, [1] * 10)
