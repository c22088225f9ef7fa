"""One job per message: replays, concurrent and late, gathered requests, order by key, and how long ids are kept."""

import asyncio
import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from tests.receiver.support import SECRET, body_of, post, standard

from holdfast import Holdfast, ReceivedMessage, Receiver, StandardWebhooks, failpoints
from holdfast.shapes.receiver.shape import SHAPE
from holdfast.shapes.receiver.store import NewMessage, Target, receive_many
from holdfast.store.statement import Statement
from holdfast.testing import Kit

VERIFY = StandardWebhooks(SECRET)
HALF = hashlib.sha256(b"").hexdigest()

pytestmark = pytest.mark.versions


@dataclass
class Paid:
    order_id: int


@pytest.fixture
def paid(app: Holdfast, kit: Kit) -> Receiver[Paid]:
    @app.receive("shop", Paid, verify=VERIFY, patience=600)
    def paid(message: ReceivedMessage[Paid]) -> None: ...

    return paid


async def test_a_thousand_replays_at_once_make_one_job(
    paid: Receiver[Paid], app: Holdfast, akit: Kit
) -> None:
    body = body_of(order_id=1)
    headers = standard(body)
    replies = await asyncio.gather(*(post(paid.asgi, headers, body) for _ in range(1000)))
    assert Counter(reply.status for reply in replies) == {202: 1, 200: 999}
    assert len(akit.jobs()) == 1


async def test_replays_on_many_connections_at_once_make_one_job(paid: Receiver[Paid], akit: Kit) -> None:
    """Transactions of their own, as of many web processes: the twins wait for the first to end."""
    target = Target("shop", "paid", "inbox", 1, 0, 5, 86400.0)

    async def many(n: int) -> list[str]:
        ids = [f"m{(n * 7 + k) % 20}" for k in range(20)]  # each in another order

        def make() -> Statement[Any]:
            return receive_many(target, [NewMessage(i, HALF, '{"message": {}}') for i in ids])

        return [one.outcome for one in await akit.database.arun(make)]

    outcomes = Counter(one for found in await asyncio.gather(*map(many, range(30))) for one in found)
    assert outcomes == {"new": 20, "repeat": 580}
    assert len(akit.jobs()) == 20


async def test_a_twin_waits_for_the_first_and_takes_its_place_when_that_is_undone(
    paid: Receiver[Paid], akit: Kit
) -> None:
    body = body_of(order_id=1)
    for ends, status in (("ROLLBACK", 202), ("COMMIT", 200)):
        headers = standard(body, ends)
        async with await psycopg.AsyncConnection.connect(akit.url) as first:
            assert (await paid.aaccept(headers, body, conn=first)).status == 202
            twin = asyncio.create_task(post(paid.asgi, headers, body))
            waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%receive_many%'"
            while not akit.sql(waiting):
                assert not twin.done()
                await asyncio.sleep(0.02)
            await first.execute(ends.encode())
        assert (await twin).status == status
    assert len(akit.jobs()) == 2


async def test_requests_that_come_together_share_a_transaction(paid: Receiver[Paid], akit: Kit) -> None:
    commits: list[int] = []
    failpoints.arm("received.committed", lambda: commits.append(1))
    bodies = [body_of(order_id=n) for n in range(200)]
    replies = await asyncio.gather(
        *(post(paid.asgi, standard(body, f"m{n}"), body) for n, body in enumerate(bodies))
    )
    assert Counter(reply.status for reply in replies) == {202: 200}
    assert len(akit.jobs()) == 200
    assert len(commits) <= 20
    assert [job["payload"]["message"]["id"] for job in akit.jobs()] == [f"m{n}" for n in range(200)]


async def test_a_message_that_the_database_refuses_spares_the_others(paid: Receiver[Paid], akit: Kit) -> None:
    akit.sql("CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no thirteen'; END $$")
    akit.sql(
        "CREATE TRIGGER no BEFORE INSERT ON holdfast.inbox FOR EACH ROW"
        " WHEN (NEW.payload -> 'message' -> 'data' ->> 'order_id' = '13') EXECUTE FUNCTION no()"
    )
    bodies = [body_of(order_id=n) for n in range(20)]
    replies = await asyncio.gather(
        *(post(paid.asgi, standard(body, f"m{n}"), body) for n, body in enumerate(bodies))
    )
    assert [n for n, reply in enumerate(replies) if reply.status != 202] == [13]
    assert replies[13].status == 503
    assert len(akit.jobs()) == 19


async def test_messages_of_a_key_run_in_the_order_of_their_commit(app: Holdfast, akit: Kit) -> None:
    akit.sql("SELECT holdfast.create_queue('ordered', key_ordering => 'key', dead_letter_policy => 'skip')")
    seen: list[int] = []

    @app.receive("shop", Paid, verify=VERIFY, queue="ordered", key="all", patience=600)
    async def ordered(message: ReceivedMessage[Paid]) -> None:
        seen.append(message.data.order_id)

    @app.receive("free", Paid, verify=VERIFY, queue="ordered", patience=600)
    async def free(message: ReceivedMessage[Paid]) -> None: ...

    for n in range(10):
        body = body_of(order_id=n)
        assert (await post(ordered.asgi, standard(body, f"m{n}"), body)).status == 202
    body = body_of(order_id=99)
    assert (await post(free.asgi, standard(body), body)).status == 202
    (alone,) = akit.jobs("free")
    assert alone["partition_key"] == "msg_1", "a message without a key has its id for one"
    await akit.arun_worker(queues=["ordered"])
    assert seen == list(range(10))


async def test_ids_are_forgotten_after_their_time(app: Holdfast, akit: Kit) -> None:
    @app.receive("short", Paid, verify=StandardWebhooks(SECRET, tolerance="90d"), keep_ids="2d", patience=600)
    def short(message: ReceivedMessage[Paid]) -> None: ...

    body = body_of(order_id=1)
    headers = standard(body)
    assert (await post(short.asgi, headers, body)).status == 202
    prune = SHAPE.prunes["received"]
    akit.clock.advance("47h")
    assert await akit.database.arun(lambda: prune(7, 100)) == 0
    assert (await post(short.asgi, headers, body)).status == 200
    akit.clock.advance("2h")
    assert await akit.database.arun(lambda: prune(7, 100)) == 1
    assert (await post(short.asgi, headers, body)).status == 202
    assert len(akit.jobs()) == 2


def test_from_sql(kit: Kit) -> None:
    call = "SELECT * FROM holdfast.receive('legacy', 'm1', sha256('a'), 'paid', '{\"n\": 1}')"
    (first,) = kit.sql(call)
    (second,) = kit.sql(call)
    assert (first["outcome"], second["outcome"]) == ("new", "repeat")
    assert first["job"] == second["job"] == kit.jobs("paid")[0]["id"]
    (third,) = kit.sql(call.replace("sha256('a')", "sha256('b')"))
    assert (third["outcome"], third["job"]) == ("differs", first["job"])
    with pytest.raises(
        psycopg.errors.InvalidParameterValue, match=r"queue 'nope' does not exist\. Create it: holdfast"
    ):
        kit.sql(call.replace("'{\"n\": 1}'", "'{}', 'nope'"))


WRONG = [
    "receive('a b', 'm', sha256(''), 't', '{}')",
    "receive('s', 'm m', sha256(''), 't', '{}')",
    "receive('s', '', sha256(''), 't', '{}')",
    "receive('s', repeat('m', 257), sha256(''), 't', '{}')",
    "receive('s', 'm', NULL, 't', '{}')",
    "receive('s', 'm', 'short', 't', '{}')",
    "receive('s', 'm', sha256(''), 't t', '{}')",
    "receive('s', 'm', sha256(''), 't', NULL)",
    "receive('s', 'm', sha256(''), 't', to_jsonb(repeat('x', 300000)))",
    "receive('s', 'm', sha256(''), 't', '{}', 'inbox', repeat('k', 513))",
    "receive('s', 'm', sha256(''), 't', '{}', keep => '1 second')",
    "receive_many('s', '{a,b}', '{}', 't', '{}')",
]


def test_sql_refuses_what_is_out_of_its_limits(holdfast_url: str) -> None:
    with psycopg.connect(holdfast_url) as conn:
        for wrong in WRONG:
            with pytest.raises(psycopg.errors.InvalidParameterValue, match="out of the limits"):
                conn.execute(f"SELECT * FROM holdfast.{wrong}".encode())
            conn.rollback()
        assert conn.execute("SELECT 1 FROM holdfast.received").fetchall() == []
