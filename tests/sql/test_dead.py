"""Dead letters: lists by death and by error, and a redrive that forgets nothing."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.sql.rows import bury, bury_many
from tests.sql.support import BOOM, NOBODY, Conn, end, enqueue, later, one, register, row_of, take_one

from holdfast.cli.refusals import words
from holdfast.db.database import Database
from holdfast.errors import ConfigurationError
from holdfast.model.outcome import Failed
from holdfast.operate import dead
from holdfast.operate.bulk import Done
from holdfast.operate.dead import redrive_verb
from holdfast.operate.operations import carry_on
from holdfast.operate.operator import Operator
from holdfast.operate.refusal import why
from holdfast.store import dead as store
from holdfast.store.dead import DeadFilter, DeadLine
from holdfast.store.queue_load import CAP, Count
from holdfast.testing import Kit

pytestmark = pytest.mark.versions


@pytest.fixture
def worker(conn: Conn) -> str:
    return register(conn)


def redrive(database: Database, *job_ids: UUID) -> Done:
    return Operator(database, "ann").act_on(dead.redrive_verb(), job_ids)


def redrive_all(database: Database, rate: float | None = None, **filters: Any) -> Done:
    selection = Operator(database, "ann").select_dead(DeadFilter(**filters))
    return Operator(database, "ann").act_on_all(dead.redrive_verb(rate), selection)


def left(conn: Conn) -> int:
    return int(one(conn, "SELECT count(*) FROM holdfast.dead_letters"))


def mark_dead(conn: Conn) -> None:
    """Ten of the task `odd` get a key, and five of those a tag."""
    first = "(SELECT id FROM holdfast.dead_letters WHERE task = 'odd' ORDER BY id LIMIT"
    conn.execute(f"UPDATE holdfast.dead_letters SET partition_key = 'k' WHERE id IN {first} 10)".encode())
    conn.execute(f"UPDATE holdfast.dead_letters SET tags = '{{vip,x}}' WHERE id IN {first} 5)".encode())


# Looks ------------------------------------------------------------------------------------------------------------


def test_dead_letters_are_listed_by_death_and_paged(
    conn: Conn, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LOOK", 4)
    bury_many(conn, 20, task="odd")  # seven at a time died at the same moment
    bury_many(conn, 20, queue="lost")
    mark_dead(conn)
    filters: list[tuple[dict[str, Any], int]] = [
        ({}, 40),
        ({"task": "odd"}, 20),
        ({"queue": "lost"}, 20),
        ({"task": "none"}, 0),
        ({"error": "BOOM"}, 40),
        ({"error": "bo_m"}, 0),
        ({"key": "k"}, 10),
        ({"tag": "vip"}, 5),
        ({"tag": "vi"}, 0),
        ({"key": "k", "tag": "vip", "task": "odd"}, 5),
        ({"key": "other", "tag": "vip"}, 0),
    ]
    for given, count in filters:
        seen: list[DeadLine] = []
        after = None
        while True:
            page = Operator(database, "ann").list_dead(DeadFilter(**given), after=after, limit=3)
            seen += page.dead_letters
            after = page.next
            if after is None:
                break
        assert len({d.id for d in seen}) == len(seen) == count
        assert [(d.died_at, d.id) for d in seen] == sorted([(d.died_at, d.id) for d in seen], reverse=True)


def test_the_same_error_of_the_same_task_is_one_group(conn: Conn, database: Database) -> None:
    bury_many(conn, 30, error="'Timeout: order ' || n || ' of ' || gen_random_uuid() || ' at 0xff' || n")
    bury_many(
        conn, 5, queue="lost", error="'Timeout: order ' || n || ' of ' || gen_random_uuid() || ' at 0x1'"
    )
    bury_many(conn, 7, task="other", error="'Timeout: order 1 of ' || gen_random_uuid() || ' at 0x1'")
    bury_many(conn, 3, error="NULL")
    found = Operator(database, "ann").group_dead()
    assert (found.looked_at, found.capped) == (45, False)
    shown = [(g.task, g.count, g.queues) for g in found.groups]
    assert shown == [("work", 35, ["inbox", "lost"]), ("other", 7, ["inbox"]), ("work", 3, ["inbox"])]
    largest = found.groups[0]
    newest = Operator(database, "ann").list_dead(DeadFilter(group=largest.id)).dead_letters
    assert {d.group for d in newest} == {largest.id}
    assert (largest.job_id, largest.error) == (newest[0].id, newest[0].last_error)
    assert (largest.first_died_at, largest.last_died_at) == (newest[-1].died_at, newest[0].died_at)
    assert [g.count for g in Operator(database, "ann").group_dead(limit=1).groups] == [35]
    assert [g.count for g in Operator(database, "ann").group_dead(DeadFilter(queue="lost")).groups] == [5]
    assert [g.task for g in Operator(database, "ann").group_dead(DeadFilter(task="other")).groups] == [
        "other"
    ]
    assert Operator(database, "ann").group_dead(DeadFilter(error="none such")).groups == []


def test_groups_are_of_the_newest_and_say_so(
    conn: Conn, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury_many(conn, CAP + 50, ago="10")
    bury_many(conn, 1, task="newest")
    found = Operator(database, "ann").group_dead()
    assert (found.looked_at, found.capped) == (CAP, True)
    assert [g.count for g in found.groups] == [CAP - 1, 1]
    monkeypatch.setattr(store, "LOOK", 100)
    assert Operator(database, "ann").group_dead(DeadFilter(task="none")) == dead.DeadGroups(
        [], 0, capped=True
    )


def test_a_key_or_a_tag_says_which(conn: Conn, database: Database) -> None:
    bury_many(conn, 20, task="odd")
    mark_dead(conn)
    assert [g.count for g in Operator(database, "ann").group_dead(DeadFilter(key="k")).groups] == [10]
    assert [g.count for g in Operator(database, "ann").group_dead(DeadFilter(tag="vip")).groups] == [5]
    assert redrive_all(database, tag="vip").count == 5
    assert redrive_all(database, key="k").count == 5
    assert left(conn) == 10
    with pytest.raises(ConfigurationError, match=r"tag 'a\\x00' is not valid text"):
        redrive_all(database, tag="a\x00")


def test_ages_are_counted_from_death(conn: Conn, kit: Kit, database: Database, worker: str) -> None:
    old = bury(conn, worker)
    later(kit, 7200, conn)
    new = bury(conn, worker)
    for wanted, expected in ((DeadFilter(older_than=3600), [old]), (DeadFilter(newer_than=3600), [new])):
        assert [d.id for d in Operator(database, "ann").list_dead(wanted).dead_letters] == expected
        assert [g.job_id for g in Operator(database, "ann").group_dead(wanted).groups] == expected
    assert redrive_all(database, older_than=3600.0).count == 1
    assert [d.id for d in Operator(database, "ann").list_dead().dead_letters] == [new]


def test_what_makes_no_sense_is_refused(database: Database) -> None:
    for wanted in (DeadFilter(group="xyz"), DeadFilter(error="\x00"), DeadFilter(older_than=9, newer_than=8)):
        with pytest.raises(ConfigurationError):
            Operator(database, "ann").list_dead(wanted)
    with pytest.raises(ConfigurationError, match="is not a place in the list"):
        Operator(database, "ann").list_dead(after="2026-01-01/x")


# Redrive ----------------------------------------------------------------------------------------------------------


def test_redrive_keeps_the_generation_and_gives_fresh_attempts(
    conn: Conn, database: Database, worker: str
) -> None:
    (job_id,) = enqueue(conn, max_attempts=2, partition_key="k", priority=0, metadata='{"a": 1}', tags=("t",))
    before = row_of(conn, job_id)
    for _ in range(2):
        last = take_one(conn, worker)
        end(conn, last.grant, Failed(BOOM, 0.0), worker)
    conn.execute("UPDATE holdfast.dead_letters SET crashes = 2")
    assert redrive(database, job_id, job_id).results == {"redriven": 1}
    after = row_of(conn, job_id)
    fresh = {
        "attempts": 0,
        "crashes": 0,
        "suspect": 0,
        "claim_token": str(NOBODY),
        "status": "pending",
        "lease_generation": 2,
    }
    assert {key: after[key] for key in fresh} == fresh
    moved = {"available_at", "claimed_at", "claimed", "lease_generation", "last_error"}
    assert {k: v for k, v in after.items() if k not in moved} == {
        k: v for k, v in before.items() if k not in moved
    }
    assert after["last_error"] == "ValueError: boom"
    assert left(conn) == 0
    again = take_one(conn, worker)
    assert (again.grant.generation, again.attempt) == (3, 1)
    assert again.fence > last.fence
    assert end(conn, again.grant, Failed(BOOM, 0.0), worker) == "pending"  # two attempts again, not none


def test_redrive_by_id_moves_all_or_none(conn: Conn, database: Database, worker: str) -> None:
    first, second, stranger = bury(conn, worker), bury(conn, worker), uuid4()
    (waiting,) = enqueue(conn)
    with pytest.raises(ConfigurationError, match=f"nothing was redriven: there is no job {stranger}"):
        redrive(database, first, stranger)
    with pytest.raises(ConfigurationError, match=f"job {waiting} is no dead letter: it is pending"):
        redrive(database, first, waiting)
    conn.execute("UPDATE holdfast.dead_letters SET queue = 'lost' WHERE id = %s", [second])
    with pytest.raises(ConfigurationError) as caught:
        redrive(database, first, second)
    assert words(caught.value).endswith(
        "queue lost, which does not exist. Create it: holdfast queue create lost"
    )
    assert left(conn) == 2
    assert one(conn, "SELECT count(*) FROM holdfast.audit") == 0
    Operator(database, "ann").create_queue("lost")
    assert redrive(database, first, second).count == 2
    assert row_of(conn, second)["queue"] == "lost"


def test_redrive_all_takes_a_part_or_everything_and_leaves_lost_queues(
    conn: Conn, database: Database
) -> None:
    bury_many(conn, 1200)
    bury_many(conn, 10, task="other")
    bury_many(conn, 7, queue="lost")
    verb = dead.redrive_verb()
    assert Operator(database, "ann").preview_dead(verb, DeadFilter()).count == Count(1217)
    assert Operator(database, "ann").preview_dead(verb, DeadFilter(task="other")).count == Count(10)
    assert redrive_all(database, task="other").count == 10
    steps: list[int] = []
    done = Operator(database, "ann").act_on_all(
        verb, Operator(database, "ann").select_dead(DeadFilter()), steps.append
    )
    reason = why("no_queue", "belongs to queue lost, which does not exist", queue="lost")
    assert (done.count, done.left, steps) == (1200, {reason: 7}, [1000, 1200])
    assert one(conn, "SELECT count(*) FROM holdfast.work WHERE status = 'pending'") == 1210
    assert redrive_all(database) == Done("dead redrive", 0, {}, {reason: 7}, None)


def test_a_group_is_redriven_alone(conn: Conn, database: Database) -> None:
    bury_many(conn, 12, error="'Timeout: after ' || n || ' s'")
    bury_many(conn, 5, error="'KeyError: x'")
    (largest, other) = Operator(database, "ann").group_dead().groups
    assert redrive_all(database, group=largest.id).count == 12
    assert [g.id for g in Operator(database, "ann").group_dead().groups] == [other.id]
    assert redrive_all(database, error="keyERROR").count == 5


def test_what_dies_during_a_redrive_is_not_taken_again(conn: Conn, database: Database) -> None:
    bury_many(conn, 3)
    later = Operator(database, "ann").list_dead().dead_letters[0].id
    conn.execute(
        "UPDATE holdfast.dead_letters SET died_at = died_at + interval '1 hour' WHERE id = %s", [later]
    )
    assert redrive_all(database).count == 2


def test_redrives_at_the_same_time_move_each_job_once(conn: Conn, database: Database) -> None:
    bury_many(conn, 3000)
    with ThreadPoolExecutor(4) as pool:
        moved = sum(done.count for done in pool.map(lambda _: redrive_all(database), range(4)))
    moved += redrive_all(database).count  # what was locked by one that had passed it
    assert moved == 3000
    assert one(conn, "SELECT count(*) FROM holdfast.work") == 3000
    assert one(conn, "SELECT sum(count) FROM holdfast.audit") == 3000


def test_a_rate_spreads_them_out_from_now_on_the_oldest_first(conn: Conn, database: Database) -> None:
    bury_many(conn, 1500)
    order = [
        r[0] for r in conn.execute("SELECT id FROM holdfast.dead_letters ORDER BY died_at, id").fetchall()
    ]
    assert redrive_all(database, rate=100.0).count == 1500
    rows = conn.execute("SELECT id, available_at FROM holdfast.work ORDER BY available_at").fetchall()
    assert [r[0] for r in rows] == order
    due: list[datetime] = [r[1] for r in rows]
    gaps = [(b - a) / timedelta(milliseconds=1) for a, b in pairwise(due)]
    assert min(gaps) >= 9.99  # also between two batches
    assert due[0] <= one(conn, "SELECT holdfast.now()")
    assert due[-1] - due[0] == pytest.approx(timedelta(seconds=15), abs=timedelta(seconds=10))
    (selection,) = (r[0] for r in conn.execute("SELECT selection FROM holdfast.audit"))
    assert (UUID(selection.pop("act")), selection)[1] == {"all": True, "per_second": 100.0}


def test_no_rate_is_so_slow_that_a_date_overflows(conn: Conn, database: Database) -> None:
    bury_many(conn, 20)
    assert redrive_all(database, rate=1e-12).count == 20
    assert one(conn, "SELECT max(available_at) < now() + interval '11 years' FROM holdfast.work")


def test_the_name_of_a_group_does_not_tell_its_error(conn: Conn, database: Database) -> None:
    """Whoever guesses an error cannot see by the name that he is right: another database names the same error otherwise."""
    bury_many(conn, 3, error="'ValueError: password=hunter2'")
    ann = Operator(database, "ann")
    (group,) = ann.group_dead().groups
    plain = hashlib.sha256(b"work\x1fValueError: password=hunter#").hexdigest()[:8]
    assert group.id != plain
    assert ann.list_dead(DeadFilter(group=plain)).dead_letters == []
    assert len(ann.list_dead(DeadFilter(group=group.id)).dead_letters) == 3
    conn.execute("UPDATE holdfast.engine SET salt = gen_random_uuid()")
    (other,) = ann.group_dead().groups
    assert other.id != group.id
    assert ann.preview_dead(redrive_verb(), DeadFilter(group=group.id)).count.count == 0


def test_an_operation_over_a_group_of_another_release_is_begun_anew(conn: Conn, database: Database) -> None:
    """It named groups otherwise: to find none would look as if it were done."""
    bury_many(conn, 3)
    ann = Operator(database, "ann")
    (group,) = ann.group_dead().groups
    begun = ann.begin_operation(redrive_verb(), DeadFilter(group=group.id))
    assert begun.selection == {
        "group": group.id,
        "salted": True,
    }  # which the other one does not know, and leaves
    conn.execute("UPDATE holdfast.operations SET selection = selection - 'salted'")
    ann.run(carry_on("w", uuid4(), begun.id))
    found = ann.find_operation(begun.id)
    assert (found.state, found.done) == ("waiting", 0)
    assert "named its group otherwise: begin it again" in (found.fault or "")
