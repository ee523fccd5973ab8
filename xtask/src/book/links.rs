//! Finds links of Markdown pages that lead nowhere. Pure: the pages, and what exists besides, are arguments.
//!
//! Only links within the project are checked; addresses of the web are not.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use pulldown_cmark::{CowStr, Event, Options, Parser, Tag, TagEnd};

/// A Markdown file, with its path in the project: `docs/guides/cron.md`.
pub(super) struct Page {
    pub(super) path: String,
    pub(super) text: String,
}

/// A link or an image, and where it stands in the text.
pub(super) struct Link<'a> {
    pub(super) target: CowStr<'a>,
    pub(super) place: Range<usize>,
}

/// Checks that each link leads to a page, to one of its headings, or to a file that exists. Returns one line for each
/// mistake.
pub(super) fn check(pages: &[Page], exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    let anchors: HashMap<&str, HashSet<String>> =
        pages.iter().map(|page| (page.path.as_str(), anchors(&page.text))).collect();
    let mut mistakes = Vec::new();
    for page in pages {
        for link in links(&page.text) {
            if is_outside(&link.target) {
                continue;
            }
            let (path, anchor) = link.target.split_once('#').unwrap_or((&link.target, ""));
            let path = if path.is_empty() { page.path.clone() } else { resolve(&page.path, path) };
            let mistake = match anchors.get(path.as_str()) {
                Some(anchors) if anchor.is_empty() || anchors.contains(anchor) => continue,
                Some(_) => format!("{path} has no heading #{anchor}"),
                None if exists(&path) => continue,
                None => format!("there is no {path}"),
            };
            let line = page.text[..link.place.start].matches('\n').count() + 1;
            mistakes.push(format!("{}:{line}: {mistake}", page.path));
        }
    }
    mistakes
}

/// Checks that the summary lists each page of the book: mdBook leaves out pages that it does not list.
pub(super) fn check_summary(pages: &[Page]) -> Vec<String> {
    const SUMMARY: &str = "docs/SUMMARY.md";
    let Some(summary) = pages.iter().find(|page| page.path == SUMMARY) else {
        return vec![format!("there is no {SUMMARY}")];
    };
    let listed: HashSet<String> =
        links(&summary.text).iter().map(|link| resolve(SUMMARY, &link.target)).collect();
    pages
        .iter()
        .filter(|page| page.path.starts_with("docs/") && page.path != SUMMARY && !listed.contains(&page.path))
        .map(|page| format!("{SUMMARY}: does not list {}", page.path))
        .collect()
}

/// Checks the names of pages that a source file mentions, such as `docs/README.md`.
pub(super) fn check_mentions(path: &str, text: &str, exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || "-_./".contains(letter);
    let mut mistakes = Vec::new();
    for (start, _) in text.match_indices("docs/") {
        // `https://example.org/docs/x.md` is not a page of ours.
        if text[..start].ends_with(|letter: char| is_part(letter) && letter != '/')
            || text[..start].ends_with("/")
        {
            continue;
        }
        let end = text[start..].find(|letter| !is_part(letter)).map_or(text.len(), |end| start + end);
        let name = text[start..end].trim_end_matches('.');
        if name.ends_with(".md") && !exists(name) {
            let line = text[..start].matches('\n').count() + 1;
            mistakes.push(format!("{path}:{line}: there is no {name}"));
        }
    }
    mistakes
}

/// All links and images of a text.
pub(super) fn links(text: &str) -> Vec<Link<'_>> {
    parse(text)
        .filter_map(|(event, place)| match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                Some(Link { target: dest_url, place })
            }
            _ => None,
        })
        .collect()
}

/// Whether the target is an address of the web.
pub(super) fn is_outside(target: &str) -> bool {
    target.contains("://") || target.starts_with("mailto:")
}

/// The path in the project of what a link on this page leads to.
pub(super) fn resolve(page: &str, target: &str) -> String {
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The anchors of the headings, as mdBook and the forges make them: repeated ones get a number.
fn anchors(text: &str) -> HashSet<String> {
    let mut anchors = HashSet::new();
    let mut counts: HashMap<String, usize> = HashMap::new();
    let mut heading: Option<String> = None;
    for (event, _) in parse(text) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(part) | Event::Code(part) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&part);
                }
            }
            Event::End(TagEnd::Heading(_)) => {
                let anchor = anchor(&heading.take().unwrap_or_default());
                let count = counts.entry(anchor.clone()).or_default();
                anchors.insert(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
                *count += 1;
            }
            _ => {}
        }
    }
    anchors
}

fn anchor(heading: &str) -> String {
    let letter = |letter: char| match letter {
        letter if letter.is_whitespace() => Some('-'),
        letter if letter.is_alphanumeric() || "-_".contains(letter) => Some(letter.to_ascii_lowercase()),
        _ => None,
    };
    heading.trim().chars().filter_map(letter).collect()
}

fn parse(text: &str) -> impl Iterator<Item = (Event<'_>, Range<usize>)> {
    Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(path: &str, text: &str) -> Page {
        Page { path: path.into(), text: text.into() }
    }

    fn mistakes(pages: &[Page]) -> Vec<String> {
        check(pages, &|path| path == "crates/atta/examples")
    }

    #[test]
    fn links_to_pages_headings_and_files_are_found() {
        let pages = [
            page(
                "docs/a.md",
                "[b](guides/b.md#how-it-is-done), [x](../crates/atta/examples), [w](https://w.org/)",
            ),
            page("docs/guides/b.md", "# B\n\n## How *it* is `done`!\n\n[here](#b), [a](../a.md)"),
        ];
        assert_eq!(mistakes(&pages), Vec::<String>::new());
    }

    #[test]
    fn links_that_lead_nowhere_are_reported_with_their_line() {
        let pages = [page("docs/a.md", "# A\n\n[b](b.md)\n[c](#c)\n\n| x |\n|---|\n| ![d](../d.svg) |\n")];
        let expected = [
            "docs/a.md:3: there is no docs/b.md",
            "docs/a.md:4: docs/a.md has no heading #c",
            "docs/a.md:8: there is no d.svg",
        ];
        assert_eq!(mistakes(&pages), expected);
    }

    #[test]
    fn code_has_no_links_and_no_headings() {
        let pages = [page("a.md", "`[b](b.md)`\n\n```sh\n# comment\n[c](c.md)\n```\n\n[d](#comment)")];
        assert_eq!(mistakes(&pages), ["a.md:8: a.md has no heading #comment"]);
    }

    #[test]
    fn headings_that_occur_twice_have_numbers() {
        let pages = [page("a.md", "# A b\n# A b\n[one](#a-b) [two](#a-b-1) [three](#a-b-2)")];
        assert_eq!(mistakes(&pages), ["a.md:3: a.md has no heading #a-b-2"]);
    }

    #[test]
    fn pages_that_the_summary_does_not_list_are_reported() {
        let pages =
            [page("docs/SUMMARY.md", "- [A](x/a.md)"), page("docs/x/a.md", ""), page("docs/x/b.md", "")];
        assert_eq!(check_summary(&pages), ["docs/SUMMARY.md: does not list docs/x/b.md"]);
    }

    #[test]
    fn names_of_pages_in_sources_must_exist() {
        let text = "//! See docs/a.md.\n// docs/b.md, https://x.org/docs/c.md, docs/soak.svg";
        let exists = |path: &str| path == "docs/a.md";
        assert_eq!(check_mentions("x.rs", text, &exists), ["x.rs:2: there is no docs/b.md"]);
    }
}
