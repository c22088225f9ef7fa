"""`make demo-workflow`: how it ends, and that its verdict would tell on us."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from examples.checkout.ledgers import Books, broken, verdict_lines

from holdfast.db import embedded

ROOT = Path(__file__).resolve().parents[2]
GOOD = Books(
    placed=50,
    shipped=45,
    declined=5,
    unfinished=0,
    phantoms=0,
    reserved_twice=0,
    not_reserved=0,
    not_charged=0,
    no_receipt=0,
    not_released=0,
    searched_wrong=0,
    keys=0,
    unfenced=0,
    after_record=0,
    histories=0,
    repeats=4,
    taken_over=9,
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The examples in a place of their own, with spaces in its name."""
    place = tmp_path / "a shop to try"
    shutil.copytree(ROOT / "examples", place / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    yield place
    embedded.reset(place / ".holdfast" / "demo-workflow" / "data", force=True)


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_every_promise_holds_with_two_workers_killed(folder: Path) -> None:
    strange = {"HOLDFAST_DATABASE_URL": "postgresql://nobody@unused.invalid/none"}
    done = subprocess.run(
        [sys.executable, "-m", "examples.checkout.demo"],
        cwd=folder,
        env=os.environ | strange | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT / 'src'}"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert output.count("is dead, the charges of") == 2
    verdict = output.split("\nVerdict", 1)[1]
    assert "50 placed: 45 shipped, 5 declined and undone, 0 lost" in verdict
    assert "Every promise held." in verdict


def test_the_make_target_runs_it() -> None:
    assert "-m examples.checkout.demo" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"placed": 0, "shipped": 0, "declined": 0}, "no order was placed"),
        ({"shipped": 44}, "orders are missing"),
        ({"unfinished": 1}, "1 runs did not end as they should"),
        ({"phantoms": 1}, "1 traces of orders that were rolled back"),
        ({"not_reserved": 1}, "1 orders are not reserved"),
        ({"reserved_twice": 1}, "1 orders are reserved twice"),
        ({"not_charged": 1}, "1 orders are not charged"),
        ({"no_receipt": 1}, "1 orders have no receipt"),
        ({"not_released": 1}, "1 orders are released or not against their outcome"),
        ({"searched_wrong": 1}, "1 orders are not in the search exactly once"),
        ({"keys": 1}, "1 repeats had another idempotency key"),
        ({"unfenced": 1}, "1 repeats had no higher fence"),
        ({"after_record": 1}, "1 steps ran again after their record"),
        ({"histories": 1}, "1 histories are not those of the code"),
    ],
)
def test_what_the_books_lack_is_said(wrong: dict[str, int], text: str) -> None:
    assert broken(GOOD) == []
    assert broken(replace(GOOD, **wrong)) == [text]
    assert verdict_lines(GOOD, [], 2)[-1] == "Every promise held."
    assert verdict_lines(GOOD, [text], 2)[-1] == f"BROKEN: {text}"
