#!/usr/bin/env python3
"""Makes standard_webhooks.json: Standard Webhooks 1.0.0 vectors from an implementation that knows nothing of ours.

Only Python's standard library is used (hmac, hashlib, base64). Run it in this folder; the result is committed:

    python3 standard_webhooks.py > standard_webhooks.json
"""

import base64
import hashlib
import hmac
import json

NOW = 1_760_000_000
ID = "msg_2zVectorVectorVectorVector0"
BODY = '{"type":"invoice.paid","data":{"number":7}}'.encode()
KEY = bytes(range(1, 33))
OTHER_KEY = bytes(range(101, 125))


def text(key):
    return "whsec_" + base64.b64encode(key).decode()


def mac(key, id, timestamp, body):
    signed = id.encode() + b"." + timestamp.encode() + b"." + body
    return hmac.new(key, signed, hashlib.sha256).digest()


def entry(key, id, timestamp, body):
    return "v1," + base64.b64encode(mac(key, id, timestamp, body)).decode()


vectors = []


def add(name, expect, why, *, secrets=None, id=ID, timestamp=str(NOW), body=BODY, signature=None, now=NOW, drop=(),
        prefix=None, repeat=None):
    """One vector; by default everything about it is right."""
    if signature is None:
        signature = entry(KEY, id, timestamp, body)
    values = [("id", id), ("timestamp", timestamp), ("signature", signature)]
    if repeat:
        values += [value for value in values if value[0] == repeat]
    vector = {
        "id": name,
        "scheme": "standard",
        "secrets": [text(KEY)] if secrets is None else secrets,
        "headers": [[(prefix or "webhook-") + key, value] for key, value in values if key not in drop],
        "now_unix": now,
        "tolerance_s": 300,
        "expect": expect,
        "why": why,
        "body_base64": base64.b64encode(body).decode(),
    }
    if prefix:
        vector["header_prefix"] = prefix
    vectors.append(vector)


RIGHT = entry(KEY, ID, str(NOW), BODY)
WRONG = entry(OTHER_KEY, ID, str(NOW), BODY)

# What a sender of ours must produce, to the byte.
add("sign-plain", "valid", "one secret")
add("sign-two-secrets", "valid", "one signature for each secret, in their order",
    secrets=[text(KEY), text(OTHER_KEY)], signature=RIGHT + " " + WRONG)
for size in (16, 24, 64, 65, 255):
    key = bytes((index * 7 + size) % 256 for index in range(size))
    add(f"sign-key-{size}", "valid", f"a secret of {size} bytes", secrets=[text(key)],
        signature=entry(key, ID, str(NOW), BODY))
add("sign-empty-body", "valid", "nothing in the body", body=b"")
for name, body in {
    "not-utf8": b"\xff\xfe\x00a",
    "bom": b"\xef\xbb\xbf{}",
    "nul": b"a\x00b",
    "crlf": b'{\r\n"a":1}\r\n',
    "emoji": '{"a":"\U0001f60a"}'.encode(),
    "separator": '{"a":"\u2028"}'.encode(),
    "escape-upper": b'{"a":"\\u001B"}',
    "escape-lower": b'{"a":"\\u001b"}',
    "duplicate-keys": b'{"amount":1,"amount":100}',
    "long": b"x" * 10_000,
    "dots": b".1760000000..",
}.items():
    add(f"sign-body-{name}", "valid", "the bytes are signed as they are", body=body)

# Headers.
add("svix-prefix", "valid", "the same headers under another prefix", prefix="svix-")
for name in ("id", "timestamp", "signature"):
    add(f"missing-{name}", "invalid", "a header is absent", drop=(name,))
    add(f"repeated-{name}", "invalid", "a header comes twice", repeat=name)
for name, id in {
    "dot": "msg.1760000000", "space": "msg 1", "empty": "", "comma": "a,b", "long": "x" * 256,
    "look-alike": "msg_\u0430bc", "colon": "msg:1", "slash": "a/b",
}.items():
    add(f"id-{name}", "invalid", "rightly signed, but the id is outside [A-Za-z0-9_-]{1,255}", id=id)
add("id-255", "valid", "the longest id", id="x" * 255)
add("id-case", "invalid", "case matters", id=ID.upper(), signature=RIGHT)

# Timestamps: rightly signed over exactly this text.
for name, timestamp in {
    "plus": f"+{NOW}", "minus": f"-{NOW}", "leading-space": f" {NOW}", "trailing-space": f"{NOW} ", "short-space": " 161",
    "float": f"{NOW}.0", "exponent": "1.76e9", "underscore": "1_760_000_000", "hex": hex(NOW), "milliseconds": f"{NOW}000",
    "i64-min": str(-2**63), "i64-max": str(2**63 - 1), "u128": str(2**128 - 1), "empty": "", "word": "now",
    "arabic": "".join(chr(0x660 + int(digit)) for digit in str(NOW)),
    "full-width": "".join(chr(0xFF10 + int(digit)) for digit in str(NOW)),
    "twelve-digits": f"00{NOW}",
}.items():
    add(f"timestamp-{name}", "invalid", "rightly signed, but not [0-9]{1,11}", timestamp=timestamp)
add("timestamp-leading-zero", "valid", "the signature covers the header text", timestamp=f"0{NOW}")
add("timestamp-leading-zero-resigned", "invalid", "the signature was made over the number printed again",
    timestamp=f"0{NOW}", signature=RIGHT)
for seconds in (299, 300, 301):
    expect = "valid" if seconds <= 300 else "invalid"
    add(f"late-{seconds}", expect, "received this many seconds after its timestamp", now=NOW + seconds)
    add(f"early-{seconds}", expect, "received this many seconds before its timestamp", now=NOW - seconds)

# Signatures.
encoded = RIGHT[len("v1,"):]
for length in range(len(encoded)):
    add(f"prefix-{length}", "invalid", "the right signature, cut short", signature="v1," + encoded[:length])
for name, signature in {
    "unpadded": RIGHT.rstrip("="), "padded-twice": RIGHT + "=", "superset": RIGHT + "AAAA", "bare": encoded,
    "upper-version": "V" + RIGHT[1:], "equals-sign": RIGHT.replace("v1,", "v1="), "v2": RIGHT.replace("v1,", "v2,"),
    "v1a": RIGHT.replace("v1,", "v1a,"), "inner-space": RIGHT.replace("v1,", "v1, "), "inner-tab": RIGHT.replace("v1,", "v1,\t"),
    "hex": "v1," + mac(KEY, ID, str(NOW), BODY).hex(), "empty": "", "wrong-key": WRONG,
    "joined-comma-space": WRONG + ", " + RIGHT, "joined-comma": RIGHT + "," + WRONG,
    "url-safe": "v1," + base64.urlsafe_b64encode(mac(KEY, ID, str(NOW), BODY)).decode(),
    "nine": " ".join([WRONG] * 8 + [RIGHT]),
    "over-4-kib": RIGHT + " v9," + "x" * 4096,
}.items():
    if signature != RIGHT:
        add(f"signature-{name}", "invalid", "not the list that was asked for", signature=signature)
low = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
sibling = low[low.index(encoded[-2]) + 1]
add("signature-trailing-bits", "invalid", "decodes leniently to the right bytes", signature="v1," + encoded[:-2] + sibling + "=")
add("signature-last-of-eight", "valid", "any may match", signature=" ".join([WRONG] * 7 + [RIGHT]))
add("signature-beside-unknown", "valid", "unknown versions are ignored", signature=f"v2,abc v1a,AAAA {RIGHT} v9,x")
add("signature-beside-malformed", "valid", "a malformed entry cannot match, the right one does", signature=f"v1,nonsense {RIGHT}")
add("body-newline", "invalid", "a line break was added", body=BODY + b"\n", signature=RIGHT)
add("body-reprinted", "invalid", "the same JSON printed again",
    body=json.dumps(json.loads(BODY)).encode(), signature=RIGHT)

# Secrets.
add("secret-old-and-new", "valid", "the second of two secrets matches", secrets=[text(OTHER_KEY), text(KEY)])
add("secret-without-prefix", "valid", "the prefix may be missing", secrets=[text(KEY)[len("whsec_"):]])
add("secret-without-padding", "valid", "the padding may be missing", secrets=[text(KEY).rstrip("=")])
for name, secret in {
    "empty": "", "only-prefix": "whsec_", "line-break": text(KEY) + "\n", "space": " " + text(KEY), "version": "v1," + text(KEY),
    "alphabet": "whsec_xyz!", "short": text(bytes(15)), "long": text(bytes(256)), "url-safe": "whsec_" + "-_" * 16,
}.items():
    add(f"secret-{name}", "config_error", "refused when the verifier is built", secrets=[secret])

print(json.dumps({"about": "Standard Webhooks 1.0.0; made by standard_webhooks.py, see there.", "vectors": vectors}, indent=1))
