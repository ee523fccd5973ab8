//! Removes values that the database refuses to store from an outcome, since otherwise the job would never be released.
//! Pure.

use super::super::run::{Failure, Finished, Outcome};
use crate::Error;
use crate::payload::in_ascii;

/// After this many attempts all characters beyond ASCII are replaced, not only those that errors of the server have
/// named.
const ATTEMPTS_BY_CHARACTER: u32 = 5;

/// No equivalent in the encoding of the database; not valid in an encoding.
const CHARACTERS: [&str; 2] = ["22P05", "22021"];

/// An outcome without the value that the database refused: characters that the encoding of the database does not have,
/// or a payload that is nested too deeply. The payload of a batch has the items that did not succeed. Without it the
/// others would run again, so it is removed only if the refusal can't be about characters.
pub(super) fn without_what_is_refused(mut one: Finished, error: &Error, attempts: u32) -> Finished {
    let code = error.db_code().unwrap_or_default();
    let Outcome::Failed(failure) = &mut one.outcome else { return one };
    let is_about_values = code.starts_with("22") || code.starts_with("54");
    if !is_about_values {
        return one;
    }
    if CHARACTERS.contains(&code) && replace_characters(failure, error.message(), attempts) {
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

/// Replaces characters where the server's message names them. If it names none of them, those of the payload are
/// replaced first: as JSON, it stays the same value. Returns whether there were any.
fn replace_characters(failure: &mut Failure, message: &str, attempts: u32) -> bool {
    let payload = failure.payload.take_if(|payload| !payload.is_ascii());
    if payload.is_none() && failure.error.is_ascii() {
        return false;
    }
    let refused = refused_character(message);
    let is_in = |text: &str| refused.is_some_and(|refused| text.contains(refused));
    let is_in_error = is_in(&failure.error);
    let has_payload = payload.is_some();
    if let Some(payload) = payload {
        let is_refused = is_in(&payload) || !is_in_error;
        failure.payload = Some(if is_refused { in_ascii(&payload) } else { payload });
    }
    if is_in_error || !has_payload {
        failure.error = without_refused_characters(&failure.error, message, attempts).into();
    }
    true
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
    fn characters_are_replaced_where_they_are_refused() {
        let win1252 = |bytes| message(bytes, "WIN1252");
        let (arrow, unknown) = (win1252("0xe2 0x86 0x92"), "refused".to_owned());
        // The error, the payload and the message, and what is left; None: nothing to replace.
        let cases = [
            ("é →", Some("\"é\""), &arrow, Some(("é ?", Some("\"é\"")))),
            ("é", Some("\"é →\""), &arrow, Some(("é", Some("\"\\u00e9 \\u2192\"")))),
            ("é →", Some("\"→\""), &arrow, Some(("é ?", Some("\"\\u2192\"")))),
            ("é", Some("\"é\""), &unknown, Some(("é", Some("\"\\u00e9\"")))),
            ("é", Some("1"), &unknown, Some(("?", Some("1")))),
            ("é →", None, &arrow, Some(("é ?", None))),
            ("e", Some("1"), &arrow, None),
        ];
        for (error, payload, message, expected) in cases {
            let payload = payload.map(str::to_owned);
            let mut failure = Failure { error: error.into(), retry: crate::Retry::Backoff, payload };
            let is_replaced = replace_characters(&mut failure, message, 0);
            let after = is_replaced.then_some((&*failure.error, failure.payload.as_deref()));
            assert_eq!(after, expected, "{error} {message}");
        }
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
