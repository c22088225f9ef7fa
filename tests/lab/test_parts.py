"""The small parts of the lab: notes, marks, the tape, names."""

import os
from contextlib import closing
from pathlib import Path
from typing import Any

from holdfast.db.executors import listen_in
from holdfast.lab.crew import _name, stamp
from holdfast.lab.marks import Marks
from holdfast.lab.notes import Note, Pen, Reader, changed
from holdfast.lab.place import LabHost
from holdfast.lab.scenes import all_scenes, scene_of
from holdfast.lab.stage import Stage
from holdfast.lab.tape import Tape
from holdfast.store.arrays import uuid_array
from holdfast.store.statement import Row, Statement, nothing
from holdfast.testing import Kit


def statement(name: str) -> Statement[None]:
    return Statement(name, "SELECT 1", ("x" * 500, 1), nothing)


def test_notes_are_read_once_and_a_half_written_line_is_left(tmp_path: Path) -> None:
    pen, reader = Pen(tmp_path), Reader(tmp_path)
    pen.ran(statement("claim"), [("id", 3, 9)], 0.0015)
    (note,) = reader.new()
    assert (note.kind, note.name, note.pid) == ("ran", "claim", os.getpid())
    assert note.fields["rows"] == note.fields["changed"] == 1
    assert note.fields["answer"] == ["id", "3", "9"]
    assert note.fields["params"] == ["x" * 200 + "…", "1"]
    file = tmp_path / f"notes-{os.getpid()}"
    with file.open("ab") as half:
        half.write(b'{"at": 1, "pid": 1, "kind": "did", ')
    assert reader.new() == []
    with file.open("ab") as half:
        half.write(b'"name": "mail", "fields": {}}\n')
    assert [note.name for note in reader.new()] == ["mail"]
    assert reader.new() == []


def test_a_statement_is_shown_with_the_uuids_that_it_was_given(tmp_path: Path) -> None:
    ids = ["01a1f3e5-1fce-715d-ada4-2ae28c5401ce", "e1b8969b-6816-4ba8-ade2-31e80cccf04a"]
    given = (uuid_array(ids), uuid_array([]), None, "{1}")
    Pen(tmp_path).ran(Statement("settle_done", "SELECT 1", given, nothing), [], 0.001)
    (note,) = Reader(tmp_path).new()
    assert note.fields["params"] == [f"{{{','.join(ids)}}}", "{}", "NULL", "{1}"]


def test_the_tape_keeps_what_somebody_did_beside_many_jobs_that_complete() -> None:
    tape = Tape(0.0, str)
    tape.add(Note(1.0, 7, "said", "worker.started"))
    for n in range(100):
        tape.add(Note(2.0 + n, 8, "ran", "settle_done", {"changed": 1, "rows": 1}))
    assert [(m.who, m.text) for m in tape.shown()][:2] == [("7", "is in the registry"), ("8", "completes")]
    assert len(tape.shown()) == 21


def test_a_failure_for_good_is_not_told_as_one_that_is_tried_again() -> None:
    def told(*answer: str) -> str:
        tape = Tape(0.0, str)
        tape.add(
            Note(1.0, 7, "ran", "settle_fail", {"rows": len(answer), "answer": list(answer), "changed": 1})
        )
        return tape.moments[0].text

    assert told("['1', 'dead_letter', None]") == told("['1', 'blocked', None]") == "fails for good"
    assert told("['1', 'pending', None]") == "fails, and will try again"
    assert told() == "says failed: 0 rows"


def test_the_tuner_names_the_best_and_the_knee(place: LabHost) -> None:
    with closing(Stage(place, scene_of(11))) as stage:
        for slots, rates in ((4, (500, 540)), (20, (880, 920)), (100, (990, 1010))):
            for rate in rates:
                stage.sql(
                    """INSERT INTO runs (jobs, workers, concurrency, prefetch, batch, lease, fsync, per_second, p95_ms)
                       VALUES (100, 1, %s, 2, 10, 4, false, %s, 7)""",
                    [slots, rate],
                )
        measured, lines = (
            next(table for table in stage.scene.tables if table.name == name)
            for name in ("settings_measured", "holdfast.toml")
        )
        found = stage.sql(measured.query)
        assert [(row["per_second"], row["range"], row["runs"], row["is"]) for row in found] == [
            (1000, "990 to 1010", 2, "best"),
            (900, "880 to 920", 2, "knee"),
            (520, "500 to 540", 2, None),
        ]
        assert found[0]["setting"] == "1 x 100, prefetch 2, lease 4 s, calls of 10"
        assert list(stage.sql(lines.query)[0].values()) == [
            "concurrency = 100", "prefetch = 2", "processes = 1", "lease = 4", "@app.batch_task(size=10)",
        ]  # fmt: skip


def test_the_tables_of_a_scene_have_a_name_each() -> None:
    """Rows are kept by the name of their table: of two with one name, a page had the rows of one."""
    for scene in all_scenes():
        names = [table.name for table in scene.tables]
        assert len(set(names)) == len(names), scene.title


def test_what_a_settle_changed_is_in_its_answer() -> None:
    assert changed(statement("settle_done"), [(0, "[]")]) == 0
    assert changed(statement("settle_done"), [(7, None)]) == 7
    assert changed(statement("settle_finish"), [(["2", None, None],)]) == 2
    assert changed(statement("claim"), [("a",), ("b",)]) == 2
    assert changed(statement("guard"), []) == 0


def test_cells_that_changed_are_marked_with_what_they_were() -> None:
    marks = Marks()
    quiet = {"work": ("lease",)}

    def take(*rows: dict[str, Any]) -> list[Any]:
        marks.take({"work": list(rows)}, quiet)
        (table,) = marks.shown()
        return list(table["rows"])

    one = {"id": "a", "status": "pending", "generation": 0, "lease": None}
    assert take(one) == [["a", "pending", "0", ""]]
    claimed = one | {"status": "processing", "generation": 1, "lease": 4.0}
    assert take(claimed) == [["a", ["pending", "processing"], ["0", "1"], "4.0"]]
    assert take(claimed | {"lease": 3.8}) == [
        ["a", ["pending", "processing"], ["0", "1"], "3.8"]
    ]  # still marked
    new = {"id": "b", "status": "pending", "generation": 0, "lease": None}
    assert take(claimed, new)[1] == [["", "b"], ["", "pending"], ["", "0"], ""]


def test_the_tape_says_who_was_refused() -> None:
    tape = Tape(100.0, {1: "A", 2: "B"}.__getitem__)
    fields = {"rows": 1, "answer": ["0", "x"], "changed": 0, "text": "", "params": [], "ms": 1}
    tape.add(Note(102.5, 1, "ran", "settle_done", fields))
    tape.add(Note(101.0, 2, "said", "job.swept", {}))
    tape.add(Note(103.0, 2, "ran", "heartbeat", fields))  # not for the tape
    assert [(m.at, m.who, m.text) for m in tape.moments] == [
        (1.0, "B", "takes a job back"),
        (2.5, "A", "says done: 0 rows"),
    ]
    assert tape.last is not None
    assert tape.last["name"] == "settle_done"
    assert tape.count("job.swept") == 1


def test_names_and_stamps() -> None:
    assert [_name(n) for n in (0, 25, 26, 53)] == ["A", "Z", "A2", "B3"]
    assert stamp(os.getpid()) == stamp(os.getpid()) is not None
    assert stamp(2**22 + 1) is None


def test_statements_can_be_heard_until_nobody_listens(kit: Kit) -> None:
    heard: list[tuple[str, int]] = []

    def hear(statement: Statement[Any], rows: list[Row], seconds: float) -> None:
        assert seconds > 0
        heard.append((statement.name, len(rows)))

    @kit.app.task
    def greet() -> None: ...

    stop = listen_in(hear)
    greet.enqueue()
    kit.run_worker()
    stop()
    names = {name for name, _ in heard}
    assert {"claim", "settle_done"} <= names
    before = len(heard)
    greet.enqueue()
    assert len(heard) == before
