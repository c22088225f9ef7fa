"""The check of prose: what it finds, what it leaves alone, and where there is little git or none."""

import shutil
import subprocess
from pathlib import Path

import pytest
from scripts import prose

ROOT = Path(prose.__file__).parents[1]


@pytest.mark.parametrize(
    "text",
    [
        "-- Lock the rows; answers their ids.",
        "whoever sleeps",
        "it wakes those who sleep",
        "lost ones are told",
        "paused since long",
        "who looks after which keys",
        "looking at so many rows",
        "Mend it.",
        "Who comes next takes it",
    ],
)
def test_a_phrase_that_reads_as_translated_is_found(text: str) -> None:
    (line,) = prose.phrases("a.md", f"One.\n{text}\n")
    assert line.startswith("a.md:2: ")


@pytest.mark.parametrize(
    "text",
    ["the server answers probes", "told apart", "so many that it is slow", "an amendment", "a commendable"],
)
def test_plain_english_is_left_alone(text: str) -> None:
    assert list(prose.phrases("a.md", text)) == []


def test_pages_for_users_have_more_phrases() -> None:
    text = (
        "its looks make no server; then it goes on anew while the server is away, and a job of ours is buried"
    )
    assert len(list(prose.phrases("docs/a.md", text))) == 6
    for where in ("src/holdfast/a.py", "docs/adr/001-a.md", "docs/claims.md", "docs/performance.md"):
        assert len(list(prose.phrases(where, text))) == 4


def test_names_in_code_are_no_prose() -> None:
    assert list(prose.phrases("src/holdfast/a.py", "if buried := [job]: pass")) == []
    assert len(list(prose.phrases("docs/a.md", "a buried job"))) == 1


def test_the_body_of_a_sql_function_changes_in_a_migration_only() -> None:
    body = "-- it goes on\nCREATE FUNCTION f() AS $$\n-- it goes on\n$$;\n-- it goes on\n"
    found = list(prose.phrases("src/holdfast/sql/schema.sql", body))
    assert [line.split(":")[1] for line in found] == ["1", "5"]


def test_a_long_line_of_prose_is_found_and_wrapped() -> None:
    words = "word " * 40
    table, code, written = f"| {words}|", f"```\n{words}\n```", f"<!-- figures: x -->\n{words}\n<!-- end -->"
    assert list(prose.long_lines("a.md", f"{table}\n{code}\n{written}\n")) == []
    text = f"# A\n\n1. {words}- {words}`{'a b ' * 20}` 3. {words}\n"
    assert len(list(prose.long_lines("a.md", text))) == 1
    done = prose.wrapped(text)
    assert list(prose.long_lines("a.md", done)) == []
    assert done.split() == text.split()
    assert [line for line in done.splitlines() if line.lstrip().startswith(("- ", "3. "))] == []
    assert prose.wrapped(done) == done


def test_a_commit_has_a_short_subject_and_a_body() -> None:
    good = "abc\nAdd a check\nPreviously none. Now one.\n\0"
    assert list(prose.commits(good)) == []
    long, bare = f"abd\n{'x' * 73}\nPreviously.\n\0", "abe\nAdd a check\n\n\0"
    first, second = prose.commits(f"{good}\n{long}\n{bare}")
    assert first.startswith("commit abd: its subject has 73 characters, 72 at most")
    assert second.startswith("commit abe: has no body")


@pytest.mark.parametrize("depth", [None, 1])
def test_it_works_in_a_fresh_clone_a_shallow_one_and_without_git(
    depth: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2027-01-01T00:00:00+00:00")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    source = tmp_path / "source"
    subprocess.run([*git, "init", "-q", str(source)], check=True)
    for subject in ("One", "Two"):
        subprocess.run(
            [*git, "commit", "-q", "--allow-empty", "-m", subject, "-m", "Now."], cwd=source, check=True
        )
    clone = tmp_path / "clone"
    shallow = [] if depth is None else ["--depth", str(depth)]
    subprocess.run([*git, "clone", "-q", *shallow, source.as_uri(), str(clone)], check=True)
    monkeypatch.setattr(prose, "ROOT", clone)
    log = prose.read_log()
    assert log.count("\0") == (depth or 2)
    assert list(prose.commits(log)) == []
    shutil.rmtree(clone / ".git")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert prose.read_log() == ""


def test_words_has_a_row_for_each_state_and_one_row_per_word() -> None:
    rows = [
        line.split("|")[1].strip()
        for line in (ROOT / "docs" / "words.md").read_text().splitlines()
        if line.startswith("| ")
    ]
    assert rows[0] == "word"
    assert rows[1:] == sorted(set(rows[1:]))
    assert {"job", "queue", "claim", "lease", "settle", "sweep", "worker", "drain", "stream"} <= set(rows)
