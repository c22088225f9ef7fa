"""Verifiers: the senders' own reference vectors, rotation, the window of time, and what does not fit."""

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook
from tests.receiver.support import SECRET, b64digest, hexdigest

from holdfast import (
    ConfigurationError,
    GitHub,
    Hmac,
    InvalidMessage,
    Shopify,
    Slack,
    StandardWebhooks,
    Stripe,
    TaskDefinitionError,
    VerificationFailed,
    Verifier,
)
from holdfast.model import signing

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
AT = int(NOW.timestamp())
OTHER = signing.new_secret()
Headers = dict[str, Sequence[str]]


def of(**headers: str) -> Headers:
    return {name.replace("_", "-").lower(): [value] for name, value in headers.items()}


def test_the_vector_of_standard_webhooks() -> None:
    body = b'{"test": 2432232314}'
    headers = of(
        webhook_id="msg_p5jXN8AQM9LWM0D4loKWxJek",
        webhook_timestamp="1614265330",
        webhook_signature="v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    )
    verifier = StandardWebhooks("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    found = verifier.verify(headers, body, datetime.fromtimestamp(1614265330, UTC))
    assert found.message_id == "msg_p5jXN8AQM9LWM0D4loKWxJek"
    assert found.timestamp == datetime.fromtimestamp(1614265330, UTC)


def test_the_vector_of_github() -> None:
    headers = of(
        x_hub_signature_256="sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
        x_github_delivery="72d3162e",
    )
    found = GitHub("It's a Secret to Everybody").verify(headers, b"Hello, World!", NOW)
    assert found.message_id == "72d3162e:" + hashlib.sha256(b"Hello, World!").hexdigest()


def test_the_vector_of_slack() -> None:
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar"
        b"&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com"
        b"%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
        b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    headers = of(
        x_slack_signature="v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
        x_slack_request_timestamp="1531420618",
    )
    verifier = Slack("8f742231b10e8888abcd99yyyzzz85a5")
    assert verifier.verify(headers, body, datetime.fromtimestamp(1531420618, UTC)).timestamp
    with pytest.raises(VerificationFailed):
        verifier.verify(headers, body + b"x", datetime.fromtimestamp(1531420618, UTC))
    assert verifier.id_of({"event_id": "Ev1"}, body) == "Ev1"
    assert verifier.id_of({"trigger_id": "13.1"}, body) == "13.1"
    assert verifier.id_of({}, body) == hashlib.sha256(body).hexdigest()


def test_signatures_are_those_of_the_reference_library() -> None:
    """The library of the specification is the oracle, in both directions."""
    oracle = Webhook(SECRET)
    for n in range(20):
        body = f'{{"n": {n}, "text": "é"}}'
        now = datetime.now(UTC)
        ours = signing.signature_header([OTHER, SECRET], f"msg_{n}", int(now.timestamp()), body.encode())
        sent = {
            "webhook-id": f"msg_{n}",
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": ours,
        }
        assert oracle.verify(body, sent) == {"n": n, "text": "é"}
        theirs = oracle.sign(f"msg_{n}", now, body)
        headers: Headers = {**{k: [v] for k, v in sent.items()}, "webhook-signature": [theirs]}
        assert StandardWebhooks(SECRET).verify(headers, body.encode(), now).message_id == f"msg_{n}"


def test_ed25519_signatures_are_those_of_the_curve() -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    seed = bytes(range(32))
    private = "whsk_" + base64.b64encode(seed).decode()
    key = signing.key_of(private)
    assert isinstance(key, signing.Ed25519Key)
    body = b'{"a": 1}'
    header = signing.signature_header([private], "msg_1", AT, body)
    wanted = Ed25519PrivateKey.from_private_bytes(seed).sign(f"msg_1.{AT}.".encode() + body)
    assert header == "v1a," + base64.b64encode(wanted).decode()
    sent = of(webhook_id="msg_1", webhook_timestamp=str(AT), webhook_signature=header)
    assert StandardWebhooks(key.public).verify(sent, body, NOW).message_id == "msg_1"
    with pytest.raises(VerificationFailed):
        StandardWebhooks(key.public).verify(sent, body + b" ", NOW)
    with pytest.raises(VerificationFailed):  # an HMAC key is not asked about another scheme
        StandardWebhooks(SECRET).verify(sent, body, NOW)
    with pytest.raises(ConfigurationError, match=r"a public key .* cannot sign"):
        signing.signature_header([key.public], "msg_1", AT, body)


BODY = b'{"id": "evt_1", "event_id": "Ev1"}'


def standard(secret: str, at: int = AT, body: bytes = BODY) -> Headers:
    text = signing.signature_header([secret], "msg_1", at, body)
    return of(webhook_id="msg_1", webhook_timestamp=str(at), webhook_signature=text)


def stripe(secret: str, at: int = AT, body: bytes = BODY) -> Headers:
    return of(stripe_signature=f"t={at},v1={'0' * 64},v1={hexdigest(secret, f'{at}.'.encode() + body)},v0=x")


def github(secret: str, at: int = AT, body: bytes = BODY) -> Headers:
    return of(x_hub_signature_256=f"sha256={hexdigest(secret, body)}", x_github_delivery="d1")


def slack(secret: str, at: int = AT, body: bytes = BODY) -> Headers:
    text = hexdigest(secret, f"v0:{at}:".encode() + body)
    return of(x_slack_signature=f"v0={text}", x_slack_request_timestamp=str(at))


def shopify(secret: str, at: int = AT, body: bytes = BODY) -> Headers:
    return of(x_shopify_hmac_sha256=b64digest(secret, body), x_shopify_webhook_id="w1")


def generic(secret: str, at: int = AT, body: bytes = BODY) -> Headers:
    text = hmac.new(secret.encode(), f"n1.{at}.".encode() + body, "sha512").hexdigest()
    return of(x_sign=f"h={text}", x_id="n1", x_at=str(at))


def make_generic(secrets: Any, **options: Any) -> Hmac:
    return Hmac(
        secrets,
        header="X-Sign",
        id_header="X-Id",
        timestamp_header="X-At",
        signed="{id}.{timestamp}.{body}",
        algorithm="sha512",
        prefix="h=",
        **options,
    )


STYLES: dict[str, tuple[Callable[..., Verifier], Callable[..., Headers], str, str]] = {
    "standard": (StandardWebhooks, standard, SECRET, "msg_1"),
    "stripe": (Stripe, stripe, "whsec_1", "evt_1"),
    "github": (GitHub, github, "s1", "d1:" + hashlib.sha256(BODY).hexdigest()),
    "slack": (Slack, slack, "s1", ""),
    "shopify": (Shopify, shopify, "s1", "w1:" + hashlib.sha256(BODY).hexdigest()),
    "hmac": (make_generic, generic, "s1", "n1"),
}
TIMED = [name for name in STYLES if name not in ("github", "shopify")]


@pytest.mark.parametrize("style", STYLES)
def test_every_style_takes_what_is_signed_by_any_of_its_secrets(style: str) -> None:
    make, sign, secret, message_id = STYLES[style]
    headers = sign(secret)
    assert make(secret).verify(headers, BODY, NOW).message_id == message_id
    assert make([OTHER, secret]).verify(headers, BODY, NOW).message_id == message_id
    rotated = [OTHER]
    verifier = make(lambda: rotated)
    with pytest.raises(VerificationFailed):
        verifier.verify(headers, BODY, NOW)
    rotated.append(secret)  # asked anew with each message
    assert verifier.verify(headers, BODY, NOW).message_id == message_id


@pytest.mark.parametrize("style", STYLES)
def test_every_style_refuses_another_body_secret_or_signature(style: str) -> None:
    make, sign, secret, _ = STYLES[style]
    headers = sign(secret)
    for body in (BODY + b" ", BODY[:-1], b"", BODY.replace(b"1", b"2")):
        with pytest.raises(VerificationFailed):
            make(secret).verify(headers, body, NOW)
    with pytest.raises(VerificationFailed):
        make(OTHER).verify(headers, BODY, NOW)
    unsigned = ("x-github-delivery", "x-shopify-webhook-id")  # another one is another message
    for name in headers:
        for wrong in (
            ()
            if name in unsigned
            else ("", "x", "v1,", "v1,=", "t=1", "sha256=", "v0=zz", "\x00", "é", "t=1,t=2,v1=00", "v1")
        ):
            with pytest.raises((VerificationFailed, InvalidMessage)):
                make(secret).verify({**headers, name: [wrong]}, BODY, NOW)
        missing = {n: v for n, v in headers.items() if n != name}
        with pytest.raises(VerificationFailed):
            make(secret).verify(missing, BODY, NOW)
        with pytest.raises(InvalidMessage, match=f"the header {name} is there 2 times"):
            make(secret).verify({**headers, name: [headers[name][0]] * 2}, BODY, NOW)


@pytest.mark.parametrize("style", TIMED)
def test_a_timestamp_outside_the_window_is_refused(style: str) -> None:
    make, sign, secret, _ = STYLES[style]
    for seconds in (-300, 0, 300):
        make(secret).verify(sign(secret), BODY, NOW + timedelta(seconds=seconds))
    for seconds in (-301, 301, 86400):
        with pytest.raises(VerificationFailed, match="more than 300 s away"):
            make(secret).verify(sign(secret), BODY, NOW + timedelta(seconds=seconds))
    make(secret, tolerance="1h").verify(sign(secret), BODY, NOW + timedelta(minutes=59))


@pytest.mark.parametrize("text", ["+1", " 1", "1.5", "-1", "1e9", "١٢٣", "9" * 13, "0x10"])
def test_a_timestamp_is_digits_only(text: str) -> None:
    body = b"{}"
    signature = base64.b64encode(
        hmac.digest(base64.b64decode(SECRET[6:]), f"msg_1.{text}.".encode() + body, "sha256")
    ).decode()
    headers = of(webhook_id="msg_1", webhook_timestamp=text, webhook_signature=f"v1,{signature}")
    with pytest.raises(VerificationFailed, match="no number of seconds"):
        StandardWebhooks(SECRET).verify(headers, body, NOW)


@pytest.mark.parametrize("name", ["webhook_id", "webhook_timestamp", "webhook_signature"])
def test_a_header_that_is_no_text_is_refused_and_is_no_fault_of_ours(name: str) -> None:
    """aiohttp's server gives bytes that are no UTF-8 as halves of surrogate pairs."""
    headers = of(
        **{"webhook_id": "msg_1", "webhook_timestamp": "1", "webhook_signature": "v1,x", name: "\udc80"}
    )
    with pytest.raises(InvalidMessage, match="is no text"):
        StandardWebhooks(SECRET).verify(headers, b"{}", NOW)
    signed = Hmac("s", header="X-S", id_header="X-I", timestamp_header="X-T", signed="{id}{timestamp}{body}")
    with pytest.raises(InvalidMessage, match="is no text"):
        signed.verify({"x-s": ["a"], "x-i": ["b"], "x-t": ["\udc80"]}, b"{}", NOW)


def test_only_the_first_ten_signatures_are_looked_at() -> None:
    good = standard(SECRET)["webhook-signature"][0]
    junk = "v1," + base64.b64encode(b"0" * 32).decode()
    for before, fits in ((9, True), (10, False)):
        headers = {**standard(SECRET), "webhook-signature": [" ".join([junk] * before + [good])]}
        if fits:
            StandardWebhooks(SECRET).verify(headers, BODY, NOW)
        else:
            with pytest.raises(VerificationFailed):
                StandardWebhooks(SECRET).verify(headers, BODY, NOW)


def test_ids_are_printable_and_short() -> None:
    for bad in ("a b", "é", "a" * 257):
        headers = of(webhook_id=bad, webhook_timestamp=str(AT), webhook_signature="v1,AA==")
        with pytest.raises(InvalidMessage, match="printable characters without spaces"):
            StandardWebhooks(SECRET).verify(headers, BODY, NOW)
    for body in (b"[]", b'{"id": 3}', b"{}", b"{", b'{"id": "a b"}'):
        with pytest.raises(InvalidMessage):
            Stripe("s").verify(stripe("s", body=body), body, NOW)
    body = b'{"id": 1}'
    plain = Hmac("s", header="X-Sign", id_header=None)
    found = plain.verify(of(x_sign=hexdigest("s", body)), body, NOW)
    assert found.message_id == hashlib.sha256(body).hexdigest()


def test_one_signature_fits_one_message_only() -> None:
    """What is signed is joined by full stops: an id with one in it could be the beginning of another message."""
    whole = f"note.{AT}.{{}}".encode()
    signed = signing.signature_header([SECRET], "msg_1", AT, whole)
    genuine = of(webhook_id="msg_1", webhook_timestamp=str(AT), webhook_signature=signed)
    assert StandardWebhooks(SECRET).verify(genuine, whole, NOW).message_id == "msg_1"
    cut = of(webhook_id=f"msg_1.{AT}.note", webhook_timestamp=str(AT), webhook_signature=signed)
    assert signing.fits([SECRET], cut["webhook-id"][0], str(AT), signed, b"{}"), "the signature fits"
    with pytest.raises(InvalidMessage, match="must not have a full stop in it"):
        StandardWebhooks(SECRET).verify(cut, b"{}", NOW)


def test_other_prefixes_are_the_same_signature() -> None:
    text = signing.signature_header([SECRET], "msg_1", AT, BODY)
    headers = of(svix_id="msg_1", svix_timestamp=str(AT), svix_signature=text)
    assert StandardWebhooks(SECRET, prefix="svix-").verify(headers, BODY, NOW).message_id == "msg_1"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: StandardWebhooks("whsec_äöü"), "is whsec_, whsk_ or whpk_ and then base64"),
        (lambda: StandardWebhooks("whsec_"), "is empty after its prefix"),
        (lambda: StandardWebhooks("whpk_AAAA"), "an ed25519 key is not usable"),
        (lambda: Stripe([]), "a verifier needs a secret"),
        (lambda: Stripe(""), "a verifier needs a secret"),
        (lambda: Hmac("s", header="h", id_header=None, signed="{id}"), "signed must have {body} in it"),
        (lambda: Hmac("s", header="h", id_header=None, signed="{id}{body}"), "needs id_header="),
        (
            lambda: Hmac("s", header="h", id_header=None, timestamp_header="t"),
            "a timestamp that is not signed proves nothing",
        ),
        (
            lambda: Hmac("s", header="h", id_header=None, algorithm="md5"),  # type: ignore[arg-type]
            "algorithm sha256 or sha512",
        ),
    ],
)
def test_a_verifier_that_cannot_work_is_refused_when_it_is_made(
    make: Callable[[], object], text: str
) -> None:
    with pytest.raises((ConfigurationError, TaskDefinitionError), match=re.escape(text)) as found:
        make()
    assert "äöü" not in str(found.value), "no secret in the text"
