//! Vectors that other implementations made: the project's own (`tests/vectors/`, from a script that knows nothing of
//! this code). The receiver's vectors go on from here: other schemes, and vectors from elsewhere.

use std::time::Duration;

use serde::Deserialize;

use super::{PrivateKey, SignedHeaders, VerifyError, VerifyingKey, sign, verify, verify_with};
use crate::clock::Timestamp;
use crate::secret::{InvalidSecret, Secret};

#[derive(Deserialize)]
struct File {
    vectors: Vec<Vector>,
}

#[derive(Deserialize)]
struct Vector {
    id: String,
    #[serde(default)]
    secret: serde_json::Value,
    #[serde(default)]
    secrets: Vec<String>,
    #[serde(default)]
    signing_key: Option<String>,
    #[serde(default)]
    headers: Vec<(String, String)>,
    #[serde(default)]
    header_prefix: Option<String>,
    #[serde(default)]
    now_unix: Option<i64>,
    #[serde(default)]
    tolerance_s: Option<u64>,
    expect: String,
    #[serde(default)]
    body: String,
    #[serde(default)]
    body_base64: Option<String>,
    #[serde(default)]
    body_hex: Option<String>,
    #[serde(default)]
    why: String,
}

impl Vector {
    fn secret_texts(&self) -> Vec<&str> {
        let one = self.secret.as_str().into_iter();
        one.chain(self.secrets.iter().map(String::as_str)).collect()
    }

    fn body(&self) -> Vec<u8> {
        use base64::Engine as _;
        match (&self.body_base64, &self.body_hex) {
            (Some(text), _) => base64::engine::general_purpose::STANDARD.decode(text).unwrap(),
            (None, Some(text)) => {
                (0..text.len() / 2).map(|at| u8::from_str_radix(&text[at * 2..at * 2 + 2], 16).unwrap()).collect()
            }
            (None, None) => self.body.clone().into_bytes(),
        }
    }

    /// A header as the receiver reads it: absent, or refused when it is repeated.
    fn header(&self, name: &str) -> Option<&str> {
        let name = format!("{}{name}", self.header_prefix.as_deref().unwrap_or("webhook-"));
        let mut values = self.headers.iter().filter(|(other, _)| other.eq_ignore_ascii_case(&name));
        let value = values.next();
        value.filter(|_| values.next().is_none()).map(|(_, value)| value.as_str())
    }

    fn result(&self) -> &'static str {
        let keys: Result<Vec<_>, _> = self.secret_texts().into_iter().map(VerifyingKey::parse).collect();
        let Ok(keys) = keys else {
            return "config_error";
        };
        let (Some(id), Some(timestamp), Some(signature)) =
            (self.header("id"), self.header("timestamp"), self.header("signature"))
        else {
            return "invalid";
        };
        let headers = SignedHeaders { id, timestamp, signature };
        let now = Timestamp::from_secs(self.now_unix.expect("needs the time"));
        let tolerance = Duration::from_secs(self.tolerance_s.expect("needs the tolerance"));
        match verify_with(&headers, &self.body(), &keys, now, tolerance) {
            Ok(_) => "valid",
            Err(_) => "invalid",
        }
    }
}

#[test]
fn vectors_of_an_independent_implementation_agree() {
    let text = include_str!("../../../tests/vectors/standard_webhooks.json");
    let file: File = serde_json::from_str(text).unwrap();
    assert!(file.vectors.len() >= 50, "only {} vectors", file.vectors.len());
    for expect in ["valid", "invalid", "config_error"] {
        assert!(file.vectors.iter().any(|vector| vector.expect == expect), "none is {expect}");
    }
    for vector in &file.vectors {
        assert_eq!(vector.result(), vector.expect, "{}: {}", vector.id, vector.why);
    }
}

#[test]
fn our_own_signatures_are_those_of_an_independent_implementation() {
    let text = include_str!("../../../tests/vectors/standard_webhooks.json");
    let file: File = serde_json::from_str(text).unwrap();
    let mut compared = 0;
    for vector in file.vectors.iter().filter(|vector| vector.id.starts_with("sign-")) {
        let secrets: Vec<_> = vector.secret_texts().into_iter().map(|text| Secret::parse(text).unwrap()).collect();
        let timestamp = vector.header("timestamp").unwrap().parse().unwrap();
        let ours = sign(&secrets, vector.header("id").unwrap(), Timestamp::from_secs(timestamp), &vector.body());
        assert_eq!(ours, vector.header("signature").unwrap(), "{}", vector.id);
        compared += 1;
    }
    assert!(compared >= 5, "only {compared} compared");
}

#[test]
fn a_private_key_of_another_implementation_signs_as_it_did_there() {
    let text = include_str!("../../../tests/vectors/asymmetric.json");
    let file: File = serde_json::from_str(text).unwrap();
    for vector in &file.vectors {
        assert_eq!(vector.result(), vector.expect, "{}: {}", vector.id, vector.why);
    }
    let mut compared = 0;
    for vector in file.vectors.iter().filter(|vector| vector.id.starts_with("sign-")) {
        let key = PrivateKey::parse(vector.signing_key.as_deref().unwrap()).unwrap();
        let timestamp = Timestamp::from_secs(vector.header("timestamp").unwrap().parse().unwrap());
        let ours = key.sign(vector.header("id").unwrap(), timestamp, &vector.body());
        assert_eq!(ours, vector.header("signature").unwrap(), "{}", vector.id);
        assert_eq!([key.public().to_text().as_str()], *vector.secret_texts());
        compared += 1;
    }
    assert!(compared >= 3, "only {compared} compared");
}

#[test]
fn a_key_of_the_asymmetric_scheme_is_no_shared_secret() {
    let key = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=";
    assert_eq!(Secret::parse(key).unwrap_err(), InvalidSecret::Asymmetric);
    // And their signatures, relabelled, match no shared secret.
    let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
    let headers = SignedHeaders {
        id: "msg_p5jXN8AQM9LWM0D4loKWxJek",
        timestamp: "1614265330",
        signature: "v1,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg==",
    };
    let now = Timestamp::from_secs(1_614_265_330);
    let outcome = verify(&headers, b"{}", &[secret], now, super::TOLERANCE);
    assert_eq!(outcome, Err(VerifyError::NoMatch));
}
