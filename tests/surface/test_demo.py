"""`make demo`: what it prints, how it ends, and that its verdict would tell on us."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import psycopg
import pytest
from examples.shop import app as shop
from examples.shop import demo
from examples.shop.moves import Moved
from examples.shop.show import Counts, Duplicate, Kill, broken, read_counts, verdict_lines
from tests.conftest import within

from holdfast.db import embedded

EXAMPLES = Path(shop.__file__).parents[1]
JOB = UUID("01990000-0000-7000-8000-000000000042")
OTHER = UUID("01990000-0000-7000-8000-000000000043")
KILL = Kill(JOB, 42, generation=1, worker="host:1:a", pid=1, at=0.0, held=[JOB])
GOOD = Counts(
    paid=400,
    unpaid=40,
    receipts=400,
    lost=0,
    phantoms=0,
    inside=0,
    outside=[],
    unfenced=0,
    recovered=5,
    generation=2,
    worker="host:2:b",
    seconds=11.0,
    ledger=398_000,
    projected=398_000,
)


@dataclass(frozen=True)
class Ended:
    folder: Path
    code: int
    seconds: float
    output: str

    @property
    def verdict(self) -> list[str]:
        return self.output.split("\nVerdict", 1)[1].split("\n\n", 1)[0].splitlines()

    @property
    def commands(self) -> list[str]:
        return [line.strip() for line in self.output.split("Try it", 1)[1].splitlines()[1:] if line.strip()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The examples in a place of their own, with spaces in its name."""
    place = tmp_path_factory.mktemp("demo") / "a shop to try"
    shutil.copytree(EXAMPLES, place / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    yield place
    embedded.reset(place / ".holdfast" / "demo", force=True)


def start(folder: Path) -> "subprocess.Popen[str]":
    # The demo must run at default settings on its own database, whatever the environment says.
    strange = {
        "HOLDFAST_DATABASE_URL": "postgresql://nobody@unused.invalid/none",
        "HOLDFAST_DEAD_AFTER": "900",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "examples.shop.demo"],
        cwd=folder,
        env=os.environ | strange,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def ended(folder: Path) -> Ended:
    began = time.monotonic()
    process = start(folder)
    output, _ = process.communicate(timeout=450)
    return Ended(folder, process.returncode, time.monotonic() - began, output)


@pytest.mark.slow
def test_every_promise_holds_within_a_minute(ended: Ended) -> None:
    assert ended.code == 0, ended.output
    assert ended.seconds < within(60)
    assert "Every promise held." in ended.verdict[-1]


@pytest.mark.slow
def test_the_verdict_counts_both_ledgers_in_12_lines(ended: Ended) -> None:
    assert len(ended.verdict) <= 12
    text = "\n".join(ended.verdict)
    assert re.search(r"orders paid +400 ", text)
    assert re.search(r"receipts sent +400 ", text)
    assert re.search(r"lost +0$", text, re.MULTILINE)
    assert re.search(r"duplicates inside +0 ", text)
    assert re.search(r"duplicates outside +[1-9]\d* ", text)  # the named job's mail was out before the kill
    assert re.search(r"cents in the totals +398000  \(.* the paid orders have 398000\)$", text, re.MULTILINE)
    assert re.search(r"time to recover +\d+\.\d s  \(order 42, generation \d+ -> \d+: ", text)


@pytest.mark.slow
def test_the_killed_job_gets_a_higher_generation_on_another_worker(ended: Ended) -> None:
    runs = re.search(r"job (\S+) \(receipt of order 42\) runs on (worker-\d)", ended.output)
    assert runs is not None, ended.output
    again = re.search(
        rf"job {runs[1]} runs again: generation (\d+) -> (\d+), {runs[2]} \((\S+)\) -> (worker-\d) \((\S+)\)",
        ended.output,
    )
    assert again is not None, ended.output
    before, after, old, name, new = again.groups()
    assert int(after) == int(before) + 1
    assert name != runs[2]
    assert new != old


@pytest.mark.slow
def test_a_join_a_leave_and_a_drain_say_what_moved(ended: Ended) -> None:
    said = re.findall(r"(join|leave|drain): .*: (\d+) of 1024 buckets moved \((.*)\)", ended.output)
    assert [kind for kind, _, _ in said] == ["join", "leave", "drain"], ended.output
    for kind, count, ways in said:
        moved = re.findall(r"(\S+) -> (\S+) (\d+)", ways)
        assert sum(int(number) for _, _, number in moved) == int(count)
        # Two and one more; a third of the three; and the last but one has half.
        assert len({old for old, _, _ in moved}) == (2 if kind == "join" else 1)
        assert int(count) <= 1.3 * 1024 / (2 if kind == "drain" else 3)
    counts = re.search(r"(\d+) of (\d+) parcels shipped, 0 out of order, 0 attempts spent", ended.output)
    assert counts is not None, ended.output
    assert int(counts[1]) == int(counts[2]) > 60


@pytest.mark.slow
def test_without_a_terminal_there_are_plain_lines_about_one_a_second(ended: Ended) -> None:
    assert "\x1b" not in ended.output
    assert (
        len(re.findall(r"^ *[\d.]+ s  paid \d+, receipts", ended.output, re.MULTILINE)) <= ended.seconds + 1
    )


@pytest.mark.slow
def test_the_three_commands_work_afterwards(ended: Ended) -> None:
    assert len(ended.commands) == 3
    for command in ended.commands:
        done = subprocess.run(
            command, shell=True, cwd=ended.folder, capture_output=True, text=True, timeout=150, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        assert done.stdout.strip()


@pytest.mark.slow
def test_ctrl_c_stops_the_workers(ended: Ended) -> None:
    """After the full run, so this is also a second run in the same folder."""
    process = start(ended.folder)
    assert process.stdout is not None
    for line in process.stdout:
        if "workers at default settings" in line:
            break
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=100)
    assert process.returncode == 130, rest
    assert "Traceback" not in rest
    for pid in re.findall(r"is process (\d+)", line):
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_the_users_code_is_short() -> None:
    assert len(Path(shop.__file__).read_text().splitlines()) <= 80


def test_kept_promises_are_not_called_broken() -> None:
    assert broken(GOOD, KILL) == []


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (replace(GOOD, paid=0), "no order was paid"),
        (replace(GOOD, lost=1), "1 paid orders have no receipt"),
        (replace(GOOD, inside=2), "2 receipts were written twice"),
        (replace(GOOD, phantoms=3), "3 traces of payments that were rolled back"),
        (replace(GOOD, projected=397_005), "order_totals has 397005 cents, the paid orders 398000"),
        (replace(GOOD, unfenced=1), "1 mails were repeated without a higher fence"),
        (replace(GOOD, seconds=None), "not recovered"),
        (replace(GOOD, generation=1), "not recovered"),
        (replace(GOOD, worker=KILL.worker), "not recovered"),
        (replace(GOOD, worker=None), "not recovered"),
    ],
)
def test_a_broken_promise_is_told(counts: Counts, words: str) -> None:
    (told,) = broken(counts, KILL)
    assert words in told
    assert verdict_lines(counts, KILL, [told])[-1] == f"BROKEN: {told}."


@pytest.mark.parametrize(
    ("moved", "words"),
    [
        (Moved(9, 9, 0, 0), []),
        (Moved(9, 7, 0, 0), ["2 parcels were not shipped"]),
        (Moved(9, 9, 3, 0), ["3 parcels left out of order"]),
        (Moved(9, 9, 0, 1), ["1 attempts were spent on workers that came and went"]),
    ],
)
def test_parcels_that_suffered_from_the_moves_are_told(moved: Moved, words: list[str]) -> None:
    assert moved.broken() == words


def test_a_run_out_of_time_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not done yet is not lost: on a machine that is too busy the demo calls no promise broken."""
    said: list[str] = []
    monkeypatch.setattr(demo, "read_counts", None)
    screen: Any = SimpleNamespace(write=lambda text, *_: said.append(text))
    assert demo.judge(screen, KILL, None, in_time=False) == 1
    assert said == [
        "",
        "NOT FINISHED within 240 s, so nothing is judged: this machine has much else to do. Try it again.",
    ]


def test_a_run_without_a_kill_is_broken() -> None:
    assert broken(GOOD, None) == ["the named job was not caught running, so nobody was killed"]


@pytest.mark.parametrize("count", [0, 1, 3, 4, 30])
def test_the_verdict_never_has_more_than_12_lines(count: int) -> None:
    fence = "00000001-000000000000002a-000000000000000"
    outside = [Duplicate(n, JOB, [f"{fence}1", f"{fence}2"]) for n in range(count)]
    lines = verdict_lines(replace(GOOD, outside=outside), KILL, [])
    assert len(lines) <= 12
    assert sum(f"{JOB}  fence {fence}1 -> ...-0000000000000002" in line for line in lines) == min(
        count, 3 if count <= 3 else 2
    )


def test_the_counts_see_each_kind_of_damage(holdfast_url: str) -> None:
    with psycopg.connect(holdfast_url, autocommit=True) as conn:
        conn.execute(shop.TABLES)
        conn.execute("INSERT INTO orders VALUES (1, now()), (2, now()), (3, now()), (4, NULL)")
        # 1 is fine, 2 was written twice, 3 is lost, 4 was never paid and yet has a receipt
        conn.execute(
            "INSERT INTO receipts SELECT n, gen_random_uuid(), 'f1' FROM unnest(ARRAY[1, 2, 2, 4]) AS u(n)"
        )
        conn.execute(
            "INSERT INTO mails (order_id, job_id, fence) VALUES (1, %(a)s, 'f1'), (1, %(a)s, 'f2'),"
            " (2, %(b)s, 'f1'), (2, %(b)s, 'f1')",
            {"a": JOB, "b": OTHER},
        )
        counts = read_counts(conn, None)
    assert (counts.paid, counts.unpaid, counts.receipts) == (3, 1, 4)
    assert (counts.lost, counts.inside, counts.phantoms, counts.unfenced) == (1, 1, 1, 1)
    assert counts.outside == [Duplicate(1, JOB, ["f1", "f2"]), Duplicate(2, OTHER, ["f1", "f1"])]
    assert counts.seconds is None
    assert (counts.ledger, counts.projected) == (3 * 995, 0)
