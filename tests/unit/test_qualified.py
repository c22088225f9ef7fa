"""Statements that run on the user's connection name the schema of everything in them."""

import re

import pytest

from holdfast.sql import qualified, query, query_names, runs_anywhere

ANYWHERE = [name for name in query_names() if runs_anywhere(name)]
# Words that are no names: keywords, and what the grammar itself takes from pg_catalog.
_GRAMMAR = {
    "AND",
    "ANY",
    "ARRAY",
    "AS",
    "CONFLICT",
    "EXISTS",
    "FILTER",
    "FROM",
    "LATERAL",
    "MATERIALIZED",
    "SELECT",
    "THEN",
    "VALUES",
    "WHERE",
    "coalesce",
    "least",
    "OPERATOR",
}


def bare(text: str) -> str:
    return re.sub(r"'[^']*'", "''", re.sub(r"--[^\n]*", "", text))


def test_these_run_anywhere() -> None:
    assert ANYWHERE == [
        "add_build",
        "advance",
        "append_events",
        "audit",
        "build_of",
        "current_xid",
        "enqueue",
        "enqueue_group",
        "enqueue_one",
        "enter_shadow",
        "event_types",
        "fence_subscription",
        "find_tables",
        "forget_failures",
        "guard",
        "hold_log_start",
        "hold_position",
        "jobs_ended",
        "jobs_ended_at_commit",
        "lock_failures",
        "lock_owned",
        "lock_positions",
        "make_shadow",
        "note_failures",
        "pause_subscription",
        "publish",
        "publish_many",
        "rebuild_obstacle",
        "receive_many",
        "reset_subscription",
        "restart_projection",
        "resume_subscription",
        "schema_exists",
        "seed_shadow",
        "settle_check",
        "settle_finish",
        "settle_forget",
        "settle_one",
        "store_event_types",
        "stream_version",
        "swap_projection",
        "wait_for_locks",
        "webhook_create",
        "webhook_delete",
        "webhook_get",
        "webhook_list",
        "webhook_rotate",
        "webhook_update",
        "which_database",
        "workflow_cancel",
        "workflow_lock",
        "workflow_look",
        "workflow_put",
        "workflow_signal",
        "workflow_start",
        "workflow_start_many",
        "workflow_start_with_signal",
        "written_beside",
    ]


@pytest.mark.parametrize("name", ANYWHERE)
def test_no_name_is_left_to_the_search_path(name: str) -> None:
    text = bare(query(name))
    columns = re.compile(
        r"(?:INSERT INTO [\w.]+(?: AS \w+)?|AS \w+|WITH \w+|, \w+ AS|\) \w+) ?\("
    )  # lists of names, not calls
    calls = re.findall(r"(?<![.\w$])(\w+) ?\(", columns.sub("", text))
    assert set(calls) - _GRAMMAR == set()
    assert set(re.findall(r"::(\w+)(?!\.|\w)", text)) <= {"int", "bigint", "boolean", "interval"}
    assignments = re.compile(r"\bSET .*?\bWHERE\b", re.DOTALL)  # are written without spaces
    text = assignments.sub(lambda found: re.sub(r"\b\w+=(?=\S)", "", found[0]), text)
    without = re.sub(
        r"OPERATOR\(pg_catalog\.[^)]+\)|::|=>|\w+ = EXCLUDED\.\w+|(?:count)?\(\*\)|RETURNING \*|\$\d+",
        " ",
        text,
    )
    assert re.findall(r"[-+*/<>=~!@#%^&|?]+", without) == []
    assert (
        re.findall(r"\b(IN|BETWEEN|LIKE|ILIKE|SIMILAR|nullif|NULLIF|USING|NATURAL|DISTINCT FROM)\b", text)
        == []
    )
    assert re.findall(r"CASE (?!WHEN)", text) == []


def test_literals_and_comments_and_assignments_stay() -> None:
    text = "-- a = b\nSELECT count(x) || 'a = b ::text' FROM t WHERE a.count = 1 ON CONFLICT DO UPDATE SET x = EXCLUDED.x"
    assert qualified(text) == (
        "-- a = b\nSELECT pg_catalog.count(x) OPERATOR(pg_catalog.||) 'a = b ::text' FROM t "
        "WHERE a.count OPERATOR(pg_catalog.=) 1 ON CONFLICT DO UPDATE SET x = EXCLUDED.x"
    )
