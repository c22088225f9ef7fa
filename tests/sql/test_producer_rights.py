"""Whoever may only enqueue can only enqueue: no stranger's group, no moved clock, no memory of the server."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.sql.support import Conn, configure, end, keyed, one, put, register, run, take

from holdfast.model.job import NewRow
from holdfast.model.outcome import Completed
from holdfast.store import chains
from holdfast.testing import Kit

pytestmark = pytest.mark.versions


@pytest.fixture
def role(conn: Conn) -> Iterator[str]:
    """A login that may enqueue, and nothing else."""
    name = f"producer_{uuid4().hex[:12]}"
    conn.execute(f"CREATE ROLE {name} LOGIN; GRANT USAGE ON SCHEMA holdfast TO {name}".encode())
    conn.execute(
        f"GRANT EXECUTE ON FUNCTION holdfast.enqueue, holdfast.enqueue_many, holdfast.enqueue_group TO {name}".encode()
    )
    yield name
    conn.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())


@pytest.fixture
def producer(kit: Kit, role: str) -> Iterator[Conn]:
    with psycopg.connect(psycopg.conninfo.make_conninfo(kit.url, user=role), autocommit=True) as session:
        yield session


# Parents and groups -------------------------------------------------------------------------------------------------

PARENT = "SELECT holdfast.enqueue('work', parent => gen_random_uuid())"
MANY = """SELECT * FROM holdfast.enqueue_many('{work}', '{"{}"}', '{inbox}', '{1}', '{NULL}', '{0}', '{5}', '{NULL}', '{0}',
                                              '{NULL}', '{NULL}', '{NULL}', '{NULL}', '{NULL}', %s::uuid[], %s::uuid[])"""
NOBODY = [None]


def some_group(conn: Conn) -> Any:
    (group, _) = run(
        conn, chains.enqueue_group([NewRow("member", "{}")], [NewRow("after", "{}")], "finished")
    )
    return group.id


def test_a_producer_names_neither_a_parent_nor_a_group(conn: Conn, producer: Conn, role: str) -> None:
    group = some_group(conn)
    calls: list[tuple[str, list[Any]]] = [
        (PARENT, []),
        (MANY, [[uuid4()], NOBODY]),
        (MANY, [NOBODY, [group]]),
        (MANY.replace("enqueue_many", "write_jobs")[:-1] + ", NULL)", [NOBODY, [group]]),
    ]
    for query, params in calls:
        with pytest.raises(psycopg.errors.InsufficientPrivilege) as caught:
            producer.execute(query.encode(), params)
        if "write_jobs" not in query:
            assert (
                caught.value.diag.message_primary
                == f"role {role} may not name the parent or the group of a job"
            )
    producer.execute(MANY, [NOBODY, NOBODY])
    assert one(conn, "SELECT array_agg(task ORDER BY seq) FROM holdfast.work") == ["member", "work"]


def test_a_producer_makes_groups_of_its_own(conn: Conn, producer: Conn) -> None:
    producer.execute("""SELECT holdfast.enqueue_group('[{"task": "member"}]', '[{"task": "after"}]')""")
    assert one(conn, "SELECT count(*) FROM holdfast.work WHERE group_id IS NOT NULL") == 1


def test_a_role_that_enqueues_for_workers_names_them(conn: Conn, producer: Conn, role: str) -> None:
    conn.execute(f"GRANT EXECUTE ON FUNCTION holdfast.enqueue_specs TO {role}".encode())
    producer.execute(PARENT)
    producer.execute(MANY, [[uuid4()], [some_group(conn)]])
    assert one(conn, "SELECT count(parent_id) FROM holdfast.work") == 2


def test_a_role_that_is_set_counts_and_not_the_login(
    conn: Conn, connect: Callable[[], Conn], role: str
) -> None:
    session = connect()
    session.execute(PARENT)
    session.execute(f"SET ROLE {role}".encode())
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        session.execute(PARENT)


# The clock ----------------------------------------------------------------------------------------------------------


def test_a_producer_does_not_move_the_clock(kit: Kit, conn: Conn, producer: Conn) -> None:
    (first,) = put(conn, keyed("k", life=60.0))
    producer.execute("SET holdfast.clock_offset = '30 days'")
    (again,) = put(producer, keyed("k"))
    (late,) = put(producer, NewRow("late", "{}"))
    assert (again.id, again.created) == (first.id, False)
    assert one(conn, "SELECT max(created_at) < clock_timestamp() FROM holdfast.work")
    assert one(producer, "SELECT holdfast.now() = statement_timestamp()")
    assert late.created


def test_a_member_of_the_owner_moves_the_clock(kit: Kit, conn: Conn, producer: Conn, role: str) -> None:
    owner = one(conn, "SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'holdfast'")
    conn.execute(f"GRANT {owner} TO {role}".encode())
    producer.execute("SET holdfast.clock_offset = '30 days'")
    assert one(producer, "SELECT holdfast.now() - statement_timestamp() = interval '30 days'")
    producer.execute("SET holdfast.clock_offset = ''")
    assert one(producer, "SELECT holdfast.now() = statement_timestamp()")


# Numbers that print long --------------------------------------------------------------------------------------------

LONG = "[" + ",".join(["1e131000"] * 20_000) + "]"
ZEROS = "[" + ",".join(["0e-16383"] * 20_000) + "]"
SOME = "[" + ",".join(["1e131000"] * 900) + "]"
BOMBS = {
    "payload": ("SELECT holdfast.enqueue('t', %s)", f'{{"n": {LONG}}}'),
    "zeros": ("SELECT holdfast.enqueue('t', %s)", f'{{"n": {ZEROS}}}'),
    "metadata": ("SELECT holdfast.enqueue('t', metadata => %s)", f'{{"n": {SOME}}}'),
    "follow-up": (
        "SELECT holdfast.enqueue('t', follow_ups => %s)", f'[{{"task": "t", "payload": {{"n": {LONG}}}}}]',
    ),
    "callback": ("SELECT holdfast.enqueue_group('[]', %s)", f'[{{"task": "t", "payload": {{"n": {LONG}}}}}]'),
    "queue": ("SELECT holdfast.enqueue_group(%s)", f'[{{"task": "t", "queue": {LONG}}}]'),
    "members": (
        "SELECT holdfast.enqueue_group(%s)",
        "[" + ",".join(['{"task": "t", "payload": {"n": 1e131000}}'] * 20_000) + "]",
    ),
    "many": (MANY.replace('{"{}"}', "%s", 1).replace("'%s'", "ARRAY[%s]"), f'{{"n": {LONG}}}'),
    "tags": (MANY.replace("'{NULL}', '{NULL}', '{NULL}', %s", "ARRAY[%s], '{NULL}', '{NULL}', %s", 1), SOME),
}  # fmt: skip


@pytest.mark.parametrize("where", BOMBS)
def test_numbers_that_print_long_are_refused_before_they_are_printed(conn: Conn, where: str) -> None:
    query, value = BOMBS[where]
    peak = Path(f"/proc/{conn.info.backend_pid}/status")
    before = _peak(peak)
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        conn.execute(query.encode(), [value, *([NOBODY] * (query.count("%s") - 1))])
    assert _peak(peak) - before < 128_000, "KiB"
    assert one(conn, "SELECT count(*) FROM holdfast.work") == 0


def _peak(status: Path) -> int:
    """The largest memory that the process had, in KiB."""
    (line,) = (text for text in status.read_text().splitlines() if text.startswith("VmHWM"))
    return int(line.split()[1])


def test_what_only_looks_like_long_numbers_is_taken(conn: Conn) -> None:
    payload = json.dumps(
        {"ids": [f"5e{n}99999-{n}" for n in range(5000)], "n": [1e300, 12345678901234567890]}
    )
    put(conn, NewRow("work", payload, idempotency_key="k", idempotency_lifetime=60.0))
    conn.execute("SELECT holdfast.enqueue('work', %s)", [payload])
    conn.execute("""SELECT holdfast.enqueue('work', '{"n": 1e131000}')""")
    assert one(conn, "SELECT count(*) FROM holdfast.work") == 3


# Follow-ups ---------------------------------------------------------------------------------------------------------


def test_follow_ups_are_stored_as_they_will_be_enqueued(conn: Conn) -> None:
    given_ = """[{"task": "after", "priority": 1.0, "version": 2.0, "max_attempts": 3e0, "delay": 1e-400,
                  "partition_key": 17, "run_at": "2030-02-28T24:00:00+02:00", "tags": null,
                  "then": [{"task": "last", "priority": -5.00}]}]"""
    conn.execute("SELECT holdfast.enqueue('work', follow_ups => %s)", [given_])
    assert one(conn, "SELECT follow_ups FROM holdfast.work") == [
        {
            "task": "after",
            "priority": 1,
            "version": 2,
            "max_attempts": 3,
            "delay": 0,
            "partition_key": "17",
            "run_at": "2030-02-28T22:00:00.000000Z",
            "then": [{"task": "last", "priority": -5}],
        }
    ]
    worker = register(conn)
    assert end(conn, take(conn, worker)[0].grant, Completed()) == "completed"
    assert conn.execute("SELECT task, priority, version, max_attempts FROM holdfast.work").fetchall() == [
        ("after", 1, 2, 3)
    ]


@pytest.mark.parametrize(
    "option",
    [
        '"run_at": "2026-02-30T00:00:00Z"', '"run_at": "2026-01-01T25:00Z"', '"run_at": "99999-01-01T00:00Z+99"',
        '"run_at": "0000-01-01T00:00:00Z"', '"run_at": 5', '"queue": ["inbox"]', '"partition_key": {"a": 1}',
        '"idempotency_key": true', '"idempotency_lifetime": "NaN"', '"delay": "1"', '"version": 2147483648',
    ],
)  # fmt: skip
def test_follow_ups_that_could_not_be_enqueued_are_refused(conn: Conn, option: str) -> None:
    for query in (
        "SELECT holdfast.enqueue('work', follow_ups => %s)",
        "SELECT holdfast.enqueue_group('[]', %s)",
        "SELECT holdfast.enqueue_group(%s)",
    ):
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            conn.execute(query.encode(), [f'[{{"task": "after", {option}}}]'])


def _numbers(low: int, high: int) -> st.SearchStrategy[str]:
    return st.one_of(
        st.integers(low, high).map(str),
        st.integers(low, high).map(lambda n: f"{n}.0"),
        st.sampled_from(["1.5", "-0.0", "1e2", "1e-400", "1e400", "null", '"1"', "true", "[]", f"{high}.5"]),
    )


_TEXTS = st.sampled_from(['"a"', '""', "7", "1.50", "null", "true", "[1]", '{"a": 1}', json.dumps("x" * 513)])
_TIMES = st.one_of(
    st.datetimes().map(lambda at: json.dumps(at.isoformat() + "Z")),
    st.sampled_from(
        ["2026-02-30T00:00:00Z", "2026-02-28T24:00:00Z", "infinity", "294277-01-01T00:00:00Z", "2026-01-01T00:00+15:59",
         "2026-01-01 00:00:00.1234567-07", "2026-01-01T00:60:60Z", "2026-13-01T00:00Z", "2026-01-01T00:00+99:99"]
    ).map(json.dumps),
)  # fmt: skip
_OPTIONS = {
    "priority": _numbers(-101, 101),
    "version": _numbers(0, 2**31),
    "max_attempts": _numbers(0, 1001),
    "delay": _numbers(-1, 400_000_000),
    "idempotency_lifetime": _numbers(1, 604_800),
    "run_at": _TIMES,
    "partition_key": _TEXTS,
    "idempotency_key": _TEXTS,
    "replace_key": _TEXTS,
    "queue": st.sampled_from(['"inbox"', "null", "[]"]),
    "tags": st.sampled_from(["[]", "null", '["a", null, 1e300]', '"a"', "{}", "[[1]]"]),
    "metadata": st.sampled_from(["{}", "null", "[]", "1", '{"a": 1e300}']),
    "payload": st.sampled_from(["{}", "null", "[]", '{"a": 1.0}']),
}


def _spec(options: dict[str, str]) -> str:
    return '{"task": "after"' + "".join(f', "{name}": {text}' for name, text in options.items()) + "}"


_SPEC = st.fixed_dictionaries({}, optional=_OPTIONS).map(_spec)
_NESTED = st.tuples(_SPEC, st.none() | _SPEC).map(
    lambda two: two[0] if two[1] is None else f'{two[0][:-1]}, "then": [{two[1]}]}}'
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(specs=st.lists(_NESTED, min_size=1, max_size=3))
def test_whatever_is_taken_as_a_follow_up_can_be_enqueued(conn: Conn, kit: Kit, specs: list[str]) -> None:
    configure(conn, kit)
    conn.execute("TRUNCATE holdfast.work, holdfast.idempotency, holdfast.replacements")
    try:
        conn.execute("SELECT holdfast.enqueue('work', follow_ups => %s)", [f"[{','.join(specs)}]"])
    except psycopg.errors.InvalidParameterValue:
        return
    stored = one(conn, "SELECT follow_ups::text FROM holdfast.work")
    made = conn.execute(
        "SELECT * FROM holdfast.enqueue_specs(ARRAY[%s::jsonb], NULL, NULL)", [stored]
    ).fetchall()
    assert len(made) == len(specs)
    for (nested,) in conn.execute(
        "SELECT follow_ups::text FROM holdfast.work WHERE task = 'after' AND follow_ups IS NOT NULL"
    ).fetchall():
        conn.execute("SELECT * FROM holdfast.enqueue_specs(ARRAY[%s::jsonb], NULL, NULL)", [nested])
