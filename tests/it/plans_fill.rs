//! The database that plans are asked of: large enough that reading a whole table shows.

use sqlx::AssertSqlSafe;
use twiceproof_shared::store::{Database, Store};

/// Twenty tenants with fifty endpoints each; nearly everything is at its end. SQLite's plans do not depend on the number of
/// rows, and with statistics on their proportions only: a tenth of the rows tells as much.
pub async fn fill(store: &Store) {
    let (rows, numbers, padded, bytes) = match store.database() {
        Database::Sqlite => (
            100_000,
            "WITH RECURSIVE g (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM g WHERE n < {})",
            "printf('%027d', n)",
            "zeroblob(32)",
        ),
        Database::Postgres => (
            1_000_000,
            "WITH g AS (SELECT generate_series(1::bigint, {}) AS n)",
            "lpad(n::text, 27, '0')",
            "'\\x00'::bytea",
        ),
    };
    let now = store.now().as_millis();
    let numbers = |rows: i64| numbers.replace("{}", &rows.to_string());
    let endpoint = "'ep_' || (10000 + n % 1000)";
    let sql = [
        format!(
            "INSERT INTO twiceproof_endpoints (tenant, id, url, state, all_event_types, timeout_ms, slots, rate_limit, created_at, updated_at)
             {} SELECT 't' || (n % 20), {endpoint}, 'http://127.0.0.1:9/', CASE WHEN n % 10 = 3 THEN 'disabled' ELSE 'enabled' END,
                 CASE WHEN n % 7 = 0 THEN 1 ELSE 0 END, 15000, 32, CASE WHEN n % 10 = 4 THEN 1000 END, {now}, {now} FROM g",
            numbers(1000)
        ),
        format!(
            "INSERT INTO twiceproof_tenants (organisation, id, name, rate_limit, created_at)
             {} SELECT 'org_1', 't' || n, '', CASE WHEN n % 3 = 1 THEN 1000 END, {now} FROM g",
            numbers(19)
        ),
        format!(
            "INSERT INTO twiceproof_endpoint_event_types (tenant, endpoint, event_type)
             {} SELECT 't' || (n % 20), {endpoint}, 'order.t' || (n % 3) FROM g",
            numbers(1000)
        ),
        format!(
            "INSERT INTO twiceproof_endpoint_secrets (tenant, endpoint, key_id, secret, created_at)
             {} SELECT 't' || (n % 20), {endpoint}, 'key_1', {bytes}, {now} FROM g",
            numbers(1000)
        ),
        format!(
            "INSERT INTO twiceproof_events (tenant, id, uid, event_type, content_type, payload, digest, created_at)
             {} SELECT 't' || (n % 20), 'msg_' || {padded}, 'u' || n, 'order.t1', 'text/plain', {bytes}, {bytes}, {now} - 3456000000 FROM g",
            numbers(rows)
        ),
        format!(
            "INSERT INTO twiceproof_deliveries (tenant, event, endpoint, state, due_at, deadline_at, lease_owner, lease_until, created_at,
                 state_reason, ordering_key, expires_at)
             {} SELECT 't' || (n % 20), 'msg_' || {padded}, {endpoint},
                 CASE n % 401 WHEN 0 THEN 'pending' WHEN 1 THEN 'backoff' WHEN 2 THEN 'leased' WHEN 3 THEN 'parked' WHEN 4 THEN 'dead' WHEN 5 THEN 'blocked' WHEN 6 THEN 'blocked' ELSE 'delivered' END,
                 {now} + n, {now}, CASE n % 401 WHEN 2 THEN 'w' || (n % 5) END, CASE n % 401 WHEN 2 THEN {now} + 30000 ELSE 0 END, {now},
                 CASE n % 401 WHEN 5 THEN 'ordering_key' END,
                 CASE WHEN n % 401 IN (5, 6) OR n % 10 = 3 THEN 'k' || (n % 50) END,
                 CASE n % 20 WHEN 7 THEN {now} + n - 100 WHEN 8 THEN {now} + 3600000 END FROM g",
            numbers(rows)
        ),
        format!(
            "INSERT INTO twiceproof_endpoints (tenant, id, url, state, all_event_types, timeout_ms, slots, created_at, updated_at)
             {} SELECT 'wide', 'ep_' || (20000 + n), 'http://127.0.0.1:9/', 'enabled', 1, 15000, 32, {now}, {now} FROM g",
            numbers(600)
        ),
        format!(
            "INSERT INTO twiceproof_fan_outs (tenant, event, deadline_at, created_at)
             {} SELECT 'wide', 'msg_' || {padded}, {now}, {now} FROM g",
            numbers(2)
        ),
        format!(
            "INSERT INTO twiceproof_fan_outs (tenant, event, deadline_at, created_at)
             {} SELECT 't' || (n % 3), 'msg_' || {padded}, {now}, {now} FROM g",
            numbers(5_000)
        ),
        format!(
            "INSERT INTO twiceproof_attempts (tenant, id, event, endpoint, number, token, outcome, started_at, ended_at)
             {} SELECT 't' || (n % 20), 'atmpt_' || {padded}, 'msg_' || {padded}, {endpoint}, 1, 1, 'delivered', {now}, {now} FROM g",
            numbers(rows)
        ),
        format!(
            "INSERT INTO twiceproof_ledger (tenant, scope, key, state, digest, fingerprint, fingerprint_version, outcome_status, first_seen_at, expires_at)
             {} SELECT 't' || (n % 20), 'shop/' || (n % 3), 'k' || {padded}, CASE n % 50 WHEN 0 THEN 'expired' ELSE 'done' END,
                 {bytes}, {bytes}, 1, 200, {now}, {now} + n - 50000 FROM g",
            numbers(rows)
        ),
    ];
    for sql in sql {
        script(store, sql).await;
    }
    if store.database() == Database::Postgres {
        script(store, "ANALYZE".to_owned()).await;
    }
}

pub async fn script(store: &Store, sql: String) {
    let mut reader = store.read().await.unwrap();
    let mut conn = reader.conn();
    let sql = sqlx::raw_sql(AssertSqlSafe(sql));
    match conn.database() {
        Database::Sqlite => sql.execute(conn.sqlite().unwrap()).await.map(drop).unwrap(),
        Database::Postgres => sql.execute(conn.postgres().unwrap()).await.map(drop).unwrap(),
    }
}
