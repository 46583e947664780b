//! Providers and described schemes through a receiver on a real socket: who is let in, and that each event acts once.

use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, HeaderName, HeaderValue};
use sha2::Sha256;
use twiceproof::prove::{Answer, Message};
use twiceproof::receiver::schemes::{HmacScheme, TimeUnit};
use twiceproof::receiver::{Source, SourceBuilder, SourceError};
use twiceproof_shared::secret::InvalidSecret;
use twiceproof_shared::signature::{PrivateKey, SIGNATURE};
use twiceproof_shared::store::Store;

use crate::harness::{Bed, Suite};
use crate::kit::{self, Effect, Receiving, effects, make_effects};

pub fn register(suite: &mut Suite) {
    suite.both("schemes::recv_24_old_and_new_signature_in_one_header_are_each_tried", rolled);
    suite.both("schemes::recv_39_a_stripe_header_that_a_proxy_joined_is_refused", joined);
    suite.both("schemes::recv_41_the_algorithm_comes_from_the_source_not_from_the_header", algorithm);
    suite.both("schemes::recv_43_another_label_before_a_right_signature_is_refused", label);
    suite.both("schemes::recv_56_seconds_are_not_taken_for_milliseconds", |bed| unit(bed, TimeUnit::Milliseconds, 1));
    suite.both("schemes::recv_57_milliseconds_are_not_taken_for_seconds", |bed| unit(bed, TimeUnit::Seconds, 1_000));
    suite.plain("schemes::recv_33_a_secret_with_a_stray_line_break_is_an_error_that_says_so", stray);
    suite.plain("schemes::recv_47_an_empty_key_is_refused_when_the_source_is_built", empty_keys);
    suite.both("schemes::a_stripe_resend_with_other_volatile_fields_is_a_repeat", volatile);
    suite.both("schemes::a_slack_command_without_an_id_acts_once", slack);
    suite.both("schemes::one_shopify_event_under_two_topics_acts_twice", shopify);
    suite.both("schemes::github_counts_sha256_alone_and_acts_once_for_each_hook", github);
    suite.both("schemes::a_source_with_a_public_key_ignores_shared_secrets", asymmetric);
}

const SECRET: &str = "a text that is the key";
const BODY: &str = r#"{"id":"evt_1","type":"order.paid"}"#;

async fn receiving(bed: &Bed, source: SourceBuilder) -> (Store, Receiving) {
    let store = bed.db.store(None).await.unwrap();
    make_effects(&store).await;
    let handler = Effect { store: store.clone(), takes: Duration::ZERO };
    let receiving = Receiving::start(&store, source, handler).await;
    (store, receiving)
}

fn mac(secret: &str, text: &str) -> String {
    digest(secret, text).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn digest(secret: &str, text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn message(headers: &[(&str, &str)], body: &str) -> Message {
    let headers: HeaderMap = headers
        .iter()
        .map(|(name, value)| (HeaderName::try_from(*name).unwrap(), HeaderValue::from_str(value).unwrap()))
        .collect();
    Message { path: "/shop".to_owned(), headers, body: body.to_owned().into() }
}

fn status(answer: &Answer) -> u16 {
    answer.status.as_u16()
}

async fn rolled(bed: Bed) {
    let scheme = HmacScheme::new("x-signature").prefix("sha256=").list(',').id_pointer("/id");
    let source = Source::hmac("shop", scheme).secret_text(SECRET).secret_text("the next key");
    let (store, receiving) = receiving(&bed, source).await;
    let (old, new, other) = (mac(SECRET, BODY), mac("the next key", BODY), mac("another", BODY));
    for (list, expected) in [
        (format!("sha256={other},sha256={new}"), 200),
        (format!("sha256={old},sha256={other}"), 200),
        (format!("sha256={old}"), 200),
        (format!("sha256={other},sha256={other}"), 401),
        (format!("{old},{new}"), 401),
    ] {
        let answer = receiving.send(&message(&[("x-signature", &list)], BODY)).await;
        assert_eq!(status(&answer), expected, "{list}");
    }
    assert_eq!(effects(&store).await.len(), 1);
}

fn stripe(store: &Store, secret: &str, body: &str) -> String {
    let time = store.now().as_secs();
    format!("t={time},v1={}", mac(secret, &format!("{time}.{body}")))
}

async fn joined(bed: Bed) {
    let (store, receiving) = receiving(&bed, Source::stripe("shop").secret_text(SECRET)).await;
    let (right, wrong) = (stripe(&store, SECRET, BODY), stripe(&store, "another", BODY));
    for header in [format!("{wrong}, {right}"), format!("{right},{right}")] {
        let answer = receiving.send(&message(&[("stripe-signature", &header)], BODY)).await;
        assert_eq!(status(&answer), 400, "{header}");
    }
    let mut twice = message(&[("stripe-signature", &right)], BODY);
    twice.headers.append("stripe-signature", HeaderValue::from_str(&wrong).unwrap());
    assert_eq!(status(&receiving.send(&twice).await), 400);
    assert!(effects(&store).await.is_empty());
}

/// One sender puts SHA-256 under the name that others use for SHA-1.
async fn algorithm(bed: Bed) {
    let scheme = HmacScheme::new("x-hub-signature").prefix("sha256=").id_header("x-request-uuid");
    let (store, receiving) = receiving(&bed, Source::hmac("shop", scheme).secret_text(SECRET)).await;
    let right = mac(SECRET, BODY);
    for (value, expected) in [
        (format!("sha1={right}"), 401),
        (format!("sha1={}", &right[..40]), 401),
        (format!("sha256={}", &right[..40]), 401),
        (format!("sha256={right}"), 200),
    ] {
        let answer = receiving.send(&message(&[("x-hub-signature", &value), ("x-request-uuid", "1")], BODY)).await;
        assert_eq!(status(&answer), expected, "{value}");
    }
    assert_eq!(effects(&store).await.len(), 1);
}

fn slack_headers(store: &Store, label: &str, body: &str) -> [(&'static str, String); 2] {
    let time = store.now().as_secs().to_string();
    let signature = format!("{label}={}", mac(SECRET, &format!("v0:{time}:{body}")));
    [("x-slack-request-timestamp", time), ("x-slack-signature", signature)]
}

async fn send_slack(receiving: &Receiving, store: &Store, label: &str, body: &str) -> Answer {
    let headers = slack_headers(store, label, body);
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    receiving.send(&message(&headers, body)).await
}

async fn label(bed: Bed) {
    let (store, receiving) = receiving(&bed, Source::slack("shop").secret_text(SECRET)).await;
    for label in ["v1", "v9", "V0", "", "sha256"] {
        let answer = send_slack(&receiving, &store, label, BODY).await;
        assert_eq!(status(&answer), 401, "{label}");
        let said = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(!said.contains(&mac(SECRET, BODY)[..8]) && said.contains("no webhook signature matches"), "{said}");
    }
    assert!(effects(&store).await.is_empty());
    assert_eq!(status(&send_slack(&receiving, &store, "v0", BODY).await), 200);
}

/// The sender counts in `factor` to the second, rightly signed; the source reads another unit.
async fn unit(bed: Bed, read: TimeUnit, factor: i64) {
    let scheme =
        HmacScheme::new("x-signature").timestamp_header("x-time").signed("{timestamp}.{body}").id_pointer("/id");
    let source = Source::hmac("shop", scheme.time_unit(read)).secret_text(SECRET);
    let (store, receiving) = receiving(&bed, source).await;
    let send = async |time: i64| {
        let signature = mac(SECRET, &format!("{time}.{BODY}"));
        let headers = [("x-signature", signature.as_str()), ("x-time", &time.to_string())];
        status(&receiving.send(&message(&headers, BODY)).await)
    };
    assert_eq!(send(store.now().as_secs() * factor).await, 401);
    assert!(effects(&store).await.is_empty());
    let right = 1_000 / factor;
    assert_eq!(send(store.now().as_secs() * right).await, 200);
    assert_eq!(send((store.now().as_secs() - 301) * right).await, 401, "too old in the right unit");
    assert_eq!(send((store.now().as_secs() + 310) * right).await, 401, "too new in the right unit");
}

fn of_each_provider() -> [SourceBuilder; 5] {
    let scheme = HmacScheme::new("x-signature").id_of_body();
    [Source::github("s"), Source::stripe("s"), Source::slack("s"), Source::shopify("s"), Source::hmac("s", scheme)]
}

fn stray() {
    for text in ["whsec_x\n", " whsec_x", "whsec_x\r\n", "whsec\nx"] {
        for source in of_each_provider() {
            let error = source.secret_text(text).build().unwrap_err();
            assert_eq!(error, SourceError::Secret(InvalidSecret::Whitespace), "{text:?}");
        }
    }
    assert!(InvalidSecret::Whitespace.to_string().contains("line break"));
}

fn empty_keys() {
    for source in of_each_provider() {
        assert_eq!(source.build().unwrap_err(), SourceError::NoSecret);
    }
    for source in of_each_provider() {
        // A good one beside it does not help.
        let error = source.secret_text(SECRET).secret_text("").build().unwrap_err();
        assert_eq!(error, SourceError::Secret(InvalidSecret::Empty));
    }
}

async fn volatile(bed: Bed) {
    let (store, receiving) = receiving(&bed, Source::stripe("shop").secret_text(SECRET)).await;
    let send = async |body: &str| {
        let answer = receiving.send(&message(&[("stripe-signature", &stripe(&store, SECRET, body))], body)).await;
        (status(&answer), answer.headers.contains_key("idempotent-replayed"))
    };
    assert_eq!(send(r#"{"id":"evt_1","pending_webhooks":2,"amount":1}"#).await, (200, false));
    assert_eq!(send(r#"{"id":"evt_1","pending_webhooks":1,"amount":1}"#).await, (200, true));
    // Anything else is another payload, kept for review.
    assert_eq!(send(r#"{"id":"evt_1","pending_webhooks":1,"amount":100}"#).await, (202, false));
    // Rightly signed, but what event it is nobody can say.
    assert_eq!(send(r#"{"amount":1}"#).await, (400, false));
    assert_eq!(effects(&store).await.len(), 1);
}

async fn slack(bed: Bed) {
    let (store, receiving) = receiving(&bed, Source::slack("shop").secret_text(SECRET)).await;
    let event = r#"{"type":"event_callback","event_id":"Ev1","event":{"type":"message"}}"#;
    let command = "command=%2Fweather&text=94070&trigger_id=13345224609.738474920.8088930838d88f008e0";
    for body in [event, command, event, command] {
        assert_eq!(status(&send_slack(&receiving, &store, "v0", body).await), 200);
    }
    let effects = effects(&store).await;
    assert_eq!(effects.len(), 2);
    assert!(effects[0].0 == "Ev1" && effects[1].0.starts_with("sha256:"), "{effects:?}");
}

async fn shopify(bed: Bed) {
    use base64::Engine as _;
    let (store, receiving) = receiving(&bed, Source::shopify("shop").secret_text(SECRET)).await;
    let signature = base64::engine::general_purpose::STANDARD.encode(digest(SECRET, BODY));
    for topic in ["orders/create", "orders/create", "orders/paid"] {
        let headers =
            [("x-shopify-hmac-sha256", signature.as_str()), ("x-shopify-topic", topic), ("x-shopify-event-id", "e-1")];
        assert_eq!(status(&receiving.send(&message(&headers, BODY)).await), 200);
    }
    assert_eq!(effects(&store).await.len(), 2);
}

async fn github(bed: Bed) {
    let (store, receiving) = receiving(&bed, Source::github("shop").secret_text(SECRET)).await;
    let signature = format!("sha256={}", mac(SECRET, BODY));
    for (header, hook, expected) in [
        ("x-hub-signature-256", "1", 200),
        ("x-hub-signature-256", "1", 200),
        // The GUID is shared by all hooks that got the event.
        ("x-hub-signature-256", "2", 200),
        ("x-hub-signature", "3", 401),
    ] {
        let headers = [(header, signature.as_str()), ("x-github-hook-id", hook), ("x-github-delivery", "guid")];
        assert_eq!(status(&receiving.send(&message(&headers, BODY)).await), expected);
    }
    assert_eq!(effects(&store).await.len(), 2);
}

async fn asymmetric(bed: Bed) {
    let key = PrivateKey::parse("whsk_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=").unwrap();
    let source = Source::standard_webhooks("shop").public_key(key.public());
    let (store, receiving) = receiving(&bed, source).await;
    let mut message = kit::signed("msg_1", BODY, store.now());
    assert_eq!(status(&receiving.send(&message).await), 401, "signed with a shared secret");
    let shared = message.headers[SIGNATURE].to_str().unwrap().to_owned();
    let right = key.sign("msg_1", store.now(), BODY.as_bytes());
    let time = HeaderValue::from(store.now().as_secs());
    message.headers.insert("webhook-timestamp", time);
    for (value, expected) in [
        (right.replace("v1a,", "v1,"), 401),
        (shared.replace("v1,", "v1a,"), 401),
        (format!("{shared} {right}"), 200),
        (right, 200),
    ] {
        message.headers.insert(SIGNATURE, HeaderValue::from_str(&value).unwrap());
        assert_eq!(status(&receiving.send(&message).await), expected, "{value}");
    }
    assert_eq!(effects(&store).await.len(), 1);
}
