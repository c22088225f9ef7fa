"""What a history says to code: hits, misses and divergences, edit by edit."""

from datetime import UTC, datetime

import pytest

from holdfast.shapes.workflows.faults import Diverged
from holdfast.shapes.workflows.journal import Kind, Record, Stored
from holdfast.shapes.workflows.replay import Replay

AT = datetime(2026, 1, 1, tzinfo=UTC)


def history(*keys: str, kind: Kind = "step", skip: tuple[str, ...] = ()) -> list[Stored]:
    """Rows of the root scope in their order; those of `skip` were called and not recorded."""
    return [
        Stored(Record(key, kind, "done", ordinal), 1, AT)
        for ordinal, key in enumerate(keys)
        if key not in skip
    ]


def play(rows: list[Stored], calls: list[str], *, ends: bool = True) -> str:
    """What becomes of code that makes these calls: each hit or miss, in one text."""
    replay, said = Replay(rows), []
    try:
        for name in calls:
            found = replay.find(replay.take("", name), "step")
            said.append("hit" if found else "miss")
        if ends:
            replay.end("")
    except Diverged as error:
        said.append(str(error))
    return " ".join(said)


ADVICE = "see holdfast workflow check"
EDITS = {
    "the same": (["a", "b"], ["a", "b"], "hit hit"),
    "one more at the end": (["a", "b"], ["a", "b", "c"], "hit hit miss"),
    "two were swapped": (["a", "b"], ["b", "a"], "hit hit"),
    "one was put before all": (
        ["a", "b"],
        ["x", "a", "b"],
        f"diverged: at 0 in scope '' the history has 'a', the code asks for 'x'; {ADVICE}",
    ),
    "one was put between": (
        ["a", "b"],
        ["a", "x", "b"],
        f"hit diverged: at 1 in scope '' the history has 'b', the code asks for 'x'; {ADVICE}",
    ),
    "one was renamed": (
        ["reserve", "charge"],
        ["reserve", "refund"],
        f"hit diverged: at 1 in scope '' the history has 'charge', the code asks for 'refund'; {ADVICE}",
    ),
    "one was removed": (
        ["a", "b", "c"],
        ["a", "c"],
        f"hit hit diverged: at 1 in scope '' the history has 'b', the code ends; {ADVICE}",
    ),
    "the last was removed": (
        ["a", "b"],
        ["a"],
        f"hit diverged: at 1 in scope '' the history has 'b', the code ends; {ADVICE}",
    ),
    "a loop went on": (["a", "a#2"], ["a", "a", "a"], "hit hit miss"),
    "a loop became shorter": (
        ["a", "a#2"],
        ["a"],
        f"hit diverged: at 1 in scope '' the history has 'a#2', the code ends; {ADVICE}",
    ),
}


@pytest.mark.parametrize("edit", EDITS)
def test_each_edit_of_code_is_a_hit_a_miss_or_a_divergence(edit: str) -> None:
    recorded, calls, expected = EDITS[edit]
    assert play(history(*recorded), calls) == expected


def test_a_gather_that_was_cut_half_way_is_no_divergence() -> None:
    rows = history("a", "one", "two", "three", skip=("one", "three"))
    assert play(rows, ["a", "one", "two", "three"]) == "hit miss hit miss"


def test_a_step_before_a_gather_that_was_cut_is_found() -> None:
    rows = history("a", "one", "two", skip=("one",))
    assert "the history has 'two', the code asks for 'one'" in play(rows, ["a", "x", "one", "two"])


def test_another_kind_under_the_same_key_is_a_divergence() -> None:
    replay = Replay(history("a"))
    with pytest.raises(Diverged) as refused:
        replay.find(replay.take("", "a"), "sleep")
    text = f"diverged: at 0 in scope '' the history has 'a' as a step, the code asks for a sleep; {ADVICE}"
    assert str(refused.value) == text


def test_scopes_count_by_themselves() -> None:
    replay = Replay()
    assert [replay.take(scope, "a").key for scope in ("", "g1.0", "g1.1", "g1.0", "")] == [
        "a",
        "g1.0/a",
        "g1.1/a",
        "g1.0/a#2",
        "a#2",
    ]


def test_a_patch_is_new_only_where_nothing_follows() -> None:
    fresh = Replay()
    assert [fresh.patched("p"), fresh.patched("p")] == [(True, True), (True, False)]
    past = Replay(history("a"))
    assert past.patched("p") == (False, False)
    past.find(past.take("", "a"), "step")
    assert past.patched("p") == (False, False)  # the first answer is that of the run
    assert past.patched("q") == (True, True)
    marked = Replay([*history("a"), Stored(Record("patch/p", "patch", "done"), 1, AT)])
    assert marked.patched("p") == (True, False)


def test_the_records_of_a_loser_are_asked_for_by_nobody() -> None:
    replay = Replay([Stored(Record("g1.1/a", "step", "done", 0), 1, AT)])
    assert replay.replaying
    replay.drop("g1.1")
    assert not replay.replaying
