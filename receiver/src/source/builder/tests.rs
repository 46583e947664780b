//! What a source must have, and what it must not.

use super::*;
use crate::schemes::HmacScheme;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn orders() -> SourceBuilder {
    Source::standard_webhooks("orders").secret_text(SECRET)
}

#[test]
fn the_scope_names_source_and_consumer() {
    let source = orders().tenant("app_1").consumer("invoices").build().unwrap();
    assert_eq!(source.scope().as_str(), "source:orders/invoices");
    assert_eq!(source.tenant().as_str(), "app_1");
    assert_eq!(orders().build().unwrap().scope().as_str(), "source:orders/default");
}

#[test]
fn the_defaults_are_those_of_the_table() {
    let source = orders().build().unwrap();
    assert_eq!(source.retention(), 30 * DAY);
    assert_eq!(source.limits().body.bytes, 1_048_576);
    assert_eq!(source.limits().handler_deadline, Duration::from_secs(2));
    assert_eq!(source.limits().in_flight_wait, Duration::ZERO);
    assert!(source.limits().conflict_status.is_success());
}

#[test]
fn a_source_without_a_usable_secret_is_an_error() {
    assert_eq!(Source::standard_webhooks("orders").build().unwrap_err(), SourceError::NoSecret);
    for (text, error) in [
        ("", InvalidSecret::Empty),
        ("whsec_", InvalidSecret::Empty),
        ("v1,whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", InvalidSecret::VersionPrefix),
        ("whsk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=", InvalidSecret::PrivateKey),
        ("whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4", InvalidSecret::NotAKey),
        ("whsec_xyz!", InvalidSecret::NotBase64),
    ] {
        // One good secret does not hide a bad one.
        let built = orders().secret_text(text).build();
        assert_eq!(built.unwrap_err(), SourceError::Secret(error), "{text}");
    }
}

#[test]
fn a_public_key_is_enough() {
    let key = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=";
    assert!(Source::standard_webhooks("orders").secret_text(key).build().is_ok());
    assert!(Source::standard_webhooks("orders").public_key(PublicKey::parse(key).unwrap()).build().is_ok());
    let error = Source::github("code").secret_text(key).build().unwrap_err();
    assert_eq!(error, SourceError::Secret(InvalidSecret::Asymmetric));
}

#[test]
fn a_provider_brings_its_own_times_and_sizes() {
    let of = |source: SourceBuilder| source.secret_text("a text that is the key").build().unwrap();
    // 1.2 × 3 d of retries + 30 d of resends.
    assert_eq!(of(Source::stripe("stripe")).retention(), Duration::from_secs(33 * 86_400 + 51_840));
    assert_eq!(of(Source::slack("slack")).retention(), 30 * DAY);
    assert_eq!(of(Source::github("github")).limits().body.bytes, 25 * 1024 * 1024);
    assert_eq!(of(Source::shopify("shopify")).limits().body.bytes, 1024 * 1024);
    assert!(Source::stripe("stripe").secret_text("secret").retention(30 * DAY).build().is_err());
}

#[test]
fn a_described_scheme_must_say_how_events_are_recognised() {
    let build = |scheme| Source::hmac("shop", scheme).secret_text("secret").build().map(|_| ());
    assert_eq!(build(HmacScheme::new("x-signature")), Err(SourceError::Scheme(SchemeError::Id)));
    assert_eq!(build(HmacScheme::new("x-signature").id_of_body()), Ok(()));
}

#[test]
fn four_secrets_may_be_live() {
    let of = |count: usize| (1..count).fold(orders(), |source, _| source.secret_text(SECRET)).build();
    assert!(of(4).is_ok());
    assert_eq!(of(5).unwrap_err(), SourceError::TooManySecrets { count: 5 });
}

#[test]
fn names_must_fit_a_path_and_a_scope() {
    for name in ["", "a/b", "a b", "a:b", "ä", "..", &"x".repeat(101)] {
        let built = Source::standard_webhooks(name).secret_text(SECRET).build();
        assert_eq!(built.unwrap_err(), SourceError::Label { field: "name" }, "{name}");
        assert!(orders().consumer(name).build().is_err(), "{name}");
    }
    assert!(orders().tenant("a b").build().is_err());
    assert!(orders().consumer("x".repeat(100)).build().is_ok());
}

#[test]
fn retention_covers_the_senders_horizon_and_its_resends() {
    // 1.2 × 100 h + 10 d = 15 d
    let source = || orders().sender_horizon(100 * HOUR).sender_resends(10 * DAY);
    assert!(source().retention(15 * DAY).build().is_ok());
    let short = 15 * DAY - Duration::from_millis(1);
    let error = source().retention(short).build().unwrap_err();
    assert_eq!(error, SourceError::Retention { retention: short, needed: 15 * DAY });
    let accepted = source().retention(short).accept_short_retention().build().unwrap();
    assert_eq!(accepted.retention(), short);
    assert_eq!(source().sender_resends(60 * DAY).build().unwrap().retention(), 65 * DAY);
}

#[test]
fn retention_outlives_the_tolerance() {
    let source = orders().sender_horizon(Duration::ZERO).retention(Duration::from_secs(599));
    assert!(source.build().is_err());
}

#[test]
fn limits_out_of_range_are_named() {
    let error = |source: SourceBuilder| source.build().unwrap_err();
    assert_eq!(error(orders().tolerance(Duration::ZERO)), SourceError::Limit { field: "tolerance" });
    assert_eq!(error(orders().body_limit(0)), SourceError::Limit { field: "body limit" });
    assert_eq!(error(orders().handler_deadline(Duration::ZERO)), SourceError::Limit { field: "handler deadline" });
    assert_eq!(error(orders().in_flight_wait(HOUR)), SourceError::Limit { field: "in-flight wait" });
    let status = StatusCode::from_u16(199).unwrap();
    assert_eq!(error(orders().conflict_status(status)), SourceError::Limit { field: "conflict status" });
}

#[test]
fn a_source_does_not_show_its_secrets() {
    let shown = format!("{:?}", orders().build().unwrap());
    assert!(shown.contains("Secret(redacted)"));
}
