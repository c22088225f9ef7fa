"""Where a child process finds the app: a global of a module, or of the file that was run."""

import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from types import ModuleType

in_child = False  # set in a child process before it loads the app

_MAIN = "__main__"
_MAIN_IN_CHILD = "__holdfast_main__"


@dataclass(frozen=True, slots=True)
class Origin:
    module: str
    name: str
    # Of a script: loaded under another name, so that its `if __name__ == "__main__"` does not run.
    file: str | None = None

    def __str__(self) -> str:
        return f"{self.file or self.module}:{self.name}"

    def load(self) -> object:
        module = importlib.import_module(self.module) if self.file is None else _load_script(self.file)
        return getattr(module, self.name)


def python(module: str) -> tuple[str, ...]:
    """The command that runs a module in a fresh interpreter like this one; the current folder comes last in its path."""
    flags = ["-P", *["-O"] * sys.flags.optimize, *(f"-W{option}" for option in sys.warnoptions)]
    return (sys.executable, *flags, "-m", module)


def find(wanted: object, made_in: str) -> Origin | None:
    """The module global that is this very object; first where it was made, the script that runs last."""
    others = [name for name in reversed(list(sys.modules)) if name not in (made_in, _MAIN)]
    for name in [made_in, *others, _MAIN]:
        module = sys.modules.get(name)
        if not isinstance(module, ModuleType):
            continue
        for key, value in list(vars(module).items()):
            if value is wanted and (found := _origin(module, name, key)) is not None:
                return found
    return None


def _origin(module: ModuleType, name: str, key: str) -> Origin | None:
    spec = getattr(module, "__spec__", None)
    if spec is not None:  # `python -m shop.jobs` is __main__, and is imported as shop.jobs
        return Origin(spec.name, key)
    file = getattr(module, "__file__", None)
    if name == _MAIN and file is not None and os.path.exists(file):
        return Origin(_MAIN, key, os.path.abspath(file))
    return None


def _load_script(file: str) -> ModuleType:
    spec = importlib.util.spec_from_loader(_MAIN_IN_CHILD, SourceFileLoader(_MAIN_IN_CHILD, file))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MAIN_IN_CHILD] = module
    spec.loader.exec_module(module)
    return module
