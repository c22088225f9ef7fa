"""The first page of help: every command in a section, in whole sentences."""

import re

from typer.main import get_command
from typer.testing import CliRunner

from holdfast.cli import app as cli
from holdfast.cli.sections import OTHERS, SECTIONS, first_sentence


def test_commands_are_grouped_and_said_in_whole_sentences() -> None:
    shown = CliRunner().invoke(cli, ["--help"]).output
    titles = re.findall(r"^(\S.*):$", shown, re.MULTILINE)
    assert titles == ["Options", *SECTIONS]
    assert "..." not in shown.partition("Begin:")[2]
    commands = get_command(cli).commands  # type: ignore[attr-defined]
    flat = " ".join(shown.split())
    for name, command in commands.items():
        sentence = first_sentence(command.help)
        assert sentence.endswith((".", "!", "?")), name
        assert f" {name} {sentence}" in flat, name
    assert max(map(len, shown.splitlines())) <= 80


def test_groups_list_their_commands_in_whole_sentences_too() -> None:
    groups = {name: one for name, one in get_command(cli).commands.items() if hasattr(one, "commands")}  # type: ignore[attr-defined]
    assert {"jobs", "dead", "schedule", "workflow"} <= set(groups)
    for name, group in groups.items():
        shown = CliRunner().invoke(cli, [name, "--help"]).output
        flat = " ".join(shown.split())
        for word, one in group.commands.items():
            assert f" {word} {first_sentence(one.help)}" in flat, (name, word)
        assert max(map(len, shown.splitlines())) <= 80, name


def test_a_command_without_a_section_is_shown_all_the_same() -> None:
    named = [name for names in SECTIONS.values() for name in names]
    assert len(named) == len(set(named))
    assert set(named) == set(get_command(cli).commands), f"put it into SECTIONS, or it is under {OTHERS}"  # type: ignore[attr-defined]


def test_sentences() -> None:
    assert first_sentence("Ask docs/runbook.md: the rows. And more.") == "Ask docs/runbook.md: the rows."
    assert first_sentence("Say so") == "Say so"
    assert first_sentence(None) == ""
