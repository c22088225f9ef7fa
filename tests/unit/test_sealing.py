"""Sealing: what one key seals only that key opens, only where it was sealed, and nothing shows it."""

import base64
import builtins
import json
import logging
import traceback
from typing import Any
from uuid import UUID, uuid4

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from holdfast import ConfigurationError, SecretUnreadable
from holdfast.model import signing
from holdfast.model.sealing import Hidden, KeyRing, Sealed, bound_to, key_ring, parse_ring

A, B, C = (bytes([n]) * 32 for n in (1, 2, 3))
ENDPOINT, SECRET = UUID(int=1), UUID(int=2)
HERE = bound_to("secret", ENDPOINT, SECRET)


def text(**keys: bytes) -> str:
    return ",".join(f"{name}:{base64.b64encode(key).decode()}" for name, key in keys.items())


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_what_is_sealed_is_opened_as_it_was(secret: str) -> None:
    ring = KeyRing({"a": A})
    sealed = ring.seal(secret, HERE)
    assert ring.open(sealed, HERE) == secret
    assert sealed.key_id == "a"
    assert len(sealed.data) == 12 + len(secret.encode()) + 16


def test_it_is_aes_256_gcm_with_a_new_nonce_each_time() -> None:
    ring = KeyRing({"a": A})
    several = [ring.seal("whsec_x", HERE) for _ in range(200)]
    assert len({one.data[:12] for one in several}) == 200
    for one in several:
        assert AESGCM(A).decrypt(one.data[:12], one.data[12:], HERE) == b"whsec_x"


def test_the_first_key_seals_and_all_of_them_open() -> None:
    before, after = parse_ring(text(a=A)), parse_ring(text(b=B, a=A))
    old, new = before.seal("one", HERE), after.seal("two", HERE)
    assert (old.key_id, new.key_id) == ("a", "b")
    assert (after.open(old, HERE), after.open(new, HERE)) == ("one", "two")
    with pytest.raises(SecretUnreadable) as error:
        before.open(new, HERE)
    assert str(error.value) == (
        "a secret is sealed by key 'b', which HOLDFAST_SECRET_KEYS does not have (it has: a). Add that key at the end of "
        "the ring; `holdfast webhook reseal` makes it unnecessary"
    )


CHANGED = "a secret that says it is sealed by key 'a' cannot be opened: it was changed, it stands at another endpoint"


@pytest.mark.parametrize(
    "where",
    [
        bound_to("secret", UUID(int=3), SECRET),
        bound_to("secret", ENDPOINT, UUID(int=3)),
        bound_to("secret", SECRET, ENDPOINT),
        bound_to("secret", ENDPOINT),
        bound_to("headers", ENDPOINT, SECRET),
    ],
    ids=["endpoint", "secret", "swapped", "no_secret", "kind"],
)
def test_what_stands_elsewhere_is_not_opened(where: bytes) -> None:
    ring = KeyRing({"a": A})
    with pytest.raises(SecretUnreadable, match=CHANGED):
        ring.open(ring.seal("whsec_x", HERE), where)


def test_every_changed_bit_is_found() -> None:
    ring = KeyRing({"a": A})
    data = ring.seal("whsec_x", HERE).data
    for bit in range(len(data) * 8):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SecretUnreadable, match=CHANGED):
            ring.open(Sealed("a", bytes(changed)), HERE)
    for size in range(len(data)):
        with pytest.raises(SecretUnreadable, match=CHANGED):
            ring.open(Sealed("a", data[:size]), HERE)


def test_another_key_of_the_same_id_opens_nothing() -> None:
    with pytest.raises(SecretUnreadable, match="or the key of this id is another one"):
        KeyRing({"a": B}).open(KeyRing({"a": A}).seal("whsec_x", HERE), HERE)


def test_without_a_ring_secrets_stand_bare_and_a_ring_opens_them() -> None:
    ring = key_ring({})
    bare = ring.seal("whsec_x", HERE)
    assert (ring.ids, ring.sealing, bare) == ((), None, (None, b"whsec_x"))
    assert [r.open(bare, HERE) for r in (ring, KeyRing({"a": A}))] == ["whsec_x"] * 2


BAD_ID = (
    "HOLDFAST_SECRET_KEYS: the id of a key has 1 to 64 letters, digits, '_', '.' or '-', and one has not. "
    "Write: id:base64,id:base64"
)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("a", "HOLDFAST_SECRET_KEYS: entry 1 has no ':'. Write: id:base64,id:base64"),
        (text(a=A) + ",", "HOLDFAST_SECRET_KEYS: entry 2 has no ':'. Write: id:base64,id:base64"),
        (
            "a:hunter2!",
            "HOLDFAST_SECRET_KEYS: the key of entry 1 is not base64. Make one: openssl rand -base64 32",
        ),
        (
            text(a=A[:16]),
            "HOLDFAST_SECRET_KEYS: key 'a' has 16 bytes, and AES-256 needs 32. Make one: openssl rand -base64 32",
        ),
        (
            "a:",
            "HOLDFAST_SECRET_KEYS: key 'a' has 0 bytes, and AES-256 needs 32. Make one: openssl rand -base64 32",
        ),
        (
            text(a=A) + "," + text(a=B),
            "HOLDFAST_SECRET_KEYS: entry 2 has the id of an earlier one. Give each key an id of its own, and use none twice",
        ),
        (
            ":" + base64.b64encode(A).decode(),
            BAD_ID,
        ),
        (
            f"{base64.b64encode(A).decode()}:{base64.b64encode(B).decode()}",
            BAD_ID,
        ),
    ],
)
def test_a_malformed_ring_is_refused_in_words_without_its_keys(given: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        key_ring({"HOLDFAST_SECRET_KEYS": given})
    assert str(error.value) == said
    assert "hunter2" not in said
    assert base64.b64encode(A).decode() not in said


def test_a_ring_may_have_spaces_and_any_number_of_keys() -> None:
    ring = key_ring({"HOLDFAST_SECRET_KEYS": text(b=B) + " , " + text(a=A, c=C) + "\n"})
    assert (ring.ids, ring.sealing) == (("b", "a", "c"), "b")
    assert key_ring({"HOLDFAST_SECRET_KEYS": " "}).ids == ()


def test_without_the_package_a_ring_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    assert KeyRing({}).seal("x", HERE) == (None, b"x")
    with pytest.raises(ConfigurationError, match=r"pip install 'holdfast-pg\[webhooks\]'"):
        KeyRing({"a": A}).seal("x", HERE)


def test_secrets_are_in_no_repr_log_or_traceback(caplog: pytest.LogCaptureFixture) -> None:
    secret = signing.new_secret()
    ring = KeyRing({"a": A})
    sealed = ring.seal(secret, HERE)
    opened = ring.open(sealed, HERE)
    shown = [repr(ring), repr(sealed), repr(opened), repr(secret), repr([opened]), repr({"s": opened})]
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("holdfast").error("a secret: %r", opened)
    shown.append(caplog.text)
    try:
        ring.open(sealed, b"elsewhere")
    except SecretUnreadable as error:
        shown += traceback.TracebackException.from_exception(error, capture_locals=True).format()
    assert isinstance(opened, Hidden)
    for one in shown:
        assert str(opened) not in one, one
        assert base64.b64encode(A).decode() not in one
        assert repr(A) not in one
    assert json.dumps(opened) == f'"{secret}"'  # who wants it as it is has it


def test_secrets_are_32_random_bytes_and_a_public_key_is_of_its_private_one() -> None:
    made = {signing.new_secret() for _ in range(100)}
    assert len(made) == 100
    assert {len(base64.b64decode(one.removeprefix("whsec_"))) for one in made} == {32}
    assert signing.public_key(next(iter(made))) is None
    private = signing.new_secret("v1a")
    public = signing.public_key(private)
    assert private.startswith("whsk_")
    assert public is not None
    assert public.startswith("whpk_")
    header = signing.signature_header([private], "msg_1", 1, b"{}")
    assert signing.fits([public], "msg_1", "1", header, b"{}")
    assert bound_to("secret", uuid4()) != bound_to("secret", uuid4())
