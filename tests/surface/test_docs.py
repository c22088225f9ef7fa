"""Documents are run: every python and sql block, in order, against a real database; quoted files and output are current."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import Kit

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(<!-- (?:skip|file): [^\n]*-->\n)?```(python|sql)\n(.*?)```", re.DOTALL)


def blocks(path: Path) -> list[tuple[str, str]]:
    found = BLOCK.findall(path.read_text(encoding="utf-8"))
    return [(language, text) for skip, language, text in found if not skip]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_code_blocks_run(path: Path, kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", kit.url)
    scope: dict[str, Any] = {"url": kit.url, "__name__": "docs"}
    for language, text in blocks(path):
        if language == "sql":
            kit.sql(text)
        else:
            exec(compile(text, path.name, "exec"), scope)
    if "app" in scope:
        scope["app"].close()


def test_the_readme_jobs_can_be_run(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the README enqueues is then run by a worker of the README's own apps."""
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", kit.url)
    scope: dict[str, Any] = {"url": kit.url, "__name__": "docs"}
    apps = []
    for language, text in blocks(ROOT / "README.md"):
        if language == "python":
            exec(compile(text, "README.md", "exec"), scope)
            apps += [scope["app"]] if scope["app"] not in apps else []

    async def main() -> None:
        for app in apps:
            async with app:
                await app.run_worker(until_idle=True)

    for _ in range(3):
        kit.sql("UPDATE holdfast.work SET available_at = holdfast.now() WHERE available_at > holdfast.now()")
        asyncio.run(main())
    assert {row["status"] for row in kit.jobs("send_receipt")} == {"completed"}
    assert {row["status"] for row in kit.jobs("billing.charge")} == {"completed"}
    assert len(kit.jobs("billing.charge")) > 1000


def test_the_readme_test_passes(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"<!-- skip: needs pytest -->\n```python\n(.*?)```", text, re.DOTALL)
    first = blocks(ROOT / "README.md")[0][1]
    (tmp_path / "test_readme.py").write_text(first + "\n\n" + block, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_the_tests_of_the_page_about_testing_pass(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    (app,) = re.findall(r"```python\n(# shop\.py\n.*?)```", text, re.DOTALL)
    (tmp_path / "shop.py").write_text(app, encoding="utf-8")
    tests = re.findall(r"<!-- skip: needs pytest -->\n```python\n(.*?)```", text, re.DOTALL)
    for number, block in enumerate(tests):
        clear = "import shop\n\n\ndef setup_function() -> None:\n    shop.sent.clear()\n\n\n"
        (tmp_path / f"test_{number}.py").write_text(clear + block, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'src'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{sum(block.count('def test_') for block in tests)} passed" in done.stdout


def test_bare_make_prints_help() -> None:
    bare, help_ = (
        subprocess.run(
            ["make", "--no-print-directory", *words], cwd=ROOT, capture_output=True, text=True, check=True
        )
        for words in ((), ("help",))
    )
    assert bare.stdout == help_.stdout
    for target in ("demo", "test", "check", "bench"):
        assert f"make {target} " in bare.stdout


def test_the_readme_shows_publish_and_a_projection_in_12_lines() -> None:
    (block,) = (text for _, text in blocks(ROOT / "README.md") if "app.projection(" in text)
    lines = [line for line in block.splitlines() if line and not line.startswith(("import ", "from "))]
    assert "app.publish(" in block
    assert len(lines) <= 12


def test_there_are_blocks_to_run() -> None:
    assert len(blocks(ROOT / "README.md")) >= 5


def test_quoted_files_output_and_the_public_api_are_current() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/docs.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_setting_is_documented() -> None:
    from dataclasses import fields

    from holdfast import Settings

    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    for field in fields(Settings):
        row = re.search(rf"^\| `{field.name}` \|([^|]*)\|", text, re.MULTILINE)
        assert row is not None, f"{field.name} has no row in docs/configuration.md"
        default = (
            ""
            if field.default is None
            else str(field.default).lower()
            if field.type in (str, bool, int)
            else f"{field.default:g}"
        )
        assert row[1].strip() == default, f"{field.name}: documented {row[1].strip()!r}, is {default!r}"


def test_the_typed_surface_holds() -> None:
    """good.py passes and every marked line of bad.py fails, under mypy --strict and pyright."""
    done = subprocess.run(
        [sys.executable, "scripts/check_typing.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
