"""The program itself: versions, help, exit codes, one line for a mistake, and which app is meant."""

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from psycopg.conninfo import conninfo_to_dict
from typer.testing import CliRunner

from holdfast import Holdfast, errors
from holdfast.cli import app as cli
from holdfast.cli import main
from holdfast.cli.apps import load_app, open_database
from holdfast.cli.render import age, number, one_line
from holdfast.model.release import own_version
from holdfast.store.queue_load import Count
from holdfast.testing import Kit

Outcome = tuple[int, str, str]
VARIABLES = (
    "HOLDFAST_APP",
    "HOLDFAST_DATABASE_URL",
    "DATABASE_URL",
    "PGHOST",
    "PGHOSTADDR",
    "PGSERVICE",
    "PGDATABASE",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to be in, with nothing named by the environment. Modules and log handlers end with the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    root, known = logging.getLogger(), set(sys.modules)
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    yield tmp_path
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    for name, module in list(sys.modules.items()):
        if name not in known and str(tmp_path) in str(getattr(module, "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def program(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """`program("status")` is `holdfast status`: (exit code, stdout, stderr)."""

    def run(*words: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["holdfast", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return code, out, err

    return run


def test_version_by_every_way_in() -> None:
    line = f"holdfast {own_version()}\n"
    assert CliRunner().invoke(cli, ["--version"]).output == line
    done = subprocess.run([sys.executable, "-m", "holdfast", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, line, "")


def test_usage_mistakes_end_with_2(program: Callable[..., Outcome]) -> None:
    for words in (["workr"], ["worker", "--concurrency", "0"], ["jobs", "show", "x"], ["status", "--nope"]):
        code, out, err = program(*words)
        assert (code, out) == (2, "")
        assert "Traceback" not in err


MISTAKES = {
    "worker": "no app was named. Pass MODULE:APP, such as shop.jobs:app, or set HOLDFAST_APP",
    "worker shp": "there is no module 'shp' in {folder}. Did you mean 'shop'?",
    "worker elsewhere:app": "there is no module 'elsewhere' in {folder} (there are: broken, empty, shop)",
    "worker shop.job": "there is no module 'shop.job' in {folder}. Did you mean 'shop.jobs'?",
    "worker shop.jobs": "module 'shop.jobs' has no 'app' (it has: main)",
    "worker shop.jobs:mian": "module 'shop.jobs' has no 'mian' (it has: main)",
    "worker empty:app": "module 'empty' has no 'app' and no Holdfast app under another name",
    "worker shop.jobs:number": "shop.jobs:number is not a Holdfast app but an int",
    "worker ./shop/jobs.py": "'./shop/jobs.py' is not MODULE:APP. Write it like shop.jobs:app, here perhaps shop.jobs:app",
    "worker shop/jobs:main": "'shop/jobs:main' is not MODULE:APP. Write it like shop.jobs:app, here perhaps shop.jobs:app",
    "dev broken --no-reload": "module 'broken' cannot be imported: ZeroDivisionError: division by zero",
    "worker broken:app": "module 'broken' cannot be imported: ZeroDivisionError: division by zero",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_an_app_that_cannot_be_loaded(program: Callable[..., Outcome], folder: Path, words: str) -> None:
    (folder / "shop").mkdir()
    (folder / "shop" / "__init__.py").touch()
    (folder / "shop" / "jobs.py").write_text("from holdfast import Holdfast\nmain = Holdfast()\nnumber = 3\n")
    (folder / "empty.py").touch()
    (folder / "broken.py").write_text("def f():\n    return 1 / 0\n\n\nf()\n")
    code, out, err = program(*words.split())
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == f"holdfast: {MISTAKES[words]}".format(folder=folder)
    if "broken" in words:  # the user's own frames and no others
        assert err.startswith("Traceback (most recent call last):\n")
        assert 'broken.py", line 2, in f' in err
        assert str(Path(errors.__file__).parent) not in err
    else:
        assert err.count("\n") == 1


def test_a_syntax_error_is_shown_with_its_line(program: Callable[..., Outcome], folder: Path) -> None:
    (folder / "broken.py").write_text("app = 1\n\ndef f(:\n")
    code, _, err = program("worker", "broken:app")
    assert code == 2
    assert re.search(r'broken\.py", line 3\n    def f\(:\n', err)
    assert err.count("SyntaxError") == 1


def test_an_app_in_an_empty_folder(program: Callable[..., Outcome], folder: Path) -> None:
    _, _, err = program("worker", "shop")
    assert err == (
        f"holdfast: there is no module 'shop' in {folder} (it has no Python files). "
        "Run this in the folder that has your package\n"
    )


def test_an_app_is_found_by_path_variable_and_default(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "place.py").write_text(
        "from holdfast import Holdfast\n\nclass Box:\n    inner = Holdfast()\n\napp = Holdfast(include=['extra'])\n"
    )
    (folder / "extra.py").write_text(
        "from holdfast import Registry\nmore = Registry('more')\n\n@more.task\ndef f() -> None: ...\n"
    )
    assert isinstance(load_app("place:Box.inner"), Holdfast)
    monkeypatch.setenv("HOLDFAST_APP", "place")
    assert load_app(None).tasks.definition("more.f") is not None


APP = "from holdfast import Holdfast\napp = Holdfast('postgresql://own@127.0.0.1:1/own')\n"


@pytest.fixture
def named_by_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose holdfast.toml names the app, and whose app names a database; the working folder is below it."""
    (project := folder / "project").mkdir(mode=0o755)
    (project / "holdfast.toml").write_text('app = "filed:app"\n')
    (project / "filed.py").write_text(APP)
    (project / "below").mkdir()
    monkeypatch.chdir(project / "below")
    return project


def test_code_of_others_is_not_run_for_a_file_that_is_linked(
    program: Callable[..., Outcome], named_by_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may write to a folder above could link a file of ours there, and put code beside the link."""
    (shared := named_by_file.parent / "shared").mkdir()
    (shared / "below").mkdir()
    (shared / "holdfast.toml").symlink_to(named_by_file / "holdfast.toml")
    (shared / "filed.py").write_text("raise SystemExit('their code ran')\n")
    shared.chmod(0o777)
    for place, what in ((shared / "below", shared / "holdfast.toml"), (shared, "app in holdfast.toml")):
        monkeypatch.chdir(place)
        code, _, err = program("status")
        said, refused = err.splitlines()
        assert code == 2
        assert said.startswith(
            f"note: {what} is not used: it is a link, or no regular file. If you trust it: "
        )
        assert refused.startswith("holdfast: no database was named.")


def test_the_code_beside_the_file_replaces_no_module_of_python(
    program: Callable[..., Outcome], named_by_file: Path
) -> None:
    (named_by_file / "below" / "filed.py").write_text(
        "raise SystemExit('the code of the working folder ran')\n"
    )
    assert "cannot reach database 'own' at 127.0.0.1:1" in program("status")[2]
    python = sys.path.index(str(Path(os.__file__).parent))
    assert sys.path.index(str(named_by_file)) > python
    assert str(named_by_file / "below") not in sys.path


@pytest.mark.parametrize("variable", ["HOLDFAST_DATABASE_URL", "DATABASE_URL"])
def test_the_environment_names_the_database_where_the_file_names_the_app(
    program: Callable[..., Outcome], named_by_file: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "postgresql://127.0.0.1:1/staging")
    for words in (["dead", "discard", "--all", "--yes"], ["status"], ["worker"]):
        assert "cannot reach database 'staging' at 127.0.0.1:1" in program(*words)[2], words
    assert "cannot reach database 'other'" in program("status", "-d", "postgresql://127.0.0.1:1/other")[2]
    shown = json.loads(program("config", "show", "--json")[1])
    assert {s["name"]: s["source"] for s in shown["settings"]}["database_url"] == variable
    for words in (["dead", "discard", "--all", "--yes", "--app", "filed:app"], ["worker", "filed:app"]):
        _forget("filed")
        assert "cannot reach database 'own'" in program(*words)[2], (
            "the app was named: nothing goes before it"
        )
    _forget("filed")
    monkeypatch.setenv("HOLDFAST_APP", "filed:app")
    assert "cannot reach database 'own'" in program("status")[2]


def test_a_database_of_the_environment_needs_no_app_of_the_file(
    program: Callable[..., Outcome], named_by_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that is broken refuses no act on a database that is known without it."""
    (named_by_file / "filed.py").write_text("1 / 0\n")
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", "postgresql://127.0.0.1:1/staging")
    assert "cannot reach database 'staging'" in program("queue", "pause", "default")[2]


def _forget(module: str) -> None:
    """The next command is a process of its own."""
    sys.modules.pop(module, None)


def test_a_task_that_cannot_be_declared_is_one_line(program: Callable[..., Outcome], folder: Path) -> None:
    (folder / "wrong.py").write_text(
        "from holdfast import Holdfast\napp = Holdfast()\n\n@app.task\ndef f(*args: int) -> None: ...\n"
    )
    code, _, err = program("worker", "wrong")
    assert code == 2
    assert err.startswith("holdfast: ")
    assert err.count("\n") == 1


def test_no_database_is_the_users_mistake(program: Callable[..., Outcome]) -> None:
    code, out, err = program("status")
    assert (code, out) == (2, "")
    assert err.startswith("holdfast: no database was named. Pass --database-url postgresql://")


def test_a_misspelt_embedded_is_named_and_nothing_else_of_the_address(
    program: Callable[..., Outcome],
) -> None:
    code, out, err = program("status", "-d", "embeded:s3cret")
    assert (code, out) == (2, "")
    assert err == (
        "holdfast: the database address begins with 'embeded'. A server of its own is written embedded:\n"
    )


def test_a_server_that_is_away_is_the_environments(program: Callable[..., Outcome]) -> None:
    code, out, err = program("status", "-d", "postgresql://someone:secret@127.0.0.1:1/none")
    assert (code, out) == (1, "")
    assert err.startswith("holdfast: cannot reach database 'none' at 127.0.0.1:1 as 'someone': ")
    assert err.count("\n") == 1
    assert "secret" not in err


def test_a_scheme_of_another_database_is_the_users_mistake(program: Callable[..., Outcome]) -> None:
    for url in ("mysql://u:secret@h/d", "sqlite:///jobs.db", "cockroachdb://h/d", "redis://h"):
        code, out, err = program("status", "-d", url)
        assert (code, out) == (2, "")
        assert err == (
            f"holdfast: the address begins with {url.split(':')[0]}://, which is no PostgreSQL. Holdfast keeps its jobs in "
            "PostgreSQL: write postgresql://user@host:5432/name, or embedded: for a server of its own\n"
        )


def test_an_address_that_cannot_be_read_is_the_users_mistake(program: Callable[..., Outcome]) -> None:
    for url in ("localhost/shop", "jdbc:postgresql://h/d", "postgres//h/d", "postgresql://u:se@cret@h/d"):
        code, out, err = program("status", "-d", url)
        assert (code, out) == (2, ""), url
        assert err == (
            "holdfast: the database address cannot be read. Write postgresql://user@host:5432/name, "
            "with @ / : # ? and % in a password written as %40 %2F %3A %23 %3F and %25\n"
        )
    assert program("status", "-d", "embedded") == (
        2,
        "",
        "holdfast: embedded is written with a colon: embedded:\n",
    )


def test_addresses_as_other_libraries_write_them(program: Callable[..., Outcome], kit: Kit) -> None:
    at = conninfo_to_dict(kit.url)
    where = urlencode({"host": at["host"], "port": at.get("port") or 5432})
    rest = f"{at['user']}:{at.get('password') or ''}@/{at['dbname']}?{where}"
    for url in (
        f"postgresql+asyncpg://{rest}&prepared_statement_cache_size=0&ssl=prefer",
        f"postgresql+psycopg://{rest}",
        f"postgresql+psycopg2://{rest}",
        f"postgres://{rest}",
    ):
        code, out, err = program("jobs", "list", "-d", url)
        assert (code, err) == (0, ""), url
        assert "No jobs" in out


def test_a_database_without_the_schema(program: Callable[..., Outcome], dsn: str) -> None:
    from tests.conftest import raw

    with raw(dsn, autocommit=True) as conn:
        conn.execute("DROP SCHEMA holdfast CASCADE")
    assert program("queue", "list", "-d", dsn) == (
        1,
        "",
        "holdfast: the database has no holdfast schema. Run: holdfast migrate up\n",
    )


def test_the_database_is_the_option_the_app_or_the_environment(
    folder: Path, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "here.py").write_text(f"from holdfast import Holdfast\napp = Holdfast({dsn!r})\n")
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", "postgresql://127.0.0.1:1/wrong")
    with open_database(dsn) as database:
        assert database.url == dsn
    with open_database(None, "here:app") as database:
        assert database.url == dsn
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", dsn)
    with open_database(None) as database:
        assert database.url == dsn


def test_a_reader_that_goes_away_is_no_error(dsn: str) -> None:
    command = [sys.executable, "-m", "holdfast", "queue", "list", "-d", dsn]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (-1, "0 s"), (0.4, "0 s"), (59.9, "59 s"), (200, "3 min"), (7300, "2 h"), (200_000, "2 d")],
)
def test_ages_are_for_people(seconds: float | None, text: str) -> None:
    assert age(seconds) == text


def test_numbers_and_lines() -> None:
    assert (number(Count(10_000, True)), number(Count(0))) == ("10,000+", "0")
    assert one_line("a\n b\x1b\t" + "c" * 100, 20) == "a b\\x1b " + "c" * 14 + "…"


def test_an_empty_option_is_no_other_database(program: Callable[..., Outcome]) -> None:
    for option in ("--database-url", "--app"):
        code, out, err = program("status", option, "")
        assert (code, out) == (2, "")
        assert err == f"holdfast: {option} is empty. Name one, or leave the option out\n"


def test_printed_commands_say_which_database_they_mean(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_APP", raising=False)
    job = kit.app.send("nobody.knows", {})
    ran = CliRunner().invoke(cli, ["explain", str(job.id), "-d", kit.url])
    assert ran.stdout.splitlines()[-1].startswith(
        "To run these commands, first: export HOLDFAST_DATABASE_URL="
    )
    named = CliRunner().invoke(cli, ["explain", str(job.id)], env={"HOLDFAST_DATABASE_URL": kit.url})
    assert "To run these commands" not in named.stdout


def test_a_terminal_without_the_letters_gets_their_numbers(kit: Kit) -> None:
    kit.app.send("greet", {}, partition_key="日本")
    for words in (["jobs", "list", "--key", "日本"], ["jobs", "show", str(kit.jobs()[0]["id"])]):
        ran = subprocess.run(
            [sys.executable, "-m", "holdfast", *words, "-d", kit.url],
            env={**os.environ, "PYTHONIOENCODING": "latin-1"},
            capture_output=True,
            check=False,
        )
        assert (ran.returncode, ran.stderr) == (0, b""), ran
    assert b"\\u65e5" in ran.stdout
