"""Rules about the code that no linter knows."""

import ast
import graphlib
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import holdfast
from holdfast import errors, sql

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "holdfast"
FILES = sorted(SOURCE.rglob("*.py"))


def test_every_named_query_has_exactly_one_caller_and_every_call_names_a_query() -> None:
    calls: dict[str, int] = {}
    shapes = SOURCE / "shapes"
    for file in (
        *(SOURCE / "store").glob("*.py"),
        *shapes.glob("*/store.py"),
        *shapes.glob("*/store_acts.py"),
        *shapes.glob("*/ends.py"),
        *shapes.glob("*/runs.py"),
        *shapes.glob("*/timeline.py"),
        *shapes.glob("*/health.py"),
        *shapes.glob("*/working.py"),
        *shapes.glob("*/store/*.py"),
    ):
        for name in re.findall(
            r'(?:query\("(?=\w+"\))|\bnamed\(\s*"|query_in\("|query_asking\("|taking\(\s*")(\w+)"',
            file.read_text(encoding="utf-8"),
        ):
            calls[name] = calls.get(name, 0) + 1
    settle = (SOURCE / "store" / "settle.py").read_text(encoding="utf-8")
    for name in re.findall(r'return "(settle_\w+)"', settle):
        calls[name] = 1  # chosen by outcome, run in one place
    assert sorted(calls) == sql.query_names()
    assert {n: c for n, c in calls.items() if c != 1} == {}


def test_every_query_says_what_it_is_for() -> None:
    for file in sql.query_files():
        text = file.read_text(encoding="utf-8")
        for name, following in re.findall(r"^-- name: (\w+)\n(.*)$", text, re.MULTILINE):
            assert following.startswith("-- "), f"{file.name}: {name} has no purpose line"


def test_no_sql_outside_its_places() -> None:
    allowed = {
        "contrib/holdfast.py",  # for another database, of which it knows the public function alone
        "db/connect.py",
        "db/pools.py",
        "testing/kit.py",
        "testing/servers.py",
    }
    statement = re.compile(r'"""?\s*(SELECT|INSERT INTO|UPDATE \w+\.|DELETE FROM|WITH \w+ AS)\b')
    for file in FILES:
        name = file.relative_to(SOURCE).as_posix()
        # Scenes of the lab have tables of their own, and show ours.
        if name in allowed or name.startswith(("db/migrate/", "db/embedded/", "bench/", "lab/")):
            continue
        assert not statement.search(file.read_text(encoding="utf-8")), f"{name} holds SQL text"


def test_modules_and_functions_stay_small() -> None:
    for file in FILES:
        text = file.read_text(encoding="utf-8")
        assert text.count("\n") <= 400, f"{file.name} has {text.count(chr(10))} lines"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno
                assert length <= 60, f"{file.name}: {node.name} has {length} lines"


def test_half_of_all_functions_have_six_lines_and_nine_in_ten_have_seventeen() -> None:
    lengths = sorted(
        (node.end_lineno or 0) - node.lineno + 1
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    assert lengths[len(lengths) // 2] <= 6
    assert lengths[len(lengths) * 9 // 10] <= 17


def test_the_worker_only_puts_its_parts_together_and_nobody_reaches_into_it() -> None:
    assert (SOURCE / "runtime" / "worker.py").read_text(encoding="utf-8").count("\n") <= 150
    for file in FILES:
        reached = re.findall(r"\bworker\._\w+", file.read_text(encoding="utf-8"))
        assert not reached, f"{file.name} uses {reached}"


def test_all_is_sorted_and_every_public_error_is_exported() -> None:
    assert holdfast.__all__ == sorted(holdfast.__all__)
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.HoldfastError):
            assert name in holdfast.__all__, f"{name} is not exported"


def test_the_error_tree_in_the_docstring_is_true() -> None:
    drawn = re.findall(r"^[ │├└─]*(\w+)", (errors.__doc__ or "").split("\n\n")[1], re.MULTILINE)
    real = [n for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, errors.HoldfastError)]
    assert sorted(drawn) == sorted(real)


def test_importing_the_package_loads_no_surface_and_no_codec() -> None:
    code = (
        "import sys, holdfast; "
        "libraries = ('typer', 'rich', 'pydantic', 'msgspec', 'structlog', 'pytest'); "
        "bad = [m for m in sys.modules if m.split('.')[0] in libraries "
        "or m.startswith(('holdfast.cli', 'holdfast.testing', 'holdfast.bench'))]; print(bad)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def _imported(file: Path, modules: set[str]) -> set[str]:
    """Modules of ours that a file imports, anywhere in it: also under TYPE_CHECKING and inside of functions."""
    package = ["holdfast", *file.relative_to(SOURCE).parent.parts]
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if inner in modules else base)
    return found & modules


def test_no_module_imports_itself_through_others_not_even_for_types() -> None:
    names = {}
    for file in FILES:
        parts = ["holdfast", *file.relative_to(SOURCE).with_suffix("").parts]
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    imports = {name: _imported(file, set(names)) - {name} for name, file in names.items()}
    try:
        tuple(graphlib.TopologicalSorter(imports).static_order())
    except graphlib.CycleError as error:
        raise AssertionError(" imports ".join(reversed(error.args[1]))) from None


def _lines_of(section: str) -> list[int]:
    """The lines of each Python file that a section of ARCHITECTURE.md leads through, in its list or table."""
    text = (
        (ROOT / "ARCHITECTURE.md")
        .read_text(encoding="utf-8")
        .partition(f"# {section}\n")[2]
        .partition("\n#")[0]
    )
    rows = [line for line in text.splitlines() if re.match(r"\||\d+\. ", line)]
    return [
        (SOURCE / name).read_text(encoding="utf-8").count("\n")
        for row in rows
        for name in re.findall(r"`([\w/]+\.py)`", row)
    ]


def test_every_file_and_function_that_the_architecture_names_is_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+(?:\.(?:py|sql|md|json)|/))`", text)
    assert len(named) > 100
    for name in named:
        if (SOURCE / name).exists() or (ROOT / name).exists():
            continue
        assert any(SOURCE.rglob(name.rstrip("/"))), f"there is no {name}"
    for function, name in re.findall(r"`([\w.]+)\(\)` in\s`([\w/]+\.\w+)`", text):
        last = function.rpartition(".")[2]
        assert re.search(
            rf"(def |FUNCTION holdfast\.){last}\(", (SOURCE / name).read_text(encoding="utf-8")
        ), f"{name} has no {function}()"


def test_from_claim_to_settle_and_to_the_whole_story_it_is_not_far() -> None:
    path = _lines_of("From claim to settle")
    assert 10 <= len(path) <= 12
    assert sum(path) <= 2000
    story = _lines_of("Reading order")
    assert len(story) >= 7
    assert sum(story) <= 1500


def test_no_two_files_of_tests_have_one_name() -> None:
    """Of two in folders that are no packages, pytest collects one and fails for the other."""
    files = (ROOT / "tests").rglob("test_*.py")
    names = Counter(file.name for file in files if not (file.parent / "__init__.py").exists())
    assert [name for name, times in names.items() if times > 1] == []
