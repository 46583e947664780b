//! What a handler answers. It is stored with the effect and given again to every redelivery.
//!
//! Place in the path: made by the host, turned into the ledger's outcome before the commit.
//! Invariants: what is stored is what is sent the first time too; headers that belong to one connection or one client
//! are in neither.

use bytes::Bytes;
use http::StatusCode;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use serde::Serialize;
use twiceproof_shared::ledger::Outcome;

use crate::answer::REPLAYED;

/// An answer: status, headers, body.
#[derive(Debug, Clone)]
pub struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Reply {
    /// 200 without a body.
    #[must_use]
    pub fn ok() -> Self {
        Self::new(StatusCode::OK)
    }

    /// This status without a body. A status other than 2xx makes most senders deliver again, and they will get the same
    /// answer.
    #[must_use]
    pub fn new(status: StatusCode) -> Self {
        Self { status, headers: HeaderMap::new(), body: Bytes::new() }
    }

    /// Sets the body and its content type.
    #[must_use]
    pub fn body(mut self, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        self.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        self.body = body.into();
        self
    }

    /// Sets a plain text as the body.
    #[must_use]
    pub fn text(self, body: impl Into<String>) -> Self {
        self.body("text/plain; charset=utf-8", body.into())
    }

    /// Sets a value as JSON as the body.
    ///
    /// # Errors
    /// When the value cannot be written as JSON (a map whose keys are no texts).
    pub fn json(self, value: &impl Serialize) -> serde_json::Result<Self> {
        Ok(self.body("application/json", serde_json::to_vec(value)?))
    }

    /// Adds a header. Cookies and headers that belong to the connection are left out when the reply is stored.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.append(name, value);
        self
    }

    /// What the ledger stores.
    ///
    /// # Errors
    /// [`UnusableReply`] says why this cannot be an answer.
    pub(crate) fn into_outcome(self) -> Result<Outcome, UnusableReply> {
        if !(200..600).contains(&self.status.as_u16()) {
            return Err(UnusableReply::Status(self.status));
        }
        let mut headers = Vec::with_capacity(self.headers.len());
        for (name, value) in &self.headers {
            if LEFT_OUT.contains(name) || name.as_str() == REPLAYED {
                continue;
            }
            let value = value.to_str().map_err(|_| UnusableReply::Header(name.clone()))?;
            headers.push((name.to_string(), value.to_owned()));
        }
        Ok(Outcome { status: self.status.as_u16(), headers, body: self.body })
    }
}

/// A reply that no client could be given, or that could not be stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnusableReply {
    #[error("{0} is not the status of a final answer")]
    Status(StatusCode),
    #[error("the header `{0}` of the reply is not visible ASCII")]
    Header(HeaderName),
}

/// Of one client or one connection: nothing to give to the next one.
pub(crate) const LEFT_OUT: [HeaderName; 11] = [
    header::SET_COOKIE,
    header::AUTHORIZATION,
    header::PROXY_AUTHENTICATE,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::DATE,
    HeaderName::from_static("keep-alive"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_and_headers_of_the_connection_are_left_out() {
        let reply = Reply::ok()
            .text("done")
            .header(header::SET_COOKIE, HeaderValue::from_static("session=1"))
            .header(header::CONTENT_LENGTH, HeaderValue::from_static("99"))
            .header(header::AUTHORIZATION, HeaderValue::from_static("Bearer 1"))
            .header(HeaderName::from_static(REPLAYED), HeaderValue::from_static("true"))
            .header(HeaderName::from_static("x-invoice"), HeaderValue::from_static("7"));
        let outcome = reply.into_outcome().unwrap();
        let names: Vec<_> = outcome.headers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["content-type", "x-invoice"]);
        assert_eq!((outcome.status, &outcome.body[..]), (200, &b"done"[..]));
    }

    #[test]
    fn the_order_of_repeated_headers_is_kept() {
        let name = HeaderName::from_static("link");
        let reply = Reply::ok()
            .header(name.clone(), HeaderValue::from_static("one"))
            .header(name, HeaderValue::from_static("two"));
        let values: Vec<_> = reply.into_outcome().unwrap().headers.into_iter().map(|(_, value)| value).collect();
        assert_eq!(values, ["one", "two"]);
    }

    #[test]
    fn interim_statuses_and_headers_that_cannot_be_stored_are_errors() {
        assert!(Reply::new(StatusCode::CONTINUE).into_outcome().is_err());
        let value = HeaderValue::from_bytes(b"\xff").unwrap();
        assert!(Reply::ok().header(header::ETAG, value).into_outcome().is_err());
    }

    #[test]
    fn a_value_becomes_json() {
        let outcome = Reply::ok().json(&serde_json::json!({"number": 7})).unwrap().into_outcome().unwrap();
        assert_eq!(&outcome.body[..], b"{\"number\":7}");
        assert_eq!(outcome.headers, [("content-type".to_owned(), "application/json".to_owned())]);
    }
}
