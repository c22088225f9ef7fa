"""The audit says by which surface somebody acted, from where and why, and what was changed; and it can be searched."""

import json
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.sql.support import Conn, enqueue, run

from holdfast.db.database import Database
from holdfast.errors import ConfigurationError
from holdfast.model.actor import Actor
from holdfast.model.job import NewRow
from holdfast.model.masking import MASK, is_secret_name, masked
from holdfast.operate.edit import Changes
from holdfast.operate.job_acts import RETRY, cancel_verb
from holdfast.operate.operator import Operator
from holdfast.store import audit, jobs
from holdfast.store.audit import AuditLine
from holdfast.store.search import JobFilter


def last(database: Database) -> AuditLine:
    return Operator(database, "reader").list_audit(limit=1).entries[0]


def change(database: Database) -> tuple[Any, Any]:
    entry = last(database)
    return entry.before, entry.after


def with_payload(conn: Conn, payload: dict[str, object]) -> UUID:
    (made,) = run(conn, jobs.enqueue([NewRow("work", json.dumps(payload))]))
    assert made.id is not None
    return made.id


def test_an_entry_says_surface_address_reason_and_operation(conn: Conn, database: Database) -> None:
    operation = uuid4()
    actor = Actor("ann", "web", "10.0.0.7", " the provider is down ", operation)
    (job_id,) = enqueue(conn)
    operator = Operator(database, actor)
    operator.act_on(cancel_verb(), [job_id])
    operator.act_on_all(RETRY, operator.select(RETRY, JobFilter(states=("cancelled",))))
    for entry in operator.list_audit().entries:
        said = (entry.actor, entry.surface, entry.address, entry.reason, entry.operation)
        assert said == ("ann", "web", "10.0.0.7", "the provider is down", operation), entry.action


def test_a_plain_name_is_a_call_from_python_and_a_call_by_hand_is_sql(conn: Conn, database: Database) -> None:
    Operator(database, "ann").pause_queue("inbox")
    entry = last(database)
    assert (entry.surface, entry.address, entry.reason, entry.operation) == ("python", None, None, None)
    conn.execute("SELECT holdfast.record_act('dba', 'jobs mend', '{}', 1)")
    assert (last(database).actor, last(database).surface) == ("dba", "sql")
    conn.execute("SELECT holdfast.audit_act('old', 'jobs mend', '{}', 1)")
    assert (last(database).actor, last(database).surface) == ("old", None)


@pytest.mark.parametrize(
    ("given", "kept"),
    [("fe80::1%eth0", "fe80::1"), ("::ffff:1.2.3.4", "::ffff:102:304"), ("10.0.0.7", "10.0.0.7")],
)
def test_an_address_is_stored_as_the_server_takes_it(database: Database, given: str, kept: str) -> None:
    Operator(database, Actor("ann", "api", given)).pause_queue("inbox")
    stored = last(database).address
    assert stored is not None
    assert Actor("ann", address=stored).address == Actor("ann", address=kept).address


def test_what_is_no_address_and_no_surface_is_refused() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Actor("ann", "web", "10.0.0.7:4000")
    assert str(caught.value) == (
        "'10.0.0.7:4000' is no IP address. Pass the client's address without its port, or None"
    )
    with pytest.raises(ConfigurationError) as caught:
        Actor("ann", "fax")  # type: ignore[arg-type]
    assert str(caught.value) == "there is no surface 'fax' (known: cli, web, api, sql, python)"


def test_before_and_after_of_what_was_changed(conn: Conn, database: Database) -> None:
    operator = Operator(database, "ann")
    operator.pause_queue("inbox")
    assert change(database) == ({"paused": False}, {"paused": True})
    operator.resume_queue("inbox")
    assert change(database) == ({"paused": True}, {"paused": False})
    operator.pause_task("work")
    assert change(database) == ({"paused": False}, {"paused": True})
    operator.resume_task("work")
    assert change(database) == ({"paused": True}, {"paused": False})
    operator.set_queue("inbox", limits={"concurrency": 5})
    assert change(database) == ({"concurrency": None}, {"concurrency": 5})
    job_id = with_payload(conn, {"n": 1, "note": "a", "api_key": "s3cret"})
    operator.edit_job(job_id, Changes({"n": 2, "api_key": "hunter2"}, priority=7))
    assert change(database) == (
        {"priority": 0, "payload": {"n": 1, "api_key": MASK}},
        {"priority": 7, "payload": {"n": 2, "api_key": MASK}},
    )
    text = str(conn.execute("SELECT string_agg(a::text, '') FROM holdfast.audit a").fetchone())
    assert "s3cret" not in text
    assert "hunter2" not in text


def test_whatever_an_act_says_of_a_change_is_masked(conn: Conn, database: Database) -> None:
    """Also where the act itself did not think of it."""
    was, now = {"password": "s3cret", "n": 1}, {"password": "hunter2", "n": 2}
    run(conn, audit.audit(Actor("ann"), "queue set", {"queue": "inbox"}, 1, was, now))
    assert change(database) == ({"password": MASK, "n": 1}, {"password": MASK, "n": 2})


def test_what_is_long_is_named_and_not_kept(conn: Conn, database: Database) -> None:
    job_id = with_payload(conn, {"n": "x" * 50_000})
    Operator(database, "ann").edit_job(job_id, Changes({"n": 2}, priority=7))
    before, after = change(database)
    assert before == {"priority": 0, "payload": "(50,022 bytes, not kept)"}
    assert after == {"priority": 7, "payload": {"n": 2}}


@pytest.mark.parametrize(
    "name", ["password", "API-Key", "apiKey", "x_auth_token", "clientSecret", "cardNumber", "pin"]
)
def test_secrets_are_known_by_their_name(name: str) -> None:
    assert is_secret_name(name)
    assert masked({"a": [{name: {"deep": 1}, "b": 2}]}) == {"a": [{name: MASK, "b": 2}]}


@pytest.mark.parametrize("name", ["n", "order_id", "shipping", "author", "key", "cardinality"])
def test_other_names_are_left(name: str) -> None:
    assert not is_secret_name(name)


def test_the_audit_is_searched_by_actor_verb_and_target(conn: Conn, database: Database) -> None:
    first, second = enqueue(conn, 2)
    ann, bob = Operator(database, "ann"), Operator(database, "bob")
    ann.act_on(cancel_verb(), [first])
    bob.act_on(cancel_verb(), [second])
    bob.act_on(RETRY, [first])
    bob.pause_queue("inbox")

    def found(**filters: str) -> list[tuple[str, str]]:
        return [(entry.actor, entry.action) for entry in ann.list_audit(**filters).entries]  # type: ignore[arg-type]

    assert found(actor="ann") == [("ann", "jobs cancel")]
    assert found(action="jobs") == [("bob", "jobs retry"), ("bob", "jobs cancel"), ("ann", "jobs cancel")]
    assert found(action="jobs retry") == [("bob", "jobs retry")]
    assert found(action="job") == []
    assert found(target=str(first)) == [("bob", "jobs retry"), ("ann", "jobs cancel")]
    assert found(target="inbox") == [("bob", "queue pause")]
    assert found(target=str(first), actor="bob", action="jobs retry") == [("bob", "jobs retry")]
    assert found(target='"} || true') == []


def test_a_search_reads_a_bounded_number_of_entries_at_a_time(
    conn: Conn, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "LOOK", 10)
    conn.execute("SELECT holdfast.record_act('ann', 'a rare', '{}', 1)")
    conn.execute("SELECT holdfast.record_act('bob', 'b usual', '{}', 1) FROM generate_series(1, 25)")
    reader = Operator(database, "reader")
    page = reader.list_audit(actor="ann", limit=5)
    assert ([entry.actor for entry in page.entries], page.next, page.cut) == (["ann"], None, False)
    monkeypatch.setattr("holdfast.operate.audit.PATIENCE", -1.0)
    page = reader.list_audit(actor="ann", limit=5)
    assert (page.entries, page.cut) == ([], True), "one step and no more"
    seen: list[UUID | int] = []
    before: int | None = None
    while True:
        page = reader.list_audit(actor="bob", limit=7, before=before)
        seen += [entry.id for entry in page.entries]
        before = page.next
        if before is None:
            break
    assert len(seen) == len(set(seen)) == 25
