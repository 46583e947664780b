//! What a described scheme accepts, rule by rule. What other implementations say is in `crate::vectors`.

use http::HeaderValue;

use super::*;

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);
const BODY: &[u8] = br#"{"id":"evt_1"}"#;

/// The HMAC-SHA256 of a text with the key `secret`.
fn mac(text: &[u8]) -> String {
    use ::hmac::{Hmac, KeyInit, Mac};
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(b"secret").unwrap();
    mac.update(text);
    mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(*name, HeaderValue::from_str(value).unwrap());
    }
    headers
}

fn check(scheme: HmacScheme, pairs: &[(&'static str, &str)], body: &[u8]) -> Result<Identity, Refusal> {
    let secrets = vec![Secret::from_text("other").unwrap(), Secret::from_text("secret").unwrap()];
    scheme.id_of_body().verifier(secrets, Duration::from_secs(300)).unwrap().verify(&headers(pairs), body, NOW)
}

fn refused(reason: VerifyError) -> Result<Identity, Refusal> {
    Err(Refusal::Signature(reason))
}

#[test]
fn a_list_may_hold_old_and_new_signatures_and_a_single_value_may_not() {
    let (right, wrong) = (mac(BODY), mac(b""));
    let list = format!("sha256={wrong},sha256={right}");
    let scheme = HmacScheme::new("x-s").prefix("sha256=");
    assert!(check(scheme.clone().list(','), &[("x-s", &list)], BODY).is_ok());
    assert_eq!(check(scheme.clone(), &[("x-s", &list)], BODY), refused(VerifyError::NoMatch));
    let nine = vec![format!("sha256={right}"); 9].join(",");
    assert_eq!(check(scheme.list(','), &[("x-s", &nine)], BODY), refused(VerifyError::TooManySignatures));
}

#[test]
fn labels_are_exact() {
    let right = mac(BODY);
    let scheme = HmacScheme::new("x-s").prefix("v0=");
    assert!(check(scheme.clone(), &[("x-s", &format!("v0={right}"))], BODY).is_ok());
    for label in ["v1=", "V0=", "v0", "", " v0=", "v0==", "v0= "] {
        let outcome = check(scheme.clone(), &[("x-s", &format!("{label}{right}"))], BODY);
        assert_eq!(outcome, refused(VerifyError::NoMatch), "{label:?}");
    }
}

#[test]
fn every_prefix_of_a_right_signature_is_refused() {
    let right = mac(BODY);
    for length in 0..right.len() {
        let outcome = check(HmacScheme::new("x-s"), &[("x-s", &right[..length])], BODY);
        assert_eq!(outcome, refused(VerifyError::NoMatch), "{length}");
    }
}

#[test]
fn the_unit_of_time_is_the_sources_and_is_not_guessed() {
    let seconds = HmacScheme::new("x-s").timestamp_header("x-t").signed("{timestamp}.{body}");
    let millis = seconds.clone().time_unit(TimeUnit::Milliseconds);
    let at = |scheme: &HmacScheme, time: &str| {
        let signature = mac(&[time.as_bytes(), b".", BODY].concat());
        check(scheme.clone(), &[("x-s", &signature), ("x-t", time)], BODY).map(|identity| identity.sent_at)
    };
    assert_eq!(at(&seconds, "1700000000"), Ok(Some(NOW)));
    assert_eq!(at(&millis, "1700000000000"), Ok(Some(NOW)));
    assert_eq!(at(&millis, "1700000000"), Err(Refusal::Signature(VerifyError::TooOld)));
    assert_eq!(at(&seconds, "1700000000000"), Err(Refusal::Signature(VerifyError::MalformedTimestamp)));
    assert_eq!(at(&seconds, "1699999699"), Err(Refusal::Signature(VerifyError::TooOld)));
    assert_eq!(at(&seconds, "1700000301"), Err(Refusal::Signature(VerifyError::TooNew)));
    for time in ["", "+1700000000", "-1", "17e8", "1700000000.0"] {
        assert_eq!(at(&seconds, time), Err(Refusal::Signature(VerifyError::MalformedTimestamp)), "{time:?}");
    }
}

#[test]
fn pairs_have_one_time() {
    let scheme = HmacScheme::new("x-s").pairs("t", "v1").signed("{timestamp}.{body}");
    let right = mac(&[b"1700000000.", BODY].concat());
    let check = |text: &str| check(scheme.clone(), &[("x-s", text)], BODY).map(|_| ());
    let reason = |reason| Err(Refusal::Signature(reason));
    assert_eq!(check(&format!("t=1700000000,v1={right}")), Ok(()));
    assert_eq!(check(&format!("t=1700000000, v0=1, v1=x, v1={right}")), Ok(()));
    assert_eq!(check(&format!("t=1700000000,t=1,v1={right}")), reason(VerifyError::JoinedSignatures));
    assert_eq!(check(&format!("v1={right}")), reason(VerifyError::MalformedTimestamp));
    assert_eq!(check("t=1700000000"), reason(VerifyError::NoMatch));
    assert_eq!(check(&format!("t=1700000000,v0={right}")), reason(VerifyError::NoMatch));
}

#[test]
fn a_signed_id_is_plain() {
    let scheme = HmacScheme::new("x-s").id_header("x-id").signed("{id}.{body}");
    let at = |id: &str| {
        let signature = mac(&[id.as_bytes(), b".", BODY].concat());
        check(scheme.clone(), &[("x-s", &signature), ("x-id", id)], BODY)
    };
    assert_eq!(at("evt_1").unwrap().event_key.as_str(), "evt_1");
    assert_eq!(at("evt.1"), refused(VerifyError::MalformedId));
    let missing = check(scheme.clone(), &[("x-s", &mac(BODY))], BODY);
    assert!(matches!(missing, Err(Refusal::MissingHeader(_))));
}

#[test]
fn a_repeated_signature_header_is_refused_and_the_first_name_counts() {
    let right = mac(BODY);
    let twice = check(HmacScheme::new("x-s"), &[("x-s", &right), ("x-s", &right)], BODY);
    assert!(matches!(twice, Err(Refusal::RepeatedHeader(_))));
    let either = HmacScheme::new("x-s").or_header("x-old");
    assert!(check(either.clone(), &[("x-old", &right)], BODY).is_ok());
    let both = check(either.clone(), &[("x-old", &right), ("x-s", &mac(b""))], BODY);
    assert_eq!(both, refused(VerifyError::NoMatch));
    assert!(matches!(check(either, &[], BODY), Err(Refusal::MissingHeader(name)) if name == "x-s"));
}

#[test]
fn what_does_not_fit_together_is_an_error_when_it_is_built() {
    let build = |scheme: HmacScheme| scheme.verifier(Vec::new(), Duration::from_secs(300)).map(|_| ()).unwrap_err();
    let scheme = || HmacScheme::new("x-s");
    assert_eq!(build(HmacScheme::new("x s")), SchemeError::Header);
    assert_eq!(build(scheme().type_header("x t")), SchemeError::Header);
    assert_eq!(build(scheme().id_pointer("id")), SchemeError::Pointer);
    assert_eq!(build(scheme().signed("{timestamp}")), SchemeError::Template);
    assert_eq!(build(scheme().timestamp_header("x-t")), SchemeError::Timestamp);
    assert_eq!(build(scheme().signed("{timestamp}.{body}")), SchemeError::Timestamp);
    assert_eq!(build(scheme().pairs("t", "v1")), SchemeError::Timestamp);
    assert_eq!(build(scheme().signed("{id}.{body}")), SchemeError::Id);
}
