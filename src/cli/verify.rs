//! `twiceproof verify`: judges one request, or a file of them, as a source of the receiver would.

use std::io::{IsTerminal as _, Read as _, stdin};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::json;
use twiceproof::clock::{Clock as _, SystemClock, Timestamp};
use twiceproof::receiver::schemes::{KeySource, Provider};
use twiceproof::receiver::{Identity, Refusal, Verifier};
use twiceproof::signature::{TOLERANCE, VerifyError};
use zeroize::Zeroizing;

use super::global::Global;
use super::{output, verify_vectors};

/// Judge a signed request, or a file of test vectors
///
/// One request: --provider, --secret-file, each --header as it came, and the body byte for byte from --body-file or from
/// standard input. A file of vectors: --vectors. The exit code is 1 for a request that is refused and for vectors of which
/// one deviates from what it expects.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Who sends: standard-webhooks, svix, openai, github, stripe, slack or shopify; of vectors, whose to judge
    #[arg(long, value_name = "NAME", required_unless_present = "vectors")]
    provider: Option<String>,

    /// A file with the secret, or with the public key (whpk_…); repeat it for several
    #[arg(long = "secret-file", value_name = "FILE", required_unless_present = "vectors")]
    secret_files: Vec<PathBuf>,

    /// A header of the request; repeat it for several
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = header)]
    headers: Vec<(HeaderName, HeaderValue)>,

    /// The file with the raw body
    #[arg(long, value_name = "FILE")]
    body_file: Option<PathBuf>,

    /// When the request came, in seconds since 1970 [default: now]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    now: Option<i64>,

    /// A file of test vectors
    #[arg(long, value_name = "FILE", conflicts_with_all = ["secret_files", "headers", "body_file", "now"])]
    vectors: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("write NAME: VALUE")?;
    let name = HeaderName::try_from(name).map_err(|error| error.to_string())?;
    // The spaces around a value are not part of it (RFC 9110, 5.5).
    let value = value.trim_matches([' ', '\t']);
    Ok((name, HeaderValue::from_bytes(value.as_bytes()).map_err(|error| error.to_string())?))
}

pub(super) async fn run(args: Args, _: &Global) -> anyhow::Result<ExitCode> {
    if let Some(path) = &args.vectors {
        return verify_vectors::run(path, args.provider.as_deref(), args.json);
    }
    let name = args.provider.unwrap_or_default();
    let provider = Provider::named(&name)
        .ok_or_else(|| anyhow!("no provider is called `{name}`; there are {}", Provider::NAMES.join(", ")))?;
    let secrets = args.secret_files.iter().map(|path| read_secret(path)).collect::<Result<_, _>>()?;
    let verifier = provider.verifier(secrets, TOLERANCE)?;
    let body = body(args.body_file)?;
    let now = args.now.map_or_else(|| SystemClock.now(), Timestamp::from_secs);
    let headers: HeaderMap = args.headers.into_iter().fold(HeaderMap::new(), |mut headers, (name, value)| {
        headers.append(name, value);
        headers
    });
    match verifier.verify(&headers, &body, now) {
        Ok(identity) => {
            accepted(&identity, args.json)?;
            Ok(ExitCode::SUCCESS)
        }
        Err(refusal) => {
            let hint = hint(&*verifier, &headers, &body, now, &refusal);
            if args.json {
                output::json(&json!({ "verified": false, "reason": refusal.to_string(), "hint": hint }))?;
            } else {
                output::line(format_args!("refused: {refusal}"))?;
                if let Some(hint) = hint {
                    output::line(format_args!("  {hint}"))?;
                }
            }
            Ok(ExitCode::FAILURE)
        }
    }
}

fn read_secret(path: &Path) -> anyhow::Result<KeySource> {
    let text = std::fs::read_to_string(path).map(Zeroizing::new);
    let text = text.with_context(|| format!("cannot read the secret in {}", path.display()))?;
    // Editors end a file with a line break. Whatever else was copied along is an error.
    let text = text.strip_suffix('\n').map_or(text.as_str(), |text| text.strip_suffix('\r').unwrap_or(text));
    Ok(KeySource::Text(Zeroizing::new(text.to_owned())))
}

fn body(file: Option<PathBuf>) -> anyhow::Result<Vec<u8>> {
    match file {
        Some(path) => std::fs::read(&path).with_context(|| format!("cannot read the body in {}", path.display())),
        None if stdin().is_terminal() => bail!("no body: give --body-file, or pipe it in"),
        None => {
            let mut body = Vec::new();
            stdin().read_to_end(&mut body).context("cannot read the body from standard input")?;
            Ok(body)
        }
    }
}

fn accepted(identity: &Identity, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        return output::json(&json!({
            "verified": true,
            "event": identity.event_key.as_str(),
            "type": identity.event_type,
            "sent_at": identity.sent_at.map(Timestamp::as_secs),
        }));
    }
    output::line("verified")?;
    output::line(format_args!("  event  {}", identity.event_key))?;
    if let Some(event_type) = &identity.event_type {
        output::line(format_args!("  type   {event_type}"))?;
    }
    if let Some(sent_at) = identity.sent_at {
        output::line(format_args!("  sent   {}", sent_at.as_secs()))?;
    }
    Ok(())
}

/// What would make the request right, where that is known without guessing the secret.
fn hint(
    verifier: &dyn Verifier,
    headers: &HeaderMap,
    body: &[u8],
    now: Timestamp,
    refusal: &Refusal,
) -> Option<&'static str> {
    let passes = |body: &[u8]| match verifier.verify(headers, body, now) {
        Ok(_) | Err(Refusal::Signature(VerifyError::TooOld | VerifyError::TooNew) | Refusal::NoEventId) => true,
        Err(_) => false,
    };
    match refusal {
        Refusal::NoEventId => Some("the signature is right, but the header or field with the event id is missing"),
        Refusal::Signature(VerifyError::TooOld | VerifyError::TooNew) => {
            Some("the signature is right; --now says when the request came")
        }
        Refusal::Signature(VerifyError::NoMatch) if body.ends_with(b"\n") => {
            let shorter = body.strip_suffix(b"\r\n").or_else(|| body.strip_suffix(b"\n"))?;
            passes(shorter).then_some("it matches without the line break at the end of the body")
        }
        Refusal::Signature(VerifyError::NoMatch) => {
            passes(&[body, b"\n"].concat()).then_some("it matches with a line break at the end of the body")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_cut_at_its_first_colon() {
        let (name, value) = header("Stripe-Signature:  t=1,v1=a:b ").unwrap();
        assert_eq!((name.as_str(), value.to_str().unwrap()), ("stripe-signature", "t=1,v1=a:b"));
        assert!(header("no colon").is_err());
        assert!(header("a b: c").is_err());
        assert!(header("a: b\nc").is_err());
    }
}
