"""Check the typed surface: the files of tests/typing must pass mypy --strict and pyright, and in bad.py exactly
the lines marked `# error` must fail, in both."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CASES = ROOT / "tests" / "typing"
BIN = Path(sys.executable).parent
Found = dict[str, dict[int, str]]  # file name -> line -> first message


def run_mypy() -> Found:
    env = {**os.environ, "MYPYPATH": f"{ROOT / 'src'}{os.pathsep}{CASES}"}
    command = [str(BIN / "mypy"), "--strict", "--config-file=", "--python-version=3.11", "--output=json"]
    done = subprocess.run(
        [*command, *sorted(str(path) for path in CASES.glob("*.py"))],
        env=env, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode not in (0, 1):
        sys.exit(f"mypy did not run: {done.stdout}{done.stderr}")
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return collect((row["file"], row["line"], row["message"]) for row in rows if row["severity"] == "error")


def run_pyright() -> Found:
    with tempfile.TemporaryDirectory() as folder:
        cases, source = (os.path.relpath(path, Path(folder).resolve()) for path in (CASES, ROOT / "src"))
        config = {
            "include": [cases],
            "extraPaths": [source, cases],
            "pythonVersion": "3.11",
            "typeCheckingMode": "standard",
        }
        path = Path(folder, "pyrightconfig.json")
        path.write_text(json.dumps(config))
        command = [str(BIN / "pyright"), "--outputjson", "--pythonpath", sys.executable, "-p", str(path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        sys.exit(f"pyright did not run: {done.stdout}{done.stderr}")
    rows = json.loads(done.stdout)["generalDiagnostics"]
    return collect(
        (row["file"], row["range"]["start"]["line"] + 1, row["message"])
        for row in rows
        if row["severity"] == "error"
    )


def collect(rows: Iterable[tuple[str, int, str]]) -> Found:
    found: Found = {}
    for file, line, message in rows:
        if Path(ROOT, file).parent == CASES:  # the library itself is checked by `mypy` and `pyright` alone
            found.setdefault(Path(file).name, {}).setdefault(line, message)
    return found


def compare(tool: str, found: Found) -> bool:
    lines = (CASES / "bad.py").read_text().splitlines()
    wanted = {number for number, text in enumerate(lines, 1) if text.endswith("# error")}
    bad = found.pop("bad.py", {})
    problems = [f"{file}:{line}: {text}" for file, rows in found.items() for line, text in rows.items()]
    problems += [f"bad.py:{line}: unmarked: {text}" for line, text in bad.items() if line not in wanted]
    problems += [f"bad.py:{line}: should fail: {lines[line - 1]}" for line in sorted(wanted - bad.keys())]
    verdict = "FAILED" if problems else "ok"
    refused = len(wanted & bad.keys())
    wrong, refused = len(found.get("good.py", {})), len(wanted & bad.keys())
    print(f"{tool}: {verdict}, good.py {wrong} errors, bad.py {refused}/{len(wanted)} refused")
    for problem in problems:
        print(f"  {problem}", file=sys.stderr)
    return not problems


def main() -> int:
    verdicts = [compare("mypy", run_mypy()), compare("pyright", run_pyright())]
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
