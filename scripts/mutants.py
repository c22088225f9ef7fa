"""Remove each guard in turn and see its test fail: tests/mutants.toml, one copy of the tree per mutant.

`python scripts/mutants.py --only settle` runs those whose file, text or reason contains the word.
"""

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.memory import quick_folder  # noqa: E402

TOGETHER = 3  # most tests wait for something
NOT_SQL = re.compile(
    r"psycopg\.errors\.(SyntaxError|Undefined\w+|Indeterminate\w+|Ambiguous\w+)|MigrationFailed.*"
)


@dataclass(frozen=True)
class Mutant:
    file: str  # below the root
    old: str  # found exactly once in it
    new: str
    test: str  # what must fail then: a pytest node id, or several with spaces between
    why: str  # what the guard is for


@dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    word: str  # caught | SURVIVED | BROKEN
    seconds: float
    detail: str = ""


def read(only: str) -> list[Mutant]:
    table = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text(encoding="utf-8"))
    found = [Mutant(**entry) for entry in table["mutant"]]
    return [m for m in found if only in f"{m.file} {m.old} {m.test} {m.why}"]


def copy(target: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    for folder in ("src", "tests", "bench", "scripts"):
        shutil.copytree(ROOT / folder, target / folder, ignore=ignore)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, target)


def mutate(tree: Path, mutant: Mutant) -> str:
    """Apply the change; why it cannot be, or nothing."""
    path = tree / mutant.file
    text = path.read_text(encoding="utf-8")
    if (times := text.count(mutant.old)) != 1:
        return f"the old text occurs {times} times"
    changed = text.replace(mutant.old, mutant.new)
    path.write_text(changed, encoding="utf-8")
    if path.suffix == ".py":
        try:
            compile(changed, mutant.file, "exec")
        except SyntaxError as error:
            return f"it is no Python: {error}"
    return _mutate_migration(tree, mutant) if path.name == "schema.sql" else ""


def _mutate_migration(tree: Path, mutant: Mutant) -> str:
    """Databases are made by the migrations, one after the other: every one that has the text is changed."""
    having = [
        (path, text)
        for path in sorted((tree / "src/holdfast/sql/migrations").glob("*.sql"))
        if mutant.old in (text := path.read_text(encoding="utf-8"))
    ]
    for path, text in having:
        path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    return "" if having else "no migration has the old text"


def pytest(tree: Path, test: str, patience: int, *more: str) -> subprocess.CompletedProcess[str]:
    words = ["-q", "-x", "-p", "no:randomly", f"--timeout={60 * patience}", *more, *test.split()]
    command = [sys.executable, "-m", "pytest", *words]
    env = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    env["TMPDIR"] = str(tree / "tmp")
    env["HOLDFAST_TEST_PATIENCE"] = str(patience)
    return subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, check=False)


@contextlib.contextmanager
def fresh_tree() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as folder:
        tree = Path(folder)
        tree.chmod(0o755)  # the embedded server may run as another user
        copy(tree)
        (tree / "tmp").mkdir()
        (tree / "tmp").chmod(0o777)
        yield tree


def passes_unchanged(mutants: list[Mutant]) -> bool:
    """A test that fails anyway catches nothing."""
    with fresh_tree() as tree:
        done = pytest(tree, " ".join(dict.fromkeys(m.test for m in mutants)), 5, "-n", str(TOGETHER))
    if done.returncode != 0:
        print(done.stdout[-3000:], "without any change the tests must pass", sep="\n", flush=True)
    return done.returncode == 0


def judge(mutant: Mutant) -> Verdict:
    began = time.monotonic()
    with fresh_tree() as tree:
        if problem := mutate(tree, mutant):
            return Verdict(mutant, "BROKEN", 0.0, problem)
        done = pytest(tree, mutant.test, patience=1)  # most are caught by a limit
    seconds = time.monotonic() - began
    tail = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1:]
    # A text that is no SQL would fail whatever is tested. A mutant in Python may well run into somebody's table.
    if mutant.file.endswith(".sql") and (error := NOT_SQL.search(done.stdout)):
        return Verdict(mutant, "BROKEN", seconds, error[0])
    # What got out may end the tests themselves, or be too deep for their report.
    signs = ("KeyboardInterrupt", "INTERNALERROR")
    ended = done.returncode in (2, 3) and any(sign in done.stdout for sign in signs)
    if ended or (done.returncode == 1 and " failed" in "".join(tail)):
        return Verdict(mutant, "caught", seconds)
    word = "SURVIVED" if done.returncode == 0 else "BROKEN"
    return Verdict(mutant, word, seconds, "".join(tail))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", metavar="SUBSTRING")
    mutants = read(parser.parse_args().only)
    if not mutants or not passes_unchanged(mutants):
        return 1
    failed = 0
    with ThreadPoolExecutor(TOGETHER) as pool:
        for verdict in pool.map(judge, mutants):
            failed += verdict.word != "caught"
            name = Path(verdict.mutant.file).name
            print(f"{verdict.word:8} {verdict.seconds:5.1f} s  {name:18} {verdict.mutant.why}", flush=True)
            if verdict.detail:
                print(f"{'':17} {verdict.detail}", flush=True)
    print(f"{len(mutants) - failed} of {len(mutants)} caught")
    return 1 if failed else 0


if __name__ == "__main__":
    with quick_folder():
        code = main()
    sys.exit(code)
