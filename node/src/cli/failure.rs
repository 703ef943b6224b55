//! Why a command ends without success: its exit code, its chain of causes printed once, and what to do.

use std::error::Error;
use std::io::ErrorKind;
use std::process::ExitCode;

use serde::Serialize;

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
    /// For programs; none: that of the exit code.
    name: Option<String>,
}

/// A failure as a line of JSON.
#[derive(Debug, Serialize)]
struct Told<'a> {
    code: &'a str,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    help: Option<&'a str>,
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
            name: None,
        }
    }

    /// With what to do about it.
    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// With a code for programs, as the HTTP API has them.
    pub(crate) fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Prints it to standard error, on request as a line of JSON. A reader of standard output that went away is no failure worth a word.
    pub(crate) fn report(&self, json: bool) -> ExitCode {
        let closed = |cause: &(dyn Error + 'static)| {
            cause
                .downcast_ref::<std::io::Error>()
                .is_some_and(|io| io.kind() == ErrorKind::BrokenPipe)
        };
        if self.error.chain().any(closed) {
            return ExitCode::SUCCESS;
        }
        match json {
            true => eprintln!("{}", self.json()),
            false => eprint!("{}", self.text()),
        }
        ExitCode::from(self.code)
    }

    fn json(&self) -> String {
        let by_exit = match self.code {
            code::USAGE => "usage",
            code::REFUSED => "refused",
            code::UNAVAILABLE => "unavailable",
            _ => "failed",
        };
        let told = Told {
            code: self.name.as_deref().unwrap_or(by_exit),
            message: self.message(),
            help: self.help.as_deref(),
        };
        serde_json::to_string(&told).unwrap_or_default()
    }

    fn text(&self) -> String {
        let mut text = format!("error: {}\n", self.message());
        if let Some(help) = &self.help {
            text.push_str("help: ");
            text.push_str(help);
            text.push('\n');
        }
        text
    }

    /// The chain of causes.
    fn message(&self) -> String {
        let mut text = String::new();
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
        assert_eq!(
            failure.named("unreachable").json(),
            r#"{"code":"unreachable","message":"no answer: cannot reach it: connection refused","help":"start a node"}"#
        );
    }
}
