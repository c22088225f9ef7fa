"""The bucket of a partition key: the same in every language, and in holdfast.bucket()."""

import hashlib
import random
from uuid import UUID

BUCKETS = 1024


def bucket(key: str) -> int:
    """The first 16 bits of SHA-256 of the UTF-8 key, & 1023."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:2], "big") & (BUCKETS - 1)


def sharded_key(key: str, shards: int, by: str | int | UUID | None = None) -> str:
    """One of `shards` keys in place of a hot one: `sharded_key("tenant:123", shards=8, by=order_id)`.

    Jobs with the same `by` go to the same shard and keep their order; across shards there is none. Without `by` a random
    shard is taken, which keeps no order at all.
    """
    if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= BUCKETS:
        raise ValueError(f"shards must be between 1 and {BUCKETS}, not {shards!r}")
    if by is not None and (isinstance(by, bool) or not isinstance(by, str | int | UUID)):
        raise TypeError(
            f"by must be a str, an int or a UUID, not {type(by).__name__}: what has no stable text has no shard"
        )
    if not isinstance(key, str) or not key:
        raise ValueError(f"the key to split must be a string that is not empty, not {key!r}")
    if by is None:
        return f"{key}#{random.randrange(shards)}"  # noqa: S311 no secret
    return f"{key}#{int.from_bytes(hashlib.sha256(str(by).encode()).digest()[:8], 'big') % shards}"
