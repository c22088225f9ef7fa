"""Buckets of keys, and keys that are split into shards."""

from typing import Any
from uuid import uuid4

import pytest

from holdfast import sharded_key
from holdfast.model.bucket import bucket


def test_the_bucket_of_a_key_is_the_same_everywhere() -> None:
    assert [bucket(key) for key in ("order:9182", "", "a\\b")] == [751, 944, 544]


def test_sharded_keys_spread_and_keep_together_what_belongs_together() -> None:
    spread = [sharded_key("tenant:123", shards=8, by=n) for n in range(800)]
    assert set(spread) == {f"tenant:123#{n}" for n in range(8)}
    assert all(50 <= spread.count(key) <= 150 for key in set(spread))
    assert sharded_key("t", shards=8, by=17) == sharded_key("t", shards=8, by="17") == "t#7"  # for ever
    assert {sharded_key("t", shards=4) for _ in range(200)} == {"t#0", "t#1", "t#2", "t#3"}
    assert sharded_key("t", shards=1, by=uuid4()) == "t#0"


@pytest.mark.parametrize("by", [object(), True, 1.0])
def test_what_has_no_stable_text_has_no_shard(by: Any) -> None:
    with pytest.raises(TypeError, match="by must be a str, an int or a UUID"):
        sharded_key("t", shards=8, by=by)


@pytest.mark.parametrize("key", ["", None])
def test_there_must_be_a_key_to_split(key: Any) -> None:
    with pytest.raises(ValueError, match="the key to split must be a string"):
        sharded_key(key, shards=8, by=1)


def test_any_shard() -> None:
    assert sharded_key("t", shards=1) == "t#0"


@pytest.mark.parametrize("shards", [0, -1, 1025, True, 2.0, "8"])
def test_shards_out_of_range_are_refused(shards: Any) -> None:
    with pytest.raises(ValueError, match="shards must be between 1 and 1024, not "):
        sharded_key("t", shards=shards)
