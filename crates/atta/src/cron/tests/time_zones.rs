//! Items with a time zone, around changes of the clock.

use super::{at, item};

/// All minutes between two times at which the item runs, in UTC.
fn runs(line: &str, from: &str, until: &str) -> Vec<String> {
    let item = item(line);
    let mut runs = Vec::new();
    let mut time = at(from) - chrono::TimeDelta::minutes(1);
    while let Some(next) = item.next_after(time).filter(|next| *next < at(until)) {
        runs.push(next.format("%Y-%m-%dT%H:%M").to_string());
        time = next;
    }
    runs
}

#[test]
fn a_pattern_without_a_time_zone_is_in_utc() {
    assert_eq!(runs("0 8 * * * t", "2026-03-29T00:00", "2026-03-30T00:00"), ["2026-03-29T08:00"]);
}

#[test]
fn local_times_follow_daylight_saving_time() {
    let line = "0 8 * * * t ?tz=Europe/Paris";
    assert_eq!(runs(line, "2026-03-28T00:00", "2026-03-30T00:00"), ["2026-03-28T07:00", "2026-03-29T06:00"]);
}

#[test]
fn a_time_that_does_not_exist_runs_once_at_the_next_minute_that_does() {
    // 02:30 in Paris: the clock goes from 02:00 to 03:00, at 01:00 in UTC.
    let paris = runs("30 2 * * * t ?tz=Europe/Paris", "2026-03-28T00:00", "2026-03-31T00:00");
    assert_eq!(paris, ["2026-03-28T01:30", "2026-03-29T01:00", "2026-03-30T00:30"]);
    let several = runs("*/10 2 * * * t ?tz=Europe/Paris", "2026-03-29T00:00", "2026-03-30T00:00");
    assert_eq!(several, ["2026-03-29T01:00"]);
    let new_york = runs("15 2 * * * t ?tz=America/New_York", "2026-03-08T00:00", "2026-03-09T00:00");
    assert_eq!(new_york, ["2026-03-08T07:00"]);
    // From 02:00 to 02:30, at 15:30 in UTC.
    let lord_howe = runs("10,40 2 * * * t ?tz=Australia/Lord_Howe", "2026-10-03T12:00", "2026-10-04T12:00");
    assert_eq!(lord_howe, ["2026-10-03T15:30", "2026-10-03T15:40"]);
}

#[test]
fn a_skipped_time_and_the_first_minute_after_it_are_one_run() {
    let both = runs("0 2,3 * * * t ?tz=Europe/Paris", "2026-03-29T00:00", "2026-03-30T00:00");
    assert_eq!(both, ["2026-03-29T01:00"]);
}

#[test]
fn a_time_that_occurs_twice_runs_the_first_time() {
    let paris = runs("30 2 * * * t ?tz=Europe/Paris", "2026-10-24T00:00", "2026-10-27T00:00");
    assert_eq!(paris, ["2026-10-24T00:30", "2026-10-25T00:30", "2026-10-26T01:30"]);
    let new_york = runs("0 1 * * * t ?tz=America/New_York", "2026-11-01T00:00", "2026-11-02T00:00");
    assert_eq!(new_york, ["2026-11-01T05:00"]);
    // From 02:00 back to 01:30, at 15:00 in UTC.
    let lord_howe = runs("15,45 1 * * * t ?tz=Australia/Lord_Howe", "2026-04-04T12:00", "2026-04-05T12:00");
    assert_eq!(lord_howe, ["2026-04-04T14:15", "2026-04-04T14:45"]);
}

#[test]
fn a_pattern_for_all_hours_follows_elapsed_time() {
    let line = "30 * * * * t ?tz=Europe/Paris";
    let autumn = runs(line, "2026-10-24T23:00", "2026-10-25T03:00");
    assert_eq!(autumn, ["2026-10-24T23:30", "2026-10-25T00:30", "2026-10-25T01:30", "2026-10-25T02:30"]);
    assert_eq!(runs(line, "2026-03-29T00:00", "2026-03-29T02:00"), ["2026-03-29T00:30", "2026-03-29T01:30"]);
}

#[test]
fn an_item_on_a_skipped_day_runs_at_the_start_of_the_next_day() {
    // Samoa went from 29 December straight to the 31st.
    let samoa = runs("0 12 30 12 * t ?tz=Pacific/Apia", "2011-12-29T00:00", "2012-01-02T00:00");
    assert_eq!(samoa, ["2011-12-30T10:00"]);
}

#[test]
fn the_day_of_a_pattern_is_the_local_day() {
    let tokyo = runs("0 1 1 * * t ?tz=Asia/Tokyo", "2026-03-01T00:00", "2026-05-01T00:00");
    assert_eq!(tokyo, ["2026-03-31T16:00", "2026-04-30T16:00"]);
}

#[test]
fn a_plus_in_the_name_of_a_zone_is_kept() {
    let item = item("0 0 * * * t ?tz=Etc/GMT+5");
    assert_eq!(item.to_string(), "0 0 * * * t ?tz=Etc/GMT%2B5");
    assert!(item.matches(at("2026-03-01T05:00")));
}
