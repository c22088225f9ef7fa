"""The README's first screen, as a newcomer meets it: its file, its commands, its output."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.conftest import wait_until

from holdfast.testing import Kit

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
SCREEN = README.split("<!-- first screen -->")[1].split("\n## ")[0]
HOLDFAST = str(Path(sys.executable).parent / "holdfast")


def test_it_fits_one_screen() -> None:
    assert len(README.split("\n## ")[0].splitlines()) <= 55


def test_its_commands_print_what_it_says(kit: Kit, tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(# shop\.py\n.*?)```", SCREEN, re.DOTALL)
    (tmp_path / "shop.py").write_text(code, encoding="utf-8")
    (console,) = re.findall(r"```console\n(.*?)```", SCREEN, re.DOTALL)
    *commands, printed = console.strip().splitlines()
    worker, enqueue = (line.split("holdfast ", 1)[1].removesuffix(" &").split() for line in commands[-2:])
    env = {**os.environ, "HOLDFAST_DATABASE_URL": kit.url}
    with (tmp_path / "log").open("w") as log:
        started = subprocess.Popen([HOLDFAST, *worker], cwd=tmp_path, env=env, stdout=log, stderr=log)
    try:
        wait_until(lambda: kit.sql("SELECT 1 FROM holdfast.workers WHERE status = 'alive'"), "a worker")
        done = subprocess.run(
            [HOLDFAST, *enqueue], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout.strip()) == (0, printed), done.stderr
    finally:
        started.terminate()
        assert started.wait(150) == 0
