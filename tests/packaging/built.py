"""Wheel and sdist, built as a release is, and environments that hold one of them with exactly what it asks for.

No index is needed: what a requirement means is read from the wheel, and the files of each package are linked from where the
tests run. So an environment has the core, or the core and one extra, and nothing that a developer happens to have.
"""

import os
import subprocess
import sys
import venv
from collections.abc import Iterable, Iterator
from email.parser import Parser
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from holdfast.distribution import NAME

ROOT = Path(__file__).resolve().parents[2]


def build(kind: str, source: Path, target: Path) -> Path:
    """The file that hatchling makes of `source`: a `wheel` or an `sdist`."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)],
        cwd=source,
        check=True,
        capture_output=True,
        text=True,
    )
    (made,) = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


def requires(wheel: Path) -> list[Requirement]:
    with ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    return [Requirement(line) for line in metadata.get_all("Requires-Dist") or ()]


def extras(wheel: Path) -> list[str]:
    with ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode()).get_all("Provides-Extra") or []


def wanted(requirements: Iterable[Requirement], chosen: Iterable[str]) -> Iterator[Requirement]:
    for requirement in requirements:
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *chosen)):
            yield requirement


def closure(wheel: Path, chosen: Iterable[str]) -> dict[str, Distribution]:
    """Every package that an installation of the wheel with these extras brings."""
    ours = requires(wheel)
    open_ = [(r.name, tuple(r.extras)) for r in wanted(ours, chosen)]
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, tuple[str, ...]]] = set()
    while open_:
        name, more = open_.pop()
        name = canonicalize_name(name)
        if (name, more) in seen:
            continue
        seen.add((name, more))
        if name == NAME:
            open_ += [(r.name, tuple(r.extras)) for r in wanted(ours, more)]
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            raise AssertionError(f"{name} is asked for and is not in requirements/dev.txt") from None
        inner = [Requirement(line) for line in found[name].requires or ()]
        open_ += [(r.name, tuple(r.extras)) for r in wanted(inner, more)]
    return found


def environment(folder: Path, wheel: Path, chosen: Iterable[str] = ()) -> Path:
    """A fresh environment with the wheel and what it asks for; its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    site = next((folder / "lib").glob("python*/site-packages"))
    for dist in closure(wheel, chosen).values():
        for top in {file.parts[0] for file in dist.files or () if file.parts[0] not in ("..", "__pycache__")}:
            place = Path(str(dist.locate_file(top)))
            if place.exists() and not (site / top).exists():
                (site / top).symlink_to(place)
    subprocess.run(
        [
            sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install", "--quiet",
            "--no-deps", "--no-index", "--no-compile", str(wheel),
        ],
        check=True,
        capture_output=True,
        text=True,
    )  # fmt: skip
    return python


def run(python: Path, code: str) -> subprocess.CompletedProcess[str]:
    """The code in that environment, from a folder in which nothing of ours lies."""
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHONPATH", "HOLDFAST_", "PG"))
    }
    return subprocess.run(
        [str(python), "-I", "-c", code],
        cwd=python.parents[1],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
