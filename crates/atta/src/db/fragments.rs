//! The fragments in `sql/fragments`: pieces of SQL that several statements contain. A statement names a fragment by a
//! placeholder, and a fragment may name others.

use std::borrow::Cow;

/// The placeholder and the file of each fragment.
const FRAGMENTS: [(&str, &str); 16] = [
    ("{job_json}", include_str!("../../sql/fragments/job_json.sql")),
    ("{job_state}", include_str!("../../sql/fragments/job_state.sql")),
    ("{job_counts}", include_str!("../../sql/fragments/job_counts.sql")),
    ("{job_filter}", include_str!("../../sql/fragments/job_filter.sql")),
    ("{job_matches}", include_str!("../../sql/fragments/job_matches.sql")),
    ("{claimable_unqueued}", include_str!("../../sql/fragments/claimable_unqueued.sql")),
    ("{claimable_by_queue}", include_str!("../../sql/fragments/claimable_by_queue.sql")),
    ("{claimable_by_job}", include_str!("../../sql/fragments/claimable_by_job.sql")),
    ("{reached_heads}", include_str!("../../sql/fragments/reached_heads.sql")),
    ("{lock_heads}", include_str!("../../sql/fragments/lock_heads.sql")),
    ("{claimable_taken}", include_str!("../../sql/fragments/claimable_taken.sql")),
    ("{claim_taken}", include_str!("../../sql/fragments/claim_taken.sql")),
    ("{plain_jobs}", include_str!("../../sql/fragments/plain_jobs.sql")),
    ("{flagged_jobs}", include_str!("../../sql/fragments/flagged_jobs.sql")),
    ("{queued_jobs}", include_str!("../../sql/fragments/queued_jobs.sql")),
    ("{claimed_columns}", include_str!("../../sql/fragments/claimed_columns.sql")),
];

/// Replaces the placeholders of fragments by their text.
pub(super) fn expand(template: &str) -> Cow<'_, str> {
    let mut text = Cow::Borrowed(template);
    while let Some((placeholder, file)) = FRAGMENTS.iter().find(|(placeholder, _)| text.contains(placeholder))
    {
        text = Cow::Owned(text.replace(placeholder, body(file)));
    }
    text
}

/// A fragment without the comment that it opens with, and without the last newline.
fn body(file: &str) -> &str {
    let mut rest = file;
    while let Some((line, after)) = rest.split_once('\n')
        && line.starts_with("--")
    {
        rest = after;
    }
    rest.trim_end()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_file_of_the_folder_is_a_fragment() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("sql/fragments");
        let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let names = names.map(|name| format!("{{{}}}", name.to_str().unwrap().trim_end_matches(".sql")));
        let files: BTreeSet<String> = names.collect();
        let known = FRAGMENTS.iter().map(|(placeholder, _)| (*placeholder).to_owned());
        assert_eq!(files, known.collect());
    }

    #[test]
    fn a_fragment_is_inserted_without_its_comment() {
        let text = expand("select {job_state}, {schema}");
        assert!(text.starts_with("select case\n") && text.ends_with("end, {schema}"), "{text}");
        assert_eq!(expand("select {schema}"), "select {schema}");
    }
}
