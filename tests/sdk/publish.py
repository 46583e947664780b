"""Publishes from Python in the caller's own transaction: one event that is rolled back and one that is committed.

    publish.py postgres CONNINFO SCHEMA     with psycopg and the SQL function
    publish.py sqlite FILE GUIDE            with sqlite3 and the statements of the guide, read from its page

Prints the id of the event that stays.
"""

import hashlib
import re
import secrets
import sys
import time

DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
PAYLOAD = b'{"order":7,"number":12345678901234567890}'


def ksuid():
    """Seconds since 2014-05-13 and 16 random bytes, as 27 digits of base 62."""
    number = int.from_bytes((int(time.time()) - 1_400_000_000).to_bytes(4, "big") + secrets.token_bytes(16), "big")
    text = ""
    for _ in range(27):
        number, digit = divmod(number, 62)
        text = DIGITS[digit] + text
    return text


def postgres(conninfo, schema):
    import psycopg

    with psycopg.connect(conninfo, options=f"-c search_path={schema}", autocommit=True) as conn:
        for stays in (False, True):
            with conn.transaction(force_rollback=not stays):
                conn.execute("INSERT INTO orders (name) VALUES (%s)", (f"python {stays}",))
                call = "SELECT id, outcome FROM twiceproof_publish(%s, %s, %s, uid => %s)"
                id, outcome = conn.execute(call, ("default", "order.paid", PAYLOAD, f"python-{stays}")).fetchone()
                assert outcome == "accepted", outcome
        conn.execute("SELECT twiceproof_wake()")
        again = conn.execute(call, ("default", "order.paid", PAYLOAD, "python-True")).fetchone()
        assert again == (id, "already_accepted"), again
        other = conn.execute(call, ("default", "order.paid", b"{}", "python-True")).fetchone()
        assert other == (id, "conflict"), other
        print(id)


def sqlite(file, guide):
    import sqlite3

    page = open(guide, encoding="utf-8").read()
    event, deliveries = re.findall(r"```sql\n(INSERT.*?)```", page, re.DOTALL)
    conn = sqlite3.connect(file, isolation_level=None)
    conn.execute("PRAGMA synchronous = FULL")
    conn.execute("PRAGMA busy_timeout = 5000")
    conn.execute("PRAGMA wal_autocheckpoint = 0")
    for stays in (False, True):
        conn.execute("BEGIN IMMEDIATE")
        conn.execute("INSERT INTO orders (name) VALUES (?)", (f"python {stays}",))
        values = {
            "tenant": "default",
            "id": "msg_" + ksuid(),
            "uid": f"python-{stays}",
            "event_type": "order.paid",
            "payload": PAYLOAD,
            "digest": hashlib.sha256(PAYLOAD).digest(),
            "now": time.time_ns() // 1_000_000,
        }
        assert conn.execute(event, values).rowcount == 1
        assert conn.execute(deliveries, values).rowcount == 1
        conn.execute("COMMIT" if stays else "ROLLBACK")
    conn.execute("BEGIN IMMEDIATE")
    assert conn.execute(event, {**values, "id": "msg_" + ksuid()}).rowcount == 0
    conn.execute("COMMIT")
    print(values["id"])


{"postgres": postgres, "sqlite": sqlite}[sys.argv[1]](*sys.argv[2:])
