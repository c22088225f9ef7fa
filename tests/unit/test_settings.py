"""Settings come from arguments, the environment and holdfast.toml, in that order, and are checked."""

import os
from pathlib import Path

import pytest

from holdfast import ConfigurationError, NoDatabase, Settings
from holdfast.settings import database_url, describe_settings, ignored_file, load_settings, settings_file

NOWHERE = Path("/nonexistent/holdfast.toml")


def test_defaults() -> None:
    assert load_settings({}, NOWHERE) == Settings()


def test_numbers_from_the_environment_are_numbers() -> None:
    found = load_settings({"HOLDFAST_DRAIN": "1.5", "HOLDFAST_CONCURRENCY": "7"}, NOWHERE)
    assert (found.drain, found.concurrency) == (1.5, 7)
    assert isinstance(found.concurrency, int)


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("1", True), ("ON", True), ("False", False), ("0", False), ("off", False)],
)
def test_yes_and_no_from_the_environment_and_the_file(tmp_path: Path, text: str, value: bool) -> None:
    assert load_settings({"HOLDFAST_NOTIFY": text}, NOWHERE).notify is value
    file = tmp_path / "holdfast.toml"
    file.write_text(f"notify = {str(value).lower()}\n")
    assert load_settings({}, file).notify is value


def test_arguments_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text("poll = 3\ndrain = 4\nsweep = 5\n")
    found = load_settings({"HOLDFAST_POLL": "2", "HOLDFAST_DRAIN": "2"}, file, poll=1.0, sweep=None)
    assert (found.poll, found.drain, found.sweep) == (1.0, 2.0, 5.0)


@pytest.mark.parametrize(
    ("env", "text"),
    [
        (
            {"HOLDFAST_POLL": "soon"},
            "environment: HOLDFAST_POLL must be seconds or a duration like 90s, not 'soon'",
        ),
        (
            {"HOLDFAST_POLL": "nan"},
            "environment: HOLDFAST_POLL must be seconds or a duration like 90s, not 'nan'",
        ),
        (
            {"HOLDFAST_CONCURRENCY": "1.5"},
            "environment: HOLDFAST_CONCURRENCY must be a whole number, not '1.5'",
        ),
        ({"HOLDFAST_NOTIFY": "maybe"}, "environment: HOLDFAST_NOTIFY must be true or false, not 'maybe'"),
        ({"HOLDFAST_CONCURRENCY": "0"}, "concurrency must be between 1 and 10000, not 0"),
        ({"HOLDFAST_POLL": "-1"}, "poll must be more than 0 seconds, not -1.0"),
        ({"HOLDFAST_STATEMENT_TIMEOUT": "0"}, "statement_timeout must be more than 0 seconds, not 0.0"),
        ({"HOLDFAST_PREFETCH": "-5"}, "prefetch must be at least 0, not -5"),
        ({"HOLDFAST_POOL_SIZE": "0"}, "pool_size must be at least 1, not 0"),
        ({"HOLDFAST_MAX_CRASHES": "0"}, "max_crashes must be at least 1, not 0"),
        ({"HOLDFAST_PROCESS_JOBS": "0"}, "process_jobs must be at least 1, not 0"),
        (
            {"HOLDFAST_DEAD_AFTER": "4"},
            "dead_after (4 s) must be at least twice heartbeat (3 s), or one late beat would fence a live worker",
        ),
        (
            {"HOLDFAST_LEASE": "5"},
            (
                "lease (5 s) must be at least dead_after + sweep (12 s), "
                "or it would run out before a dead worker is known to be dead"
            ),
        ),
    ],
)
def test_refusals(env: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(env, NOWHERE)
    assert str(caught.value) == text


def test_a_file_with_mistakes(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text("pol = 1\n")
    with pytest.raises(
        ConfigurationError, match=r"unknown setting 'pol'\. Did you mean 'poll'\? Known: database_url, "
    ):
        load_settings({}, file)
    file.write_text("poll = = 1\n")
    with pytest.raises(ConfigurationError, match="is not valid TOML"):
        load_settings({}, file)
    file.write_text("poll = true\n")
    with pytest.raises(ConfigurationError, match="poll must be seconds or a duration like 90s, not True"):
        load_settings({}, file)


def test_the_database_is_the_explicit_one_ours_the_usual_one_or_libpqs() -> None:
    env = {"HOLDFAST_DATABASE_URL": "postgresql://b", "DATABASE_URL": "postgresql://c", "PGHOST": "d"}
    assert database_url("postgresql://a", env) == "postgresql://a"
    assert database_url(None, env) == "postgresql://b"
    del env["HOLDFAST_DATABASE_URL"]
    assert database_url(None, env) == "postgresql://c"
    del env["DATABASE_URL"]
    assert database_url(None, env) == "postgresql://"


def test_no_database_names_the_ways() -> None:
    with pytest.raises(NoDatabase) as caught:
        database_url(None, {})
    assert str(caught.value).startswith("no database was named. Pass Holdfast(")


def test_every_setting_is_described_with_its_source(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text("poll = 3\ndrain = 4\n")
    found = {s.name: (s.value, s.source) for s in describe_settings({"HOLDFAST_DRAIN": "2"}, file, sweep=1.5)}
    assert found["poll"] == (3.0, str(file))
    assert found["drain"] == (2.0, "HOLDFAST_DRAIN")
    assert found["sweep"] == (1.5, "argument")
    assert found["lease"] == (60.0, "default")
    assert load_settings({"HOLDFAST_DRAIN": "2"}, file, sweep=1.5) == Settings(
        **{name: value for name, (value, _) in found.items()}
    )


def test_the_file_of_the_nearest_folder_above_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    (file := tmp_path / "holdfast.toml").write_text('database_url = "embedded:pg"\napp = "shop:app"')
    assert settings_file({}) == file
    assert (load_settings({}).database_url, load_settings({}).app) == (
        f"embedded://{tmp_path / 'pg'}",
        "shop:app",
    )
    assert settings_file({"HOLDFAST_CONFIG": "other.toml"}) == Path("other.toml")
    (deep / "holdfast.toml").write_text('database_url = "embedded:pg"')
    assert settings_file({}) == Path("holdfast.toml")
    assert load_settings({}).database_url == "embedded:pg"


def test_the_file_of_somebody_else_above_is_not_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (below := tmp_path / "below").mkdir()
    monkeypatch.chdir(below)
    (file := tmp_path / "holdfast.toml").write_text("concurrency = 3")
    if os.getuid() == 0:
        os.chown(file, 12345, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert settings_file({}) == Path("holdfast.toml")


@pytest.fixture
def below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, below one with a file that names an app."""
    (tmp_path / "project" / "below").mkdir(parents=True)
    (tmp_path / "project").chmod(0o755)
    monkeypatch.chdir(tmp_path / "project" / "below")
    (file := tmp_path / "project" / "holdfast.toml").write_text('app = "jobs:app"\nconcurrency = 3')
    file.chmod(0o644)
    return tmp_path / "project" / "below"


@pytest.mark.parametrize("what", ["link", "open file", "open folder", "group folder", "folder of another"])
def test_what_others_may_have_put_there_names_no_app(
    below: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """In a folder above the whole file is left out, in the working folder the app, and one line says so."""
    file = below.parent / "holdfast.toml"
    assert (load_settings({}).app, ignored_file({})) == ("jobs:app", None)
    monkeypatch.setattr(os, "getgid", lambda: 4711)
    why = {
        "link": "it is a link, or no regular file",
        "open file": "others may write to {file} (chmod go-w)",
        "folder of another": f"{below.parent} belongs to another user",
    }.get(what, f"others may write to {below.parent} (chmod go-w)")
    if what == "link":
        file.rename(below.parent / "real.toml")
        file.symlink_to("real.toml")
    elif what == "folder of another":
        _give_away(below.parent, monkeypatch)
    else:
        (file if what == "open file" else below.parent).chmod(0o775 if what == "group folder" else 0o777)
    trust = f"If you trust it: export HOLDFAST_CONFIG={file}"
    assert settings_file({}) == Path("holdfast.toml")
    assert load_settings({}) == Settings()
    assert ignored_file({}) == f"{file} is not used: {why.format(file=file)}. {trust}"
    monkeypatch.chdir(below.parent)
    assert load_settings({}) == Settings(concurrency=3)
    said = why.format(file="holdfast.toml")
    assert ignored_file({}) == f"app in holdfast.toml is not used: {said}. {trust}"
    named = {"HOLDFAST_CONFIG": str(file)}
    assert (load_settings(named).app, ignored_file(named)) == ("jobs:app", None)


def _give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.getuid() == 0:
        os.chown(path, 12345, -1)
    else:
        pytest.skip("only root can give a folder away")


def test_a_group_of_this_user_alone_is_nobody_else(below: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's umask of 002 makes such files and folders."""
    group = below.parent.stat().st_gid
    below.parent.chmod(0o775)
    (below.parent / "holdfast.toml").chmod(0o664)
    if group == os.getgid() == os.getuid():
        assert load_settings({}).app == "jobs:app"
    monkeypatch.setattr(os, "getgid", lambda: group + 1)
    assert load_settings({}).app is None


def test_a_file_that_cannot_be_read_is_one_line() -> None:
    with pytest.raises(ConfigurationError, match="/proc/self/mem cannot be read: Input/output error"):
        load_settings({}, Path("/proc/self/mem"))
