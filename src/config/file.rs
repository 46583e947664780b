//! The TOML file as a layer. Keys keep their line, so that a complaint about one can point at it.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Origin;
use super::error::ConfigError;
use super::layers::{Layer, read_text};

/// Reads the file into a layer; sections become dotted names.
pub(super) fn read(path: &Path, named_by: Origin) -> Result<Layer, ConfigError> {
    let text = read_text(path, &named_by)?;
    let place = Place { path, text: &text };
    // The parser's own rendering quotes the line it stumbled over, which may hold a password; its message does not.
    let table = DeTable::parse(&text).map_err(|error| ConfigError::Syntax {
        path: path.to_owned(),
        line: place.line(error.span().map_or(0, |span| span.start)),
        message: error.message().to_owned(),
    })?;
    let mut layer = Layer::new();
    flatten(table.get_ref(), "", &place, &mut layer)?;
    Ok(layer)
}

struct Place<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Place<'_> {
    fn line(&self, offset: usize) -> usize {
        self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
    }

    fn origin(&self, span: std::ops::Range<usize>) -> Origin {
        Origin::File { path: self.path.to_owned(), line: self.line(span.start) }
    }
}

fn flatten(table: &DeTable<'_>, section: &str, place: &Place<'_>, layer: &mut Layer) -> Result<(), ConfigError> {
    for (key, value) in table {
        let name = if section.is_empty() { key.get_ref().to_string() } else { format!("{section}.{}", key.get_ref()) };
        let origin = place.origin(key.span());
        match value.get_ref() {
            DeValue::Table(inner) if !inner.is_empty() => flatten(inner, &name, place, layer)?,
            DeValue::Table(_) => {}
            _ => match text(value) {
                Some(text) => layer.push((name, text, origin)),
                None => {
                    let reason = "must be a string, a number, true or false".to_owned();
                    return Err(ConfigError::Invalid { name, origin, reason });
                }
            },
        }
    }
    Ok(())
}

/// A scalar as the text that the setting's parser reads; numbers in other bases are refused with arrays and dates.
fn text(value: &Spanned<DeValue<'_>>) -> Option<String> {
    match value.get_ref() {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(value) => Some(value.to_string()),
        _ => None,
    }
}
