"""What an operator reads first."""

from holdfast.operate.doctor.finding import Finding, Level
from holdfast.operate.doctor.order import CAUSES, worst_first
from holdfast.shapes import CHECKS


def found(code: str, level: Level = "warning", jobs: int = 0) -> Finding:
    return Finding(code, level, code, [], jobs=jobs)


def codes(*findings: Finding) -> list[str]:
    return [finding.code for finding in worst_first(findings)]


def test_the_worst_level_comes_first_then_what_touches_most_jobs() -> None:
    given = [
        found("long_running", "info", 900),
        found("misfits", jobs=3),
        found("unknown_tasks", jobs=70),
        found("stranded", "error"),
    ]
    assert codes(*given) == ["stranded", "unknown_tasks", "misfits", "long_running"]


def test_what_touches_as_many_stands_in_the_order_of_the_checks() -> None:
    assert codes(found("b"), found("a"), found("c")) == ["b", "a", "c"]


def test_a_cause_stands_before_what_follows_from_it() -> None:
    given = [found("dead_rows", jobs=10), found("misfits", jobs=5), found("horizon_session")]
    assert codes(*given) == ["misfits", "horizon_session", "dead_rows"]
    assert codes(found("dead_rows"), found("misfits")) == ["dead_rows", "misfits"]


def test_a_remark_is_no_cause_of_a_trouble() -> None:
    assert codes(found("unusual_backlog"), found("paused_queue", "info")) == [
        "unusual_backlog",
        "paused_queue",
    ]


def test_every_finding_is_there_once() -> None:
    given = [
        found("held_log"),
        found("stopped_subscription"),
        found("unowned_subscription"),
        found("held_log"),
    ]
    assert sorted(codes(*given)) == sorted(f.code for f in given)


def test_causes_are_findings_that_there_are_and_go_in_no_circle() -> None:
    known = {code for check in CHECKS for code in check.codes}
    assert {*CAUSES, *(code for causes in CAUSES.values() for code in causes)} <= known
    for code in CAUSES:
        seen, todo = set[str](), [code]
        while todo:
            seen.add(one := todo.pop())
            todo += CAUSES.get(one, ())
            assert code not in CAUSES.get(one, ()), code
