//! The settings file of the binary, included by path, with stand-ins for what it takes from the command line: two words
//! and an error.

#[path = "../../crates/atta-cli/src/settings/file.rs"]
#[allow(dead_code)]
mod file;
#[path = "../../crates/atta-cli/src/settings/secrets.rs"]
mod secrets;
#[path = "../../crates/atta-cli/src/settings/span.rs"]
mod span;

pub(crate) use file::File;
pub(crate) use secrets::without_secrets;
pub(crate) use span::Span;

pub(crate) mod args {
    use serde::Deserialize;

    #[derive(Clone, Copy, Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub(crate) enum ClaimsChoice {
        Held,
        Durable,
    }

    #[derive(Clone, Copy, Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub(crate) enum LogFormat {
        Text,
        Json,
    }
}

pub(crate) mod output {
    #[derive(Debug)]
    pub(crate) struct Failure {
        pub(crate) message: String,
        pub(crate) hint: Option<String>,
    }

    impl Failure {
        pub(crate) fn new(message: impl Into<String>) -> Failure {
            Failure { message: message.into(), hint: None }
        }

        pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Failure {
            self.hint = Some(hint.into());
            self
        }
    }
}
