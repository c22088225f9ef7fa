"""What runs the mutants: a tree that is put back, verdicts, and a process that forks runs of tests."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scripts.mutation import entries
from scripts.mutation.entries import Mutant
from scripts.mutation.judge import decide
from scripts.mutation.nest import Nest, Reply, Request
from scripts.mutation.trees import Tree, first_changed
from tests.conftest import within

OURS = Mutant("src/lamp.py", "LIT = 1", "LIT = 2", "tests/test_lamp.py::test_it", "a lamp is lit")
SCHEMA = Mutant("src/holdfast/sql/schema.sql", "CHECK (a > 0)", "", "tests/test_lamp.py::test_it", "a check")

LEAVES = """
import subprocess, sys

def test_it():
    words = [sys.executable, "-c", "import time; time.sleep(600)"]
    child = subprocess.Popen(words, start_new_session=True)
    open("pid", "w").write(str(child.pid))
    child.returncode = 0  # left behind on purpose
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small repository of the same shape."""
    root = tmp_path / "root"
    texts = {
        "src/lamp.py": "LIT = 1\n",
        "src/holdfast/sql/schema.sql": "CREATE TABLE t (a int CHECK (a > 0));\n",
        "src/holdfast/sql/migrations/0001_first.sql": "CREATE TABLE s ();\n",
        "src/holdfast/sql/migrations/0002_second.sql": "CREATE TABLE t (a int CHECK (a > 0));\n",
        "tests/test_lamp.py": "from lamp import LIT\n\ndef test_it():\n    assert LIT == 1\n",
        "tests/mutants.toml": f"[[mutant]]\nfile = '{OURS.file}'\nold = '{OURS.old}'\nnew = '{OURS.new}'\n"
        f"test = '{OURS.test}'\nwhy = '{OURS.why}'\n",
        **{f"{folder}/kept": "" for folder in entries.FOLDERS},
        **dict.fromkeys(entries.FILES, ""),
    }
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def lit(tree: Path, *options: str) -> str:
    words = [sys.executable, *options, "-c", "import lamp; print(lamp.LIT)"]
    env = {"PYTHONPATH": str(tree / "src"), "PATH": os.environ["PATH"]}
    return subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout.strip()


def test_bytecode_is_never_that_of_another_text(root: Path, tmp_path: Path) -> None:
    tree = Tree(root, tmp_path / "tree")
    assert lit(tree.path) == "1"  # and its bytecode is written
    assert list((tree.path / "src/__pycache__").iterdir())
    for _ in range(3):
        assert tree.apply(OURS) == ""  # as long as the other text, and maybe in the same second
        assert lit(tree.path, "-B") == "2"
        tree.restore()
        assert lit(tree.path, "-B") == "1"


def test_a_changed_file_has_another_time_to_the_second(root: Path, tmp_path: Path) -> None:
    now = time.time_ns()
    os.utime(root / OURS.file, ns=(now, now))
    tree = Tree(root, tmp_path / "tree")
    tree.apply(OURS)
    assert (tree.path / OURS.file).stat().st_mtime_ns - now > 60 * 10**9


def test_a_tree_is_put_back_whatever_was_done_to_it(root: Path, tmp_path: Path) -> None:
    tree = Tree(root, tmp_path / "tree")
    tree.apply(OURS)
    tree.apply(SCHEMA)
    (tree.path / "bench/kept").unlink()
    (tree.path / ".hypothesis").mkdir()
    (tree.path / ".hypothesis/found").write_text("an example that failed")
    tree.restore()

    def files(of: Path) -> dict[str, tuple[bytes, int]]:
        paths = [path for path in of.rglob("*") if path.is_file()]
        return {str(p.relative_to(of)): (p.read_bytes(), p.stat().st_mtime_ns) for p in paths}

    assert files(tree.path) == files(root)


def test_a_mutant_that_does_not_fit_says_why(root: Path, tmp_path: Path) -> None:
    tree = Tree(root, tmp_path / "tree")

    def other(**changes: str) -> Mutant:
        return Mutant(**{**vars(OURS), **changes})

    assert tree.apply(other(old="LIT = 3")) == "the old text occurs 0 times"
    assert tree.apply(other(new="LIT = (")).startswith("it is no Python: ")
    tree.restore()
    assert tree.apply(other(file=SCHEMA.file, old="CREATE TABLE t (a int CHECK")) == ""
    tree.restore()
    assert tree.apply(other(file=SCHEMA.file, old="0));\n")) == ""
    (tree.path / SCHEMA.file).write_text("CREATE TABLE only_here ();")
    assert tree.apply(other(file=SCHEMA.file, old="only_here")) == "no migration has the old text"


def test_a_mutant_of_the_schema_is_one_of_its_migrations(root: Path, tmp_path: Path) -> None:
    tree = Tree(root, tmp_path / "tree")
    assert first_changed(root, SCHEMA) == 1
    assert first_changed(root, OURS) is None
    tree.apply(SCHEMA)
    assert "CHECK" not in (tree.path / "src/holdfast/sql/migrations/0002_second.sql").read_text()


@pytest.mark.parametrize(
    ("code", "said", "word", "detail"),
    [
        (1, "E   assert 1 == 2\nFAILED t.py::x\n1 failed in 1 s", "caught", "assert 1 == 2 | FAILED t.py::x"),
        (0, "1 passed in 1 s", "SURVIVED", "1 passed in 1 s"),
        (1, "ERROR t.py::x\n1 error in 1 s", "BROKEN", "1 error in 1 s"),
        (4, "no tests ran", "BROKEN", "no tests ran"),
        (5, "1 deselected", "BROKEN", "1 deselected"),
        (2, "KeyboardInterrupt\n!!! Interrupted", "caught", "!!! Interrupted"),
        (3, "INTERNALERROR> RecursionError", "caught", "INTERNALERROR> RecursionError"),
        (-9, "", "BROKEN", ""),
    ],
)
def test_a_verdict(code: int, said: str, word: str, detail: str) -> None:
    verdict = decide(OURS, Reply(code, 1.0, 1.0, late=False), said)
    assert (verdict.word, verdict.detail) == (word, detail)


def test_what_is_no_sql_is_not_caught() -> None:
    said = "E   psycopg.errors.UndefinedColumn: no a\nFAILED t.py::x\n1 failed in 1 s"
    failed = Reply(1, 1.0, 1.0, late=False)
    assert decide(SCHEMA, failed, said).word == "BROKEN"
    assert decide(OURS, failed, said).word == "caught"  # Python may well run into somebody's table


def test_a_run_that_did_not_end_is_not_caught() -> None:
    assert decide(OURS, Reply(-9, 1.0, 1.0, late=True), "1 failed in 1 s").word == "BROKEN"


def test_a_change_of_an_entry_its_file_or_its_test_is_seen(root: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b.invalid", *words], cwd=root, check=True
        )

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    assert entries.read(root) == [OURS]
    assert entries.since(root, [OURS], "HEAD") == []
    assert entries.since(root, [SCHEMA], "HEAD") == [SCHEMA]  # a new one
    (root / "tests/test_lamp.py").write_text("def test_it(): ...")
    assert entries.since(root, [OURS], "HEAD") == [OURS]


def test_parts_are_the_whole() -> None:
    of_all = [Mutant("f", "o", "n", f"tests/test_{n % 9}.py::test_it", str(n)) for n in range(50)]
    parts = [entries.shard(of_all, f"{part}/4") for part in (1, 2, 3, 4)]
    assert sorted((m for part in parts for m in part), key=of_all.index) == of_all
    for wrong in ("0/4", "5/4", "2", "a/b"):
        with pytest.raises(SystemExit, match=wrong):
            entries.shard(of_all, wrong)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_one_run_does_not_know_of_the_other(root: Path, tmp_path: Path) -> None:
    """Each sees the text that is there when it begins, leaves no process behind, and is killed when it does not end."""
    (root / "tests/test_leaves.py").write_text(LEAVES)
    (root / "tests/test_hangs.py").write_text("import time\n\ndef test_it():\n    time.sleep(600)\n")
    tree = Tree(root, tmp_path / "tree")
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # these tests need none
    nest = Nest()

    def run(test: str, limit: float = within(60.0)) -> Reply:
        words = ["-q", "-c", os.devnull, "--rootdir=.", "-p", "no:cacheprovider", f"tests/{test}.py"]
        return nest.run(Request(str(tree.path), words, env, str(tmp_path / "said"), limit))

    try:
        assert run("test_lamp").code == 0
        tree.apply(OURS)
        assert run("test_lamp").code == 1
        tree.restore()
        assert run("test_lamp").code == 0
        assert run("test_leaves").code == 0
        assert not alive(int((tree.path / "pid").read_text()))
        assert run("test_hangs", limit=0.2).late
    finally:
        nest.close()
