//! Removes values that the database refuses to store from an outcome, since otherwise the job would never be released.
//! Pure.

use super::super::run::{Finished, Outcome};
use crate::Error;

/// After this many attempts all characters beyond ASCII are replaced, not only those that errors of the server have
/// named.
const ATTEMPTS_BY_CHARACTER: u32 = 5;

/// An outcome without the value that the database refused: a payload that is nested too deeply, or characters of the
/// error that the encoding of the database does not have.
pub(super) fn without_what_is_refused(mut one: Finished, error: &Error, attempts: u32) -> Finished {
    let is_about_values =
        error.db_code().is_some_and(|code| code.starts_with("22") || code.starts_with("54"));
    let Outcome::Failed(failure) = &mut one.outcome else { return one };
    if !is_about_values {
        return one;
    }
    failure.error = match failure.payload.take() {
        Some(_) => {
            format!("{}\n(its next payload was not stored: {})", failure.error, error.message()).into()
        }
        None => without_refused_characters(&failure.error, error.message(), attempts).into(),
    };
    one
}

/// The text with a question mark for each character that the server's message names as refused. The server names only
/// one character, so others that would certainly be refused next are replaced too.
fn without_refused_characters(text: &str, message: &str, attempts: u32) -> String {
    let refused = refused_character(message).filter(|refused| text.contains(*refused));
    let Some(refused) = refused.filter(|_| attempts < ATTEMPTS_BY_CHARACTER) else {
        return text.replace(|c: char| !c.is_ascii(), "?");
    };
    let is_latin1 = message.contains("\"LATIN1\"");
    let is_astral = |c: char| u32::from(c) > 0xffff;
    text.replace(
        |c: char| c == refused || (is_latin1 && u32::from(c) > 0xff) || (is_astral(refused) && is_astral(c)),
        "?",
    )
}

/// The character whose bytes a message names: `character with byte sequence 0xc5 0x82 in encoding "UTF8" has no
/// equivalent in encoding "LATIN1"`, in whatever language the rest of it is.
fn refused_character(message: &str) -> Option<char> {
    let bytes: Option<Vec<u8>> = message
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("0x"))
        .map(|hex| u8::from_str_radix(hex, 16).ok())
        .collect();
    let bytes = bytes?;
    let text = std::str::from_utf8(&bytes).ok()?;
    let mut characters = text.chars();
    characters.next().filter(|_| characters.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(bytes: &str, encoding: &str) -> String {
        format!(
            "character with byte sequence {bytes} in encoding \"UTF8\" has no equivalent in encoding \"{encoding}\""
        )
    }

    #[test]
    fn characters_that_the_encoding_has_are_kept() {
        let latin1 = message("0xf0 0x9f 0x98 0x80", "LATIN1");
        assert_eq!(without_refused_characters("é 😀 ł ü", &latin1, 0), "é ? ? ü");
        let win1252 = message("0xe2 0x86 0x92", "WIN1252");
        assert_eq!(without_refused_characters("€ → é", &win1252, 0), "€ ? é");
        let euc_jp = message("0xf0 0x9f 0x98 0x80", "EUC_JP");
        assert_eq!(without_refused_characters("漢 😀 😁", &euc_jp, 0), "漢 ? ?");
    }

    #[test]
    fn all_but_ascii_is_replaced_when_nothing_better_is_known() {
        assert_eq!(without_refused_characters("é →", "refused", 0), "? ?");
        assert_eq!(without_refused_characters("é", &message("0xe2 0x86 0x92", "WIN1252"), 0), "?");
        let again = message("0xe2 0x86 0x92", "WIN1252");
        assert_eq!(without_refused_characters("é →", &again, ATTEMPTS_BY_CHARACTER), "? ?");
    }
}
