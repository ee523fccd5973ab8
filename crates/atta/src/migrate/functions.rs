//! The functions of the SQL API: their list, and whether a schema has our versions of them.

use crate::Schema;
use crate::db::FUNCTIONS_MARKER;

/// A function with Graphile's name and our body, or one of our own, whose name starts with `_atta_`.
pub(super) struct Function {
    pub(super) name: &'static str,
    /// The names of its argument types in the catalog. They distinguish it from overloads that others created.
    argument_types: &'static [&'static str],
    template: &'static str,
}

/// A function that was found in a schema.
pub(super) struct FoundFunction {
    pub(super) name: String,
    pub(super) argument_types: Vec<String>,
    pub(super) body: String,
}

/// In the order in which they are created: each function after those that it calls.
pub(super) const FUNCTIONS: [Function; 8] = [
    Function {
        name: "add_jobs",
        argument_types: &["_job_spec", "bool"],
        template: include_str!("../../sql/functions/add_jobs.sql"),
    },
    Function {
        name: "add_job",
        argument_types: &["text", "json", "text", "timestamptz", "int4", "text", "int4", "_text", "text"],
        template: include_str!("../../sql/functions/add_job.sql"),
    },
    Function {
        name: "remove_job",
        argument_types: &["text"],
        template: include_str!("../../sql/functions/remove_job.sql"),
    },
    Function {
        name: "complete_jobs",
        argument_types: &["_int8"],
        template: include_str!("../../sql/functions/complete_jobs.sql"),
    },
    Function {
        name: "permanently_fail_jobs",
        argument_types: &["_int8", "text"],
        template: include_str!("../../sql/functions/permanently_fail_jobs.sql"),
    },
    Function {
        name: "reschedule_jobs",
        argument_types: &["_int8", "timestamptz", "int4", "int4", "int4"],
        template: include_str!("../../sql/functions/reschedule_jobs.sql"),
    },
    Function {
        name: "force_unlock_workers",
        argument_types: &["_text"],
        template: include_str!("../../sql/functions/force_unlock_workers.sql"),
    },
    Function {
        name: "_atta_recover_dead_worker_jobs",
        argument_types: &["_text", "interval"],
        template: include_str!("../../sql/functions/_atta_recover_dead_worker_jobs.sql"),
    },
];

impl Function {
    pub(super) fn sql(&self, schema: &Schema) -> String {
        schema.fill(self.template)
    }

    /// Whether the schema has this function with our body, or with that of a newer atta, which is not replaced.
    pub(super) fn stands_in(&self, found: &[FoundFunction], schema: &Schema) -> bool {
        let same = |it: &&FoundFunction| it.name == self.name && it.argument_types == self.argument_types;
        let Some(found) = found.iter().find(same) else { return false };
        marker_revision(&found.body) > marker_revision(FUNCTIONS_MARKER) || found.body == self.body(schema)
    }

    /// The text between the quotes, which is what the catalog stores.
    pub(super) fn body(&self, schema: &Schema) -> String {
        let sql = self.sql(schema);
        let tag = schema.body_tag();
        sql.split(tag.as_str()).nth(1).unwrap_or_default().to_owned()
    }
}

/// The number in "atta functions, revision N"; 0 for a body without this marker.
fn marker_revision(body: &str) -> u32 {
    let Some((_, rest)) = body.split_once("atta functions, revision ") else { return 0 };
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(body: &str) -> Vec<FoundFunction> {
        vec![FoundFunction {
            name: "remove_job".into(),
            argument_types: vec!["text".into()],
            body: body.into(),
        }]
    }

    #[test]
    fn keeps_our_body_and_a_newer_one_of_ours() {
        let schema = Schema::default();
        let function = &FUNCTIONS[2];
        assert!(function.stands_in(&found(&function.body(&schema)), &schema));
        assert!(function.stands_in(&found("-- atta functions, revision 99\n"), &schema));
    }

    #[test]
    fn replaces_a_missing_a_foreign_and_a_changed_body() {
        let schema = Schema::default();
        let function = &FUNCTIONS[2];
        assert!(!function.stands_in(&[], &schema));
        assert!(!function.stands_in(&found("begin return null; end"), &schema));
        assert!(!function.stands_in(&found(&format!("{}\n", function.body(&schema))), &schema));
    }
}
