//! The program `twiceproof`. Its commands are in `cli`, one file each.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
