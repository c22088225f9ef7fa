"""The core of the tests on every CPython that we support and this machine has: `make test-pythons`.

Interpreters are looked for on the PATH and among those of pyenv. Each gets an environment of its own below .venv, with the
pinned requirements. Arguments choose: `python scripts/test_pythons.py 3.13`. With CI set, one that is missing is a failure.
The pinned requirements have Django 5.2. On the newest of these interpreters the tests of the Django project run once more,
on the Django that requirements/django6.txt pins, and Django's own tests of a task backend run on ours (django_suite.py);
`python scripts/test_pythons.py --django 3.12` runs these alone.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.interpreters import SUPPORTED, environment, interpreters  # noqa: E402
from scripts.memory import quick_folder  # noqa: E402

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

DJANGO_6 = ROOT / "requirements" / "django6.txt"
NEEDED_BY_DJANGO_6 = (3, 12)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


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


def run_django_6(version: str, program: Path) -> int:
    """The tests of the Django project on Django 6, in an environment that takes all else from that of the interpreter. No
    PYTHONPATH: the processes that tests start have one of their own."""
    others = environment(version, program).parents[1]
    folder = others.with_name(f"{version}-django6")
    python, stamp = folder / "bin" / "python", folder / ".installed"
    if not (stamp.exists() and stamp.stat().st_mtime > DJANGO_6.stat().st_mtime):
        subprocess.run([program, "-m", "venv", "--clear", folder], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--require-hashes", "-r", str(DJANGO_6)], check=True)
        site = f"lib/python{version}/site-packages"
        (folder / site / "others.pth").write_text(f"{ROOT / 'src'}\n{others / site}\n", encoding="utf-8")
        stamp.touch()
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "pycache")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    seen = [str(python), "-c", "import django; print(django.get_version())"]
    number = subprocess.run(seen, env=env, capture_output=True, text=True, check=True).stdout.strip()
    if not number.startswith("6."):
        sys.exit(f"the tests of Django 6 would run on Django {number}")
    command = [str(python), "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", "tests/django_app"]
    codes = [subprocess.run(command, cwd=ROOT, env=env, check=False).returncode]
    theirs = [str(python), str(ROOT / "scripts" / "django_suite.py")]
    codes.append(subprocess.run(theirs, cwd=ROOT, env=env, check=False).returncode)
    code = max(codes)
    print(f"-- CPython {version}, Django {number}: {'passed' if code == 0 else 'FAILED'}", flush=True)
    return code


def main(words: list[str]) -> int:
    only_django, wanted = "--django" in words, [word for word in words if word != "--django"]
    unknown = [version for version in wanted if version not in SUPPORTED]
    if unknown:
        sys.exit(f"not a version that we support: {', '.join(unknown)}. There are: {', '.join(SUPPORTED)}")
    here = interpreters()
    missing = [version for version in wanted or SUPPORTED if version not in here]
    core = [] if only_django else [version for version in wanted or SUPPORTED if version in here]
    codes = [run(version, here[version]) for version in core]
    modern = [v for v in wanted or SUPPORTED if v in here and _numbers(v) >= NEEDED_BY_DJANGO_6]
    if modern:
        codes.append(run_django_6(modern[-1], here[modern[-1]]))
    for version in missing:
        print(f"not run: CPython {version} is not on this machine", flush=True)
    return max([*codes, 1 if missing and os.environ.get("CI") else 0])


if __name__ == "__main__":
    with quick_folder():
        code = main(sys.argv[1:])
    sys.exit(code)
