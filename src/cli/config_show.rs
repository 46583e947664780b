//! `twiceproof config show`: every setting, its value and where that stands.

use std::process::ExitCode;

use serde_json::json;
use twiceproof::config::{Config, Shown};

use super::global::Global;
use super::output;

/// Show every setting, its value and where that stands
///
/// Later layers win: defaults, the TOML file, environment variables, flags. Passwords are left out. Settings that
/// contradict each other are shown first and reported after, with exit code 1.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let config = global.load(&[])?;
    let checked = config.check();
    if args.json {
        output::json(&as_json(&config, checked.as_deref().unwrap_or_default()))?;
    } else {
        output::line(table(&config))?;
        for overridden in checked.as_deref().unwrap_or_default() {
            output::line(format_args!("\nwarning: {overridden}"))?;
        }
    }
    checked?;
    Ok(ExitCode::SUCCESS)
}

fn as_json(config: &Config, overridden: &[String]) -> serde_json::Value {
    let settings: Vec<_> = config
        .shown()
        .iter()
        .map(|shown| {
            json!({
                "name": shown.setting.name,
                "value": shown.value,
                "origin": { "kind": shown.origin.kind(), "place": shown.origin.to_string() },
                "default": shown.setting.default,
                "variable": shown.setting.variable(),
                "help": shown.setting.help,
            })
        })
        .collect();
    let file = config.file.as_ref().map(|(path, origin)| json!({ "path": path, "named_by": origin.to_string() }));
    json!({ "file": file, "settings": settings, "overridden": overridden })
}

fn table(config: &Config) -> String {
    let shown = config.shown();
    let file = match &config.file {
        Some((path, named_by)) => format!("settings file: {} ({named_by})", path.display()),
        None => "settings file: none".to_owned(),
    };
    let width = |text: fn(&Shown) -> &str| shown.iter().map(|shown| text(shown).chars().count()).max().unwrap_or(0);
    let (names, values) = (width(|shown| shown.setting.name), width(|shown| &shown.value));
    let lines =
        shown.iter().map(|shown| format!("{:names$}  {:values$}  {}", shown.setting.name, shown.value, shown.origin));
    [file, String::new()].into_iter().chain(lines).collect::<Vec<_>>().join("\n")
}
