//! Shows something repeatedly.

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args as ClapArgs;

use super::{Failure, print_styled};

/// Moves the cursor to the top, and clears from there.
const CLEAR: &str = "\x1b[H\x1b[2J";

#[derive(Clone, Copy, Debug, ClapArgs)]
pub(crate) struct Watch {
    /// Repeat every SECONDS until Ctrl-C [default: 2, if no number is given]
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "2",
        conflicts_with = "json",
        value_parser = seconds
    )]
    pub(crate) watch: Option<Duration>,
}

impl Watch {
    /// Prints what `show` returns, once or repeatedly; ends when nobody reads the output any more.
    pub(crate) async fn run(
        self,
        mut show: impl AsyncFnMut() -> Result<String, Failure>,
    ) -> Result<(), Failure> {
        let clear = if std::io::stdout().is_terminal() { CLEAR } else { "" };
        loop {
            let text = show().await?;
            let Some(pause) = self.watch else {
                print_styled(&text);
                return Ok(());
            };
            if !print_styled(&format!("{clear}{text}\n")) {
                return Ok(());
            }
            tokio::time::sleep(pause).await;
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("must be a number of seconds from 0.1 to 86400".into()),
    }
}
