//! The statements of the library as text, for tests that run them without it.

use std::path::Path;

/// A statement of `crates/atta/sql` with its fragments, for the schema of the tests.
pub fn fill_sql(template: &str) -> String {
    let fragments = fragments();
    let mut text = template.to_owned();
    while let Some((placeholder, body)) = fragments.iter().find(|(placeholder, _)| text.contains(placeholder))
    {
        text = text.replace(placeholder, body);
    }
    text.replace("{schema_text}", "'graphile_worker'")
        .replace("{schema_in_text}", "graphile_worker")
        .replace("{schema}", "graphile_worker")
}

/// The placeholder of each fragment, and its text without the comment that it opens with.
fn fragments() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../atta/sql/fragments");
    let files = std::fs::read_dir(folder).expect("the folder of fragments");
    let fragment = |path: &Path| {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(path).expect("a fragment");
        let body: Vec<&str> = text.lines().skip_while(|line| line.starts_with("--")).collect();
        (format!("{{{name}}}"), body.join("\n"))
    };
    files.map(|entry| fragment(&entry.expect("an entry").path())).collect()
}
