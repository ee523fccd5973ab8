//! A preprocessor of mdBook: makes links to files of the project absolute.
//!
//! The pages link to examples and tests by relative paths, so that forges can follow them. The book does not contain
//! these files. So the links lead to the project's repository, or, while `Cargo.toml` names none, are only text.

use std::io::{Read, Write};

use serde_json::Value;

use super::links::{is_outside, links, resolve};
use crate::{Result, root};

/// What mdBook passes.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    words: Vec<String>,
}

/// Speaks mdBook's protocol: `supports RENDERER` asks whether to run at all; otherwise a context and the book are read
/// from standard input, and the book is written to standard output.
pub(crate) fn preprocess(options: &Options) -> Result {
    if options.words.first().is_some_and(|word| word == "supports") {
        return Ok(());
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|error| format!("reading the book: {error}"))?;
    let mut input: Value =
        serde_json::from_str(&text).map_err(|error| format!("reading the book: {error}"))?;
    let mut book = input.get_mut(1).map(Value::take).ok_or("mdbook sent no book")?;
    rewrite(&mut book, repository()?.as_deref());
    let written = std::io::stdout().write_all(book.to_string().as_bytes());
    written.map_err(|error| format!("writing the book: {error}"))
}

/// The repository that `Cargo.toml` names.
fn repository() -> Result<Option<String>> {
    let path = root().join("Cargo.toml");
    let text =
        std::fs::read_to_string(&path).map_err(|error| format!("reading {}: {error}", path.display()))?;
    let manifest: toml::Value =
        toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    let found = manifest.get("workspace").and_then(|workspace| workspace.get("package")?.get("repository"));
    Ok(found.and_then(|address| address.as_str()).map(|address| address.trim_end_matches('/').to_owned()))
}

/// Rewrites the chapters, wherever in the book they are.
fn rewrite(value: &mut Value, repository: Option<&str>) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(|value| rewrite(value, repository)),
        Value::Object(members) => {
            let path = members.get("source_path").and_then(Value::as_str).map(|path| format!("docs/{path}"));
            if let (Some(path), Some(Value::String(text))) = (path, members.get_mut("content")) {
                *text = rewrite_page(&path, text, repository);
            }
            members.values_mut().for_each(|value| rewrite(value, repository));
        }
        _ => {}
    }
}

fn rewrite_page(path: &str, text: &str, repository: Option<&str>) -> String {
    let mut rewritten = text.to_owned();
    // From the end, so that the places of the others stay right.
    for link in links(text).into_iter().rev() {
        let target = resolve(path, &link.target);
        if is_outside(&link.target) || link.target.starts_with('#') || target.starts_with("docs/") {
            continue;
        }
        let whole = &text[link.place.clone()];
        let Some(label) = whole.strip_suffix(&format!("]({})", link.target)) else { continue };
        let new = match repository {
            Some(repository) => format!("{label}]({repository}/blob/main/{target})"),
            None => label.trim_start_matches('[').to_owned(),
        };
        rewritten.replace_range(link.place, &new);
    }
    rewritten
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_files_of_the_project_become_absolute() {
        let mut book = serde_json::json!({ "items": [{ "Chapter": {
            "source_path": "guides/cron.md",
            "content": "[a](../../crates/x.rs), [b](hosts.md#x), [c](#d), [`e`](../../deploy) and [f](https://f.org)",
            "sub_items": [],
        }}]});
        let mut without = book.clone();
        rewrite(&mut book, Some("https://forge.example/atta"));
        rewrite(&mut without, None);
        let content = |book: &Value| book["items"][0]["Chapter"]["content"].as_str().unwrap().to_owned();
        assert_eq!(
            content(&book),
            "[a](https://forge.example/atta/blob/main/crates/x.rs), [b](hosts.md#x), [c](#d), \
             [`e`](https://forge.example/atta/blob/main/deploy) and [f](https://f.org)"
        );
        assert_eq!(content(&without), "a, [b](hosts.md#x), [c](#d), `e` and [f](https://f.org)");
    }
}
