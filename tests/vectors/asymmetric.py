#!/usr/bin/env python3
"""Makes asymmetric.json: Standard Webhooks 1.0.0 `v1a` vectors, ed25519 by the Python library `cryptography`.

    python3 asymmetric.py > asymmetric.json
"""

import base64
import hashlib
import hmac
import json

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

NOW = 1_760_000_000
ID = "msg_2zVectorVectorVectorVector0"
BODY = b'{"type":"invoice.paid","data":{"number":7}}'
SEED = bytes(range(1, 33))
OTHER_SEED = bytes(range(101, 133))


def b64(data):
    return base64.b64encode(data).decode()


def public(seed):
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def content(id, timestamp, body):
    return id.encode() + b"." + timestamp.encode() + b"." + body


def entry(seed, id=ID, timestamp=str(NOW), body=BODY):
    return "v1a," + b64(Ed25519PrivateKey.from_private_bytes(seed).sign(content(id, timestamp, body)))


def shared(key):
    return "v1," + b64(hmac.new(key, content(ID, str(NOW), BODY), hashlib.sha256).digest())


vectors = []


def add(name, expect, why, *, secrets=None, seed=SEED, timestamp=str(NOW), body=BODY, signature=None, now=NOW):
    """One vector; by default everything about it is right."""
    vectors.append({
        "id": name,
        "scheme": "standard",
        "secrets": ["whpk_" + b64(public(seed))] if secrets is None else secrets,
        "signing_key": "whsk_" + b64(seed + public(seed)),
        "headers": [["webhook-id", ID], ["webhook-timestamp", timestamp],
                    ["webhook-signature", entry(seed, ID, timestamp, body) if signature is None else signature]],
        "now_unix": now,
        "tolerance_s": 300,
        "expect": expect,
        "why": why,
        "body_base64": b64(body),
    })


KEY = "whpk_" + b64(public(SEED))
add("sign-v1a", "valid", "one key")
add("sign-v1a-other-key", "valid", "another key", seed=OTHER_SEED)
add("sign-v1a-empty-body", "valid", "nothing in the body", body=b"")
add("sign-v1a-not-utf8", "valid", "the bytes are signed as they are", body=b"\xff\xfe\x00a")
add("v1a-beside-v1", "valid", "a v1 entry is passed over", signature=shared(bytes(24)) + " " + entry(SEED))
add("v1a-second-key", "valid", "rotation: the second of two keys matches",
    secrets=["whpk_" + b64(public(OTHER_SEED)), KEY])
add("v1a-late-300", "valid", "at the edge of the tolerance", now=NOW + 300)
add("v1a-late-301", "invalid", "too old", now=NOW + 301)
add("v1a-early-301", "invalid", "too new", now=NOW - 301)
add("v1a-wrong-key", "invalid", "signed by somebody else", signature=entry(OTHER_SEED))
add("v1a-body", "invalid", "a line break was added", body=BODY + b"\n", signature=entry(SEED))
add("v1a-timestamp", "invalid", "a fresh timestamp on an old signature", timestamp=str(NOW + 1), signature=entry(SEED))
add("v1a-as-v1", "invalid", "relabelled", signature=entry(SEED).replace("v1a,", "v1,"))
add("v1a-cut", "invalid", "cut short", signature=entry(SEED)[:-4])
add("v1a-unpadded", "invalid", "without its padding", signature=entry(SEED).rstrip("="))
add("v1a-with-mac-of-public-key", "invalid", "HMAC with the public key as the secret", signature=shared(public(SEED)))
add("v1a-with-mac-relabelled", "invalid", "the same under the label v1a",
    signature=shared(public(SEED)).replace("v1,", "v1a,"))
add("v1a-for-shared-secret", "invalid", "the receiver holds a shared secret", secrets=["whsec_" + b64(bytes(range(24)))])
# The order of the group: s + L verifies for lenient implementations (RFC 8032, 5.1.7, asks for s < L).
raw = base64.b64decode(entry(SEED)[4:])
order = 2**252 + 27742317777372353535851937790883648493
malleable = raw[:32] + (int.from_bytes(raw[32:], "little") + order).to_bytes(32, "little")
add("v1a-malleable", "invalid", "the same signature with s + L", signature="v1a," + b64(malleable))
add("key-private", "config_error", "a receiver has no use for a private key", secrets=["whsk_" + b64(SEED + public(SEED))])
add("key-short", "config_error", "31 bytes", secrets=["whpk_" + b64(bytes(31))])
add("key-line-break", "config_error", "copied along", secrets=[KEY + "\n"])
add("key-small-order", "config_error", "the neutral element", secrets=["whpk_" + b64(b"\x01" + bytes(31))])

print(json.dumps({"about": "Standard Webhooks 1.0.0, v1a; made by asymmetric.py, see there.", "vectors": vectors}, indent=1))
