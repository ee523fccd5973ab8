//! What must hold for whatever is read: no panic, no line left out, and what is printed reads as the same.
//!
//! The targets hand their bytes to these functions. A crash is reported with the bytes that led to it; they belong into
//! a test of the library, and into `seeds/`.
//!
//! What is public is called. What is not, because it is nobody's business or in a binary, is included here by its path, as
//! it stands: so neither crate shows anything for the fuzzer's sake.

mod settings;
#[path = "../../crates/atta/src/worker/notice.rs"]
mod notice;
#[path = "../../crates/atta-cli/src/tasks/wire.rs"]
#[allow(dead_code)]
mod wire;
#[path = "../../crates/atta-cli/src/tasks/lines.rs"]
#[allow(dead_code)]
mod lines;
// Words that the included files look for.
pub(crate) use settings::{args, output};

use std::path::Path;
use std::str::FromStr;

use atta::{ConnectionSettings, Cron, CrontabErrors, CrontabFill, GRAPHILE_REVISION, parse_crontab};
use futures_util::FutureExt;

use settings::{File, Span, without_secrets};

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

/// A settings file, or the length of time in one.
pub fn settings_file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let path = Path::new("atta.toml");
    if let Err(failure) = File::parse(text, path) {
        assert!(failure.message.contains("atta.toml") && failure.hint.is_some());
    }
    if let Ok(span) = text.parse::<Span>() {
        assert_eq!(span.to_string().parse(), Ok(span), "{text:?}");
    }
}

/// A connection string, with nothing in the environment.
pub fn connection_string(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    without_secrets(text);
    // Some files never end.
    if text.contains("/dev") || text.contains("/proc") {
        return;
    }
    let read = |text: &str| ConnectionSettings::with_variables(text, |_| None);
    match read(text) {
        Ok(settings) => {
            let whole = settings.to_string_with_password();
            let again = read(&whole).expect("what is handed on can be read");
            assert_eq!(again.to_string_with_password(), whole, "{text:?}");
            assert_eq!(again.to_string(), settings.to_string(), "{text:?}");
        }
        Err(error) => assert!(error.is_config() && !error.message().is_empty()),
    }
}

/// What a host says, as lines and as words.
pub fn host_protocol(bytes: &[u8]) {
    for line in bytes.split(|byte| *byte == b'\n') {
        let Ok(message) = wire::parse(line) else { continue };
        let jobs = message.add.as_deref().map(|add| wire::jobs_to_add(add, message.preserve_run_at));
        if let Some(Err(error)) = jobs {
            assert!(!error.is_empty());
        }
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let compact = wire::compact(text);
        assert!(compact.len() <= text.len() && wire::compact(&compact) == compact);
    }
    let tail = lines::Tail::default();
    let mut count = 0;
    let read = lines::read_lines(bytes, |line| {
        count += 1;
        assert!(!line.contains('\n'));
        tail.push(line);
    });
    read.now_or_never().expect("bytes are there at once");
    let ends = bytes.iter().filter(|byte| **byte == b'\n').count();
    assert_eq!(count, ends + usize::from(bytes.last().is_some_and(|byte| *byte != b'\n')));
    assert!(tail.text().is_none_or(|text| text.len() <= 8 * 1024));
}

/// The payload of a notice that PostgreSQL delivers.
pub fn notice(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match notice::announced_jobs(text, "graphile_worker") {
        notice::Announced::Here(count) | notice::Announced::Somewhere(count) => {
            assert!((1..=1_000_000).contains(&count));
        }
        notice::Announced::Nothing => {}
    }
    assert!(!notice::may_break_us(text) || text.contains("true"));
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
