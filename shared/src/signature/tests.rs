//! Signing and verifying, rule by rule. What other implementations say is in `vectors`.

use super::*;

const NOW: Timestamp = Timestamp::from_secs(1_614_265_330);
const ID_TEXT: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
const BODY: &[u8] = b"{\"test\": 2432232314}";

fn secret(byte: u8) -> Secret {
    Secret::from_bytes(vec![byte; 24]).unwrap()
}

fn check(timestamp: &str, signature: &str) -> Result<Verified, VerifyError> {
    let headers = SignedHeaders { id: ID_TEXT, timestamp, signature };
    verify(&headers, BODY, &[secret(1)], NOW, TOLERANCE)
}

/// A signature over exactly this text, as somebody who knows the secret could send it.
fn signed_text(timestamp: &str) -> String {
    let digest = mac(&secret(1), ID_TEXT, timestamp, BODY).finalize().into_bytes();
    format!("v1,{}", STANDARD.encode(digest))
}

#[test]
fn what_was_signed_verifies() {
    let signature = sign(&[secret(1)], ID_TEXT, NOW, BODY);
    let verified = check("1614265330", &signature).unwrap();
    assert_eq!(verified, Verified { timestamp: NOW, secret_index: 0 });
}

#[test]
fn every_prefix_of_a_right_signature_is_refused() {
    let signature = sign(&[secret(1)], ID_TEXT, NOW, BODY);
    assert_eq!(signature.len(), "v1,".len() + 44);
    for length in 0..=43 {
        let prefix = &signature[.."v1,".len() + length];
        assert_eq!(check("1614265330", prefix), Err(VerifyError::NoMatch), "{length}");
    }
}

#[test]
fn other_spellings_of_a_right_signature_are_refused() {
    // A timestamp for which the base64 has both of the characters that differ in the url-safe alphabet.
    let (now, signature) = (0..)
        .map(|step| NOW.plus(Duration::from_secs(step)))
        .map(|now| (now, sign(&[secret(1)], ID_TEXT, now, BODY)))
        .find(|(_, signature)| signature.contains('+') && signature.contains('/'))
        .unwrap();
    let text = now.as_secs().to_string();
    let check = |signature: &str| {
        let headers = SignedHeaders { id: ID_TEXT, timestamp: &text, signature };
        verify(&headers, BODY, &[secret(1)], now, TOLERANCE)
    };
    assert!(check(&signature).is_ok());
    for other in [
        signature.trim_end_matches('=').to_owned(),
        format!("{signature}="),
        format!("{signature}=="),
        format!("{signature}A"),
        signature.replace('+', "-").replace('/', "_"),
        signature.replace("v1,", "v1, "),
        signature.replace("v1,", "v1,\t"),
        format!("{signature}\t"),
        format!("{signature}\n"),
        signature.replace("v1,", ""),
        signature.replace("v1,", "V1,"),
        signature.replace("v1,", "v1="),
        signature.replace("v1,", "v2,"),
        signature.replace("v1,", "v1a,"),
        signature.to_lowercase(),
    ] {
        assert_eq!(check(&other), Err(VerifyError::NoMatch), "{other:?}");
    }
}

#[test]
fn trailing_bits_of_a_signature_must_be_zero() {
    let signature = sign(&[secret(1)], ID_TEXT, NOW, BODY);
    let last = signature.as_bytes()[signature.len() - 2];
    let sibling = char::from(last + 1);
    let other = format!("{}{sibling}=", &signature[..signature.len() - 2]);
    assert_eq!(check("1614265330", &other), Err(VerifyError::NoMatch));
}

#[test]
fn the_tolerance_holds_both_ways() {
    let signature = sign(&[secret(1)], ID_TEXT, NOW, BODY);
    let headers = SignedHeaders { id: ID_TEXT, timestamp: "1614265330", signature: &signature };
    let at = |now| verify(&headers, BODY, &[secret(1)], now, TOLERANCE).map(|_| ());
    for (secs, late, early) in
        [(299, Ok(()), Ok(())), (300, Ok(()), Ok(())), (301, Err(VerifyError::TooOld), Err(VerifyError::TooNew))]
    {
        assert_eq!(at(NOW.plus(Duration::from_secs(secs))), late, "{secs} s late");
        assert_eq!(at(NOW.minus(Duration::from_secs(secs))), early, "{secs} s early");
    }
    assert_eq!(at(Timestamp::from_millis(i64::MIN)), Err(VerifyError::TooNew));
    assert_eq!(at(Timestamp::from_millis(i64::MAX)), Err(VerifyError::TooOld));
}

#[test]
fn a_wrong_signature_does_not_learn_about_the_clock() {
    assert_eq!(check("1", &signed_text("2")), Err(VerifyError::NoMatch));
    assert_eq!(check("1", &signed_text("1")), Err(VerifyError::TooOld));
}

#[test]
fn malformed_timestamps_are_refused_even_when_rightly_signed() {
    for text in [
        "+1614265330",
        " 161",
        "1614265330 ",
        "-9223372036854775808",
        "9223372036854775807",
        "340282366920938463463374607431768211455",
        "1614265330.0",
        "١٦١٤٢٦٥٣٣٠",
    ] {
        let outcome = check(text, &signed_text(text));
        assert_eq!(outcome, Err(VerifyError::MalformedTimestamp), "{text:?}");
    }
}

#[test]
fn the_signature_covers_the_header_text_not_the_number() {
    assert!(check("01614265330", &signed_text("01614265330")).is_ok());
    assert_eq!(check("01614265330", &signed_text("1614265330")), Err(VerifyError::NoMatch));
}

#[test]
fn a_dot_in_the_id_is_refused_before_it_can_shift_a_field() {
    let secrets = [secret(1)];
    // The same signed bytes: `a.1614265330.1614265330.x`.
    let signature = sign(&secrets, "a", NOW, b"1614265330.x");
    let honest = SignedHeaders { id: "a", timestamp: "1614265330", signature: &signature };
    let shifted = SignedHeaders { id: "a.1614265330", ..honest };
    assert!(verify(&honest, b"1614265330.x", &secrets, NOW, TOLERANCE).is_ok());
    let outcome = verify(&shifted, b"x", &secrets, NOW, TOLERANCE);
    assert_eq!(outcome, Err(VerifyError::MalformedId));
}

#[test]
fn several_secrets_give_several_signatures_and_each_is_enough() {
    let (old, new, other) = (secret(1), secret(2), secret(3));
    let signature = sign(&[old.clone(), new.clone()], ID_TEXT, NOW, BODY);
    assert_eq!(signature.split(' ').count(), 2);
    let headers = SignedHeaders { id: ID_TEXT, timestamp: "1614265330", signature: &signature };
    let index =
        |secrets: &[Secret]| verify(&headers, BODY, secrets, NOW, TOLERANCE).map(|verified| verified.secret_index);
    assert_eq!(index(std::slice::from_ref(&old)), Ok(0));
    assert_eq!(index(&[other.clone(), new]), Ok(1));
    assert_eq!(index(&[other.clone(), other, old]), Ok(2));
}

#[test]
fn no_secret_is_a_refusal_not_a_pass() {
    let headers = SignedHeaders { id: ID_TEXT, timestamp: "1614265330", signature: &signed_text("1614265330") };
    assert_eq!(verify(&headers, BODY, &[], NOW, TOLERANCE), Err(VerifyError::NoMatch));
    assert_eq!(sign(&[], ID_TEXT, NOW, BODY), "");
}

#[test]
fn unknown_versions_are_ignored_beside_a_right_one() {
    let right = signed_text("1614265330");
    let list = format!("v9,whatever {} v1a,AAAA== {right}", signed_text("1"));
    assert!(check("1614265330", &list).is_ok());
    for version in ["v2", "v1a", "v10", "v"] {
        let relabelled = right.replace("v1,", &format!("{version},"));
        assert_eq!(check("1614265330", &relabelled), Err(VerifyError::NoMatch), "{version}");
    }
}

#[test]
fn signatures_joined_by_a_proxy_are_refused_though_one_is_right() {
    let (right, wrong) = (signed_text("1614265330"), signed_text("1"));
    for joined in [format!("{wrong}, {right}"), format!("{right},{wrong}")] {
        assert_eq!(check("1614265330", &joined), Err(VerifyError::JoinedSignatures), "{joined}");
    }
}

#[test]
fn every_byte_of_the_body_counts() {
    let signature = signed_text("1614265330");
    let headers = SignedHeaders { id: ID_TEXT, timestamp: "1614265330", signature: &signature };
    let with_newline = [BODY, b"\n"].concat();
    for body in [&with_newline[..], &BODY[1..], b"", b"{\"test\":2432232314}"] {
        let outcome = verify(&headers, body, &[secret(1)], NOW, TOLERANCE);
        assert_eq!(outcome, Err(VerifyError::NoMatch));
    }
}
