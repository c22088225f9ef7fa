"""Every mutant still fits the code: its text occurs once in its file, and its tests are there."""

import re
import tomllib
from pathlib import Path

from tests.claims import names_in

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text(encoding="utf-8"))["mutant"]

FOLDER = ROOT / "src/holdfast/sql/migrations"
MIGRATIONS = [file.read_text(encoding="utf-8") for file in sorted(FOLDER.glob("*.sql"))]
SCHEMA = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("schema.sql"))


def test_every_mutant_fits_the_code() -> None:
    wrong = []
    for mutant in MUTANTS:
        times = (ROOT / mutant["file"]).read_text(encoding="utf-8").count(mutant["old"])
        if times != 1:
            wrong.append(f"{mutant['file']}: {mutant['why']}: found {times} times")
        if mutant["file"].endswith("schema.sql") and not any(mutant["old"] in text for text in MIGRATIONS):
            wrong.append(f"{mutant['file']}: {mutant['why']}: in no migration")
        for test in mutant["test"].split():
            path, _, name = test.partition("::")
            if name.partition("[")[0] not in names_in(ROOT / path):
                wrong.append(f"{test} is not there")
    assert not wrong


def test_no_mutant_is_there_twice() -> None:
    changes = [(m["file"], m["old"], m["new"], m["test"]) for m in MUTANTS]
    assert len(changes) == len(set(changes)), [c[0] for c in changes if changes.count(c) > 1]


def test_no_mutant_is_of_a_text_that_a_later_migration_replaces() -> None:
    """Such a change would be undone before the test begins. One of the schema is made in every migration that has it."""
    names = [file.name for file in sorted(FOLDER.glob("*.sql"))]
    for mutant in MUTANTS:
        path = ROOT / mutant["file"]
        if path.parent == FOLDER and mutant["old"] in SCHEMA:
            later = MIGRATIONS[names.index(path.name) + 1 :]
            assert not any(mutant["old"] in text for text in later), f"{mutant['why']}: name schema.sql"


def test_what_a_test_starts_is_of_its_own_tree() -> None:
    """A path that lacks the sources leads to the package that is installed, in which no guard was taken out."""
    allowed = {"kafka_mock.py", "test_mutation.py"}  # they start nothing of ours
    for file in sorted((ROOT / "tests").rglob("*.py")):
        bare = re.findall(r'"?PYTHONPATH"?(?::|=) ?str\((?!SRC)', file.read_text(encoding="utf-8"))
        assert not bare or file.name in allowed, f"{file}: what it starts does not find src of this tree"
