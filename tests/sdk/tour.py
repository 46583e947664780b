"""Drives the whole REST API with the official Python SDK, and checks what arrives with the SDK's own verifier.

    tour.py SERVER TOKEN OTHER_TOKEN

TOKEN speaks for one organisation, OTHER_TOKEN for another. Prints one line for each stop; the first thing that is not as
it should be ends it with an error.
"""

import base64
import json
import sys
import threading
import time
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from svix.api import (
    ApplicationIn,
    ApplicationListOptions,
    ApplicationPatch,
    AppPortalAccessIn,
    EndpointHeadersIn,
    EndpointHeadersPatchIn,
    EndpointIn,
    EndpointListOptions,
    EndpointPatch,
    EndpointSecretRotateIn,
    EndpointUpsertIn,
    EventExampleIn,
    EventTypeIn,
    EventTypeListOptions,
    EventTypePatch,
    EventTypeUpsertIn,
    MessageAttemptListByEndpointOptions,
    MessageAttemptListByMsgOptions,
    MessageCreateOptions,
    MessageIn,
    MessageListOptions,
    RecoverIn,
    Svix,
    SvixOptions,
)
from svix.exceptions import HttpError, HTTPValidationError
from svix.webhooks import Webhook

server, token, other_token = sys.argv[1:4]
svix = Svix(token, SvixOptions(server_url=server))
other = Svix(other_token, SvixOptions(server_url=server))


class Sink:
    """A receiver that keeps what it is sent; it answers 500 while `failing`."""

    def __init__(self):
        self.failing = False
        self.requests = []
        self.came = threading.Condition()
        sink = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                with sink.came:
                    sink.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
                    sink.came.notify_all()
                self.send_response(500 if sink.failing else 200)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"

    def next(self, event):
        """The next request for this event."""
        with self.came:
            deadline = time.monotonic() + 30
            while True:
                for index, (headers, body) in enumerate(self.requests):
                    if headers["webhook-id"] == event:
                        del self.requests[index]
                        return headers, body
                assert self.came.wait(deadline - time.monotonic()), f"{event} did not arrive"


def until(what, check):
    """Asks again until it is so: deliveries are recorded a moment after they arrive."""
    for _ in range(600):
        value = check()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(what)


def refused(status, call, code=None):
    try:
        call()
    except (HttpError, HTTPValidationError) as error:
        assert error.status_code == status, (error.status_code, status)
        assert code is None or error.code == code, error.code
        return error
    raise AssertionError(f"it was not refused with {status}")


def pages(read):
    """All entries of a list, two at a time."""
    entries, iterator = [], None
    while True:
        page = read(iterator)
        entries += page.data
        if page.done:
            return entries
        iterator = page.iterator


def stop(name):
    print("ok", name, flush=True)


run = base64.b32encode(str(time.time_ns()).encode()).decode().rstrip("=").lower()
sink = Sink()

svix.health.get()
stop("health")

app = svix.application.create(ApplicationIn(name="Shop", uid=f"shop-{run}", metadata={"plan": "gold"}))
assert app.id.startswith("app_") and app.metadata == {"plan": "gold"}
assert svix.application.get_or_create(ApplicationIn(name="Shop", uid=app.uid)).id == app.id
refused(409, lambda: svix.application.create(ApplicationIn(name="Twin", uid=app.uid)))
refused(422, lambda: svix.application.create(ApplicationIn(name="", uid=None)))
for number in range(4):
    svix.application.create(ApplicationIn(name=f"Other {number}", uid=f"other-{number}-{run}"))
listed = pages(lambda at: svix.application.list(ApplicationListOptions(limit=2, iterator=at)))
assert {f"other-{number}-{run}" for number in range(4)} < {one.uid for one in listed}
assert len({one.id for one in listed}) == len(listed)
assert svix.application.patch(app.uid, ApplicationPatch(name="Store")).name == "Store"
assert svix.application.upsert(app.id, ApplicationIn(name="Shop", uid=app.uid)).metadata == {}
refused(404, lambda: other.application.get(app.id), "not_found")
refused(404, lambda: other.application.get(app.uid), "not_found")
stop("applications")

paid = f"order.paid.{run}"
made = svix.event_type.create(EventTypeIn(name=paid, description="An order was paid"))
assert made.name == paid and not made.archived
refused(409, lambda: svix.event_type.create(EventTypeIn(name=paid, description="Again")))
schema = {"1": {"type": "object", "examples": [{"order": 7}]}}
svix.event_type.upsert(paid, EventTypeUpsertIn(description="Paid", schemas=schema))
assert svix.event_type.patch(paid, EventTypePatch(description="An order was paid")).schemas == schema
old = f"order.old.{run}"
svix.event_type.create(EventTypeIn(name=old, description="Not used"))
svix.event_type.delete(old)
assert svix.event_type.get(old).archived
names = pages(lambda at: svix.event_type.list(EventTypeListOptions(limit=2, iterator=at)))
assert paid in {one.name for one in names} and old not in {one.name for one in names}
stop("event types")

endpoint = svix.endpoint.create(app.uid, EndpointIn(url=sink.url, uid=f"ep-{run}", event_types=[paid], description="ours"))
assert endpoint.id.startswith("ep_") and endpoint.event_types == [paid] and not endpoint.disabled
refused(422, lambda: svix.endpoint.create(app.id, EndpointIn(url="ftp://example.com/")))
svix.endpoint.create(app.id, EndpointIn(url=sink.url, channels=["vip"], event_types=[paid]))
assert len(pages(lambda at: svix.endpoint.list(app.id, EndpointListOptions(limit=1, iterator=at)))) == 2
changed = EndpointUpsertIn(url=sink.url, uid=endpoint.uid, event_types=[paid], description="changed")
assert svix.endpoint.upsert(app.id, endpoint.uid, changed).description == "changed"
assert svix.endpoint.patch(app.id, endpoint.id, EndpointPatch(metadata={"a": "b"})).metadata == {"a": "b"}
svix.endpoint.set_headers(app.id, endpoint.id, EndpointHeadersIn(headers={"x-shop": "one", "authorization": "Basic c2VjcmV0"}))
svix.endpoint.patch_headers(app.id, endpoint.id, EndpointHeadersPatchIn(headers={"x-more": "two"}))
headers = svix.endpoint.get_headers(app.id, endpoint.id)
assert headers.headers == {"x-shop": "one", "x-more": "two"} and headers.sensitive == ["authorization"], headers
refused(422, lambda: svix.endpoint.set_headers(app.id, endpoint.id, EndpointHeadersIn(headers={"x-a": "b\r\nc: d"})))
secret = svix.endpoint.get_secret(app.id, endpoint.uid).key
refused(404, lambda: other.endpoint.get(app.id, endpoint.id))
stop("endpoints")

payload = {"order": 1, "text": "zażółć \u2028", "number": 12345678901234567890}
message = svix.message.create(app.id, MessageIn(event_type=paid, event_id=f"evt-{run}", payload=payload))
headers, body = sink.next(message.id)
Webhook(secret).verify(body, headers)
assert json.loads(body) == payload
assert headers["x-shop"] == "one" and headers["x-more"] == "two"
assert headers["authorization"] == "Basic c2VjcmV0"
again = MessageIn(event_type=paid, event_id=f"evt-{run}", payload=payload)
assert message.id in refused(409, lambda: svix.message.create(app.id, again)).detail
refused(422, lambda: svix.message.create(app.id, MessageIn(event_type="no spaces", payload={})))
key = MessageCreateOptions(idempotency_key=f"key-{run}", with_content=True)
first = svix.message.create(app.id, MessageIn(event_type=paid, payload={"n": 0}), key)
assert svix.message.create(app.id, MessageIn(event_type=paid, payload={"n": 0}), key).id == first.id
refused(422, lambda: svix.message.create(app.id, MessageIn(event_type=paid, payload={"n": 1}), key))
sent = [first.id] + [svix.message.create(app.id, MessageIn(event_type=paid, payload={"n": n})).id for n in range(4)]
for id in sent:
    Webhook(secret).verify(*reversed(sink.next(id)))
listed = pages(lambda at: svix.message.list(app.id, MessageListOptions(limit=2, iterator=at, with_content=True)))
assert [one.id for one in listed][-1] == message.id and {one.id for one in listed} == {message.id, *sent}
before = MessageListOptions(before=datetime.now(timezone.utc) - timedelta(hours=1))
assert svix.message.list(app.id, before).data == []
assert svix.message.get(app.id, f"evt-{run}").id == message.id
refused(404, lambda: other.message.get(app.id, message.id))
stop("messages")

whole = MessageAttemptListByMsgOptions(with_content=True)
attempts = until("no attempt", lambda: svix.message_attempt.list_by_msg(app.id, message.id, whole).data)
assert len(attempts) == 1 and attempts[0].response_status_code == 200 and attempts[0].status == 0
assert attempts[0].endpoint_id == endpoint.id and attempts[0].response == "ok"
by_endpoint = lambda at: svix.message_attempt.list_by_endpoint(
    app.id, endpoint.id, MessageAttemptListByEndpointOptions(limit=2, iterator=at, event_types=[paid])
)
until("not all attempts", lambda: len(pages(by_endpoint)) == 6)
assert svix.message_attempt.get(app.id, message.id, attempts[0].id).msg_id == message.id
assert [one.id for one in svix.message_attempt.list_attempted_destinations(app.id, message.id).data] == [endpoint.id]
assert message.id in {one.id for one in svix.message_attempt.list_attempted_messages(app.id, endpoint.id).data}
assert svix.endpoint.get_stats(app.id, endpoint.id).success == 6
stop("attempts")

sink.failing = True
failed = svix.message.create(app.id, MessageIn(event_type=paid, payload={"fails": True}))
sink.next(failed.id)
status = MessageAttemptListByMsgOptions(status=2)
until("no failure", lambda: svix.message_attempt.list_by_msg(app.id, failed.id, status).data)
sink.failing = False
svix.message_attempt.resend(app.id, failed.id, endpoint.id)
sink.next(failed.id)
both = until("no second attempt", lambda: (two := svix.message_attempt.list_by_msg(app.id, failed.id).data)[1:] and two)
assert {one.response_status_code for one in both} == {200, 500}
assert {one.trigger_type for one in both} == {0, 1}
stop("resend")

svix.endpoint.rotate_secret(app.id, endpoint.id, EndpointSecretRotateIn())
new_secret = svix.endpoint.get_secret(app.id, endpoint.id).key
assert new_secret != secret
rotated = svix.message.create(app.id, MessageIn(event_type=paid, payload={"rotated": True}))
headers, body = sink.next(rotated.id)
Webhook(secret).verify(body, headers)
Webhook(new_secret).verify(body, headers)
stop("rotate")

since = datetime.now(timezone.utc) - timedelta(minutes=10)
svix.endpoint.patch(app.id, endpoint.id, EndpointPatch(disabled=True))
parked = svix.message.create(app.id, MessageIn(event_type=paid, payload={"parked": True}))
refused(409, lambda: svix.message_attempt.resend(app.id, parked.id, endpoint.id))
svix.endpoint.patch(app.id, endpoint.id, EndpointPatch(disabled=False))
sink.next(parked.id)
recovered = svix.endpoint.recover(app.id, endpoint.id, RecoverIn(since=since))
assert recovered.task == "endpoint.recover", recovered
stop("pause and recover")

example = svix.endpoint.send_example(app.id, endpoint.id, EventExampleIn(event_type=paid))
assert json.loads(sink.next(example.id)[1]) == {"order": 7}
stop("example")

access = svix.authentication.app_portal_access(app.id, AppPortalAccessIn())
portal = Svix(access.token, SvixOptions(server_url=server))
assert len(portal.endpoint.list(app.id).data) == 2
refused(403, lambda: portal.application.list())
refused(403, lambda: portal.message.create(app.id, MessageIn(event_type=paid, payload={})))
refused(404, lambda: portal.endpoint.list(f"other-1-{run}"))
portal.authentication.logout()
stop("portal")

svix.message.expunge_content(app.id, message.id)
assert "order" not in svix.message.get(app.id, message.id).payload
svix.message_attempt.expunge_content(app.id, message.id, attempts[0].id)
assert svix.message_attempt.get(app.id, message.id, attempts[0].id).response != "ok"
svix.endpoint.delete(app.id, endpoint.id)
refused(404, lambda: svix.endpoint.get(app.id, endpoint.id))
svix.application.delete(app.id)
refused(404, lambda: svix.application.get(app.uid))
refused(401, lambda: Svix("nonsense", SvixOptions(server_url=server)).application.list(), "authentication_failed")
stop("the end")
