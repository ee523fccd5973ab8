//! The prose check of `cargo xtask check`: fails if a file contains a retired word.
//!
//! `xtask/retired-words.txt` has the rules. Identifiers are split into their words, so a rule for `gadget` also finds
//! `last_gadget` and `GadgetRow`. A phrase is found across line ends, but not across punctuation. Names of files and
//! folders are checked too. The check knows no grammar: a word belongs into the list only if it has no ordinary use in
//! this project, or as part of a phrase.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::Path;

use crate::{Result, root, say};

const RULES: &str = include_str!("../retired-words.txt");

/// Names of files and folders that are not read at any place: data, output, and what others wrote.
const SKIPPED_NAMES: &[&str] =
    &[".git", ".venv", "target", "node_modules", "Cargo.lock", "package-lock.json", "LICENSE"];
const SKIPPED_EXTENSIONS: &[&str] = &["csv", "svg", "png"];

/// Paths that are not read, with the reason.
const SKIPPED_PATHS: &[(&str, &str)] = &[
    ("xtask/retired-words.txt", "lists the words"),
    ("bench/RESULTS.md", "is written by a program"),
    (
        "crates/atta/tests/compat",
        "stays unchanged, so that these tests prove that compatibility has not changed",
    ),
    ("crates/atta/tests/it/sql_api/seeds.rs", "the same"),
];

/// Words or phrases, and what to write instead.
struct Rule {
    phrases: Vec<Vec<String>>,
    instead: String,
}

/// A retired word in a text.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    /// From 1; 0 for a name of a file.
    line: usize,
    found: String,
    instead: String,
}

/// A word of a text in lower case, or punctuation that ends a phrase.
#[derive(Debug, PartialEq, Eq)]
enum Token {
    Word { text: String, line: usize },
    Break,
}

pub(crate) fn check() -> Result {
    say("==> retired words");
    let rules = Rules::parse(RULES)?;
    let mut findings = Vec::new();
    check_folder(&rules, &root(), "", &mut findings)?;
    if findings.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{} retired words (see docs/concepts/glossary.md):\n  {}",
        findings.len(),
        findings.join("\n  ")
    ))
}

/// Checks a folder of the project, and the folders in it. `path` is relative to the project.
fn check_folder(rules: &Rules, folder: &Path, path: &str, findings: &mut Vec<String>) -> Result {
    let failed = |error: std::io::Error| format!("reading {}: {error}", folder.display());
    let mut entries =
        fs::read_dir(folder).map_err(failed)?.collect::<std::io::Result<Vec<_>>>().map_err(failed)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
        if is_skipped(&name, &path) {
            continue;
        }
        findings.extend(rules.find(&name).into_iter().map(|finding| format!("{path}: {finding}")));
        if entry.file_type().map_err(failed)?.is_dir() {
            check_folder(rules, &entry.path(), &path, findings)?;
        } else if let Ok(text) = fs::read_to_string(entry.path()) {
            // A file that is not UTF-8 is data.
            let found = rules.find(&text).into_iter();
            findings.extend(found.map(|finding| format!("{path}:{}: {finding}", finding.line)));
        }
    }
    Ok(())
}

fn is_skipped(name: &str, path: &str) -> bool {
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    SKIPPED_NAMES.contains(&name)
        || SKIPPED_EXTENSIONS.contains(&extension)
        || SKIPPED_PATHS.iter().any(|(skipped, _)| *skipped == path)
}

/// The rules, by the first word of each phrase.
struct Rules {
    rules: Vec<Rule>,
    by_first_word: HashMap<String, Vec<(usize, usize)>>,
}

impl Rules {
    /// One rule per line: `word, a phrase => what to use`. Empty lines and lines that start with # are ignored.
    fn parse(text: &str) -> Result<Rules> {
        let mut rules = Rules { rules: Vec::new(), by_first_word: HashMap::new() };
        for (number, line) in text.lines().enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let invalid = |what: &str| format!("retired-words.txt, line {}: {what}", number + 1);
            let (phrases, instead) = line.split_once(" => ").ok_or_else(|| invalid("=> is missing"))?;
            let phrases: Vec<Vec<String>> = phrases
                .split(", ")
                .map(|phrase| phrase.split(' ').map(str::to_lowercase).collect())
                .collect();
            for (index, phrase) in phrases.iter().enumerate() {
                if phrase.iter().any(|word| word.is_empty() || !word.chars().all(char::is_alphabetic)) {
                    return Err(invalid("a word has characters that are not letters"));
                }
                let place = (rules.rules.len(), index);
                rules.by_first_word.entry(phrase[0].clone()).or_default().push(place);
            }
            rules.rules.push(Rule { phrases, instead: instead.to_owned() });
        }
        Ok(rules)
    }

    fn find(&self, text: &str) -> Vec<Finding> {
        let tokens = tokens(text);
        let mut findings = Vec::new();
        for (index, token) in tokens.iter().enumerate() {
            let Token::Word { text, line } = token else { continue };
            for (rule, phrase) in self.by_first_word.get(text).into_iter().flatten() {
                let Rule { phrases, instead } = &self.rules[*rule];
                let phrase = &phrases[*phrase];
                if starts_with(&tokens[index..], phrase) {
                    findings.push(Finding { line: *line, found: phrase.join(" "), instead: instead.clone() });
                }
            }
        }
        findings
    }
}

fn starts_with(tokens: &[Token], phrase: &[String]) -> bool {
    tokens.len() >= phrase.len()
        && tokens
            .iter()
            .zip(phrase)
            .all(|(token, word)| matches!(token, Token::Word { text, .. } if text == word))
}

/// Splits a text into words. Identifiers are split at underscores, and where a capital letter begins a word.
fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut word = String::new();
        let mut last = ' ';
        let mut characters = line.chars().peekable();
        while let Some(character) = characters.next() {
            let next_is_small = characters.peek().is_some_and(|next| next.is_lowercase());
            let begins_word = character.is_uppercase() && (last.is_lowercase() || next_is_small);
            if begins_word || !character.is_alphabetic() {
                push_word(&mut tokens, &mut word, index + 1);
            }
            if character.is_alphabetic() {
                word.push(character);
            } else if ends_phrase(character) {
                tokens.push(Token::Break);
            }
            last = character;
        }
        push_word(&mut tokens, &mut word, index + 1);
    }
    tokens
}

fn push_word(tokens: &mut Vec<Token>, word: &mut String, line: usize) {
    if !word.is_empty() {
        tokens.push(Token::Word { text: std::mem::take(word).to_lowercase(), line });
    }
}

/// Comment markers and quotes do not end a phrase.
fn ends_phrase(character: char) -> bool {
    matches!(character, '.' | ',' | ';' | ':' | '!' | '?' | '(' | ')' | '{' | '}' | '=' | '|' | '<' | '>')
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is retired, use: {}", self.found, self.instead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(usize, String)> {
        let rules =
            Rules::parse("gadget, gizmo => recover\nhand out => return\n# note\n\nlink => connection\n");
        rules.unwrap().find(text).into_iter().map(|finding| (finding.line, finding.found)).collect()
    }

    #[test]
    fn finds_words_with_their_lines_and_replacements() {
        let rules = Rules::parse("gadget, gizmo => recover").unwrap();
        let findings = rules.find("fine\na Gadget here");
        assert_eq!(findings, [Finding { line: 2, found: "gadget".into(), instead: "recover".into() }]);
        assert_eq!(findings[0].to_string(), "\"gadget\" is retired, use: recover");
    }

    #[test]
    fn finds_words_in_identifiers_of_every_case() {
        for text in
            ["last_gadget_at", "GadgetRow", "is_gizmo()", "GADGET", "rowGadget", "a-gadget.sql", "SQLGadget"]
        {
            assert_eq!(found(text).len(), 1, "{text}");
        }
    }

    #[test]
    fn ignores_words_that_only_contain_a_retired_word() {
        assert_eq!(found("the hyperlink, HYPERLINK, hyperlinks, degadgetise, linked, handouts"), []);
    }

    #[test]
    fn finds_phrases_across_lines_but_not_across_punctuation() {
        assert_eq!(found("/// workers hand\n    /// out jobs"), [(1, "hand out".to_owned())]);
        assert_eq!(found("fn hand_out()"), [(1, "hand out".to_owned())]);
        assert_eq!(found("what they hand. Out of it"), []);
        assert_eq!(found("hand(out)"), []);
        assert_eq!(found("hand"), []);
    }

    #[test]
    fn an_invalid_rule_is_reported_with_its_line() {
        let error = |text| Rules::parse(text).err().unwrap_or_default();
        assert_eq!(error("# fine\ngadget - recover"), "retired-words.txt, line 2: => is missing");
        assert!(error("a  gadget => poll").contains("line 1: a word has"));
    }

    #[test]
    fn the_list_is_valid_and_no_replacement_is_retired_itself() {
        let rules = Rules::parse(RULES).unwrap();
        assert!(rules.rules.len() > 10);
        for rule in &rules.rules {
            assert_eq!(rules.find(&rule.instead), [], "{}", rule.instead);
        }
    }

    #[test]
    fn skips_data_and_the_list_itself() {
        let skipped = [
            ("Cargo.lock", "fuzz/Cargo.lock"),
            ("soak.csv", "docs/soak.csv"),
            ("compat", "crates/atta/tests/compat"),
        ];
        for (name, path) in skipped {
            assert!(is_skipped(name, path), "{path}");
        }
        assert!(!is_skipped("worker", "crates/atta/src/worker"));
        for (path, _) in SKIPPED_PATHS {
            assert!(root().join(path).exists(), "{path}");
        }
    }
}
