"""The script that makes the roles. A DBA runs it; no statement of Holdfast does."""

from collections.abc import Mapping

from ..sql import roles


def roles_script(names: Mapping[str, str], limited: Mapping[str, str]) -> str:
    """`names`: role -> its name; `limited`: queue -> the role that may enqueue there only."""
    return roles(names, limited)
