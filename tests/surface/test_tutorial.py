"""docs/tutorial.md as its reader does it: its file, its commands in their order, its crash."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import wait_until

from holdfast.testing import Kit

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
HOLDFAST = str(Path(sys.executable).parent / "holdfast")
COMMANDS = [
    line.split("  #")[0].strip()
    for block in re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ ")
]
QUICK = {"HEARTBEAT": "0.2", "DEAD_AFTER": "0.8", "SWEEP": "0.1", "LEASE": "1", "POLL": "0.05"}


def test_these_are_its_commands() -> None:
    """What the test below does, in this order; the first three make the environment that it runs in."""
    assert COMMANDS[3:] == [
        "$ holdfast worker shop:app &",
        "$ holdfast enqueue -a shop:app send_receipt order_id:=1 --wait 10",
        "$ holdfast enqueue -a shop:app pay order_id:=2",
        "$ kill -9 %1",
        "$ holdfast explain ID",
        "$ holdfast worker shop:app &",
        "$ holdfast jobs show ID",
        '$ holdfast db psql -c "SELECT count(*), sum(cents) FROM ledger"',
    ]


@pytest.mark.slow
def test_its_crash_is_survived(kit: Kit, tmp_path: Path) -> None:
    (code,) = re.findall(r"<!-- tutorial: shop.py -->\n```python\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "shop.py").write_text(code, encoding="utf-8")
    env = {**os.environ, "HOLDFAST_DATABASE_URL": kit.url, **{f"HOLDFAST_{k}": v for k, v in QUICK.items()}}

    def holdfast(*words: str) -> str:
        done = subprocess.run(
            [HOLDFAST, *words], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def worker() -> "subprocess.Popen[bytes]":
        with (tmp_path / "log").open("a") as log:
            return subprocess.Popen(
                [HOLDFAST, "worker", "shop:app"], cwd=tmp_path, env=env, stdout=log, stderr=log
            )

    first = worker()
    second = None
    try:
        wait_until(lambda: kit.sql("SELECT 1 FROM holdfast.workers WHERE status = 'alive'"), "a worker")
        printed = holdfast("enqueue", "-a", "shop:app", "send_receipt", "order_id:=1", "--wait", "10").strip()
        assert printed == '"receipt for order 1"'
        assert f"\n{printed}\n" in TEXT
        (job,) = re.findall(r"[0-9a-f-]{36}", holdfast("enqueue", "-a", "shop:app", "pay", "order_id:=2"))
        wait_until(lambda: kit.job(job)["status"] == "processing", "it runs")
        first.kill()
        first.wait(30)
        assert "processing" in holdfast("explain", job)
        second = worker()
        wait_until(lambda: kit.job(job)["status"] == "completed", "another worker finished it")
        shown = json.loads(holdfast("jobs", "show", job, "--json"))
        assert "order 2 is paid, by owner number 2" in json.dumps(shown)
        assert kit.job(job)["attempts"] == 1
        assert kit.sql("SELECT count(*) AS n, sum(cents) AS cents FROM ledger") == [{"n": 1, "cents": 995}]
    finally:
        for process in filter(None, (first, second)):
            process.kill()
            process.wait(30)
