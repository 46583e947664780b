//! Reads a request's body: bounded while streaming, under a deadline, kept as raw bytes.
//!
//! Place in the path: first; nothing about the sender is known yet.
//! Invariants: what a length header promises is never trusted, bytes are counted as they come; a body is never decoded,
//! since the signature covers it as it was sent.

use std::time::Duration;

use axum::body::HttpBody;
use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap};
use http_body_util::BodyExt;

/// How much a body may have and how long it may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BodyLimits {
    /// Bytes.
    pub(crate) bytes: usize,
    /// From the first look to the last byte.
    pub(crate) time: Duration,
}

/// Reads the whole body.
///
/// # Errors
/// [`BodyError`] says which limit was passed.
pub(crate) async fn read<B>(headers: &HeaderMap, body: B, limits: BodyLimits) -> Result<Bytes, BodyError>
where
    B: HttpBody<Data = Bytes>,
{
    if headers.get_all(header::CONTENT_ENCODING).iter().any(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity"))
    {
        return Err(BodyError::Encoded);
    }
    read_as_it_is(body, limits).await
}

/// Reads the whole body, however it is encoded.
///
/// # Errors
/// [`BodyError`] says which limit was passed.
pub(crate) async fn read_as_it_is<B>(body: B, limits: BodyLimits) -> Result<Bytes, BodyError>
where
    B: HttpBody<Data = Bytes>,
{
    if body.size_hint().lower() > limits.bytes as u64 {
        return Err(BodyError::TooLarge);
    }
    tokio::time::timeout(limits.time, collect(body, limits.bytes)).await.map_err(|_| BodyError::TooSlow)?
}

/// Reads a body of at most `limit` bytes.
///
/// # Errors
/// [`BodyError::TooLarge`] and [`BodyError::Broken`].
pub(crate) async fn collect<B>(body: B, limit: usize) -> Result<Bytes, BodyError>
where
    B: HttpBody<Data = Bytes>,
{
    let mut body = std::pin::pin!(body);
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| BodyError::Broken)?.into_data() else { continue };
        if first.len() + rest.len() + data.len() > limit {
            return Err(BodyError::TooLarge);
        }
        // Most webhooks come in one frame, which needs no copy.
        if first.is_empty() && rest.is_empty() {
            first = data;
        } else {
            if rest.is_empty() {
                rest.extend_from_slice(&std::mem::take(&mut first));
            }
            rest.extend_from_slice(&data);
        }
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

/// Why a body was not read. The texts are safe to answer with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the body is larger than this source accepts")]
    TooLarge,
    #[error("the body did not arrive in time")]
    TooSlow,
    #[error("compressed bodies are not accepted: send the bytes that were signed")]
    Encoded,
    #[error("the body ended early")]
    Broken,
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::Body;
    use futures_util::stream;
    use http::HeaderValue;

    use super::*;

    const LIMITS: BodyLimits = BodyLimits { bytes: 10, time: Duration::from_millis(200) };

    fn chunks(chunks: &[&'static [u8]]) -> Body {
        let chunks: Vec<_> = chunks.iter().map(|chunk| Ok::<_, Infallible>(Bytes::from_static(chunk))).collect();
        Body::from_stream(stream::iter(chunks))
    }

    async fn read(body: Body) -> Result<Bytes, BodyError> {
        super::read(&HeaderMap::new(), body, LIMITS).await
    }

    #[tokio::test]
    async fn the_bytes_are_kept_as_they_came() {
        assert_eq!(read(Body::empty()).await.unwrap(), "");
        assert_eq!(read(Body::from("0123456789")).await.unwrap(), "0123456789");
        assert_eq!(read(chunks(&[b"\xff\xfe", b"", b"\x00", b"a"])).await.unwrap(), &b"\xff\xfe\x00a"[..]);
    }

    #[tokio::test]
    async fn one_byte_too_many_is_refused_with_and_without_a_length() {
        assert_eq!(read(Body::from("0123456789x")).await, Err(BodyError::TooLarge));
        assert_eq!(read(chunks(&[b"01234", b"56789", b"x"])).await, Err(BodyError::TooLarge));
    }

    #[tokio::test]
    async fn an_endless_body_is_refused_as_soon_as_it_is_too_large() {
        let endless = stream::repeat_with(|| Ok::<_, Infallible>(Bytes::from_static(b"x")));
        assert_eq!(read(Body::from_stream(endless)).await, Err(BodyError::TooLarge));
    }

    #[tokio::test]
    async fn a_body_that_stops_coming_is_given_up() {
        let stalled = stream::pending::<Result<Bytes, Infallible>>();
        assert_eq!(read(Body::from_stream(stalled)).await, Err(BodyError::TooSlow));
    }

    #[tokio::test]
    async fn a_broken_body_is_not_a_short_one() {
        let parts = [Ok(Bytes::from_static(b"half")), Err(std::io::Error::other("reset"))];
        assert_eq!(read(Body::from_stream(stream::iter(parts))).await, Err(BodyError::Broken));
    }

    #[tokio::test]
    async fn compressed_bodies_are_refused() {
        for (encoding, expected) in [("gzip", Err(BodyError::Encoded)), ("Identity", Ok(Bytes::from_static(b"x")))] {
            let headers = HeaderMap::from_iter([(header::CONTENT_ENCODING, HeaderValue::from_static(encoding))]);
            assert_eq!(super::read(&headers, Body::from("x"), LIMITS).await, expected);
        }
    }
}
