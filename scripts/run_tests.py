"""The tests: everything on the embedded PostgreSQL, then what depends on the server on every other version at hand.

With CI set, a version that cannot be had is a failure. Debian's packages are installed when that is possible (as root).
Arguments go to pytest and then only the first run is made: `python scripts/run_tests.py tests/flow -x`. With `--long` the
slow ones (interleavings, random walks, plans at size) are run on the other versions; the usual run makes them on the
embedded server only. The long ones are run with `--long` alone, on every version. A version between the oldest and the
newest runs a part in the usual run, and everything with `--long` (ADR 50).
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.memory import quick_folder  # noqa: E402
from tests.pg_versions import BETWEEN, binaries_for, bouncer_program  # noqa: E402

OTHERS = (15, 16)
# What these look at may differ on a version between two that agree: the catalog, rights, locks, plans, and the thread
# through all layers. The rest is run on the versions at both ends (ADR 74).
DIFFERS = (
    "doctor/test_doctor_schema.py",
    "flow/test_first_thread.py",
    "rights/test_grants.py",
    "sql/test_enqueue_locks.py",
    "sql/test_plans.py",
)
AGAIN = 8  # failed tests that are run once more
EVERY = ("migration", "embedded")  # folders whose tests start a server of each version in the first run


def provide(major: int) -> Path | None:
    """The bin folder of that version; installed from Debian's packages when missing and possible."""
    if binaries_for(major) is None:
        install(f"postgresql-{major}")
    return binaries_for(major)


def provide_pooler() -> bool:
    """PgBouncer, for the tests of what stands between a program and its server."""
    if bouncer_program() is None:
        install("pgbouncer")
    return bouncer_program() is not None


BROKERS = {"redis-server": "redis-server", "chromium": "chromium"}  # and a browser
LONG_BROKERS = {"/usr/lib/rabbitmq/bin/rabbitmq-server": "rabbitmq-server"}  # what only the long ones need


def provide_brokers(*, long: bool) -> None:
    """Those that are Debian packages. One that is missing fails the tests that need it."""
    for found, package in (BROKERS | LONG_BROKERS if long else BROKERS).items():
        if shutil.which(found) is None:
            install(package)


def install(package: str) -> None:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    print(f"installing {package} from the system's packages", flush=True)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(["apt-get", "update"], check=False, **quiet)  # type: ignore[call-overload]
    subprocess.run(
        ["apt-get", "install", "-y", "--no-install-recommends", package],
        check=False,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        **quiet,  # type: ignore[call-overload]
    )


def marked(mark: str) -> list[str]:
    """The files with tests of that mark: importing all the others takes longer than some of these run."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [
        str(file.relative_to(ROOT)) for file in files if f"mark.{mark}" in file.read_text(encoding="utf-8")
    ]


def versioned() -> list[str]:
    """The files with tests that depend on the version of the server."""
    return [file for file in marked("versions") if Path(file).parent.name not in EVERY]


def on_version(major: int, *, long: bool) -> list[str]:
    """What is run on that version: the mark, and the files."""
    if major not in BETWEEN:
        wanted = "versions and (slow or long)" if long else "versions and not slow and not long"
        return ["-m", wanted, *versioned()]
    if long:
        return ["-m", "versions", *versioned()]
    return ["-m", "versions and not slow and not long", *(f"tests/{name}" for name in DIFFERS)]


def pytest(arguments: list[str], extra: dict[str, str] | None = None) -> int:
    began = time.monotonic()
    code = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=ROOT,
        env={**os.environ, **(extra or {})},
        check=False,
    ).returncode
    print(f"-- {time.monotonic() - began:.0f} s", flush=True)
    return code


def pytest_twice(arguments: list[str], extra: dict[str, str] | None = None) -> int:
    """As pytest(); up to eight tests that failed beside others are run once more, alone. They are named either way: a test
    that fails now and then is a defect, of the test or of the engine."""
    with tempfile.TemporaryDirectory() as folder:
        failed = Path(folder) / "failed"
        code = pytest(arguments, {**(extra or {}), "HOLDFAST_TEST_FAILED": str(failed)})
        names = sorted(set(failed.read_text(encoding="utf-8").splitlines())) if failed.exists() else []
    if code != 1 or not 1 <= len(names) <= AGAIN:
        return code
    print("== once more, alone: what failed beside others", flush=True)
    code = pytest(["-q", *names], extra)
    for name in names:
        print(f"{'failed' if code else 'PASSED ONLY ALONE, look into it'}: {name}", flush=True)
    return code


def main(arguments: list[str]) -> int:
    long = arguments == ["--long"]
    if arguments and not long:
        return pytest(arguments)
    # Two more than there are cores: many tests wait for a process or a clock.
    # A worker that has nothing left takes tests from the others, also out of a file: no long file is left for the end.
    workers = ["-n", str(min(6, (os.cpu_count() or 2) + 2)), "--dist", "worksteal", "-q"]
    missing = []
    binaries = {}
    for major in OTHERS:
        found = provide(major)
        if found is None:
            missing.append(str(major))
        else:
            binaries[major] = found
    provide_brokers(long=long)
    if not provide_pooler():
        print("not run: what needs pgbouncer, which is not on this machine", flush=True)
    codes = [0]
    if not long:
        print("== everything, on the embedded server", flush=True)
        codes = [pytest_twice(workers)]
    else:
        print("== the long ones, on the embedded server", flush=True)
        codes = [pytest(["-q", "-m", "long", *marked("long"), *(f"tests/{folder}" for folder in EVERY)])]
    for major, folder in binaries.items():
        print(f"== what depends on the server, on PostgreSQL {major}", flush=True)
        run = pytest if long else pytest_twice
        part = on_version(major, long=long)
        codes.append(run([*workers, *part], {"HOLDFAST_TEST_PG_BIN": str(folder)}))
    if missing:
        print(f"not run: PostgreSQL {', '.join(missing)} is not on this machine", flush=True)
        if os.environ.get("CI"):
            codes.append(1)
    return max(codes)


def keep_bytecode() -> None:
    """Every process that a test starts would compile the package again, and every runner all tests, where the environment
    says that bytecode is not written. Here it is, beside the tree: collecting takes 8 s of a core instead of 26."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(Path(sys.prefix) / "pycache"))


if __name__ == "__main__":
    keep_bytecode()
    with quick_folder():
        code = main(sys.argv[1:])
    sys.exit(code)
