"""What `make install` takes: pinned, by hash, from wherever pip is told to look."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_requirement_is_pinned_with_hashes_and_no_host() -> None:
    text = (ROOT / "requirements/dev.txt").read_text(encoding="utf-8")
    pins = text.replace(" \\\n", "").splitlines()
    pattern = r"[A-Za-z0-9_.-]+==[^ ]+(    --hash=sha256:[0-9a-f]{64})+"
    assert [line for line in pins if not re.fullmatch(pattern, line)] == []
    assert len(pins) > 50
    assert "://" not in text


def test_install_takes_nothing_without_a_hash() -> None:
    installs = [
        line for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines() if "pip install" in line
    ]
    assert [("--require-hashes" in line, "--no-deps" in line) for line in installs] == [
        (True, False),
        (False, True),
    ]
