"""A copy of the repository that is changed, used and put back."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from scripts.mutation.entries import FILES, FOLDERS, Mutant

HOUR = 3600 * 10**9
MIGRATIONS = "src/holdfast/sql/migrations"


def copy(root: Path, target: Path) -> Path:
    """Times are kept: bytecode is found by them."""
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc", ".hypothesis")
    for folder in FOLDERS:
        shutil.copytree(root / folder, target / folder, ignore=ignore)
    for file in FILES:
        shutil.copy2(root / file, target)
    return target


class Tree:
    """Bytecode is written only while nothing is changed, and a changed file gets a time that it never had before. So the
    cache never holds what a mutant was compiled to, and is never used for one."""

    def __init__(self, pristine: Path, folder: Path) -> None:
        self.path = copy(pristine, folder)
        self._pristine = pristine
        self._known = dict(self._files())

    def _files(self) -> Iterator[tuple[str, tuple[int, int]]]:
        for folder, folders, names in os.walk(self.path):
            folders[:] = [name for name in folders if name != "__pycache__"]
            for name in names:
                path = os.path.join(folder, name)
                found = os.lstat(path)
                yield os.path.relpath(path, self.path), (found.st_size, found.st_mtime_ns)

    def apply(self, mutant: Mutant) -> str:
        """Make the change; why it cannot be made, or nothing."""
        path = self.path / mutant.file
        text = path.read_text(encoding="utf-8")
        if (times := text.count(mutant.old)) != 1:
            return f"the old text occurs {times} times"
        changed = text.replace(mutant.old, mutant.new)
        self._write(mutant.file, changed)
        if path.suffix == ".py":
            try:
                compile(changed, mutant.file, "exec")
            except SyntaxError as error:
                return f"it is no Python: {error}"
        return self._apply_to_migrations(mutant) if path.name == "schema.sql" else ""

    def _apply_to_migrations(self, mutant: Mutant) -> str:
        """Databases are made by the migrations, one after the other: every one that has the text is changed."""
        having = [path for path in migrations(self.path) if mutant.old in path.read_text(encoding="utf-8")]
        for path in having:
            text = path.read_text(encoding="utf-8").replace(mutant.old, mutant.new)
            self._write(f"{MIGRATIONS}/{path.name}", text)
        return "" if having else "no migration has the old text"

    def _write(self, name: str, text: str) -> None:
        path = self.path / name
        path.write_text(text, encoding="utf-8")
        time = self._known[name][1] + HOUR
        os.utime(path, ns=(time, time))

    def restore(self) -> None:
        """As it was: also what a test wrote into it."""
        found = dict(self._files())
        for name in found.keys() - self._known.keys():
            (self.path / name).unlink()
        for name, stamp in self._known.items():
            if found.get(name) != stamp:
                (self.path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self._pristine / name, self.path / name)


def migrations(tree: Path) -> list[Path]:
    return sorted((tree / MIGRATIONS).glob("*.sql"))


def first_changed(pristine: Path, mutant: Mutant) -> int | None:
    """The place of the first migration that the mutant changes, from 0. None: it changes none."""
    path = Path(mutant.file)
    for place, file in enumerate(migrations(pristine)):
        named = mutant.file == f"{MIGRATIONS}/{file.name}"
        if named or (path.name == "schema.sql" and mutant.old in file.read_text(encoding="utf-8")):
            return place
    return None
