"""A yes before an act over many: given with --yes, or at the terminal; without a terminal it must be given."""

import os
from dataclasses import dataclass
from typing import Annotated

import typer

from holdfast.cli import busy
from holdfast.errors import ConfigurationError
from holdfast.model.text import printable

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say how many and which, and change nothing.")]


BackgroundOption = Annotated[
    bool,
    typer.Option("--background", help="Leave it to the workers: holdfast operations shows its progress."),
]


@dataclass(frozen=True)
class How:
    """How to act on many."""

    dry_run: DryRunOption = False
    yes: YesOption = False


@dataclass(frozen=True)
class HowMany(How):
    """How to act on jobs that fit a filter."""

    background: BackgroundOption = False


def confirm(act: str, yes: bool) -> None:
    """`act` says what would happen, as in 'cancel 12 jobs'. Returns when it may."""
    if yes:
        return
    if not os.isatty(0):
        raise ConfigurationError(f"this would {act}. Say so: --yes (or look first: --dry-run)")
    busy.end()
    try:
        agreed = typer.confirm(printable(f"{act[:1].upper()}{act[1:]}?"))
    except typer.Abort:  # Ctrl-C, or the end of the input
        raise KeyboardInterrupt from None
    if not agreed:
        raise ConfigurationError("nothing was changed")
