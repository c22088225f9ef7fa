"""Checks the code of a workflow for a defect that no test run would show: code that catches the signal to leave memory."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

_OURS = ("BaseException", "Evicted", "ContinueAsNew")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class SwallowsEviction(AssertionError):
    """The code of a workflow would continue although the run has left memory."""


def check(name: str, fn: Callable[..., Any]) -> None:
    """Raise SwallowsEviction where the function catches everything and does not raise it again."""
    try:
        lines, first = inspect.getsourcelines(fn)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return  # of a shell, or made at run time
    if not tree.body or not isinstance(tree.body[0], _Function):
        return
    function = tree.body[0]
    wf = function.args.args[0].arg if function.args.args else "wf"
    for handler in _handlers(function, wf):
        line = f"{inspect.getsourcefile(fn)}, line {first + handler.lineno - 1}"
        what = "except" if handler.type is None else f"except {ast.unparse(handler.type)}"
        raise SwallowsEviction(
            f"{name}: {line}: `{what}` without `raise` catches Evicted and ContinueAsNew, by which a run leaves memory or "
            "continues as new. Catch Exception, or raise it again"
        )


def _handlers(function: _Function, wf: str) -> Iterator[ast.ExceptHandler]:
    """Those that catch too much. A function inside that does not know the workflow is the body of a step."""
    left: list[ast.AST] = list(function.body)
    while left:
        node = left.pop(0)
        if isinstance(node, _Function | ast.Lambda) and not _names(node, wf):
            continue
        if isinstance(node, ast.ExceptHandler) and _is_wide(node.type) and not _raises(node):
            yield node
        left.extend(ast.iter_child_nodes(node))


def _names(node: ast.AST, wf: str) -> bool:
    return any(isinstance(inner, ast.Name) and inner.id == wf for inner in ast.walk(node))


def _is_wide(caught: ast.expr | None) -> bool:
    if caught is None:
        return True
    parts = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(ast.unparse(part).rpartition(".")[2] in _OURS for part in parts)


def _raises(handler: ast.ExceptHandler) -> bool:
    left: list[ast.AST] = list(handler.body)
    while left:
        node = left.pop()
        if isinstance(node, ast.Raise):
            return True
        if not isinstance(node, _Function | ast.Lambda):
            left.extend(ast.iter_child_nodes(node))
    return False
