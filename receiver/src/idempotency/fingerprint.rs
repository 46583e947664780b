//! What makes two requests under one key the same request, and under which scope its key is kept.
//!
//! Invariants: a change of what goes in takes a new version, because fingerprints of different versions are never compared;
//! parts are separated by their lengths, so that no two requests run together.

use axum::extract::{MatchedPath, OriginalUri};
use http::header;
use http::request::Parts;
use sha2::{Digest, Sha256};
use twiceproof_shared::key::Key;
use twiceproof_shared::ledger::Fingerprint;

/// Method, full path, query, media type without parameters, and body.
pub(super) fn of(head: &Parts, body: &[u8]) -> Fingerprint {
    // A router that is nested in another one sees the rest of the path only.
    let uri = head.extensions.get::<OriginalUri>().map_or(&head.uri, |OriginalUri(uri)| uri);
    let media_type = head.headers.get(header::CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    let media_type = media_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let parts = [
        head.method.as_str().as_bytes(),
        uri.path().as_bytes(),
        uri.query().unwrap_or_default().as_bytes(),
        &media_type.to_ascii_lowercase(),
        body,
    ];
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    Fingerprint { version: Fingerprint::REQUEST_V1, hash: hash.finalize().into() }
}

/// The route as a scope: method and matched path, or method and path where no router matched one.
pub(super) fn scope(head: &Parts) -> Key {
    let path = head.extensions.get::<MatchedPath>().map_or_else(|| head.uri.path(), MatchedPath::as_str);
    let route = format!("{}:{path}", head.method);
    // A path may be longer than a key, and not ASCII. A hash fits.
    Key::new(route.clone())
        .or_else(|_| Key::new(hashed(&route)))
        .expect("a hash is as short and as plain as a key has to be")
}

fn hashed(route: &str) -> String {
    let hash = Sha256::digest(route.as_bytes());
    hash.iter().fold("route:".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use http::Request;

    use super::*;

    fn head(method: &str, uri: &str, media_type: Option<&str>) -> Parts {
        let mut request = Request::builder().method(method).uri(uri);
        if let Some(media_type) = media_type {
            request = request.header(header::CONTENT_TYPE, media_type);
        }
        request.body(Body::empty()).unwrap().into_parts().0
    }

    #[test]
    fn method_path_query_media_type_and_body_tell_requests_apart() {
        let json = Some("application/json");
        let same = of(&head("POST", "/a?b=1", json), b"x");
        assert_eq!(same, of(&head("POST", "http://elsewhere/a?b=1", Some("Application/JSON ; charset=utf-8")), b"x"));
        for (other, body) in [
            (head("PUT", "/a?b=1", json), b"x"),
            (head("POST", "/a/?b=1", json), b"x"),
            (head("POST", "/a?b=2", json), b"x"),
            (head("POST", "/a", json), b"x"),
            (head("POST", "/a?b=1", None), b"x"),
            (head("POST", "/a?b=1", Some("text/plain")), b"x"),
            (head("POST", "/a?b=1", json), b"y"),
        ] {
            assert_ne!(same, of(&other, body), "{other:?}");
        }
    }

    #[test]
    fn the_full_path_counts_where_a_router_is_nested() {
        let nested = |full: &str| {
            let mut head = head("POST", "/a", None);
            head.extensions.insert(OriginalUri(full.parse().unwrap()));
            of(&head, b"")
        };
        assert_ne!(nested("/one/a"), nested("/two/a"));
    }

    #[test]
    fn parts_do_not_run_together() {
        assert_ne!(of(&head("POST", "/a?b", None), b""), of(&head("POST", "/a", None), b"b"));
    }

    #[test]
    fn a_scope_is_method_and_path_and_a_hash_where_that_is_no_key() {
        assert_eq!(scope(&head("POST", "/a?b=1", None)).as_str(), "POST:/a");
        let long = format!("/{}", "a".repeat(300));
        let (one, other) = (scope(&head("POST", &long, None)), scope(&head("PUT", &long, None)));
        assert!(one.as_str().starts_with("route:") && one != other);
    }
}
