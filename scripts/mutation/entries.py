"""tests/mutants.toml as data, and which of them a change may have touched."""

import hashlib
import subprocess
import tomllib
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path

FOLDERS = ("src", "tests", "bench", "scripts", "examples")  # what a test may need; none of these reads docs
FILES = ("pyproject.toml", "README.md", "LICENSE")
LIST = "tests/mutants.toml"
RUNNER = ("scripts/mutants.py", "scripts/mutation/")


@dataclass(frozen=True)
class Mutant:
    file: str  # below the root
    old: str  # found exactly once in it
    new: str
    test: str  # what must fail then: a pytest node id, or several with spaces between
    why: str  # what the guard is for

    @property
    def tests(self) -> list[str]:
        return self.test.split()

    @property
    def files(self) -> set[str]:
        """What a verdict depends on at least."""
        return {self.file, *(test.partition("::")[0] for test in self.tests)}


def parse(text: str) -> list[Mutant]:
    return [Mutant(**entry) for entry in tomllib.loads(text)["mutant"]]


def read(root: Path) -> list[Mutant]:
    return parse((root / LIST).read_text(encoding="utf-8"))


def contains(mutant: Mutant, word: str) -> bool:
    return word in f"{mutant.file} {mutant.old} {mutant.test} {mutant.why}"


def shard(mutants: list[Mutant], part: str) -> list[Mutant]:
    """`2/5`: the second of five parts. Mutants of one test file stay together."""
    number, _, of = part.partition("/")
    if not (number.isdigit() and of.isdigit() and 1 <= int(number) <= int(of)):
        raise SystemExit(f"--shard {part}: write I/N, as in 2/5")
    return [m for m in mutants if _hash(m.test.partition("::")[0]) % int(of) == int(number) - 1]


def _hash(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)


def since(root: Path, mutants: list[Mutant], commit: str) -> list[Mutant]:
    """Those that are new since the commit, and those whose file or test has changed."""
    names = _git(root, "diff", "--name-only", commit, "--").splitlines()
    names += _git(root, "ls-files", "--others", "--exclude-standard").splitlines()
    before = set(parse(_git(root, "show", f"{commit}:{LIST}")))
    return [m for m in mutants if m not in before or m.files & set(names)]


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def own_print(root: Path, mutant: Mutant) -> str:
    """Changes with the entry, its file and the files of its tests."""
    whole = hashlib.sha256("\0".join(astuple(mutant)).encode())
    for name in sorted(mutant.files):
        whole.update(_content(root / name))
    return whole.hexdigest()[:16]


@cache
def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def tree_print(root: Path) -> str:
    """Changes with every file that a test may see, but for the list of the mutants and what runs them."""
    whole = hashlib.sha256()
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root).as_posix()
            ours = name == LIST or name.startswith(RUNNER)
            if path.is_file() and "__pycache__" not in path.parts and not ours:
                whole.update(f"{name}\0".encode() + path.read_bytes())
    return whole.hexdigest()[:16]
