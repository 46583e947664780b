// Publishes from Node in the caller's own transaction: one event that is rolled back and one that is committed.
//
//     node publish.mjs URL SCHEMA
//
// Prints the id of the event that stays.

import assert from "node:assert/strict";
import pg from "pg";

const [url, schema] = process.argv.slice(2);
const client = new pg.Client({ connectionString: url, options: `-c search_path=${schema}` });
await client.connect();
const call = "SELECT id, outcome FROM twiceproof_publish($1, $2, $3, uid => $4)";
let id;
for (const end of ["ROLLBACK", "COMMIT"]) {
  await client.query("BEGIN");
  await client.query("INSERT INTO orders (name) VALUES ($1)", [`node ${end}`]);
  const { rows } = await client.query(call, ["default", "order.paid", Buffer.from('{"order":7}'), `node-${end}`]);
  assert.equal(rows[0].outcome, "accepted");
  id = rows[0].id;
  await client.query(end);
}
await client.query("SELECT twiceproof_wake()");
await client.end();
console.log(id);
