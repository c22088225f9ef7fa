"""`holdfast`, and `python -m holdfast`. The version is printed without loading the command line, which takes far longer."""

import gc
import importlib
import sys
from types import ModuleType

from holdfast.distribution import VERSION

_INTERRUPTED = 130  # as in holdfast.cli.exits, which is not loaded yet


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        print(f"holdfast {VERSION}")  # noqa: T201
        return
    try:
        command_line = _load()
    except KeyboardInterrupt:  # before it can say anything
        sys.exit(_INTERRUPTED)
    command_line.main()


def _load() -> ModuleType:
    """The command line, and the command that is asked for. All that it makes while it is loaded stays to the end, so the
    garbage collector looks at none of it: not now, and not when the process ends. That is half of the time of `--help`."""
    gc.disable()
    command_line = importlib.import_module("holdfast.cli")
    command_line.runs(sys.argv[1:])
    gc.freeze()
    gc.enable()
    return command_line


if __name__ == "__main__":
    main()
