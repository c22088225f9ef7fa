"""The fence token: orders owners of the same work across retries, workers and failovers, as sortable text."""


def fence(timeline: int, sequence: int, generation: int) -> str:
    """Fixed width, so that text order is number order in every language and store."""
    return f"{timeline:08x}-{sequence:016x}-{generation:016x}"
