"""Programs that the server's user can run: a copy, when root's virtual environment is in a closed folder."""

import hashlib
import os
import shutil
from pathlib import Path

from holdfast.db.embedded.binaries import Binaries
from holdfast.db.embedded.owner import Owner, run_as
from holdfast.db.embedded.place import system_folder
from holdfast.errors import EmbeddedError


def usable_by(owner: Owner, binaries: Binaries) -> Binaries:
    """The same programs where `owner` can run them."""
    if not owner.other or _runs(owner, binaries.bin):
        return binaries
    copy = Binaries(_copy(binaries.bin), binaries.version)
    if not _runs(owner, copy.bin):
        raise EmbeddedError(f"User {owner.name!r} cannot run the PostgreSQL programs in {binaries.bin}.")
    return copy


def _runs(owner: Owner, folder: Path) -> bool:
    try:
        return run_as(owner, [folder / "postgres", "--version"]).returncode == 0
    except EmbeddedError:
        return False


def _copy(bin_folder: Path) -> Path:
    """Copy an installation that can be moved, as the wheels' are.

    The programs find their libraries by a relative path, in the wheel's `.libs` folder two levels up, so the
    copy keeps the same shape. It is made under another name and renamed: no process ever sees half of it.
    """
    install = bin_folder.parent
    package = install.parent
    if not any((install / "share" / sub / "postgres.bki").exists() for sub in ("", "postgresql")):
        raise EmbeddedError(
            f"The server's user cannot run {bin_folder}, and only a wheel's programs can be copied."
        )
    program = (bin_folder / "postgres").stat()
    key = f"{bin_folder}:{program.st_size}:{program.st_mtime_ns}"
    target = system_folder() / f"programs-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    if not target.exists():
        draft = target.with_name(f"{target.name}.{os.getpid()}")
        shutil.copytree(
            install,
            draft / package.name / install.name,
            ignore=shutil.ignore_patterns("include", "doc", "man"),
        )
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, draft / libraries.name)
        _open_to_all(draft)
        try:
            draft.rename(target)
        except OSError:
            shutil.rmtree(draft)
            if not target.exists():
                raise
    return target / package.name / install.name / "bin"


def _open_to_all(root: Path) -> None:
    for folder, _, names in os.walk(root):
        Path(folder).chmod(0o755)
        for name in names:
            path = Path(folder) / name
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
