"""The application's release, and the labels of a worker."""

import subprocess
from pathlib import Path

import pytest

from holdfast import ConfigurationError, Holdfast, Settings
from holdfast.model.labels import parse_labels
from holdfast.model.release import find_release, git_commit


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shop = tmp_path / "shop"
    (shop / "src").mkdir(parents=True)
    git(shop, "init")
    git(shop, "commit", "--allow-empty", "-m", "first")
    return shop


def test_the_commit_of_a_branch_of_packed_refs_and_of_none(checkout: Path, tmp_path: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD")[:12]
    assert git_commit(checkout / "src") == head
    git(checkout, "pack-refs", "--all")
    assert git_commit(checkout) == head
    git(checkout, "checkout", "--detach")
    assert git_commit(checkout) == head
    assert git_commit(tmp_path) is None


def test_the_commit_of_a_worktree(checkout: Path, tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    git(checkout, "worktree", "add", str(beside), "-b", "next")
    git(beside, "commit", "--allow-empty", "-m", "second")
    assert git_commit(beside) == git(beside, "rev-parse", "HEAD")[:12] != git_commit(checkout)
    git(checkout, "pack-refs", "--all")
    assert git_commit(beside) == git(beside, "rev-parse", "HEAD")[:12]


@pytest.mark.parametrize("head", ["", "ref: refs/heads/none", "not a commit", "ref: ../../../etc/passwd"])
def test_a_broken_checkout_has_no_commit(tmp_path: Path, head: str) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text(head)
    assert git_commit(tmp_path) is None


def test_who_says_it_first(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = git(checkout, "rev-parse", "HEAD")[:12]
    monkeypatch.chdir(checkout)
    module = "a module that has no file"
    assert find_release(" 1.4.2 ", module) == "1.4.2"
    assert find_release(None, module) == head
    assert find_release("  ", module) == head
    assert len(find_release("x" * 1000, module)) == 100
    there = Settings(release="of the settings")
    assert Holdfast("postgresql://h/d", settings=there).release == "of the settings"
    assert Holdfast("postgresql://h/d", settings=there, release="mine").release == "mine"
    monkeypatch.setenv("HOLDFAST_RELEASE", "of the environment")
    assert Holdfast("postgresql://h/d").release == "of the environment"


def test_labels() -> None:
    assert parse_labels("") == parse_labels(" , ") == {}
    assert parse_labels("zone=a, team = mail ,k8s.io/pod=web-1,empty=") == {
        "zone": "a",
        "team": "mail",
        "k8s.io/pod": "web-1",
        "empty": "",
    }
    for wrong in ("zone", "=a", "1=a", "zone=a\x00", f"zone={'x' * 201}"):
        with pytest.raises(ConfigurationError) as caught:
            Settings(labels=wrong)
        assert str(caught.value) == (
            f"labels: {wrong!r} is no label. Write name=value, several with commas between: zone=a,team=mail"
        )
    with pytest.raises(ConfigurationError, match="21 are more than the limit of 20"):
        parse_labels(",".join(f"l{n}=1" for n in range(21)))
