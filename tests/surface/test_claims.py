"""Every promised sentence names what shows it, and that exists."""

import re
from pathlib import Path

from tests.claims import ROOT, claimed_tests, names_in, rows


def test_every_claim_names_something_that_shows_it() -> None:
    assert len(rows()) >= 60
    for sentence, shown in rows():
        assert shown, f"nothing shows: {sentence}"


def test_every_named_test_exists() -> None:
    for test in claimed_tests():
        file, _, name = test.partition("::")
        assert (ROOT / file).is_file(), f"{test}: no such file"
        assert name in names_in(ROOT / file), f"{test}: no such test"


def test_every_named_command_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for sentence, shown in rows():
        for item in shown:
            if "::" in item:
                continue
            if item.startswith("make "):
                assert set(item.split()[1:]) <= targets, f"{sentence}: no such target in {item!r}"
            else:
                assert (ROOT / item).exists(), (
                    f"{sentence}: neither a test, a make target nor a file: {item!r}"
                )


def test_every_promise_of_the_readme_has_a_row() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.split("## What we promise")[1].split("What we do not promise")[0]
    promises = re.findall(r"^\d\. (.*?)(?=^\d\. |\Z|^$)", section, re.MULTILINE | re.DOTALL)
    assert len(promises) == 7
    sentences = [re.sub(r"\W+", " ", s).lower() for s, _ in rows()]
    for promise in promises:
        first = re.sub(r"\W+", " ", re.split(r"[.:;(]", " ".join(promise.split()))[0]).strip().lower()
        assert any(first in s for s in sentences), f"no row in docs/claims.md for: {first}"


def test_claims_are_read_from_the_file() -> None:
    assert Path(ROOT / "docs" / "claims.md").is_file()
