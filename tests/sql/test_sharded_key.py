"""holdfast.sharded_key() is the same as sharded_key() of Python."""

from uuid import UUID

import psycopg
import pytest

from holdfast import sharded_key
from holdfast.testing import Kit

BY = ["17", "", "order:9182", "Ünïcode ✓", "a\\b", "x" * 1000, str(UUID(int=7)), *map(str, range(200))]


def test_it_is_the_same_in_sql_and_in_python(kit: Kit) -> None:
    for shards in (1, 2, 7, 8, 1000, 1024):
        texts = "unnest(%s::text[]) WITH ORDINALITY u(b, n)"
        query = f"SELECT holdfast.sharded_key('tenant:1', %s, b) AS k FROM {texts} ORDER BY n"
        found = [row["k"] for row in kit.sql(query, [shards, BY])]
        assert found == [sharded_key("tenant:1", shards=shards, by=by) for by in BY]
    assert kit.sql("SELECT holdfast.sharded_key('t', 8, '17') AS k") == [{"k": "t#7"}]  # for ever
    assert sharded_key("t", 8, 17) == "t#7"  # in the same order as in SQL
    named = "SELECT holdfast.sharded_key(key => 't', shards => 8, by => '17') AS k"
    assert kit.sql(named) == [{"k": sharded_key(key="t", shards=8, by="17")}]


def test_without_by_any_shard_is_taken(kit: Kit) -> None:
    found = kit.sql("SELECT DISTINCT holdfast.sharded_key('t', 4) AS k FROM generate_series(1, 300)")
    assert {row["k"] for row in found} == {"t#0", "t#1", "t#2", "t#3"}


@pytest.mark.parametrize("arguments", ["'t', 0", "'t', 1025", "'t', NULL", "'', 8", "NULL, 8"])
def test_what_cannot_be_is_refused(kit: Kit, arguments: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="must be"):
        kit.sql(f"SELECT holdfast.sharded_key({arguments}, 'x')")
