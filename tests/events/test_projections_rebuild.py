"""Rebuilds: the tables are made anew beside the live ones, and swapped under load, against an oracle of the log."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from tests.conftest import QUICK, await_until
from tests.events.test_projections_calls import run_until, standing
from tests.flow.test_run import working

from holdfast import (
    AsyncTransaction,
    ConfigurationError,
    Event,
    EventsGone,
    Holdfast,
    Rate,
    SubscriptionStopped,
    Transaction,
    failpoints,
)
from holdfast.cli.refusals import words
from holdfast.operate.refusal import Refused
from holdfast.shapes.events.builds import cancel, restart, start
from holdfast.shapes.events.procedures import Subscriptions
from holdfast.testing import Kit

TABLE = """
CREATE TABLE totals (id serial, key text CONSTRAINT totals_key PRIMARY KEY, n int NOT NULL DEFAULT 0 CHECK (n >= 0),
    made timestamptz DEFAULT now(),
    twice int GENERATED ALWAYS AS (n * 2) STORED, big bigint GENERATED ALWAYS AS IDENTITY) WITH (fillfactor = 70);
CREATE INDEX by_n ON totals (n); CREATE INDEX odd ON totals (key) WHERE n % 2 = 1;
COMMENT ON TABLE totals IS 'sums'; COMMENT ON COLUMN totals.n IS 'how many';
GRANT SELECT ON totals TO PUBLIC"""
DECLARES = "SELECT 1 FROM holdfast.workers WHERE status = 'alive' AND subscriptions IS NOT NULL"
ADD = "INSERT INTO totals AS t (key, n) VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET n = t.n + excluded.n"


@pytest.fixture
def kit(app: Holdfast, holdfast_kit: Callable[..., Kit]) -> Kit:
    kit = holdfast_kit(app, replace(QUICK, pool_size=8))
    kit.sql(TABLE)
    return kit


class Totals:
    def __init__(self, app: Holdfast, name: str = "totals", **options: Any) -> None:
        options = {"tables": ["totals"], **options}

        @app.projection(name, on=["counted"], **options)
        async def totals(tx: AsyncTransaction, events: list[Event[Any]]) -> None:
            for e in events:
                await tx.execute(ADD, [e.key, e.data["n"]])

        self.projection = totals


def table(kit: Kit) -> dict[str, int]:
    return {row["key"]: row["n"] for row in kit.sql("SELECT key, n FROM totals")}


def oracle(kit: Kit, position: int | None = None) -> dict[str, int]:
    rows = kit.sql(
        "SELECT key, sum((data->>'n')::int)::int AS n FROM holdfast.events WHERE type = 'counted' GROUP BY key"
    )
    return {row["key"]: row["n"] for row in rows}


def schemas(kit: Kit) -> list[str]:
    found = kit.sql("SELECT nspname FROM pg_namespace WHERE starts_with(nspname, 'holdfast_') ORDER BY 1")
    return [row["nspname"] for row in found]


def definition(kit: Kit, of: str) -> list[Any]:
    """Everything about a table that must not change, but for its schema."""
    parts = kit.sql(
        """
        SELECT 'index' AS what, replace(pg_get_indexdef(i.indexrelid), %(schema)s, '') AS how FROM pg_index i
        WHERE i.indrelid = %(of)s::regclass
        UNION ALL
        SELECT 'constraint', conname || pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = %(of)s::regclass
        UNION ALL
        SELECT 'column', concat_ws(' ', attname, atttypid::regtype, attnotnull, attidentity, attgenerated,
                                   col_description(attrelid, attnum),
                                   replace(pg_get_expr(d.adbin, d.adrelid), %(schema)s, ''))
        FROM pg_attribute LEFT JOIN pg_attrdef d ON d.adrelid = attrelid AND d.adnum = attnum
        WHERE attrelid = %(of)s::regclass AND attnum > 0
        UNION ALL
        SELECT 'table', concat_ws(' ', relacl, reloptions, obj_description(oid, 'pg_class'), relowner::regrole)
        FROM pg_class WHERE oid = %(of)s::regclass
        UNION ALL
        SELECT 'sequence', s.relname FROM pg_depend d JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
        WHERE d.refobjid = %(of)s::regclass
        ORDER BY 1, 2""",
        {"of": of, "schema": of.rpartition(".")[0] + "."},
    )
    return [tuple(row.values()) for row in parts]


async def publish(app: Holdfast, count: int, rng: random.Random) -> None:
    await app.apublish_many(
        [("counted", {"n": rng.randrange(9)}, f"k{rng.randrange(12)}") for _ in range(count)]
    )


async def swapped(kit: Kit, projection: Any) -> None:
    """Until the rebuild is done; a build that stops says why."""

    def done() -> bool:
        rows = kit.sql("SELECT status, problem FROM holdfast.subscriptions WHERE name LIKE 'totals@%%'", [])
        assert not rows or rows[0]["status"] != "paused", rows[0]["problem"]
        return not rows

    await await_until(done, "the tables are swapped")


async def test_a_rebuild_makes_the_same_table_anew(app: Holdfast, akit: Kit) -> None:
    totals, rng = Totals(app), random.Random(1)
    before = definition(akit, "public.totals")
    async with working(akit):
        await publish(app, 300, rng)
        await totals.projection.aread_your_writes(300, timeout=60)
        akit.sql("UPDATE totals SET n = 0")  # what went wrong with it
        begun = await totals.projection.arebuild()
        assert begun.name == "totals@1"
        await swapped(akit, totals)
        assert table(akit) == oracle(akit)
        assert definition(akit, "public.totals") == before
        assert definition(akit, "holdfast_old_totals.totals") == before
        assert akit.sql("SELECT sum(n) AS n FROM holdfast_old_totals.totals") == [{"n": 0}]
        assert await begun.aprogress() == (0, 0)
        await publish(app, 10, rng)
        await totals.projection.aread_your_writes(310, timeout=60)
    assert table(akit) == oracle(akit)
    with pytest.raises(ConfigurationError) as kept:
        await totals.projection.arebuild()
    assert str(kept.value) == (
        "the tables before the last rebuild of totals are still there, in schema holdfast_old_totals. "
        "First drop them: holdfast projection drop totals"
    )
    assert await totals.projection.adrop_old() == ["totals"]
    assert schemas(akit) == []
    assert akit.sql("INSERT INTO totals (key, n) VALUES ('new', 1) RETURNING id > 0 AS ok") == [{"ok": True}]


async def test_an_empty_log_is_rebuilt_too(app: Holdfast, akit: Kit) -> None:
    totals = Totals(app)
    async with working(akit):
        await await_until(lambda: standing(akit)["position"] == 0, "it is there")
        akit.sql("INSERT INTO totals (key, n) VALUES ('wrong', 1)")
        await totals.projection.arebuild()
        await swapped(akit, totals)
    assert table(akit) == {}


SWAPS = (
    6  # in the usual run; each is a rebuild from the first event on, and there are more of those with each
)


@pytest.mark.parametrize("shards", [1, 3])
async def test_swaps_under_load_lose_and_double_nothing(app: Holdfast, akit: Kit, shards: int) -> None:
    """Two workers, publishers at work, one rebuild after the other, and crashes on the way."""
    totals, rng = Totals(app, shards=shards, batch=13), random.Random(2)
    hits = iter(range(100_000))

    def crash() -> None:
        if next(hits) % 7 == 6:
            raise ConnectionError("crashed")

    for point in (
        "rebuild.batch",
        "rebuild.locked",
        "rebuild.swapped",
        "projection.commit",
        "events.projected",
    ):
        failpoints.arm(point, crash)
    stop = asyncio.Event()

    async def load() -> None:
        published = 0
        while not stop.is_set():
            if published - standing(akit)["position"] < 300:  # no more than they can read on any machine
                count = rng.randrange(1, 20)
                await publish(app, count, rng)
                published += count
            await asyncio.sleep(0.01)

    async with working(akit), working(akit):
        await await_until(lambda: standing(akit)["position"] == 0, "it is there")
        loading = asyncio.create_task(load())
        try:
            for _ in range(SWAPS // shards):
                await totals.projection.arebuild()
                await swapped(akit, totals)
                await totals.projection.adrop_old()
        finally:
            stop.set()
            await loading
        failpoints.disarm()
        await totals.projection.aread_your_writes(await app.events.alast_position(), timeout=60)
    assert next(hits) > 2 * 7, "it crashed again and again"
    assert table(akit) == oracle(akit)
    assert schemas(akit) == []


@pytest.mark.parametrize("point", ["rebuild.batch", "rebuild.locked", "rebuild.swapped", "projection.commit"])
async def test_a_session_that_the_server_ends_at_any_point_of_a_rebuild_changes_nothing(
    app: Holdfast, akit: Kit, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rebuild goes on from where it was, and swaps once."""
    monkeypatch.setattr("holdfast.shapes.events.rebuild.BATCH", 40)  # 300 events are several batches
    totals, rng, ended = Totals(app), random.Random(6), iter([True, True])

    def end_sessions() -> None:
        if next(ended, False):
            akit.sql(
                "SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a WHERE a.application_name = 'holdfast' "
                "AND a.datname = current_database() AND a.pid <> pg_backend_pid()"
            )

    async with working(akit):
        await publish(app, 300, rng)
        await totals.projection.aread_your_writes(300, timeout=60)
        await totals.projection.arebuild()
        failpoints.arm(point, end_sessions)
        await swapped(akit, totals)
        failpoints.disarm()
        await await_until(lambda: table(akit) == oracle(akit), "all is there")
    assert schemas(akit) == ["holdfast_old_totals"]
    assert next(ended, None) is None, "the point was reached twice"


async def test_the_swap_applies_what_the_live_projection_has_applied(app: Holdfast, akit: Kit) -> None:
    """The new table is never behind what somebody has read in the old one."""
    totals, rng = Totals(app), random.Random(8)
    async with working(akit):
        await publish(app, 50, rng)
        await totals.projection.aread_your_writes(50, timeout=60)
        await totals.projection.apause()
        await totals.projection.arebuild()
        await swapped(akit, totals)
        assert standing(akit)["position"] == 50
        assert table(akit) == oracle(akit)
        assert standing(akit)["status"] == "paused"


async def test_a_lock_on_the_table_delays_the_swap_and_nobody_else(app: Holdfast, akit: Kit) -> None:
    totals, rng = Totals(app), random.Random(7)
    async with working(akit):
        await publish(app, 20, rng)
        await totals.projection.aread_your_writes(20, timeout=60)
        with akit.connect() as reader:
            reader.execute("SELECT count(*) FROM totals")  # and the transaction stays open
            await totals.projection.arebuild()
            await await_until(
                lambda: "waits for a lock" in str(standing(akit, "totals@1").get("problem")), "it waits"
            )
            published = await app.apublish("counted", {"n": 1}, key="a")
            await totals.projection.aread_your_writes(published, timeout=60)
        await swapped(akit, totals)
        await await_until(lambda: table(akit) == oracle(akit), "all is there")


async def test_a_rebuild_that_is_cancelled_leaves_nothing(app: Holdfast, akit: Kit) -> None:
    totals, rng = Totals(app), random.Random(3)
    async with working(akit):
        await publish(app, 50, rng)
        await totals.projection.aread_your_writes(50, timeout=60)
        failpoints.arm("rebuild.locked", "raise")
        begun = await totals.projection.arebuild(rate=Rate(1000))
        with pytest.raises(ConfigurationError, match="totals is being rebuilt already"):
            await totals.projection.arebuild()
        await begun.acancel()
        assert schemas(akit) == []
        assert akit.sql("SELECT 1 FROM holdfast.subscriptions WHERE name <> 'totals'") == []
    assert table(akit) == oracle(akit)


async def test_a_function_that_writes_beside_the_shadow_is_stopped(app: Holdfast, akit: Kit) -> None:
    akit.sql("CREATE TABLE seen (n int)")

    @app.projection("totals", on=["counted"], tables=["totals"])
    def totals(tx: Transaction, event: Event[Any]) -> None:
        tx.execute(ADD.replace("totals", "public.totals") if event.data["n"] == 1 else ADD, [event.key, 1])
        if event.data["n"] == 2:
            tx.execute("INSERT INTO seen VALUES (2)")

    async with working(akit):
        for n, beside in ((1, "public.totals"), (2, "public.seen")):
            published = await app.apublish("counted", {"n": n}, key="a")
            await totals.aread_your_writes(published, timeout=60)
            if n == 2:
                akit.sql(
                    "UPDATE holdfast.events SET data = jsonb_build_object('n', 0) WHERE data->>'n' = '1'"
                )
            before = (table(akit), akit.sql("SELECT * FROM seen"))
            begun = await totals.arebuild()
            await await_until(lambda: standing(akit, "totals@1").get("status") == "paused", "stopped")
            problem = standing(akit, "totals@1")["problem"]
            assert f"it wrote to {beside} while its tables are rebuilt. Name every table" in problem
            assert (table(akit), akit.sql("SELECT * FROM seen")) == before
            await begun.acancel()


async def test_a_function_that_publishes_is_stopped_while_its_tables_are_built_anew(
    app: Holdfast, akit: Kit
) -> None:
    """Else what follows from its events would happen again."""

    @app.projection("totals", on=["counted"], tables=["totals"])
    def totals(tx: Transaction, event: Event[Any]) -> None:
        tx.execute(ADD, [event.key, 1])
        app.publish("seen", {}, conn=tx)

    async with working(akit):
        published = await app.apublish("counted", {"n": 1}, key="a")
        await totals.aread_your_writes(published, timeout=60)
        begun = await totals.arebuild()
        await await_until(lambda: standing(akit, "totals@1").get("status") == "paused", "stopped")
        assert "it wrote to holdfast.event" in standing(akit, "totals@1")["problem"]
        assert len(akit.sql("SELECT 1 FROM holdfast.events WHERE type = 'seen'")) == 1
        await begun.acancel()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        ("CREATE VIEW sums AS SELECT sum(n) FROM totals", "public.totals is used by the view public.sums"),
        (
            "CREATE TABLE other (key text REFERENCES totals)",
            "public.totals has the foreign key other_key_fkey of public.other",
        ),
        (
            """CREATE FUNCTION t() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
            CREATE TRIGGER tr AFTER INSERT ON totals EXECUTE FUNCTION t()""",
            "public.totals has the trigger tr",
        ),
        ("CREATE POLICY p ON totals", "public.totals has the policy p"),
        ("ALTER TABLE totals ENABLE ROW LEVEL SECURITY", "public.totals has row level security"),
        (
            "CREATE TABLE child () INHERITS (totals)",
            "public.totals inherits from another table, or another from it",
        ),
        ("CREATE PUBLICATION pub FOR TABLE totals", "public.totals is in the publication pub"),
        (
            "CREATE FUNCTION f(t totals) RETURNS int LANGUAGE sql RETURN 1",
            "public.totals is used by the function public.f(public.totals)",
        ),
        ("DROP TABLE totals; CREATE VIEW totals AS SELECT 1 AS n", "public.totals is no ordinary table"),
    ],
)
def test_what_depends_on_the_table_is_in_the_way(app: Holdfast, kit: Kit, make: str, why: str) -> None:
    totals = Totals(app)
    kit.run_worker()
    kit.sql(make)
    with pytest.raises(ConfigurationError) as refused:
        totals.projection.rebuild()
    assert str(refused.value) == (
        f"totals cannot be rebuilt beside its live tables: {why}, which would stay with the old table"
    )
    assert schemas(kit) == []
    assert kit.sql("SELECT 1 FROM holdfast.projection_builds") == []


@pytest.mark.parametrize(
    ("make", "why"),
    [
        ("CREATE VIEW sums AS SELECT sum(n) FROM totals", "is used by the view public.sums"),
        ("ALTER TABLE totals ENABLE ROW LEVEL SECURITY", "has row level security"),
    ],
)
async def test_what_is_made_meanwhile_stops_the_swap(app: Holdfast, akit: Kit, make: str, why: str) -> None:
    totals = Totals(app)
    async with working(akit):
        await await_until(lambda: standing(akit)["position"] == 0, "it is there")
        failpoints.arm("rebuild.locked", "raise")
        await totals.projection.arebuild()
        akit.sql(make)
        failpoints.disarm()
        await await_until(lambda: standing(akit, "totals@1").get("status") == "paused", "stopped")
    assert standing(akit, "totals@1")["problem"] == f"the tables cannot be swapped: public.totals {why}"
    assert akit.sql("SELECT relrowsecurity AS on FROM pg_class WHERE oid = 'public.totals'::regclass") == [
        {"on": "SECURITY" in make}
    ]


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ("ADD COLUMN note text DEFAULT 'x'", "column note text DEFAULT 'x'::text"),
        ("ADD CONSTRAINT few CHECK (n < 10)", "constraint few CHECK ((n < 10))"),
        ("ADD CONSTRAINT alone UNIQUE (id)", "CREATE UNIQUE INDEX alone ON public.totals USING btree (id)"),
        ("ALTER n TYPE bigint", "column n bigint NOT NULL DEFAULT 0"),
    ],
)
async def test_a_table_that_changed_meanwhile_is_not_replaced(
    app: Holdfast, akit: Kit, change: str, part: str
) -> None:
    """What a migration made of the live table would be lost with it."""
    if "bigint" in change:
        akit.sql("ALTER TABLE totals DROP COLUMN twice")
    totals = Totals(app)
    async with working(akit):
        await await_until(lambda: standing(akit)["position"] == 0, "it is there")
        failpoints.arm("rebuild.locked", "raise")
        await totals.projection.arebuild()
        akit.sql(f"ALTER TABLE totals {change}")
        failpoints.disarm()
        await await_until(lambda: standing(akit, "totals@1").get("status") == "paused", "stopped")
        problem = standing(akit, "totals@1")["problem"]
        assert problem.startswith("the tables cannot be swapped: they have changed since the rebuild began (")
        assert f"public.totals: {part}" in problem
        await Subscriptions(akit.database, "ann").arun(cancel("totals"))
        await totals.projection.arebuild()
        await swapped(akit, totals.projection)


async def test_a_view_that_is_made_while_the_swap_waits_is_seen(app: Holdfast, akit: Kit) -> None:
    totals = Totals(app)
    with psycopg.connect(akit.url, autocommit=True) as other:
        other.execute("BEGIN; CREATE VIEW sums AS SELECT sum(n) FROM totals")
        async with working(akit):
            await await_until(lambda: standing(akit)["position"] == 0, "it is there")
            await totals.projection.arebuild()
            waits = "SELECT 1 FROM pg_locks WHERE relation = 'totals'::regclass AND NOT granted"
            await await_until(lambda: bool(akit.sql(waits)), "the swap waits for the view")
            other.execute("COMMIT")
            await await_until(lambda: standing(akit, "totals@1").get("status") == "paused", "stopped")
    problem = "the tables cannot be swapped: public.totals is used by the view public.sums"
    assert standing(akit, "totals@1")["problem"] == problem
    assert akit.sql("SELECT * FROM sums") == [{"sum": None}]


def test_a_rebuild_is_refused_without_tables_or_without_the_start_of_the_log(app: Holdfast, kit: Kit) -> None:
    totals, bare, wrong = (
        Totals(app),
        Totals(app, "bare", tables=[]),
        Totals(app, "wrong", tables=["nothing"]),
    )
    kit.run_worker()
    with pytest.raises(ConfigurationError, match="bare does not say which tables it writes"):
        bare.projection.rebuild()
    with pytest.raises(ConfigurationError, match="there is no table nothing, which wrong declares"):
        wrong.projection.rebuild()
    with pytest.raises(ConfigurationError, match="seed and since go together"):
        totals.projection.rebuild(seed="snap")
    app.publish("counted", {"n": 1}, key="a")
    app.events.last_position()
    kit.sql("UPDATE holdfast.event_log SET start_pos = 1")
    with pytest.raises(
        EventsGone, match="the log begins after position 1, so it cannot be read from the start"
    ):
        totals.projection.rebuild()


async def test_a_rebuild_goes_on_from_a_seed(app: Holdfast, akit: Kit) -> None:
    totals, rng = Totals(app), random.Random(4)
    async with working(akit):
        await publish(app, 40, rng)
        await totals.projection.aread_your_writes(40, timeout=60)
        akit.sql("CREATE SCHEMA snap; CREATE TABLE snap.totals AS SELECT id, key, n FROM totals")
        with pytest.raises(EventsGone, match="position 41 is not in the log, which has 0 to 40"):
            await totals.projection.arebuild(seed="snap", since=41)
        with pytest.raises(ConfigurationError, match="the seed does not fit: there is no table nothing"):
            await totals.projection.arebuild(seed="nothing", since=40)
        akit.sql("UPDATE holdfast.events SET data = NULL")  # they are not read again
        akit.sql("UPDATE totals SET n = 0")
        await totals.projection.arebuild(seed="snap", since=40)
        await swapped(akit, totals)
        await app.apublish("counted", {"n": 5}, key="new")
        await totals.projection.aread_your_writes(41, timeout=60)
    seeded = {row["key"]: row["n"] for row in akit.sql("SELECT key, n FROM snap.totals")}
    assert table(akit) == {**seeded, "new": 5}


async def test_code_of_another_version_lets_a_projection_be(app: Holdfast, akit: Kit) -> None:
    """Old code runs the old tables, new code builds its own, and after the swap only the new code goes on."""
    old = Totals(app)
    new_app = Holdfast(akit.database.url)
    new = Totals(new_app, version=2)
    async with working(akit):
        await app.apublish("counted", {"n": 1}, key="a")
        await old.projection.aread_your_writes(1, timeout=60)
    worker = asyncio.create_task(new_app.run_worker())
    try:
        await new_app.apublish("counted", {"n": 1}, key="a")
        await new.projection.arebuild()
        await swapped(akit, new)
        await new.projection.aread_your_writes(2, timeout=60)
        assert akit.sql("SELECT version, position FROM holdfast.subscriptions") == [
            {"version": 2, "position": 2}
        ]
    finally:
        worker.cancel()
        await asyncio.wait([worker])
        await new_app.database.aclose()
    await app.apublish("counted", {"n": 1}, key="a")
    async with working(akit):  # of the old code
        await await_until(lambda: akit.sql(DECLARES), "the old code has looked for what is free")
        await await_until(lambda: old.projection.lag()[0] == 1, "it is behind")
        assert akit.sql("SELECT 1 FROM holdfast.subscriptions WHERE owner IS NOT NULL") == []
    assert table(akit) == {"a": 2}


def test_a_projection_whose_name_is_as_long_as_may_be_is_rebuilt(app: Holdfast, kit: Kit) -> None:
    name = "n" * 200
    totals = Totals(app, name)
    app.publish("counted", {"n": 1}, key="a")
    run_until(kit, 1, name)
    begun = totals.projection.rebuild()
    assert begun.name.endswith("@1")
    kit.run_worker()
    assert begun.progress() == (0, 0), "it is done"
    assert table(kit) == {"a": 1}
    assert totals.projection.drop_old() == ["totals"]


def test_a_projection_that_is_stopped_is_mended_by_a_rebuild(app: Holdfast, kit: Kit) -> None:
    bad = [True]

    @app.projection("totals", on=["counted"], tables=["totals"], max_attempts=1)
    def totals(tx: Transaction, event: Event[Any]) -> None:
        if bad:
            raise ValueError("wrong code")
        tx.execute(ADD, [event.key, event.data["n"]])

    published = app.publish("counted", {"n": 3}, key="a")
    run_until(kit, 1)
    with pytest.raises(SubscriptionStopped):
        totals.read_your_writes(published)
    bad.clear()
    totals.rebuild()
    run_until_swapped(kit)
    run_until(kit, 1)
    assert totals.read_your_writes(published, timeout=60) == 1
    assert table(kit) == {"a": 3}


def run_until_swapped(kit: Kit) -> None:
    async def main() -> None:
        async with working(kit):
            await swapped(kit, None)
        await kit.database.aclose()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "said"),
    [("totals@1", "totals@1 is the rebuild of totals"), ("totals", "totals is being rebuilt")],
)
def test_a_rebuild_is_not_removed_from_under_its_tables(
    app: Holdfast, kit: Kit, name: str, said: str
) -> None:
    totals = Totals(app)
    kit.run_worker()
    begun = totals.projection.rebuild()
    verbs = Subscriptions(kit.database, "ann")
    with pytest.raises(Refused) as refused:
        verbs.remove(name)
    assert str(refused.value) == f"{said}, and its new tables would stay behind. Give the rebuild up first"
    assert words(refused.value).endswith("first: holdfast projection cancel totals")
    assert [row["name"] for row in kit.sql("SELECT name FROM holdfast.subscriptions ORDER BY 1")] == [
        "totals",
        "totals@1",
    ]
    begun.cancel()
    assert schemas(kit) == []
    assert verbs.remove("totals") == 1


async def test_the_log_stays_as_it_is_while_a_projection_is_begun_anew(app: Holdfast, akit: Kit) -> None:
    """Retention that comes between the look at the log and the TRUNCATE would leave empty tables and no events for them."""
    totals = Totals(app)
    async with working(akit):
        await app.apublish("counted", {"n": 1}, key="a")
        await totals.projection.aread_your_writes(1, timeout=60)
    akit.clock.advance("8d")
    await app.events.alast_position()
    verbs = Subscriptions(akit.database, "ann")

    def past() -> Any:
        akit.sql("SELECT holdfast.empty_event_slots()")
        return akit.sql("SELECT start_pos FROM holdfast.event_log")[0]["start_pos"]

    with akit.connect() as reader:
        reader.execute("SELECT count(*) FROM totals")  # the TRUNCATE waits for it
        task = asyncio.create_task(verbs.arun(restart("totals", ["totals"], 1)))
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'totals'::regclass"
        try:
            await await_until(lambda: akit.sql(waiting), "it waits for the reader")
            begins = await asyncio.to_thread(past)
        finally:
            reader.rollback()
            (result,) = await asyncio.gather(task, return_exceptions=True)
    assert (begins, result) == (0, 1)
    assert (standing(akit)["position"], table(akit)) == (0, {})
    assert past() == 0, "it holds the log from now on"
    async with working(akit):
        await totals.projection.aread_your_writes(1, timeout=60)
    assert table(akit) == {"a": 1}
    assert past() == 1, "and no longer than it needs it"
    for begin in (restart("totals", ["totals"], 1), start("totals", ["totals"], ["counted"], 1)):
        with pytest.raises(EventsGone, match="the log begins after position 1, so it cannot be read from"):
            await verbs.arun(begin)
    assert table(akit) == {"a": 1}
