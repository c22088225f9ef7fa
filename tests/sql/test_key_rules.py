"""Keys with a number of their own: a claim takes no more of one, whatever other keys of the queue may have."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.sql.support import Conn, end, enqueue, load, make_queue, one, register, run
from tests.sql.test_limit_rules import Connect, allowance, shared
from tests.sql.test_plans import explain, nodes

from holdfast.model.outcome import Completed
from holdfast.store import limits as store
from holdfast.store.key_rules import KeyRule, list_key_rules, set_key_rules

pytestmark = pytest.mark.versions


def test_a_key_with_a_number_of_its_own_gets_that_and_others_get_the_queues(conn: Conn) -> None:
    make_queue(conn, "q", key_concurrency=3)
    worker = register(conn)
    for key in ("small", "plain", "large"):
        enqueue(conn, 10, queue="q", partition_key=key)
    assert run(conn, set_key_rules("q", ["small"], 1)) == 1
    assert run(conn, set_key_rules("q", ["large"], 7)) == 1
    jobs = run(conn, shared("q", worker, [("small", 10), ("plain", 10), ("large", 10)])).jobs
    assert Counter(job.partition_key for job in jobs) == {"small": 1, "plain": 3, "large": 7}
    assert run(conn, store.limit_use("q")).keys_full == 3
    assert allowance(conn, "q", "small", "plain", "large").keys == [0, 0, 0]
    end(conn, next(job for job in jobs if job.partition_key == "small").grant, Completed(None), worker)
    assert allowance(conn, "q", "small", "plain").keys == [1, 0]
    assert run(conn, store.limit_use("q")).keys_full == 2


def test_a_number_that_changes_counts_for_the_next_claim_and_taken_away_the_queues_does(conn: Conn) -> None:
    make_queue(conn, "q", key_concurrency=3)
    make_queue(conn, "other", key_concurrency=3)
    worker = register(conn)
    enqueue(conn, 10, queue="q", partition_key="a")
    run(conn, set_key_rules("q", ["a"], 1))
    assert len(run(conn, shared("q", worker, [("a", 10)])).jobs) == 1
    run(conn, set_key_rules("q", ["a"], 2))
    assert allowance(conn, "q", "a").keys == [1]
    assert allowance(conn, "other", "a").keys == [3], "the same key of another queue is another key"
    assert run(conn, set_key_rules("q", ["a", "b"], None)) == 1
    assert allowance(conn, "q", "a").keys == [2]
    run(conn, set_key_rules("q", ["a"], 1))
    assert len(run(conn, shared("q", worker, [("a", 10)])).jobs) == 0, "a lower one stops nothing that runs"
    assert run(conn, list_key_rules(None, None, 10)) == [KeyRule("q", "a", 1)]


def test_a_number_of_its_own_is_never_exceeded_by_many_who_claim(conn: Conn, connect: Connect) -> None:
    make_queue(conn, "q", key_concurrency=9)
    run(conn, set_key_rules("q", ["a"], 2))
    enqueue(conn, 40, queue="q", partition_key="a")
    worker, lock = register(conn), threading.Lock()
    running = ended = 0
    most: list[int] = []

    def work(mine: Conn) -> None:
        nonlocal running, ended
        while ended < 40:
            jobs = run(mine, shared("q", worker, [("a", 5)])).jobs
            with lock:
                running += len(jobs)
                most.append(running)
            for job in jobs:
                one(mine, "SELECT 1")  # it takes a moment
                with lock:
                    running -= 1
                end(mine, job.grant, Completed(None), worker)
                with lock:
                    ended += 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [connect() for _ in range(4)]))
    assert max(most) == 2


def test_a_claim_looks_up_the_numbers_of_its_own_keys_however_many_others_have_one(conn: Conn) -> None:
    make_queue(conn, "q", key_concurrency=3)
    load(conn, 2000, queue="'q'", partition_key="'key' || n")
    conn.execute(
        "INSERT INTO holdfast.key_rules SELECT 'q', 'key' || n, 2 FROM generate_series(1, 20000) n",
    )
    plan = explain(conn, store.allowance("q", [f"key{n}" for n in range(20)]))
    looks = [node for node in nodes(plan) if node.get("Relation Name") == "key_rules"]
    assert looks
    assert all(node["Node Type"].startswith("Index") for node in looks)
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in looks) <= 20
