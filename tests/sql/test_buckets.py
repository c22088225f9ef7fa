"""A queue that is claimed key by key sees to the buckets of its rows: a job in a wrong one is found by nobody."""

import psycopg
import pytest
from tests.sql.support import Conn, load, make_queue, one

pytestmark = pytest.mark.versions

WRONG = "SELECT count(*) FROM holdfast.work WHERE partition_bucket <> holdfast.bucket(partition_key)"


@pytest.mark.parametrize("rules", [{"ordering": "key"}, {"fair": True}], ids=["ordered", "fair"])
def test_a_row_has_the_bucket_of_its_key_whoever_writes_it(conn: Conn, rules: dict[str, object]) -> None:
    make_queue(conn, "keyed", **rules)
    key = "'customer:' || n"
    load(conn, 3, queue="'keyed'", partition_key=key)
    load(conn, 3, queue="'keyed'", partition_key=key, partition_bucket="7")
    load(conn, 3, queue="'keyed'", partition_key=key, partition_bucket=f"holdfast.bucket({key})")
    columns = "COPY holdfast.work (id, queue, task, payload, partition_key) FROM STDIN"
    with conn.cursor() as cursor, cursor.copy(columns) as copy:  # as the release before does
        copy.write_row(("00000000-0000-7000-8000-000000000001", "keyed", "work", "{}", "customer:1"))
    with pytest.raises(psycopg.errors.CheckViolation, match="queue_keyed_keyed"):
        load(conn, 1, queue="'keyed'")
    assert one(conn, "SELECT count(*) FROM holdfast.work") == 10
    assert one(conn, WRONG) == 0


def test_a_job_keeps_its_key(conn: Conn) -> None:
    make_queue(conn, "keyed", ordering="key")
    load(conn, 1, queue="'keyed'", partition_key="'a'")
    for table in ("work", "queue_keyed"):
        for change in ("partition_bucket = 1", "partition_key = 'b'"):
            with pytest.raises(psycopg.errors.GeneratedAlways, match="cannot be changed"):
                conn.execute(f"UPDATE holdfast.{table} SET {change}".encode())
    conn.execute("UPDATE holdfast.queue_keyed SET priority = 1")
    assert one(conn, WRONG) == 0


def test_a_queue_that_becomes_ordered_sees_to_its_buckets(conn: Conn) -> None:
    triggers = "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'holdfast.queue_mail'::regclass"
    make_queue(conn, "mail")
    assert one(conn, triggers) == 0
    assert one(conn, "SELECT holdfast.order_queue('mail', 'key', 'skip')") is None
    load(conn, 1, queue="'mail'", partition_key="'a'")
    assert (one(conn, WRONG), one(conn, triggers)) == (0, 2)
    conn.execute("DELETE FROM holdfast.work")
    assert one(conn, "SELECT holdfast.order_queue('mail', 'none', 'skip')") is None
    assert one(conn, triggers) == 0
