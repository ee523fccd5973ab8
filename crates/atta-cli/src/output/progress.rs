//! The progress of a long command, for a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// A line with the number of finished jobs. Shown on a terminal only: indicatif does that by itself.
pub(crate) fn progress(total: Option<u64>) -> ProgressBar {
    let (bar, template) = match total {
        Some(total) => {
            (ProgressBar::new(total), "{bar:40} {human_pos} of {human_len} jobs, {per_sec}, {eta} to go")
        }
        None => (ProgressBar::new_spinner(), "{spinner} {human_pos} jobs, {per_sec}"),
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
