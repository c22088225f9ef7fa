"""`python manage.py holdfast worker`: the command line of Holdfast, for the app of this project."""

import argparse
import os
from typing import Any

from django.core.management.base import BaseCommand, CommandParser, handle_default_options

from holdfast.cli import main
from holdfast.contrib.django.project import NAME


class Command(BaseCommand):
    help = "Runs a command of Holdfast: worker, dev, status, jobs, dead, doctor and all others."
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """All that follows is for Holdfast, also --help and --version, but what says which project is meant."""
        own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        own.add_argument("--settings")
        own.add_argument("--pythonpath")
        given, words = own.parse_known_args(argv[2:])
        handle_default_options(given)
        if given.pythonpath:  # for child processes, as the settings are
            os.environ["PYTHONPATH"] = os.pathsep.join(
                filter(None, [given.pythonpath, os.environ.get("PYTHONPATH")])
            )
        self._hand_over(words, f"{os.path.basename(argv[0])} {argv[1]}")

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("words", nargs=argparse.REMAINDER)

    def handle(self, *args: Any, **options: Any) -> None:
        """By call_command("holdfast", "status", "--json")."""
        self._hand_over([*args, *options["words"]], "holdfast")

    def _hand_over(self, words: list[str], program: str) -> None:
        named = "HOLDFAST_APP" in os.environ
        os.environ.setdefault("HOLDFAST_APP", NAME)
        try:
            main(words, program)
        finally:
            if not named:  # call_command() continues in this process
                del os.environ["HOLDFAST_APP"]
