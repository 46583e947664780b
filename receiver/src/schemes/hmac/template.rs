//! What is signed, as a text with placeholders.
//!
//! Invariants: the body is in it exactly once, as raw bytes.

use super::SchemeError;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    Text(String),
    Timestamp,
    Id,
    Body,
}

#[derive(Debug, Clone)]
pub(super) struct Template(Vec<Part>);

impl Template {
    pub(super) fn parse(text: &str) -> Result<Self, SchemeError> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (name, behind) = after.split_once('}').ok_or(SchemeError::Template)?;
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            parts.push(match name {
                "body" => Part::Body,
                "timestamp" => Part::Timestamp,
                "id" => Part::Id,
                _ => return Err(SchemeError::Template),
            });
            rest = behind;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        let count = |wanted: &Part| parts.iter().filter(|part| *part == wanted).count();
        if count(&Part::Body) != 1 || count(&Part::Timestamp) > 1 || count(&Part::Id) > 1 {
            return Err(SchemeError::Template);
        }
        Ok(Self(parts))
    }

    pub(super) fn has(&self, part: &Part) -> bool {
        self.0.contains(part)
    }

    pub(super) fn fill<'a>(&'a self, timestamp: &'a str, id: &'a str, body: &'a [u8]) -> Vec<&'a [u8]> {
        let bytes = |part: &'a Part| match part {
            Part::Text(text) => text.as_bytes(),
            Part::Timestamp => timestamp.as_bytes(),
            Part::Id => id.as_bytes(),
            Part::Body => body,
        };
        self.0.iter().map(bytes).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_filled_in_order() {
        let template = Template::parse("v0:{timestamp}:{id}.{body}!").unwrap();
        assert_eq!(template.fill("17", "a", b"\xff").concat(), b"v0:17:a.\xff!");
    }

    #[test]
    fn the_body_is_signed_once_and_nothing_unknown_is() {
        for text in ["", "x", "{timestamp}", "{body}{body}", "{body", "{Body}", "{}{body}", "{id}{id}{body}"] {
            assert_eq!(Template::parse(text).unwrap_err(), SchemeError::Template, "{text}");
        }
    }
}
