//! Why a command ends without success: its exit code, its chain of causes printed once, and what to do.

use std::error::Error;
use std::io::ErrorKind;
use std::process::ExitCode;

/// What the exit codes mean.
pub(crate) mod code {
    /// Something failed here.
    pub(crate) const FAILED: u8 = 1;
    /// Wrong use, or a configuration that does not fit.
    pub(crate) const USAGE: u8 = 2;
    /// The node refused, or knows no such thing. Of many tasks: some were refused.
    pub(crate) const REFUSED: u8 = 3;
    /// The node cannot be reached or cannot serve now. Of many tasks: some were not taken.
    pub(crate) const UNAVAILABLE: u8 = 4;
}

/// Why a command ends without success.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    error: anyhow::Error,
    help: Option<String>,
}

impl Failure {
    /// Something failed here.
    pub(crate) fn failed(error: impl Into<anyhow::Error>) -> Self {
        Failure::new(code::FAILED, error)
    }

    /// Wrong use, or a configuration that does not fit.
    pub(crate) fn usage(error: impl Into<anyhow::Error>) -> Self {
        Failure::new(code::USAGE, error)
    }

    pub(crate) fn new(code: u8, error: impl Into<anyhow::Error>) -> Self {
        Failure {
            code,
            error: error.into(),
            help: None,
        }
    }

    /// With what to do about it.
    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Prints it to standard error. A reader of standard output that went away is no failure worth a word.
    pub(crate) fn report(&self) -> ExitCode {
        let closed = |cause: &(dyn Error + 'static)| {
            cause
                .downcast_ref::<std::io::Error>()
                .is_some_and(|io| io.kind() == ErrorKind::BrokenPipe)
        };
        if self.error.chain().any(closed) {
            return ExitCode::SUCCESS;
        }
        eprint!("{}", self.text());
        ExitCode::from(self.code)
    }

    fn text(&self) -> String {
        let mut text = String::from("error: ");
        let mut last = String::new();
        for (number, cause) in self.error.chain().enumerate() {
            let cause = cause.to_string();
            // Some libraries repeat their source in their own text.
            if number > 0 && last.contains(&cause) {
                continue;
            }
            if number > 0 {
                text.push_str(": ");
            }
            text.push_str(&cause);
            last = cause;
        }
        text.push('\n');
        if let Some(help) = &self.help {
            text.push_str("help: ");
            text.push_str(help);
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn the_chain_is_printed_once() {
        let inner = anyhow::anyhow!("connection refused");
        let chain = Err::<(), _>(inner)
            .context("cannot reach it: connection refused")
            .context("no answer")
            .unwrap_err();
        let failure = Failure::failed(chain).help("start a node");
        assert_eq!(
            failure.text(),
            "error: no answer: cannot reach it: connection refused\nhelp: start a node\n"
        );
    }
}
