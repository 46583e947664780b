//! The commands of the program: one file per command, all of one shape, `Args` and `run`.
//!
//! Results go to standard output, messages and logs to standard error. Exit codes: 0 done, 1 failed, 2 wrong usage; a
//! command that tells more cases apart says so in its help.

mod bench;
mod config_show;
mod demo;
mod doctor;
mod endpoint_add;
mod endpoint_list;
mod endpoint_remove;
mod endpoint_show;
mod event_list;
mod event_publish;
mod event_show;
mod global;
mod keygen;
mod logging;
mod migrate;
mod output;
mod process;
mod prove_actor;
mod prove_check;
mod prove_crash;
mod secrets_reseal;
mod serve;
mod signals;
mod signature_style;
mod token;
mod verify;
mod verify_vectors;
mod when;
mod worker;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use self::global::Global;

/// Webhooks may come twice; their effects don't.
#[derive(Debug, Parser)]
#[command(name = "twiceproof", version, propagate_version = true, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Args),
    Bench(bench::Args),
    Serve(serve::Args),
    Worker(worker::Args),
    Doctor(doctor::Args),
    Token(token::Args),
    Migrate(migrate::Args),
    Keygen(keygen::Args),
    Verify(verify::Args),
    /// Manage endpoints
    #[command(subcommand)]
    Endpoint(EndpointCommand),
    /// Publish events, and see what became of them
    #[command(subcommand)]
    Event(EventCommand),
    /// Manage how the secrets of endpoints are stored
    #[command(subcommand)]
    Secrets(SecretsCommand),
    /// Prove that nothing is lost or doubled
    #[command(subcommand)]
    Prove(ProveCommand),
    /// Show the settings
    #[command(subcommand)]
    Config(ConfigCommand),
}

#[derive(Debug, Subcommand)]
enum EndpointCommand {
    Add(endpoint_add::Args),
    List(endpoint_list::Args),
    Show(endpoint_show::Args),
    Remove(endpoint_remove::Args),
}

#[derive(Debug, Subcommand)]
enum EventCommand {
    Publish(event_publish::Args),
    List(event_list::Args),
    Show(event_show::Args),
}

#[derive(Debug, Subcommand)]
enum SecretsCommand {
    Reseal(secrets_reseal::Args),
}

#[derive(Debug, Subcommand)]
enum ProveCommand {
    Crash(prove_crash::Args),
    Check(prove_check::Args),
    #[command(hide = true)]
    Actor(prove_actor::Args),
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    Show(config_show::Args),
}

/// Reads the arguments, runs the command and reports its error with all causes.
pub(crate) fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(run(cli)));
    outcome.unwrap_or_else(|error| output::failure(&error))
}

async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let global = &cli.global;
    match cli.command {
        Command::Demo(args) => demo::run(args, global).await,
        Command::Bench(args) => bench::run(args, global).await,
        Command::Serve(args) => serve::run(args, global).await,
        Command::Worker(args) => worker::run(args, global).await,
        Command::Doctor(args) => doctor::run(args, global).await,
        Command::Token(args) => token::run(args, global).await,
        Command::Migrate(args) => migrate::run(args, global).await,
        Command::Keygen(args) => keygen::run(args, global).await,
        Command::Verify(args) => verify::run(args, global).await,
        Command::Endpoint(EndpointCommand::Add(args)) => endpoint_add::run(args, global).await,
        Command::Endpoint(EndpointCommand::List(args)) => endpoint_list::run(args, global).await,
        Command::Endpoint(EndpointCommand::Show(args)) => endpoint_show::run(args, global).await,
        Command::Endpoint(EndpointCommand::Remove(args)) => endpoint_remove::run(args, global).await,
        Command::Event(EventCommand::Publish(args)) => event_publish::run(args, global).await,
        Command::Event(EventCommand::List(args)) => event_list::run(args, global).await,
        Command::Event(EventCommand::Show(args)) => event_show::run(args, global).await,
        Command::Secrets(SecretsCommand::Reseal(args)) => secrets_reseal::run(args, global).await,
        Command::Prove(ProveCommand::Crash(args)) => prove_crash::run(args, global).await,
        Command::Prove(ProveCommand::Check(args)) => prove_check::run(args, global).await,
        Command::Prove(ProveCommand::Actor(args)) => prove_actor::run(args, global).await,
        Command::Config(ConfigCommand::Show(args)) => config_show::run(args, global).await,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::Cli;

    #[test]
    fn the_definitions_of_the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_says_what_it_does() {
        fn check(command: &clap::Command) {
            assert!(command.get_about().is_some(), "{} has no help", command.get_name());
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }
}
