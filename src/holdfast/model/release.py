"""Which release runs: Holdfast's, and the application's."""

import re
import sys
from pathlib import Path

from ..distribution import VERSION
from .text import storable

UNKNOWN = "unknown"
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_SHOWN = 12  # characters of a commit


def own_version() -> str:
    """The version of the installed Holdfast."""
    return VERSION


def find_release(given: str | None, module: str) -> str:
    """The application's release: the given one, else the git commit of the folder that the module is in."""
    if given is not None and (text := storable(given.strip(), 100)):
        return text
    file = getattr(sys.modules.get(module), "__file__", None)
    return git_commit(Path(file).resolve().parent if file else Path.cwd()) or UNKNOWN


def git_commit(start: Path) -> str | None:
    """The commit that is checked out where `start` is, read from the files of git; None: it is in no checkout."""
    for folder in (start, *start.parents):
        if (found := folder / ".git").exists():
            try:
                return _head(found)
            except (OSError, UnicodeDecodeError):
                return None
    return None


def _head(git: Path) -> str | None:
    if git.is_file():  # a worktree or a submodule: the file says where its folder is
        git = (git.parent / git.read_text().removeprefix("gitdir:").strip()).resolve()
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref:"):
        return _commit(head)
    name = head.removeprefix("ref:").strip()
    shared = git / "commondir"
    common = (git / shared.read_text().strip()).resolve() if shared.is_file() else git
    for place in (git, common):
        if (place / name).is_file():
            return _commit((place / name).read_text().strip())
    packed = common / "packed-refs"
    lines = packed.read_text().splitlines() if packed.is_file() else []
    return next((_commit(line.split()[0]) for line in lines if line.endswith(f" {name}")), None)


def _commit(text: str) -> str | None:
    return text[:_SHOWN] if _COMMIT.fullmatch(text) else None
