#!/usr/bin/env python3
"""Makes providers.json: signed requests of providers, from an implementation that knows nothing of ours.

Only Python's standard library is used (hmac, hashlib, base64). Run it in this folder; the result is committed:

    python3 providers.py > providers.json
"""

import base64
import hashlib
import hmac
import json

NOW = 1_760_000_000
BODY = '{"id":"evt_1","type":"invoice.paid","note":"\U0001f60a \\u001B"}'.encode()
SECRET, OTHER = "a text that is the key", "another one"

vectors = []


def mac(content, secret=SECRET, algorithm="sha256"):
    return hmac.new(secret.encode(), content, algorithm)


def b64(data):
    return base64.b64encode(data).decode()


def add(provider, name, expect, why, headers, *, body=BODY, secrets=(SECRET,), now=NOW, **more):
    vectors.append({
        "id": f"{provider}-{name}", "provider": provider, "scheme": provider, "secrets": list(secrets),
        "headers": [list(header) for header in headers], "now_unix": now, "tolerance_s": 300, "expect": expect,
        "why": why, "body_base64": b64(body), **more,
    })


def bad_secrets(provider, headers, **more):
    for name, secret in {"empty": "", "blank": "   ", "line-break": SECRET + "\n", "space": " " + SECRET,
                         "public-key": "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="}.items():
        add(provider, f"secret-{name}", "config_error", "refused when the verifier is built", headers,
            secrets=[secret], **more)
    add(provider, "no-secret", "config_error", "nothing to verify with", headers, secrets=[], **more)


def bodies(provider, headers, **more):
    """The right signature over other bytes."""
    for name, body in {"newline": BODY + b"\n", "empty": b"", "escape-lower": BODY.replace(b"001B", b"001b"),
                       "reprinted": json.dumps(json.loads(BODY)).encode()}.items():
        add(provider, f"body-{name}", "invalid", "other bytes than were signed", headers, body=body, **more)


# GitHub: X-Hub-Signature-256: sha256=<hex>, over the raw body.
digest = mac(BODY).hexdigest()


def github(value):
    return [("X-Hub-Signature-256", value), ("X-GitHub-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958")]


add("github", "plain", "valid", "as GitHub sends it", github(f"sha256={digest}"))
add("github", "upper-case", "valid", "the digits are compared as bytes", github(f"sha256={digest.upper()}"))
add("github", "second-secret", "valid", "while a secret is replaced", github(f"sha256={digest}"), secrets=[OTHER, SECRET])
add("github", "not-utf8", "valid", "bytes", github("sha256=" + mac(b"\xff\xfe").hexdigest()), body=b"\xff\xfe")
form = b"payload=%7B%22a%22%3A1%7D"
add("github", "form", "valid", "the form's bytes are signed", github("sha256=" + mac(form).hexdigest()), body=form)
for name, value in {
    "other-label": f"sha1={digest}", "no-label": digest, "label-case": f"SHA256={digest}", "cut": f"sha256={digest[:-1]}",
    "longer": f"sha256={digest}00", "base64": "sha256=" + b64(mac(BODY).digest()), "space": f"sha256= {digest}",
    "sha1": "sha256=" + mac(BODY, algorithm="sha1").hexdigest(), "list": f"sha256={digest},sha256={digest}", "empty": "",
    "other-secret": "sha256=" + mac(BODY, OTHER).hexdigest(), "empty-key": "sha256=" + mac(BODY, "").hexdigest(),
}.items():
    add("github", name, "invalid", "not the one value that was asked for", github(value))
add("github", "sha1-alone", "invalid", "the older header is never looked at",
    [("X-Hub-Signature", "sha1=" + mac(BODY, algorithm="sha1").hexdigest())])
add("github", "sha256-in-the-old-header", "invalid", "the name decides", [("X-Hub-Signature", f"sha256={digest}")])
add("github", "missing", "invalid", "no signature", [("X-GitHub-Event", "ping")])
add("github", "repeated", "invalid", "the header comes twice", github(f"sha256={digest}") + github(f"sha256={digest}"))
bodies("github", github(f"sha256={digest}"))
bad_secrets("github", github("sha256=" + mac(BODY, "").hexdigest()))

# Stripe: Stripe-Signature: t=<s>,v1=<hex>, over t.body.


def stripe(t=str(NOW), *, secret=SECRET, key="v1", content=None):
    signed = t.encode() + b"." + BODY if content is None else content
    return f"t={t},{key}={mac(signed, secret).hexdigest()}"


def header(value):
    return [("Stripe-Signature", value)]


right = stripe()
value = right.split("v1=")[1]
add("stripe", "plain", "valid", "as Stripe sends it", header(right))
add("stripe", "rolled", "valid", "two v1 while a secret is rolled", header(f"{stripe(secret=OTHER)},v1={value}"))
add("stripe", "test-mode", "valid", "v0 is passed over", header(f"{right},v0={'0' * 64}"))
for seconds in (299, 300, 301):
    expect = "valid" if seconds <= 300 else "invalid"
    add("stripe", f"late-{seconds}", expect, "this many seconds after", header(right), now=NOW + seconds)
    add("stripe", f"early-{seconds}", expect, "this many seconds before", header(right), now=NOW - seconds)
for name, text in {
    "v0": stripe(key="v0"), "v2": stripe(key="v2"), "upper-label": stripe(key="V1"), "cut": right[:-2],
    "fresh-time": right.replace(f"t={NOW}", f"t={NOW + 1}"), "no-time": f"v1={value}", "no-signature": f"t={NOW}",
    "two-times": f"t=1,{right}", "milliseconds": stripe(f"{NOW}000"), "plus": stripe(f"+{NOW}"), "minus": stripe(f"-{NOW}"),
    "word": stripe("now"), "body-alone": stripe(content=BODY), "semicolons": right.replace(",", ";"), "empty": "",
    "base64": f"t={NOW},v1=" + b64(mac(str(NOW).encode() + b"." + BODY).digest()), "other-secret": stripe(secret=OTHER),
    "nine": f"t={NOW}" + f",v1={value}" * 9,
}.items():
    add("stripe", name, "invalid", "not what was asked for", header(text))
add("stripe", "missing", "invalid", "no signature", [])
add("stripe", "repeated", "invalid", "the header comes twice", header(right) + header(right))
bodies("stripe", header(right))
bad_secrets("stripe", header(stripe(secret="")))

# Slack: X-Slack-Signature: v0=<hex>, over v0:timestamp:body.


def slack(t=str(NOW), *, label="v0", version="v0", secret=SECRET):
    signed = f"{version}:{t}:".encode() + BODY
    return [("X-Slack-Request-Timestamp", t), ("X-Slack-Signature", f"{label}={mac(signed, secret).hexdigest()}")]


add("slack", "plain", "valid", "as Slack sends it", slack())
for seconds in (299, 300, 301):
    expect = "valid" if seconds <= 300 else "invalid"
    add("slack", f"late-{seconds}", expect, "this many seconds after", slack(), now=NOW + seconds)
    add("slack", f"early-{seconds}", expect, "this many seconds before", slack(), now=NOW - seconds)
for label in ("v1", "v9", "V0", "", "v0 "):
    add("slack", f"label-{label.strip() or 'none'}{len(label)}", "invalid", "the label is exact", slack(label=label))
add("slack", "signed-version", "invalid", "another version in what is signed", slack(version="v1"))
add("slack", "fresh-time", "invalid", "an old signature under a fresh time", [("X-Slack-Request-Timestamp", str(NOW + 1)), slack()[1]])
add("slack", "no-time", "invalid", "the time is absent", slack()[1:])
add("slack", "no-signature", "invalid", "the signature is absent", slack()[:1])
add("slack", "two-times", "invalid", "the time comes twice", slack()[:1] + slack())
add("slack", "milliseconds", "invalid", "rightly signed, in another unit", slack(f"{NOW}000"))
add("slack", "other-secret", "invalid", "signed by somebody else", slack(secret=OTHER))
bodies("slack", slack())
bad_secrets("slack", slack(secret=""))

# Shopify: X-Shopify-Hmac-Sha256: <base64>, over the raw body.
encoded = b64(mac(BODY).digest())
add("shopify", "plain", "valid", "as Shopify sends it", [("X-Shopify-Hmac-Sha256", encoded)])
add("shopify", "new-name", "valid", "the newer name of the header", [("shopify-hmac-sha256", encoded)])
add("shopify", "both-names", "valid", "the newer name counts", [("shopify-hmac-sha256", encoded), ("X-Shopify-Hmac-Sha256", "x")])
add("shopify", "second-secret", "valid", "while a secret is replaced", [("X-Shopify-Hmac-Sha256", encoded)], secrets=[OTHER, SECRET])
for name, value in {
    "hex": mac(BODY).hexdigest(), "unpadded": encoded.rstrip("="), "padded-twice": encoded + "=", "cut": encoded[:-4], "empty": "",
    "url-safe": base64.urlsafe_b64encode(mac(b"\xfb" * 3).digest()).decode(), "label": "sha256=" + encoded, "list": f"{encoded},{encoded}",
    "other-secret": b64(mac(BODY, OTHER).digest()), "sha1": b64(mac(BODY, algorithm="sha1").digest()),
}.items():
    add("shopify", name, "invalid", "not the one value that was asked for", [("X-Shopify-Hmac-Sha256", value)])
add("shopify", "new-name-wrong", "invalid", "a right older header does not help", [("shopify-hmac-sha256", "x"), ("X-Shopify-Hmac-Sha256", encoded)])
add("shopify", "repeated", "invalid", "the header comes twice", [("X-Shopify-Hmac-Sha256", encoded)] * 2)
bodies("shopify", [("X-Shopify-Hmac-Sha256", encoded)])
bad_secrets("shopify", [("X-Shopify-Hmac-Sha256", b64(mac(BODY, "").digest()))])

# Schemes that are described: algorithm, encoding, prefix, separator.
for algorithm in ("sha1", "sha256", "sha512"):
    for encoding in ("hex", "base64"):
        for prefix, separator in (("", None), (f"{algorithm}=", ",")):
            def text(content=BODY, secret=SECRET):
                hashed = mac(content, secret, algorithm)
                return prefix + (hashed.hexdigest() if encoding == "hex" else b64(hashed.digest()))

            more = {"scheme": "hmac_body", "sig_header": "X-Signature",
                    "params": {"alg": algorithm, "enc": encoding, "prefix": prefix, "sep": separator}}
            name = f"{algorithm}-{encoding}{'-list' if separator else ''}"
            add("generic", name, "valid", "as described", [("X-Signature", text())], **more)
            other = "sha512" if algorithm == "sha256" else "sha256"
            wrong = mac(BODY, algorithm=other)
            for case, value in {
                "other-secret": text(secret=OTHER), "other-body": text(BODY + b"\n"), "cut": text()[:-4],
                "other-algorithm": prefix + (wrong.hexdigest() if encoding == "hex" else b64(wrong.digest())),
                "other-label": "md5=" + text(), "empty": "",
            }.items():
                add("generic", f"{name}-{case}", "invalid", "not as described", [("X-Signature", value)], **more)
            both = f"{text(secret=OTHER)},{text()}"
            add("generic", f"{name}-two", "valid" if separator else "invalid", "two values", [("X-Signature", both)], **more)
bad_secrets("generic", [("X-Signature", mac(BODY, "").hexdigest())], scheme="hmac_body", sig_header="X-Signature",
            params={"alg": "sha256", "enc": "hex", "prefix": "", "sep": None})

print(json.dumps({"about": "Signed requests of providers; made by providers.py, see there.", "vectors": vectors}, indent=1))
