//! What the notices of PostgreSQL say. Anyone who is connected can send one, so anything may be in it; fuzzed as it is.

use crate::GRAPHILE_REVISION;

/// Other tools send other payloads, or none: then it may be any number.
pub(super) fn announced_jobs(payload: &str) -> usize {
    const MANY: i64 = 1_000_000;
    let notice: Option<serde_json::Value> = serde_json::from_str(payload).ok();
    let count = notice.and_then(|notice| notice.get("count")?.as_i64()).unwrap_or(MANY);
    usize::try_from(count.min(MANY)).unwrap_or(0)
}

/// A revision that we know is no reason to stop, be it of this schema or of another in the same database.
pub(super) fn breaking_revision(payload: &str) -> Option<i64> {
    let notice: serde_json::Value = serde_json::from_str(payload).ok()?;
    let revision = notice.get("migrationNumber")?.as_i64()?;
    (notice.get("breaking")?.as_bool()? && revision > i64::from(GRAPHILE_REVISION)).then_some(revision)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hears_of_jobs_in_any_payload_but_a_count_below_one() {
        for payload in ["", "nonsense", "{}", r#"{"count":1}"#, r#"{"r":0.5,"count":12}"#, "[]", "\u{0}"] {
            assert!(announced_jobs(payload) > 0, "{payload:?}");
        }
        for payload in [r#"{"count":0}"#, r#"{"r":0.5,"count":-1}"#] {
            assert_eq!(announced_jobs(payload), 0, "{payload:?}");
        }
        assert_eq!(announced_jobs(r#"{"r":0.5,"count":12}"#), 12);
    }

    #[test]
    fn only_an_unknown_breaking_revision_stops_us() {
        assert_eq!(breaking_revision(r#"{"migrationNumber":21,"breaking":true}"#), Some(21));
        for payload in
            [r#"{"migrationNumber":21,"breaking":false}"#, r#"{"migrationNumber":3,"breaking":true}"#, ""]
        {
            assert_eq!(breaking_revision(payload), None, "{payload:?}");
        }
    }
}
