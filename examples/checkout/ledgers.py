"""The verdict: read by SQL from the ledgers inside and outside, and from what the runs recorded."""

from dataclasses import dataclass
from typing import Any

import psycopg

STEPS = [
    "reserve",
    "saga/release",
    "charge",
    "send_receipt",
    "shipped",
    "notify_search",
]  # of an order that was shipped


@dataclass(frozen=True)
class Books:
    """What the ledgers say in the end. All numbers are orders, unless they say otherwise."""

    placed: int
    shipped: int
    declined: int
    unfinished: int  # runs that did not end, or ended in another way
    phantoms: int  # traces of orders that were rolled back
    reserved_twice: int
    not_reserved: int
    not_charged: int
    no_receipt: int
    not_released: int  # declined, and the stock is still reserved
    searched_wrong: int  # not exactly once in the search, or with another parcel
    keys: int  # repeats outside under another idempotency key
    unfenced: int  # repeats outside without a higher fence
    after_record: int  # bodies that ran again though their result was recorded
    histories: int  # shipped orders whose steps are not those of the code
    repeats: int  # bodies that a crash made run again: allowed
    taken_over: int  # runs that a second owner ended


QUESTIONS = {
    "placed": "SELECT count(*) FROM orders",
    "shipped": "SELECT count(*) FROM runs WHERE state = 'completed' AND NOT declined",
    "declined": "SELECT count(*) FROM runs WHERE state = 'failed' AND declined",
    "unfinished": "SELECT count(*) FROM orders WHERE id NOT IN"
    " (SELECT order_id FROM runs WHERE state = CASE WHEN declined THEN 'failed' ELSE 'completed' END)",
    "phantoms": "SELECT count(*) FROM (SELECT order_id FROM reservations UNION ALL SELECT order_id FROM outside"
    " UNION ALL SELECT order_id FROM search UNION ALL SELECT order_id FROM every_run) AS t"
    " WHERE order_id NOT IN (SELECT id FROM orders)",
    "reserved_twice": "SELECT count(*) - count(DISTINCT order_id) FROM reservations",
    "not_reserved": "SELECT count(*) FROM orders WHERE id NOT IN (SELECT order_id FROM reservations)",
    "not_charged": "SELECT count(*) FROM orders WHERE NOT declined"
    " AND id NOT IN (SELECT order_id FROM outside WHERE what = 'charge')",
    "no_receipt": "SELECT count(*) FROM orders WHERE NOT declined"
    " AND id NOT IN (SELECT order_id FROM outside WHERE what = 'receipt')",
    "not_released": "SELECT count(*) FROM orders WHERE declined <>"
    " (id IN (SELECT order_id FROM outside WHERE what = 'release'))",
    "searched_wrong": "SELECT count(*) FROM orders o WHERE"
    " (SELECT coalesce(array_agg(parcel), '{}') FROM search s WHERE s.order_id = o.id)"
    " <> CASE WHEN declined THEN '{}' ELSE ARRAY['parcel-' || o.id] END",
    "keys": "SELECT count(*) FROM (SELECT FROM outside GROUP BY what, order_id"
    " HAVING count(DISTINCT idempotency_key) > 1) AS t",
    "unfenced": "SELECT count(*) - count(DISTINCT (what, order_id, fence)) FROM outside",
    "after_record": "SELECT count(*) FROM outside o JOIN recorded r ON o.idempotency_key = r.run_id || ':' || r.key"
    " WHERE ('x' || right(o.fence, 16))::bit(64)::bigint > r.generation",
    "histories": "SELECT count(*) FROM runs WHERE NOT declined AND keys IS DISTINCT FROM %(steps)s",
    "repeats": "SELECT count(*) - count(DISTINCT (what, order_id)) FROM outside",
    "taken_over": "SELECT count(*) FROM (SELECT run_id FROM recorded GROUP BY run_id"
    " HAVING count(DISTINCT generation) > 1) AS t",
}
VIEWS = """
CREATE TEMP VIEW every_run AS SELECT id AS run_id, state, split_part(key, ':', 2)::int AS order_id
    FROM holdfast.workflow_runs WHERE workflow = 'checkout';
CREATE TEMP VIEW recorded AS SELECT h.run_id, s.* FROM holdfast.workflow_history h,
    jsonb_to_recordset(h.steps) AS s(n bigint, key text, kind text, generation bigint);
CREATE TEMP VIEW runs AS SELECT r.*, o.declined,
    (SELECT array_agg(key ORDER BY n) FROM recorded WHERE run_id = r.run_id) AS keys
    FROM every_run r JOIN orders o ON o.id = r.order_id;
"""


def read(conn: psycopg.Connection[Any]) -> Books:
    conn.execute(VIEWS)
    found: dict[str, int] = {}
    for name, question in QUESTIONS.items():
        row = conn.execute(question, {"steps": STEPS}).fetchone()
        found[name] = int(row[0]) if row else 0
    return Books(**found)


def broken(books: Books) -> list[str]:
    """The promises that did not hold, in words; none is what we want."""
    promises = [
        (books.placed > 0, "no order was placed"),
        (books.shipped + books.declined == books.placed, "orders are missing"),
        (books.unfinished == 0, f"{books.unfinished} runs did not end as they should"),
        (books.phantoms == 0, f"{books.phantoms} traces of orders that were rolled back"),
        (books.not_reserved == 0, f"{books.not_reserved} orders are not reserved"),
        (books.reserved_twice == 0, f"{books.reserved_twice} orders are reserved twice"),
        (books.not_charged == 0, f"{books.not_charged} orders are not charged"),
        (books.no_receipt == 0, f"{books.no_receipt} orders have no receipt"),
        (books.not_released == 0, f"{books.not_released} orders are released or not against their outcome"),
        (books.searched_wrong == 0, f"{books.searched_wrong} orders are not in the search exactly once"),
        (books.keys == 0, f"{books.keys} repeats had another idempotency key"),
        (books.unfenced == 0, f"{books.unfenced} repeats had no higher fence"),
        (books.after_record == 0, f"{books.after_record} steps ran again after their record"),
        (books.histories == 0, f"{books.histories} histories are not those of the code"),
    ]
    return [text for held, text in promises if not held]


def verdict_lines(books: Books, wrong: list[str], killed: int) -> list[str]:
    lines = [
        "Verdict, read from the ledgers:",
        f"  runs        {books.placed} placed: {books.shipped} shipped, {books.declined} declined and undone, 0 lost"
        if not books.unfinished
        else f"  runs        {books.placed} placed, {books.unfinished} not ended as they should",
        f"  inside      {books.reserved_twice} reserved twice, {books.searched_wrong} wrong in the search",
        f"  outside     {books.repeats} calls repeated by {killed} kills, each with its key and a higher fence",
        f"  recorded    {books.after_record} steps ran again after their record",
        f"  taken over  {books.taken_over} runs continued in another worker where the first had stopped",
    ]
    return [*lines, "Every promise held." if not wrong else f"BROKEN: {'; '.join(wrong)}"]
