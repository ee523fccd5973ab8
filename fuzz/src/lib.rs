//! The properties that are fuzzed. For any input, a parser does not panic, ignores no line, and reads its own output as
//! the same value.
//!
//! The fuzz targets pass their bytes to these functions. A crash is reported with the bytes that caused it. Add them to
//! a test of the library, and to `seeds/`.
//!
//! Public parsers are called. The files of parsers that are private, or in a binary, are included here by their paths,
//! so that no crate has to make anything public for the fuzzer.

mod settings;
#[path = "../../crates/atta/src/worker/notice.rs"]
mod notice;
#[path = "../../crates/atta-tasks/src/wire/host_message.rs"]
#[allow(dead_code)]
mod host_message;
#[path = "../../crates/atta-tasks/src/wire/new_job.rs"]
#[allow(dead_code)]
mod new_job;
#[path = "../../crates/atta-tasks/src/json.rs"]
#[allow(dead_code)]
mod json;
#[path = "../../crates/atta-tasks/src/lines.rs"]
#[allow(dead_code)]
mod lines;
// Modules that the included files refer to.
pub(crate) use settings::{args, output};

use std::path::Path;
use std::str::FromStr;

use atta::{ConnectionSettings, Cron, CrontabErrors, CrontabFill, GRAPHILE_REVISION, parse_crontab};
use futures_util::FutureExt;

use host_message::HostMessage;
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

/// A settings file, or a duration in one.
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
    // Some files never end, and the connection string may name a file with a certificate.
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

/// Messages of a host, and its output line by line.
pub fn host_protocol(bytes: &[u8]) {
    for line in bytes.split(|byte| *byte == b'\n') {
        let Ok(HostMessage::Add { jobs, preserve_run_at, .. }) = HostMessage::decode(line) else { continue };
        if let Err(error) = new_job::jobs_to_add(&jobs, preserve_run_at) {
            assert!(!error.is_empty());
        }
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let compact = json::compact(text);
        assert!(compact.len() <= text.len() && json::compact(&compact) == compact);
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

/// The payload of a notification.
pub fn notice(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match notice::announced_jobs(text, "graphile_worker") {
        notice::Announced::Here(count) | notice::Announced::Somewhere(count) => {
            assert!((1..=1_000_000).contains(&count));
        }
        // The text may contain it with escapes.
        notice::Announced::Job(job) => assert!(job.task_identifier.len() <= text.len()),
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
        // The column is one past the end if something is missing there.
        assert!((1..=error.text().chars().count() + 1).contains(&error.column()), "{error}");
        assert!(!error.message().is_empty() && !error.expected().is_empty());
    }
}
