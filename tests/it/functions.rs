//! The SQL functions: rows that another language makes in its own transaction are those that the library makes.

use std::collections::BTreeSet;

use bytes::Bytes;
use sqlx::{Connection as _, PgConnection};
use twiceproof::dispatcher::manage::event_types::{self, EventTypeDetails, Guarantee};
use twiceproof::dispatcher::manage::tenants::default_organisation;
use twiceproof::dispatcher::{AddressPolicy, Manager, NewEndpoint, NewEvent, Policy, Publisher};
use twiceproof_shared::clock::Timestamp;
use twiceproof_shared::id::{Id, Prefix};
use twiceproof_shared::key::Key;
use twiceproof_shared::store::Store;

use crate::harness::{Bed, Suite};

pub fn register(suite: &mut Suite) {
    suite.postgres("functions::an_event_from_sql_makes_the_rows_that_the_library_makes", conformance);
    suite.postgres("functions::an_event_from_sql_lives_and_dies_with_its_transaction", rolled_back);
    suite.postgres("functions::the_same_uid_is_the_same_event_or_a_conflict", same_uid);
    suite.postgres("functions::what_breaks_a_rule_is_refused_by_name", refused);
    suite.postgres("functions::an_event_from_sql_for_many_endpoints_is_left_to_the_workers", wide);
    suite.postgres("functions::ids_from_sql_are_ids_in_the_order_of_time", ids);
    suite.postgres("functions::tables_are_found_whatever_the_search_path_says", search_path);
}

fn tenant() -> Key {
    Key::new("acme").unwrap()
}

async fn connection(bed: &Bed) -> PgConnection {
    PgConnection::connect(&bed.db.url().expose()).await.unwrap()
}

async fn endpoints(store: &Store) {
    let manager = Manager::new(store, AddressPolicy::PublicOnly, &Policy::default());
    let new = || NewEndpoint::new(tenant(), "https://example.com/hook");
    manager.create_now(new()).await.unwrap();
    let paid = NewEndpoint { event_types: vec!["order.paid".to_owned()], ..new() };
    manager.create_now(paid).await.unwrap();
    let other = NewEndpoint { event_types: vec!["order.shipped".to_owned()], ..new() };
    manager.create_now(other).await.unwrap();
    let disabled = manager.create_now(new()).await.unwrap().endpoint.id;
    let mut tx = store.begin().await.unwrap();
    manager.disable(&mut tx.conn(), &tenant(), &disabled).await.unwrap();
    tx.commit().await.unwrap();
    let elsewhere = NewEndpoint::new(Key::new("other").unwrap(), "https://example.com/hook");
    manager.create_now(elsewhere).await.unwrap();
}

/// Everything that is stored of an event and its deliveries, but for ids, numbers and times.
async fn stored(conn: &mut PgConnection, id: &str) -> (String, Vec<String>) {
    let event: String = sqlx::query_scalar(
        "SELECT (to_jsonb(v) - '{id,seq,created_at}'::text[])::text FROM twiceproof_events v WHERE id = $1",
    )
    .bind(id)
    .fetch_one(&mut *conn)
    .await
    .unwrap();
    let deliveries: Vec<(String,)> = sqlx::query_as(
        "SELECT (to_jsonb(d) - '{event,seq,created_at,due_at,deadline_at}'::text[]
             || jsonb_build_object('wait', due_at - created_at, 'life', deadline_at - created_at))::text
         FROM twiceproof_deliveries d WHERE event = $1 ORDER BY seq",
    )
    .bind(id)
    .fetch_all(&mut *conn)
    .await
    .unwrap();
    (event, deliveries.into_iter().map(|(row,)| row).collect())
}

/// What the function answers: an id and what became of the event.
async fn publish(conn: &mut PgConnection, event: &NewEvent) -> Result<(String, String), sqlx::Error> {
    let channels: Vec<String> = event.channels.iter().map(Key::to_string).collect();
    sqlx::query_as(
        "SELECT id, outcome FROM twiceproof_publish($1, $2, $3, $4, $5, $6, $7,
         expires_at => to_timestamp($8::float8 / 1000))",
    )
    .bind(event.tenant.as_str())
    .bind(&event.event_type)
    .bind(event.payload.as_ref())
    .bind(event.uid.as_ref().map(Key::as_str))
    .bind(&event.content_type)
    .bind(channels)
    .bind(event.ordering_key.as_ref().map(Key::as_str))
    .bind(event.expires_at.map(|expires_at| expires_at.as_millis() as f64))
    .fetch_one(conn)
    .await
}

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

async fn conformance(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    endpoints(&store).await;
    let mut conn = connection(&bed).await;
    let publisher = Publisher::new(&store, &Policy::default());
    let event = |payload: &'static [u8]| NewEvent::json(tenant(), "order.paid", Bytes::from_static(payload));
    let binary = NewEvent { content_type: "application/octet-stream".to_owned(), ..event(&[0, 255, 39, 92]) };
    let channels = NewEvent { channels: ["b", "a\"\\/", "b", "B"].map(key).into(), ..event(b"{}") };
    let ordered = NewEvent { ordering_key: Some(key("order-7")), ..event(b"[1, 2]") };
    let expires_at = Some(Timestamp::from_millis(1_900_000_000_123));
    let expires = NewEvent { expires_at, ..event(b"{}") };
    for event in [event(br#"{"b":1,"a":12345678901234567890}"#), event(b""), binary, channels, ordered, expires] {
        let rust = publisher.publish_now(event.clone()).await.unwrap().id;
        let (sql, outcome) = publish(&mut conn, &event).await.unwrap();
        assert_eq!(outcome, "accepted");
        let (rust, sql) = (stored(&mut conn, rust.as_str()).await, stored(&mut conn, &sql).await);
        assert_eq!(rust.1.len(), 3, "one for all types, one for this type, one that is disabled");
        assert_eq!(rust, sql);
    }
    let details = EventTypeDetails { guarantee: Guarantee::AtMostOnce, ..EventTypeDetails::default() };
    let mut tx = store.begin().await.unwrap();
    let organisation = default_organisation();
    event_types::create(&mut tx.conn(), &organisation, "order.paid", details, store.now()).await.unwrap();
    tx.commit().await.unwrap();
    let rust = publisher.publish_now(event(b"{}")).await.unwrap().id;
    let (sql, _) = publish(&mut conn, &event(b"{}")).await.unwrap();
    let rust = stored(&mut conn, rust.as_str()).await;
    assert!(rust.1.iter().all(|row| row.contains(r#""at_most_once": 1"#)), "{rust:?}");
    assert_eq!(rust, stored(&mut conn, &sql).await);
    let nobody = NewEvent::json(key("nobody"), "order.paid", Bytes::from_static(b"{}"));
    let (id, _) = publish(&mut conn, &nobody).await.unwrap();
    assert!(stored(&mut conn, &id).await.1.is_empty());
}

async fn rolled_back(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    endpoints(&store).await;
    let mut conn = connection(&bed).await;
    let event = NewEvent::json(tenant(), "order.paid", Bytes::from_static(b"{}"));
    for (end, rows) in [("ROLLBACK", 0), ("COMMIT", 3)] {
        sqlx::raw_sql("BEGIN").execute(&mut conn).await.unwrap();
        publish(&mut conn, &event).await.unwrap();
        sqlx::raw_sql(end).execute(&mut conn).await.unwrap();
        let sql = "SELECT count(*) FROM twiceproof_events v JOIN twiceproof_deliveries d ON d.event = v.id";
        let count: i64 = sqlx::query_scalar(sql).fetch_one(&mut conn).await.unwrap();
        assert_eq!(count, rows, "{end}");
    }
}

async fn same_uid(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    endpoints(&store).await;
    let mut conn = connection(&bed).await;
    let publisher = Publisher::new(&store, &Policy::default());
    let event = NewEvent::json(tenant(), "order.paid", Bytes::from_static(b"{}")).with_uid(key("order-1"));
    let first = publisher.publish_now(event.clone()).await.unwrap().id.to_string();
    let again = |outcome: &str| (first.clone(), outcome.to_owned());
    assert_eq!(publish(&mut conn, &event).await.unwrap(), again("already_accepted"));
    for other in [
        NewEvent { payload: Bytes::from_static(b"{ }"), ..event.clone() },
        NewEvent { event_type: "order.shipped".to_owned(), ..event.clone() },
        NewEvent { content_type: "text/json".to_owned(), ..event.clone() },
        NewEvent { channels: vec![key("a")], ..event.clone() },
        NewEvent { ordering_key: Some(key("a")), ..event.clone() },
    ] {
        assert_eq!(publish(&mut conn, &other).await.unwrap(), again("conflict"), "{other:?}");
    }
    // Another tenant's uid is another uid; and what SQL accepted, the library knows.
    let elsewhere = NewEvent { tenant: key("other"), ..event.clone() };
    let (id, outcome) = publish(&mut conn, &elsewhere).await.unwrap();
    assert_eq!(outcome, "accepted");
    let published = publisher.publish_now(elsewhere).await.unwrap();
    assert_eq!((published.id.as_str(), published.fresh), (id.as_str(), false));
}

async fn refused(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    endpoints(&store).await;
    let mut conn = connection(&bed).await;
    for call in [
        "NULL, 'a', ''",
        "'', 'a', ''",
        "'a b', 'a', ''",
        "'t', NULL, ''",
        "'t', 'a..b', ''",
        "'t', 'a b', ''",
        "'t', 'a', NULL",
        "'t', 'a', convert_to(repeat('x', 1048577), 'UTF8')",
        "'t', 'a', '', ''",
        "'t', 'a', '', repeat('x', 256)",
        "'t', 'a', '', NULL, 'json'",
        "'t', 'a', '', NULL, ' a/b'",
        "'t', 'a', '', NULL, E'a/b\\n'",
        "'t', 'a', '', NULL, 'a/b', array_fill('x'::text, ARRAY[11])",
        "'t', 'a', '', NULL, 'a/b', ARRAY['x', NULL]",
        "'t', 'a', '', NULL, 'a/b', ARRAY['x y']",
        "'t', 'a', '', NULL, 'a/b', '{}', 'x y'",
        "'t', 'a', '', NULL, 'a/b', '{}', 'x', '-1 hour'",
    ] {
        let sql = format!("SELECT outcome FROM twiceproof_publish({call})");
        let error = sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut conn).await.unwrap_err();
        let error = error.as_database_error().unwrap();
        assert_eq!(error.code().as_deref(), Some("22023"), "{call}: {error}");
        assert!(error.message().starts_with("twiceproof: "), "{error}");
    }
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM twiceproof_events").fetch_one(&mut conn).await.unwrap();
    assert_eq!(count, 0);
    sqlx::raw_sql("SELECT twiceproof_publish('t', 'a', convert_to(repeat('x', 1048576), 'UTF8'))")
        .execute(&mut conn)
        .await
        .unwrap();
}

async fn ids(bed: Bed) {
    bed.db.store(None).await.unwrap();
    let mut conn = connection(&bed).await;
    let sql = "SELECT twiceproof_new_id('msg_'), floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
         FROM generate_series(1, 2000)";
    let rows: Vec<(String, i64)> = sqlx::query_as(sql).fetch_all(&mut conn).await.unwrap();
    let ids: BTreeSet<&str> = rows.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(ids.len(), rows.len(), "none comes twice");
    for (text, now) in &rows {
        let minted = Id::parse(Prefix::Event, text).unwrap().minted_at().as_millis();
        assert!((now - 1_000..=*now).contains(&minted), "{text} was minted at {minted}, not at {now}");
    }
    let times: Vec<i64> =
        rows.iter().map(|(id, _)| Id::parse(Prefix::Event, id).unwrap().minted_at().as_millis()).collect();
    assert!(times.is_sorted());
}

async fn search_path(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    endpoints(&store).await;
    let mut conn = connection(&bed).await;
    let schema: String = sqlx::query_scalar("SELECT current_schema()").fetch_one(&mut conn).await.unwrap();
    sqlx::raw_sql("SET search_path TO pg_catalog").execute(&mut conn).await.unwrap();
    let sql = format!("SELECT outcome FROM {schema}.twiceproof_publish('acme', 'order.paid', '')");
    let outcome: String = sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&mut conn).await.unwrap();
    assert_eq!(outcome, "accepted");
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("SELECT {schema}.twiceproof_wake()"))).execute(&mut conn).await.unwrap();
}

async fn wide(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    let mut conn = connection(&bed).await;
    let sql = "INSERT INTO twiceproof_endpoints (tenant, id, url, state, all_event_types, timeout_ms, slots, created_at, updated_at)
         SELECT 'acme', 'ep_' || n, 'http://127.0.0.1:9/', 'enabled', 1, 1000, 1, 0, 0 FROM generate_series($1, $2) n";
    let both = async |conn: &mut PgConnection, event: &NewEvent| {
        let rust = Publisher::new(&store, &Policy::default()).publish_now(event.clone()).await.unwrap().id;
        let (sql, _) = publish(conn, event).await.unwrap();
        let mut seen = Vec::new();
        for id in [rust.as_str(), &sql] {
            let count = "SELECT (SELECT count(*) FROM twiceproof_deliveries WHERE event = $1),
                 (SELECT count(*) FROM twiceproof_fan_outs WHERE event = $1)";
            seen.push(sqlx::query_as::<_, (i64, i64)>(count).bind(id).fetch_one(&mut *conn).await.unwrap());
        }
        assert_eq!(seen[0], seen[1]);
        seen[0]
    };
    let event = NewEvent::json(tenant(), "order.paid", Bytes::from_static(b"{}"));
    sqlx::query(sql).bind(1_001_i64).bind(1_500_i64).execute(&mut conn).await.unwrap();
    assert_eq!(both(&mut conn, &event).await, (500, 0));
    sqlx::query(sql).bind(1_501_i64).bind(1_501_i64).execute(&mut conn).await.unwrap();
    assert_eq!(both(&mut conn, &event).await, (0, 1));
    sqlx::raw_sql("DELETE FROM twiceproof_endpoints WHERE id > 'ep_1010'").execute(&mut conn).await.unwrap();
    assert_eq!(both(&mut conn, &event).await, (10, 0));
    let ordered = NewEvent { ordering_key: Some(key("a")), ..event };
    assert_eq!(both(&mut conn, &ordered).await, (0, 1), "it stands behind what is on its way");
}
