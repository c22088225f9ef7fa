"""Operations that nobody carries on: made so, found, mended by the printed command, and gone."""

from tests.doctor.case import Case

from holdfast.db.database import Database
from holdfast.operate.job_acts import cancel_verb
from holdfast.operate.operator import Operator
from holdfast.settings import Settings
from holdfast.store.search import JobFilter


def test_an_operation_that_nobody_carries_on(case: Case) -> None:
    case.sql("SELECT holdfast.enqueue('greet', '{\"name\": \"x\"}')")
    database = Database(case.url, Settings())
    begun = Operator(database, "ann").begin_operation(cancel_verb(), JobFilter(task="greet"))
    database.close()
    assert case.found("stuck_operation") is None
    case.sql("UPDATE holdfast.operations SET created_at = created_at - interval '10 minutes'")
    finding = case.cure("stuck_operation")
    assert finding["level"] == "warning"
    assert finding["what"] == "1 operation that no worker runs"
    assert finding["details"] == [f"jobs cancel {begun.id} of ann: nobody takes it up"]
    assert finding["otherwise"] == [f"holdfast operations stop {begun.id}"]


def test_one_that_could_not_go_on_says_why(case: Case) -> None:
    database = Database(case.url, Settings())
    begun = Operator(database, "ann").begin_operation(cancel_verb(), JobFilter(task="greet"))
    database.close()
    case.sql("UPDATE holdfast.operations SET fault = 'Forbidden: permission denied for table archive'")
    finding = case.found("stuck_operation")
    assert finding is not None
    assert finding["details"] == [
        f"jobs cancel {begun.id} of ann: Forbidden: permission denied for table archive"
    ]


def test_unusual_backlog(case: Case) -> None:
    """Whether it is too much is for a person."""
    case.sql("SELECT holdfast.enqueue('greet', '{\"name\": \"x\"}') FROM generate_series(1, 200)")
    case.sql("SELECT holdfast.take_sample(30)")
    assert case.found("unusual_backlog") is None, "no day to compare with"
    case.sql(
        """INSERT INTO holdfast.samples SELECT minute - make_interval(days => d), queue, 3, 0, 1, 0, 0, 1, 1
           FROM holdfast.samples CROSS JOIN generate_series(1, 4) d"""
    )
    finding = case.found("unusual_backlog")
    assert finding is not None
    assert finding["what"] == "1 queue with many more due jobs than usual at this time"
    (detail,) = finding["details"]
    assert detail.startswith("inbox: 200 due, the oldest for ")
    assert detail.endswith(", on 0 workers; usually 3, rarely more than 3 (of 4 days)")


def test_unusual_backlog_of_a_queue_that_has_thousands_every_day(case: Case) -> None:
    """A sample counts 10,000 jobs at most, which is less than five times as many. Their age says it."""
    case.sql(
        """INSERT INTO holdfast.samples (minute, queue, due, behind, running, held, blocked, oldest, workers)
           SELECT date_trunc('minute', now()) - make_interval(days => d), 'inbox', CASE d WHEN 0 THEN 10000 ELSE 3000 END,
                  0, 1, 0, 0, CASE d WHEN 0 THEN 290 ELSE 30 END, 1
           FROM generate_series(0, 4) d"""
    )
    assert case.found("unusual_backlog") is None
    case.sql("UPDATE holdfast.samples SET oldest = 3600 WHERE due = 10000")
    finding = case.found("unusual_backlog")
    assert finding is not None
    (detail,) = finding["details"]
    assert detail == (
        "inbox: 10,000+ due, the oldest for 1 h, on 1 worker; usually 3,000, rarely more than 3,000 (of 4 days), "
        "and the oldest rarely for more than 30 s"
    )
