//! A signed request becomes one committed effect, whatever comes twice, broken or late.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{HeaderName, HeaderValue, StatusCode};
use twiceproof::prove::{Answer, Message};
use twiceproof::receiver::{HandlerError, Receiver, Reply, handler_fn};
use twiceproof_shared::clock::{Clock, ManualClock, Timestamp};
use twiceproof_shared::secret::Secret;
use twiceproof_shared::signature;

use crate::harness::{Bed, Suite};
use crate::kit::{self, ADD_EFFECT, Effect, Receiving, effects, make_effects, receiving, signed, source};

pub fn register(suite: &mut Suite) {
    suite.both("receive::a_repeat_gets_the_stored_bytes_and_nothing_runs", replay);
    suite.both("receive::another_payload_under_a_used_id_is_kept_for_review", conflict);
    suite.both("receive::a_refusal_undoes_the_effect_and_is_stored", refusal);
    suite.both("receive::a_broken_database_rule_does_not_lose_the_request", broken_rule);
    suite.both("receive::a_swallowed_database_error_never_passes_as_success", swallowed);
    suite.both("receive::a_failed_handler_runs_again_on_redelivery", failure);
    suite.both("receive::a_panic_is_a_failure_and_harms_nobody_else", panic);
    suite.both("receive::a_handler_over_its_deadline_leaves_nothing", deadline);
    suite.postgres("receive::a_handler_that_commits_by_itself_is_never_run_again", own_commit);
    suite.both("receive::two_consumers_and_two_tenants_act_once_each", consumers);
    suite.both("receive::the_work_goes_on_when_the_client_leaves", client_gone);
    suite.both("receive::recv_1_an_escape_written_in_capitals_is_verified_as_it_came", |bed| {
        exact_bytes(bed, &[br#"{"m":"\u001B[0m"}"#, br#"{"m":"\u001b[0m"}"#])
    });
    suite.both("receive::recv_2_an_emoji_is_verified_as_bytes", |bed| {
        exact_bytes(bed, &[b"{\"a\":\"\xf0\x9f\x98\x8a\"}"])
    });
    suite.both("receive::recv_4_an_escaped_form_is_never_normalised", |bed| {
        exact_bytes(bed, &[br#"{"content":"\u003cp\u003e"}"#, br#"{ "b": 1.0, "a": 12345678901234567890 }"#])
    });
    suite.both("receive::recv_6_a_line_separator_in_a_name_is_verified_as_bytes", |bed| {
        exact_bytes(bed, &[b"{\"n\":\"\xe2\x80\xa8\"}"])
    });
    suite
        .both("receive::recv_10_a_final_newline_is_part_of_the_body", |bed| exact_bytes(bed, &[b"{\"a\":1}\n", b"\n"]));
    suite.both("receive::recv_12_a_byte_order_mark_is_part_of_the_body", |bed| {
        exact_bytes(bed, &[b"\xef\xbb\xbf{\"a\":1}"])
    });
    suite.both("receive::recv_13_a_body_that_is_not_utf8_is_an_event_like_others", |bed| {
        exact_bytes(bed, &[b"\xff\xfe\x00\x61", b"not json", b""])
    });
    suite.plain("receive::recv_32_a_secret_with_a_stray_character_is_an_error_at_start", bad_secrets);
    suite.both("receive::recv_38_a_signature_header_that_comes_twice_is_refused", repeated_headers);
    suite.both("receive::recv_39_signatures_joined_by_a_proxy_are_refused", joined_headers);
    suite.both("receive::recv_40_a_timestamp_is_plain_digits", timestamps);
    suite.both("receive::recv_60_a_request_outside_the_tolerance_is_refused_on_both_sides", tolerance);
    suite.both("receive::recv_63_the_loser_of_parallel_duplicates_runs_no_effect", parallel);
    suite.both("receive::recv_65_parallel_duplicates_never_see_a_500", parallel);
    suite.both("receive::recv_82_a_chunked_body_over_the_limit_is_refused_while_it_streams", chunked);
}

fn status(answer: &Answer) -> u16 {
    answer.status.as_u16()
}

fn is_replayed(answer: &Answer) -> bool {
    answer.headers.get("idempotent-replayed").is_some_and(|value| value == "true")
}

async fn replay(bed: Bed) {
    let (store, receiving) = receiving(bed.db.store(None).await.unwrap()).await;
    let message = signed("msg_1", r#"{"order":1}"#, store.now());
    let first = receiving.send(&message).await;
    assert_eq!(status(&first), 200);
    assert!(!is_replayed(&first));
    for _ in 0..3 {
        let again = receiving.send(&signed("msg_1", r#"{"order":1}"#, store.now())).await;
        assert_eq!((status(&again), &again.body), (200, &first.body));
        assert_eq!(again.headers.get("content-type"), first.headers.get("content-type"));
        assert!(is_replayed(&again));
    }
    assert_eq!(effects(&store).await.len(), 1);
}

async fn conflict(bed: Bed) {
    let (store, receiving) = receiving(bed.db.store(None).await.unwrap()).await;
    let first = receiving.send(&signed("msg_1", "a", store.now())).await;
    let other = receiving.send(&signed("msg_1", "b", store.now())).await;
    // 2xx by default, since a 4xx makes some senders disable the endpoint; the effect is refused all the same.
    assert!(other.status.is_success());
    assert!(!is_replayed(&other));
    assert_ne!(other.body, first.body);
    assert_eq!(effects(&store).await, [("msg_1".to_owned(), b"a".to_vec())]);
    let mut reader = store.read().await.unwrap();
    let kept: Vec<(Vec<u8>, String)> =
        reader.conn().fetch_all("SELECT request_body, state FROM twiceproof_conflicts", &[]).await.unwrap();
    assert_eq!(kept, [(b"b".to_vec(), "open".to_owned())]);
    assert!(is_replayed(&receiving.send(&signed("msg_1", "a", store.now())).await));
}

async fn refusal(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    make_effects(&store).await;
    let handler = handler_fn(|conn, event| {
        Box::pin(async move {
            conn.execute(ADD_EFFECT, &[event.id().into(), b"undone".as_slice().into()]).await?;
            Err(HandlerError::Refuse(Reply::new(StatusCode::CONFLICT).text("the invoice is there already")))
        })
    });
    let receiving = Receiving::start(&store, source(), handler).await;
    let first = receiving.send(&signed("msg_1", "a", store.now())).await;
    assert_eq!((status(&first), first.body.as_ref()), (409, b"the invoice is there already".as_slice()));
    let again = receiving.send(&signed("msg_1", "a", store.now())).await;
    assert_eq!((status(&again), &again.body, is_replayed(&again)), (409, &first.body, true));
    assert!(effects(&store).await.is_empty());
}

/// The host's unique rule is broken; on PostgreSQL that fails the transaction, which the savepoint repairs.
async fn broken_rule(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    make_effects(&store).await;
    let mut tx = store.begin().await.unwrap();
    tx.conn().execute_script("CREATE UNIQUE INDEX one_effect_per_body ON effects (body)").await.unwrap();
    tx.commit().await.unwrap();
    let handler = handler_fn(|conn, event| {
        Box::pin(async move {
            match conn.execute(ADD_EFFECT, &[event.id().into(), event.body().as_ref().into()]).await {
                Ok(_) => Ok(Reply::ok()),
                Err(_) => Err(HandlerError::Refuse(Reply::ok().text("had it already"))),
            }
        })
    });
    let receiving = Receiving::start(&store, source(), handler).await;
    assert_eq!(status(&receiving.send(&signed("msg_1", "same", store.now())).await), 200);
    let second = receiving.send(&signed("msg_2", "same", store.now())).await;
    assert_eq!((status(&second), second.body.as_ref()), (200, b"had it already".as_slice()));
    assert!(is_replayed(&receiving.send(&signed("msg_2", "same", store.now())).await));
    assert_eq!(effects(&store).await.len(), 1);
}

async fn swallowed(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    make_effects(&store).await;
    let handler = handler_fn(|conn, event| {
        Box::pin(async move {
            conn.execute(ADD_EFFECT, &[event.id().into(), event.body().as_ref().into()]).await?;
            let _ = conn.execute("INSERT INTO no_such_table (id) VALUES (1)", &[]).await;
            Ok(Reply::ok())
        })
    });
    let receiving = Receiving::start(&store, source(), handler).await;
    let answer = receiving.send(&signed("msg_1", "a", store.now())).await;
    // SQLite forgives a failed statement, PostgreSQL's transaction is lost. Either way the answer tells the truth.
    assert_eq!(answer.status.is_success(), effects(&store).await.len() == 1, "{}", answer.status);
}

async fn failure(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    make_effects(&store).await;
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let handler = handler_fn(move |conn, event| {
        let first = counted.fetch_add(1, Ordering::SeqCst) == 0;
        Box::pin(async move {
            conn.execute(ADD_EFFECT, &[event.id().into(), event.body().as_ref().into()]).await?;
            if first { Err(HandlerError::fail("on purpose: canary-4711")) } else { Ok(Reply::ok()) }
        })
    });
    let receiving = Receiving::start(&store, source(), handler).await;
    let failed = receiving.send(&signed("msg_1", "a", store.now())).await;
    assert_eq!(status(&failed), 500);
    assert!(!String::from_utf8_lossy(&failed.body).contains("4711"), "the cause stays inside");
    assert!(effects(&store).await.is_empty());
    let redelivered = receiving.send(&signed("msg_1", "a", store.now())).await;
    assert_eq!((status(&redelivered), is_replayed(&redelivered)), (200, false));
    assert_eq!((effects(&store).await.len(), runs.load(Ordering::SeqCst)), (1, 2));
}

async fn panic(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    make_effects(&store).await;
    let handler = handler_fn(|conn, event| {
        Box::pin(async move {
            conn.execute(ADD_EFFECT, &[event.id().into(), event.body().as_ref().into()]).await?;
            assert_ne!(event.body().as_ref(), b"panic", "on purpose");
            Ok(Reply::ok())
        })
    });
    let receiving = Receiving::start(&store, source(), handler).await;
    let messages = (0..20)
        .map(|n| signed(&format!("msg_{n:02}"), if n % 5 == 0 { "panic" } else { "fine" }, store.now()))
        .collect();
    let answers = kit::send_all(&receiving.hop, messages, 20).await;
    for (n, answer) in answers.iter().enumerate() {
        assert_eq!(status(answer), if n % 5 == 0 { 500 } else { 200 }, "{n}");
    }
    assert_eq!(effects(&store).await.len(), 16);
}

async fn deadline(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    make_effects(&store).await;
    let slow = Effect { store: store.clone(), takes: Duration::from_secs(1) };
    let receiving = Receiving::start(&store, source().handler_deadline(Duration::from_millis(50)), slow).await;
    let answer = receiving.send(&signed("msg_1", "a", store.now())).await;
    assert_eq!(status(&answer), 503);
    assert!(answer.headers.contains_key("retry-after"));
    assert!(effects(&store).await.is_empty());
}

async fn own_commit(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    make_effects(&store).await;
    let handler = handler_fn(|conn, event| {
        Box::pin(async move {
            conn.execute(ADD_EFFECT, &[event.id().into(), event.body().as_ref().into()]).await?;
            conn.execute_script("COMMIT").await?;
            Ok(Reply::ok())
        })
    });
    let receiving = Receiving::start(&store, source(), handler).await;
    let message = signed("msg_1", "a", store.now());
    assert_eq!(status(&receiving.send(&message).await), 500);
    // Its key is claimed and has no outcome: nobody may take that for done, and nobody runs it again.
    assert_eq!(status(&receiving.send(&message).await), 503);
    assert_eq!(effects(&store).await.len(), 1);
}

async fn consumers(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    make_effects(&store).await;
    let handler = Effect { store: store.clone(), takes: Duration::ZERO };
    let mut receiver = Receiver::new(store.clone());
    let routes = [("/a", "one", "invoices"), ("/b", "one", "mail"), ("/c", "two", "invoices")];
    for (path, tenant, consumer) in routes {
        let source = source().tenant(tenant).consumer(consumer).build().unwrap();
        receiver = receiver.source_at(path, source, handler.clone()).unwrap();
    }
    let receiving = Receiving::serve(receiver.router()).await;
    for _ in 0..3 {
        for (path, _, _) in routes {
            let message = Message { path: path.to_owned(), ..signed("msg_1", "a", store.now()) };
            assert_eq!(status(&receiving.send(&message).await), 200);
        }
    }
    assert_eq!(effects(&store).await.len(), 3);
}

async fn client_gone(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    make_effects(&store).await;
    let slow = Effect { store: store.clone(), takes: Duration::from_millis(150) };
    let receiving = Receiving::start(&store, source(), slow).await;
    let message = signed("msg_1", "a", store.now());
    assert!(tokio::time::timeout(Duration::from_millis(50), receiving.send(&message)).await.is_err());
    let answer = loop {
        let answer = receiving.send(&message).await;
        if status(&answer) != 503 {
            break answer;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    // The first run ended by itself and left its outcome.
    assert_eq!((status(&answer), is_replayed(&answer)), (200, true));
    assert_eq!(effects(&store).await.len(), 1);
}

/// Each body is accepted and stored to the byte, and with one byte more it is refused.
async fn exact_bytes(bed: Bed, bodies: &'static [&'static [u8]]) {
    let (store, receiving) = receiving(bed.db.store(None).await.unwrap()).await;
    for (n, body) in bodies.iter().enumerate() {
        let message = signed(&format!("msg_{n}"), *body, store.now());
        let mut longer = message.clone();
        longer.body = [body, b" ".as_slice()].concat().into();
        assert_eq!(status(&receiving.send(&longer).await), 401, "{body:?}");
        assert_eq!(status(&receiving.send(&message).await), 200, "{body:?}");
    }
    let stored: Vec<Vec<u8>> = effects(&store).await.into_iter().map(|(_, body)| body).collect();
    assert_eq!(stored, bodies);
}

async fn repeated_headers(bed: Bed) {
    let (store, receiving) = receiving(bed.db.store(None).await.unwrap()).await;
    for name in [signature::ID, signature::TIMESTAMP, signature::SIGNATURE] {
        let mut message = signed("msg_1", "a", store.now());
        let twice = message.headers.get(name).unwrap().clone();
        message.headers.append(HeaderName::from_static(name), twice);
        let answer = receiving.send(&message).await;
        assert!([400, 401].contains(&status(&answer)), "{name}: {}", answer.status);
        assert!(String::from_utf8_lossy(&answer.body).contains(name), "the reason names {name}");
        let mut message = signed("msg_1", "a", store.now());
        message.headers.remove(name);
        assert_eq!(status(&receiving.send(&message).await), 401, "{name} is missing");
    }
    assert!(effects(&store).await.is_empty());
}

async fn joined_headers(bed: Bed) {
    let (store, receiving) = receiving(bed.db.store(None).await.unwrap()).await;
    let mut joined = signed("msg_1", "a", store.now());
    let value = joined.headers.get(signature::SIGNATURE).unwrap().to_str().unwrap();
    let value = HeaderValue::from_str(&format!("v1,AAAA, {value}")).unwrap();
    joined.headers.insert(HeaderName::from_static(signature::SIGNATURE), value);
    assert!([400, 401].contains(&status(&receiving.send(&joined).await)), "a proxy's comma is no separator");
    assert!(effects(&store).await.is_empty());
}

async fn timestamps(bed: Bed) {
    let clock = ManualClock::new(Timestamp::from_secs(1_614_265_330));
    let store = bed.db.store(Some(Arc::new(clock))).await.unwrap();
    let (store, receiving) = receiving(store).await;
    let odd = [
        "+1614265330",
        "1614265330.0",
        "-9223372036854775808",
        "0x60380ab2",
        "1_614_265_330",
        "99999999999999999999999",
    ];
    for (n, text) in odd.iter().enumerate() {
        let id = format!("msg_{n}");
        let mut message = signed(&id, "a", store.now());
        let mac = mac_over(&id, text, b"a");
        message.headers.insert(HeaderName::from_static(signature::TIMESTAMP), HeaderValue::from_str(text).unwrap());
        message.headers.insert(HeaderName::from_static(signature::SIGNATURE), HeaderValue::from_str(&mac).unwrap());
        assert!([400, 401].contains(&status(&receiving.send(&message).await)), "{text}");
    }
    assert!(effects(&store).await.is_empty());
}

/// The signature over exactly this text of a timestamp, by an implementation of our tests' own.
fn mac_over(id: &str, timestamp: &str, body: &[u8]) -> String {
    use base64::Engine;
    use hmac::{KeyInit, Mac};
    let mut mac = hmac::Hmac::<sha2::Sha256>::new_from_slice(kit::secret().expose()).unwrap();
    mac.update(format!("{id}.{timestamp}.").as_bytes());
    mac.update(body);
    format!("v1,{}", base64::engine::general_purpose::STANDARD.encode(mac.finalize().into_bytes()))
}

async fn tolerance(bed: Bed) {
    let clock = ManualClock::new(Timestamp::from_secs(1_700_000_000));
    let store = bed.db.store(Some(Arc::new(clock.clone()))).await.unwrap();
    let (store, receiving) = receiving(store).await;
    let now = clock.now().as_secs();
    for (offset, expected) in [(-301, 401), (-300, 200), (-299, 200), (299, 200), (300, 200), (301, 401)] {
        let id = format!("msg_{}", offset + 1000);
        let message = signed(&id, "a", Timestamp::from_secs(now + offset));
        assert_eq!(status(&receiving.send(&message).await), expected, "{offset} s");
    }
    assert_eq!(effects(&store).await.len(), 4);
}

async fn parallel(bed: Bed) {
    let store = bed.db.store(None).await.unwrap();
    make_effects(&store).await;
    let handler = Effect { store: store.clone(), takes: Duration::from_millis(20) };
    let receiving = Receiving::start(&store, source(), handler).await;
    for round in 0..5 {
        let message = signed(&format!("msg_{round}"), "a", store.now());
        let answers = kit::send_all(&receiving.hop, vec![message.clone(); 16], 16).await;
        let fine = answers.iter().filter(|answer| answer.status.is_success()).count();
        assert!(fine >= 1);
        assert!(answers.iter().all(|answer| answer.status.is_success() || status(answer) == 503));
        assert!(is_replayed(&receiving.send(&message).await));
    }
    assert_eq!(effects(&store).await.len(), 5);
}

async fn chunked(bed: Bed) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let store = bed.db.store(None).await.unwrap();
    make_effects(&store).await;
    let handler = Effect { store: store.clone(), takes: Duration::ZERO };
    let receiving = Receiving::start(&store, source().body_limit(64 * 1024), handler).await;
    let big = signed("msg_1", vec![b'x'; 64 * 1024 + 1], store.now());
    assert_eq!(status(&receiving.send(&big).await), 413, "by its content-length");
    let mut stream = tokio::net::TcpStream::connect(receiving.address).await.unwrap();
    stream.write_all(b"POST /shop HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
    let chunk = [b"4000\r\n".as_slice(), &[b'x'; 0x4000], b"\r\n"].concat();
    let mut sent = 0;
    // The endless sender is answered, or cut off, long before it has sent what would hurt.
    while sent < 1_000 && stream.write_all(&chunk).await.is_ok() {
        sent += 1;
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 413"), "{answer}");
    assert!(sent < 1_000, "an endless body was read to {sent} chunks");
    assert!(effects(&store).await.is_empty());
}

fn bad_secrets() {
    for text in [
        "",
        "whsec_",
        "whsec_xyz!",
        "whsec_%%%%",
        "whsec_AAAA",
        "v1,whsec_MDEyMzQ1Njc4OWFiY2RlZg==",
        " whsec_MDEyMzQ1Njc4OWFiY2RlZg==\n",
    ] {
        assert!(Secret::parse(text).is_err(), "{text:?}");
        assert!(twiceproof::receiver::Source::standard_webhooks("shop").secret_text(text).build().is_err(), "{text:?}");
    }
    assert!(twiceproof::receiver::Source::standard_webhooks("shop").build().is_err(), "no secret at all");
}
