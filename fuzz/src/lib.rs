//! What must hold for whatever is read: no panic, no line left out, and what is printed reads as the same.
//!
//! The targets hand their bytes to these functions. A crash is reported with the bytes that led to it; they belong into
//! a test of the library, and into `seeds/`.

use std::str::FromStr;

use atta::{Cron, CrontabErrors, CrontabFill, parse_crontab};

/// A crontab, if the bytes are text.
pub fn crontab(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match parse_crontab(text) {
        Ok(items) => {
            assert_eq!(items.len(), text.split('\n').filter(|line| says_something(line)).count());
            items.iter().for_each(reads_as_itself);
        }
        Err(errors) => has_places(text, &errors),
    }
}

/// A time phrase, if the bytes are text.
pub fn time_phrase(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(fill) = CrontabFill::from_str(text) else { return };
    assert_eq!(fill.to_string().parse::<CrontabFill>().expect("what is printed is a phrase"), fill);
    assert!(text.bytes().all(|byte| byte.is_ascii_digit() || b"smhdw".contains(&byte)));
}

fn says_something(line: &str) -> bool {
    let line = line.trim_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
    !line.is_empty() && !line.starts_with('#')
}

fn reads_as_itself(item: &Cron) {
    let line = item.to_string();
    let again: Cron = line.parse().expect("what is printed is a line of a crontab");
    assert!(again == *item && again.to_string() == line, "{line}");
    assert!(!item.identifier().is_empty() && !item.task_identifier().is_empty());
}

fn has_places(text: &str, errors: &CrontabErrors) {
    assert!(errors.len() > 0 && !errors.to_string().is_empty());
    let lines: Vec<&str> = text.split('\n').collect();
    for error in errors.iter() {
        let line = lines[error.line() - 1];
        assert_eq!(error.text(), line.strip_suffix('\r').unwrap_or(line));
        // One past the end, where something is missing.
        assert!((1..=error.text().chars().count() + 1).contains(&error.column()), "{error}");
        assert!(!error.message().is_empty() && !error.expected().is_empty());
    }
}
