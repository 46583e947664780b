// Drives the REST API with the official JavaScript SDK, and checks what arrives with the SDK's own verifier.
//
//     node tour.mjs SERVER TOKEN OTHER_TOKEN
//
// TOKEN speaks for one organisation, OTHER_TOKEN for another. Prints one line for each stop; the first thing that is not as
// it should be ends it with an error.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import { ApiException, Svix, Webhook } from "svix";

const [server, token, otherToken] = process.argv.slice(2);
const svix = new Svix(token, { serverUrl: server });
const other = new Svix(otherToken, { serverUrl: server });
const run = process.hrtime.bigint().toString(36);
const stop = (name) => console.log("ok", name);

// A receiver that keeps what it is sent; it answers 500 while `failing`.
const sink = { failing: false, requests: [] };
const listener = createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  sink.requests.push({ headers: request.headers, body: Buffer.concat(chunks).toString() });
  response.writeHead(sink.failing ? 500 : 200).end("ok");
});
await new Promise((ready) => listener.listen(0, "127.0.0.1", ready));
sink.url = `http://127.0.0.1:${listener.address().port}/hook`;

// Asks again until it is so: deliveries are recorded a moment after they arrive.
async function until(what, check) {
  for (let tries = 0; tries < 600; tries += 1) {
    const value = await check();
    if (value) return value;
    await sleep(50);
  }
  assert.fail(what);
}

function arrived(event) {
  return until(`${event} did not arrive`, () => {
    const at = sink.requests.findIndex((request) => request.headers["webhook-id"] === event);
    return at >= 0 && sink.requests.splice(at, 1)[0];
  });
}

async function refused(status, call, code) {
  try {
    await call();
  } catch (error) {
    assert(error instanceof ApiException, String(error));
    assert.equal(error.code, status);
    if (code) assert.equal(error.body.code, code);
    return error.body;
  }
  assert.fail(`it was not refused with ${status}`);
}

// All entries of a list, two at a time.
async function pages(read) {
  const entries = [];
  for (let iterator = null; ; ) {
    const page = await read({ limit: 2, ...(iterator && { iterator }) });
    entries.push(...page.data);
    if (page.done) return entries;
    iterator = page.iterator;
  }
}

const app = await svix.application.create({ name: "Shop", uid: `js-${run}`, metadata: { plan: "gold" } });
assert.equal((await svix.application.getOrCreate({ name: "Shop", uid: app.uid })).id, app.id);
for (let number = 0; number < 3; number += 1) await svix.application.create({ name: `Other ${number}` });
const apps = await pages((options) => svix.application.list(options));
assert.equal(new Set(apps.map((one) => one.id)).size, apps.length);
assert(apps.some((one) => one.id === app.id));
await refused(404, () => other.application.get(app.id), "not_found");
stop("applications");

const paid = `order.paid.js.${run}`;
await svix.eventType.create({ name: paid, description: "An order was paid" });
assert((await pages((options) => svix.eventType.list(options))).some((one) => one.name === paid));
stop("event types");

const endpoint = await svix.endpoint.create(app.uid, { url: sink.url, filterTypes: [paid] });
await svix.endpoint.create(app.uid, { url: sink.url, filterTypes: ["something.else"] });
assert.deepEqual(endpoint.filterTypes, [paid]);
assert.equal((await pages((options) => svix.endpoint.list(app.id, options))).length, 2);
const { key } = await svix.endpoint.getSecret(app.id, endpoint.id);
stop("endpoints");

const payload = { order: 1, text: "zażółć \u2028", half: 0.5 };
const message = await svix.message.create(app.id, { eventType: paid, eventId: `evt-${run}`, payload });
const first = await arrived(message.id);
assert.deepEqual(new Webhook(key).verify(first.body, first.headers), payload);
const twin = await refused(409, () => svix.message.create(app.id, { eventType: paid, eventId: `evt-${run}`, payload }));
assert(twin.detail.includes(message.id));
const sent = [];
for (let n = 0; n < 4; n += 1) sent.push((await svix.message.create(app.id, { eventType: paid, payload: { n } })).id);
for (const id of sent) await arrived(id);
const messages = await pages((options) => svix.message.list(app.id, { ...options, eventTypes: [paid] }));
assert.deepEqual(new Set(messages.map((one) => one.id)), new Set([message.id, ...sent]));
assert.equal(messages.at(-1).id, message.id);
stop("messages");

const attempts = await until("no attempt", async () => {
  const { data } = await svix.messageAttempt.listByMsg(app.id, message.id);
  return data.length > 0 && data;
});
assert.equal(attempts[0].responseStatusCode, 200);
assert.equal((await svix.messageAttempt.get(app.id, message.id, attempts[0].id)).endpointId, endpoint.id);
stop("attempts");

sink.failing = true;
const failed = await svix.message.create(app.id, { eventType: paid, payload: { fails: true } });
await arrived(failed.id);
await until("no failure", async () => (await svix.messageAttempt.listByMsg(app.id, failed.id, { status: 2 })).data[0]);
sink.failing = false;
await svix.messageAttempt.resend(app.id, failed.id, endpoint.id);
await arrived(failed.id);
stop("resend");

await svix.endpoint.rotateSecret(app.id, endpoint.id, {});
const rotated = await svix.message.create(app.id, { eventType: paid, payload: { rotated: true } });
const signedTwice = await arrived(rotated.id);
new Webhook(key).verify(signedTwice.body, signedTwice.headers);
new Webhook((await svix.endpoint.getSecret(app.id, endpoint.id)).key).verify(signedTwice.body, signedTwice.headers);
stop("rotate");

const since = new Date(Date.now() - 600_000);
assert.equal((await svix.endpoint.recover(app.id, endpoint.id, { since })).task, "endpoint.recover");
stop("recover");

await svix.application.delete(app.id);
await refused(404, () => svix.application.get(app.id), "not_found");
stop("the end");
listener.close();
