//! Lays the four layers over each other, as text, and keeps for each setting where its winner stands.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::error::ConfigError;
use super::settings::{FILE_TWIN, SETTINGS, Setting};
use super::{Origin, Shown, environment, file, nearest, settings};

/// Longest file with a secret, in bytes.
const LONGEST_SECRET: usize = 64 * 1024;

/// Where settings are read from.
#[derive(Debug, Clone)]
pub struct Sources {
    /// The TOML file that was asked for; it must exist.
    pub file: Option<PathBuf>,
    /// The TOML file that is read if it exists and no other was asked for.
    pub default_file: PathBuf,
    /// Variables; those without the prefix `TWICEPROOF_` are passed over.
    pub environment: Vec<(OsString, OsString)>,
    /// What the command line said.
    pub flags: Vec<Flag>,
}

/// One flag of the command line that sets a setting.
#[derive(Debug, Clone)]
pub struct Flag {
    /// Name of the setting.
    pub setting: String,
    /// The flag with its dashes.
    pub flag: &'static str,
    /// What was given.
    pub value: String,
}

impl Default for Sources {
    fn default() -> Self {
        Self { file: None, default_file: PathBuf::from("twiceproof.toml"), environment: Vec::new(), flags: Vec::new() }
    }
}

/// One layer: a name, what it was set to, and where.
pub(super) type Layer = Vec<(String, String, Origin)>;

/// The winning texts, one for each setting, in the order of [`SETTINGS`].
#[derive(Debug)]
pub(super) struct Values(Vec<Shown>);

/// Reads the layers and lays them over each other: defaults, file, environment, flags. Beside the values, the TOML file
/// that was read and where that was named.
pub(super) fn merge(sources: &Sources) -> Result<(Values, Option<(PathBuf, Origin)>), ConfigError> {
    let (named, variables) = environment::read(&sources.environment)?;
    let by_flag = sources.file.clone().map(|path| (path, Origin::Flag { flag: "--config" }));
    let by_variable = named.map(|path| (path, Origin::Environment { variable: environment::CONFIG.to_owned() }));
    let by_default = sources.default_file.exists().then(|| (sources.default_file.clone(), Origin::Default));
    let file = by_flag.or(by_variable).or(by_default);
    let from_file = match &file {
        Some((path, named_by)) => file::read(path, named_by.clone())?,
        None => Layer::new(),
    };
    let flags = sources
        .flags
        .iter()
        .map(|flag| (flag.setting.clone(), flag.value.clone(), Origin::Flag { flag: flag.flag }))
        .collect();

    let mut winners = BTreeMap::new();
    for layer in [from_file, variables, flags] {
        overlay(&mut winners, layer)?;
    }
    let values = SETTINGS
        .iter()
        .map(|setting| {
            let (value, origin) = match winners.remove(setting.name) {
                None => (setting.default.to_owned(), Origin::Default),
                Some(Winner::Text(text, origin)) => (text, origin),
                Some(Winner::InFile(path, origin)) => read_secret(setting, path, origin)?,
            };
            Ok(Shown { setting, value, origin })
        })
        .collect::<Result<_, ConfigError>>()?;
    Ok((Values(values), file))
}

enum Winner {
    Text(String, Origin),
    InFile(PathBuf, Origin),
}

fn overlay(winners: &mut BTreeMap<&'static str, Winner>, layer: Layer) -> Result<(), ConfigError> {
    let mut seen = BTreeMap::new();
    for (name, text, origin) in layer {
        let (setting, twin) = find(&name, &origin)?;
        if seen.insert(setting.name, twin).is_some_and(|before| before != twin) {
            return Err(ConfigError::Twice { name: setting.name, origin });
        }
        let winner = if twin { Winner::InFile(PathBuf::from(text), origin) } else { Winner::Text(text, origin) };
        winners.insert(setting.name, winner);
    }
    Ok(())
}

/// The setting with this name, and whether the name was its `…_file` twin.
fn find(name: &str, origin: &Origin) -> Result<(&'static Setting, bool), ConfigError> {
    let exact = |wanted: &str| SETTINGS.iter().find(|setting| setting.name == wanted);
    if let Some(setting) = exact(name) {
        return Ok((setting, false));
    }
    match name.strip_suffix(FILE_TWIN).and_then(exact) {
        Some(setting) if setting.secret => Ok((setting, true)),
        _ => Err(unknown(name, origin, settings::names().collect())),
    }
}

/// The error for a name that is not among `known`.
pub(super) fn unknown(name: &str, origin: &Origin, known: Vec<String>) -> ConfigError {
    let hint = match nearest::nearest(name, known.iter().map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known are {}", known.join(", ")),
    };
    ConfigError::Unknown { name: name.to_owned(), origin: origin.clone(), hint }
}

/// The content of a secret file, without the line ending that editors add.
fn read_secret(setting: &Setting, path: PathBuf, named_by: Origin) -> Result<(String, Origin), ConfigError> {
    let text = read_text(&path, &named_by)?;
    let value = text.trim_end_matches(['\r', '\n']);
    let origin = Origin::SecretFile { path, named_by: Box::new(named_by) };
    let reason = match value.len() {
        0 => "is empty in this file",
        length if length > LONGEST_SECRET => "is longer than 64 KiB in this file",
        _ => return Ok((value.to_owned(), origin)),
    };
    Err(ConfigError::Invalid { name: setting.name.to_owned(), origin, reason: reason.to_owned() })
}

pub(super) fn read_text(path: &Path, named_by: &Origin) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
        path: path.to_owned(),
        named_by: named_by.clone(),
        source,
    })
}

impl Values {
    /// Parses the winner of one setting; the parser's complaint gets the place and, unless it is secret, the value.
    pub(super) fn take<T>(
        &mut self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<T, ConfigError> {
        let shown = self.0.iter().find(|shown| shown.setting.name == name).ok_or_else(|| ConfigError::Invalid {
            name: name.to_owned(),
            origin: Origin::Default,
            reason: "is missing in the table of settings".to_owned(),
        })?;
        parse(&shown.value).map_err(|reason| ConfigError::Invalid {
            name: name.to_owned(),
            origin: shown.origin.clone(),
            reason: if shown.setting.secret {
                format!("cannot be used: {reason}")
            } else {
                format!("is {:?}: {reason}", shown.value)
            },
        })
    }

    /// Replaces what is shown for a setting, for those that hold a secret.
    pub(super) fn show(&mut self, name: &str, value: String) {
        if let Some(shown) = self.0.iter_mut().find(|shown| shown.setting.name == name) {
            shown.value = value;
        }
    }

    pub(super) fn into_shown(self) -> Vec<Shown> {
        self.0
    }
}
