"""`make demo-events`: what it prints, how it ends, and that its verdict would tell on us."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from holdfast.db import embedded

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "shop-events"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"shop_events_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


ledgers: Any = load("ledgers")


class Logged(NamedTuple):
    position: int
    id: str
    key: str | None


LOG = [Logged(1, "a1", "a"), Logged(2, "b1", "b"), Logged(3, "a2", "a"), Logged(4, "free", None)]
GOOD = ledgers.Books(placed=4, acknowledged=3, sent=5, paid=3, paid_events=3, cents=300, projected=300, lag=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The examples in a place of their own, with spaces in its name."""
    place = tmp_path_factory.mktemp("demo") / "a shop to try"
    shutil.copytree(ROOT / "examples", place / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    yield place
    embedded.reset(place / ".holdfast" / "demo-events" / "data", force=True)


@pytest.mark.slow
@pytest.mark.timeout(450)
def test_every_promise_holds_with_all_parts_broken_once(folder: Path) -> None:
    strange = {"HOLDFAST_DATABASE_URL": "postgresql://nobody@unused.invalid/none"}
    done = subprocess.run(
        [sys.executable, "examples/shop-events/demo.py"],
        cwd=folder,
        env=os.environ | strange | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT / 'src'}"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    for name in ("nats", "warehouse"):
        assert f"{name} is dead" in output
        assert f"{name} is back" in output
    assert "worker-1 is dead" in output
    verdict = output.split("\nVerdict", 1)[1]
    assert "0 lost, 0 out of order" in verdict
    assert verdict.rstrip().endswith("Every promise held.")


def test_the_make_target_runs_it() -> None:
    assert "examples/shop-events/demo.py" in (ROOT / "Makefile").read_text()


def test_a_repeat_with_the_same_id_breaks_nothing() -> None:
    arrived = ledgers.compare("there", LOG, ["b1", "a1", "a1", "a2", "a1", "free"])
    assert (arrived.lost, arrived.strange, arrived.repeated, arrived.out_of_order) == (0, 0, 2, 0)
    assert arrived.broken() == []


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (["a1", "b1", "free"], "1 events did not reach there"),
        (["a1", "b1", "a2", "free", "who"], "1 messages in there are of no event"),
        (["a2", "a1", "b1", "free"], "1 messages came to there out of order"),
    ],
)
def test_what_a_ledger_lacks_is_said(ids: list[str], words: str) -> None:
    assert ledgers.compare("there", LOG, ids).broken() == [words]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"placed": 0}, "no order was placed"),
        ({"acknowledged": 4}, "4 payments were acknowledged, 3 orders are paid"),
        ({"paid_events": 4}, "3 orders are paid, by 4 events"),
        ({"projected": 299}, "customer_totals has 299 cents, the paid orders 300"),
        ({"lag": 2}, "2 events are still on their way"),
    ],
)
def test_what_the_books_lack_is_said(change: dict[str, int], words: str) -> None:
    assert GOOD.broken() == []
    wrong = replace(GOOD, **change)
    assert wrong.broken() == [words]
    assert ledgers.verdict_lines(wrong, [], wrong.broken())[-1] == f"BROKEN: {words}."
