//! Signatures in the styles of other senders, as they are written on the command line and shown.

use twiceproof::dispatcher::signing::{Beside, KeyForm, Names, Signing, Style};

/// Reads `SENDER[=HEADER][:bytes|:text]`. Neither `=` nor `:` can be in the name of a header.
pub(super) fn parse(text: &str) -> Result<Beside, String> {
    let (rest, key) = match text.split_once(':') {
        None => (text, None),
        Some((rest, "bytes")) => (rest, Some(KeyForm::Bytes)),
        Some((rest, "text")) => (rest, Some(KeyForm::Text)),
        Some((_, other)) => return Err(format!("what follows the colon is bytes or text, not {other:?}")),
    };
    let (sender, header) = match rest.split_once('=') {
        None => (rest, None),
        Some((sender, header)) => (sender, Some(header.to_owned())),
    };
    const STYLES: [Style; 3] = [Style::Github, Style::Stripe, Style::Shopify];
    let style = STYLES.into_iter().find(|style| style.as_str() == sender);
    let style = style.ok_or_else(|| format!("{sender:?} is none of github, stripe, shopify"))?;
    Ok(Beside { style, header, key })
}

/// How an endpoint is signed for, in one line.
pub(super) fn said(signing: &Signing) -> String {
    let names = match signing.names {
        Names::Webhook => "webhook-…",
        Names::Svix => "svix-…",
        Names::Both => "webhook-… and svix-…",
        _ => "…",
    };
    let beside = signing.beside.iter().map(|beside| {
        let key = match beside.key_form() {
            KeyForm::Text => "text",
            _ => "bytes",
        };
        format!("{} (like {}, by the secret's {key})", beside.header(), beside.style.as_str())
    });
    std::iter::once(names.to_owned()).chain(beside).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_style_is_a_sender_with_its_header_and_key_or_others() {
        let beside = |style, header: Option<&str>, key| Beside { style, header: header.map(str::to_owned), key };
        for (text, expected) in [
            ("github", beside(Style::Github, None, None)),
            ("stripe:bytes", beside(Style::Stripe, None, Some(KeyForm::Bytes))),
            ("shopify=X-Acme-Hmac", beside(Style::Shopify, Some("X-Acme-Hmac"), None)),
            ("github=X-Acme:text", beside(Style::Github, Some("X-Acme"), Some(KeyForm::Text))),
        ] {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
        for text in ["", "gitlab", "GitHub", "github:", "github:hex", "=X-Acme", "github=X-Acme:bytes:text"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn how_an_endpoint_is_signed_for_is_one_line() {
        assert_eq!(said(&Signing::default()), "webhook-…");
        let beside = ["github=X-Acme", "stripe"].map(|text| parse(text).unwrap()).to_vec();
        let line = said(&Signing { names: Names::Both, beside });
        assert_eq!(
            line,
            "webhook-… and svix-…, X-Acme (like github, by the secret's bytes), stripe-signature (like stripe, by the secret's text)"
        );
    }
}
