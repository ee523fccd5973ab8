//! `cargo xtask book`: checks the links of the documentation, and builds the book in `docs/` by mdBook.
//!
//! The check needs no mdBook and is a step of `cargo xtask test` in any case. It also covers the Markdown files in the
//! project's root, and the names of pages in comments and help texts.

mod links;
mod preprocess;

use std::fs;
use std::path::Path;
use std::process::Command;

use links::Page;
pub(crate) use preprocess::{Options as PreprocessorOptions, preprocess};

use crate::{Result, install, root, run as run_command, say};

/// Folders whose sources may name pages of the book.
const SOURCES: [&str; 4] = ["crates", "xtask", "bench", "deploy"];
const SOURCE_EXTENSIONS: [&str; 7] = ["rs", "sql", "py", "cjs", "toml", "md", "yaml"];

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Also shows the book in a browser, and builds it anew after each change
    #[arg(long)]
    serve: bool,
    /// Only writes the generated pages of the reference anew
    #[arg(long, conflicts_with = "serve")]
    write: bool,
}

pub(crate) fn run(options: &Options) -> Result {
    if options.write {
        return write_reference();
    }
    let serves = options.serve;
    check()?;
    let Some(mdbook) = install::mdbook(serves) else {
        return Err("mdbook can't be installed; see https://rust-lang.github.io/mdBook".into());
    };
    let mut command = Command::new(mdbook);
    command.current_dir(root()).args(if serves {
        &["serve", "docs", "--open"][..]
    } else {
        &["build", "docs"]
    });
    run_command(&mut command)?;
    say(&format!("the book: {}", root().join("target/book/index.html").display()));
    Ok(())
}

/// The step of `cargo xtask test`: the links always, and the build if mdBook is there or can be installed.
pub(crate) fn run_as_step() -> Result {
    check()?;
    match install::mdbook(false) {
        Some(mdbook) => run_command(Command::new(mdbook).current_dir(root()).args(["build", "docs"])),
        None => {
            say("mdbook can't be built here: the links of the book are checked, the book is NOT built");
            Ok(())
        }
    }
}

/// Writes the generated pages anew: the tests that compare them do it on request.
fn write_reference() -> Result {
    let mut test = crate::cargo();
    test.args(["test", "--quiet", "--all-features", "--package=atta", "--package=atta-cli"])
        .args(["--test=examples", "--test=run", "--bin=atta", "book_reference"])
        .env("ATTA_WRITE_BOOK", "1");
    run_command(&mut test)
}

/// Checks all links, and returns an error that lists those that lead nowhere.
pub(crate) fn check() -> Result {
    let root = root();
    let mut pages = Vec::new();
    let mut paths = files(&root.join("docs"))?;
    paths.extend(files_of(&root)?);
    paths.push(root.join("bench/RESULTS.md"));
    paths.extend(files(&root.join("crates"))?);
    for path in paths.iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        pages.push(Page { path: relative(path), text: read(path)? });
    }
    let exists = |path: &str| root.join(path).exists();
    let mut mistakes = links::check(&pages, &exists);
    mistakes.extend(links::check_summary(&pages));
    for folder in SOURCES {
        for path in files(&root.join(folder))? {
            let is_source = path.extension().and_then(|extension| extension.to_str());
            // The tests of the check itself name pages that do not exist.
            let is_checked = !path.ends_with("xtask/src/book/links.rs");
            if is_checked && is_source.is_some_and(|extension| SOURCE_EXTENSIONS.contains(&extension)) {
                mistakes.extend(links::check_mentions(&relative(&path), &read(&path)?, &exists));
            }
        }
    }
    if mistakes.is_empty() {
        return Ok(());
    }
    Err(format!("links of the documentation that lead nowhere:\n{}", mistakes.join("\n")))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| format!("reading {}: {error}", path.display()))
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).to_string_lossy().into_owned()
}

/// The files of a folder, without those of its folders.
fn files_of(folder: &Path) -> Result<Vec<std::path::PathBuf>> {
    let failed = |error| format!("reading {}: {error}", folder.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// The files of a folder and of all folders in it, except for packages and build results.
fn files(folder: &Path) -> Result<Vec<std::path::PathBuf>> {
    let failed = |error| format!("reading {}: {error}", folder.display());
    let mut paths = files_of(folder)?;
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let is_ours = !["node_modules", "target", "__pycache__"].iter().any(|name| path.ends_with(name));
        if path.is_dir() && is_ours {
            paths.extend(files(&path)?);
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_link_of_the_documentation_leads_nowhere() {
        super::check().unwrap();
    }
}
