"""What is installed: its name in package indexes, where `holdfast` is another project, and its version."""

NAME = "holdfast-pg"
VERSION = "0.1.0"


def install(extra: str) -> str:
    """The command that brings an extra."""
    return f"pip install '{NAME}[{extra}]'"
