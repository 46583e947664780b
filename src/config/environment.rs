//! The environment as a layer: `TWICEPROOF_RETRY_FIRST` sets `retry.first`.

use std::ffi::OsString;
use std::path::PathBuf;

use super::error::ConfigError;
use super::layers::{Layer, unknown};
use super::{Origin, settings};

/// The variable that names the TOML file.
pub(super) const CONFIG: &str = "TWICEPROOF_CONFIG";

/// The file named by `TWICEPROOF_CONFIG`, and the layer of all other variables with our prefix.
pub(super) fn read(variables: &[(OsString, OsString)]) -> Result<(Option<PathBuf>, Layer), ConfigError> {
    let mut file = None;
    let mut layer = Layer::new();
    for (variable, value) in variables {
        let variable = variable.to_string_lossy().into_owned();
        if !variable.starts_with(settings::PREFIX) || variable.starts_with(settings::TEST_PREFIX) {
            continue;
        }
        if variable == CONFIG {
            file = Some(PathBuf::from(value));
            continue;
        }
        let origin = Origin::Environment { variable: variable.clone() };
        let Some(name) = settings::names().find(|name| settings::variable(name) == variable) else {
            let known = settings::names().map(|name| settings::variable(&name)).chain([CONFIG.to_owned()]).collect();
            return Err(unknown(&variable, &origin, known));
        };
        let Some(value) = value.to_str() else {
            return Err(ConfigError::Invalid { name, origin, reason: "is not UTF-8".to_owned() });
        };
        layer.push((name, value.to_owned(), origin));
    }
    Ok((file, layer))
}
