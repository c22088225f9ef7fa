"""What `make install` takes: pinned, by hash, from wherever pip is told to look."""

import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("file", "least"), [("dev.txt", 50), ("django6.txt", 1)])
def test_every_requirement_is_pinned_with_hashes_and_no_host(file: str, least: int) -> None:
    text = (ROOT / "requirements" / file).read_text(encoding="utf-8")
    pins = text.replace(" \\\n", "").splitlines()
    pattern = r"[A-Za-z0-9_.-]+==[^ ]+(    --hash=sha256:[0-9a-f]{64})+"
    assert [line for line in pins if not re.fullmatch(pattern, line)] == []
    assert len(pins) >= least
    assert "://" not in text


def test_install_takes_nothing_without_a_hash() -> None:
    installs = [
        line for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines() if "pip install" in line
    ]
    assert [("--require-hashes" in line, "--no-deps" in line) for line in installs] == [
        (True, False),
        (False, True),
    ]


def test_the_sqlalchemy_extra_brings_what_async_engines_need() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert extras["sqlalchemy"] == ["sqlalchemy[asyncio]>=2.0"]
    assert "holdfast-pg[sqlalchemy]" in extras["alembic"]
    named = [line for line in requires("sqlalchemy") or [] if line.startswith("greenlet")]
    assert any("asyncio" in line for line in named)  # what that extra of SQLAlchemy's is
