"""The core of the tests on every CPython that we support and this machine has: `make test-pythons`.

Interpreters are looked for on the PATH and among those of pyenv. Each gets an environment of its own below .venv, with the
pinned requirements. Arguments choose: `python scripts/test_pythons.py 3.13`. With CI set, one that is missing is a failure.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.memory import quick_folder  # noqa: E402

SUPPORTED = ("3.11", "3.12", "3.13")
# What depends on the interpreter: signatures, annotations, event loops, threads, processes, tracebacks, the whole thread.
CORE = (
    "tests/unit",
    "tests/flow/test_first_thread.py",
    "tests/flow/test_own.py",
    "tests/sql/test_guarantees.py",
    "tests/processes/test_handlers.py",
    "tests/events/test_publish.py",
    "tests/workflows/test_workflow_replay.py",
    "tests/surface/test_first_screen.py",
    "tests/surface/test_public.py",
    "tests/packaging",
)


def interpreters() -> dict[str, Path]:
    """Those that are here, by version."""
    found: dict[str, Path] = {}
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for version in SUPPORTED:
        places = sorted(pyenv.glob(f"{version}.*/bin/python{version}"), key=_patch, reverse=True)
        on_path = shutil.which(f"python{version}")
        for program in [*places, *([Path(on_path)] if on_path else [])]:
            if _version_of(program) == version:
                found[version] = program
                break
    return found


def _patch(program: Path) -> int:
    number = re.fullmatch(r"\d+\.\d+\.(\d+)", program.parents[1].name)
    return int(number[1]) if number else -1


def _version_of(program: Path) -> str | None:
    """None: it does not start, as a shim of pyenv for a version that is not chosen."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([program, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def environment(version: str, program: Path) -> Path:
    """Its Python, with the pinned requirements and this package."""
    folder = ROOT / ".venv" / "pythons" / version
    python, stamp = folder / "bin" / "python", folder / ".installed"
    pins = ROOT / "requirements" / "dev.txt"
    newest = max(pins.stat().st_mtime, (ROOT / "pyproject.toml").stat().st_mtime)
    if stamp.exists() and stamp.stat().st_mtime > newest:
        return python
    print(f"== an environment for CPython {version}", flush=True)
    subprocess.run([program, "-m", "venv", "--clear", folder], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--require-hashes", "-r", str(pins)], check=True)
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-e", str(ROOT)], check=True)
    stamp.touch()
    return python


def run(version: str, program: Path) -> int:
    python = environment(version, program)
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(python.parents[1] / "pycache")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    print(f"== the core of the tests on CPython {version}", flush=True)
    began = time.monotonic()
    code = subprocess.run(
        [python, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", *CORE],
        cwd=ROOT,
        env=env,
        check=False,
    ).returncode
    print(
        f"-- CPython {version}: {'passed' if code == 0 else 'FAILED'}, {time.monotonic() - began:.0f} s",
        flush=True,
    )
    return code


def main(wanted: list[str]) -> int:
    unknown = [version for version in wanted if version not in SUPPORTED]
    if unknown:
        sys.exit(f"not a version that we support: {', '.join(unknown)}. There are: {', '.join(SUPPORTED)}")
    here = interpreters()
    missing = [version for version in wanted or SUPPORTED if version not in here]
    codes = [run(version, here[version]) for version in wanted or SUPPORTED if version in here]
    for version in missing:
        print(f"not run: CPython {version} is not on this machine", flush=True)
    return max([*codes, 1 if missing and os.environ.get("CI") else 0])


if __name__ == "__main__":
    with quick_folder():
        code = main(sys.argv[1:])
    sys.exit(code)
