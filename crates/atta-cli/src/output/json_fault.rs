//! Describes an error in JSON that a user typed: its position, with the line and a caret.

/// How much of a long line is shown, in characters.
const SHOWN: usize = 100;

/// Turns `expected value at line 1 column 7` into `line 1, column 7: expected value`, with the line below it. `first`
/// is the number of the text's first line.
pub(crate) fn describe(text: &str, error: &serde_json::Error, first: usize) -> String {
    let line = text.lines().nth(error.line().saturating_sub(1)).unwrap_or_default();
    let offset = offset_of(line, error.column());
    let from = offset.saturating_sub(SHOWN / 2);
    let shown: String = line.chars().skip(from).take(SHOWN).map(printable).collect();
    let caret = " ".repeat(offset - from);
    let number = error.line().max(1) + first - 1;
    format!("line {number}, column {}: {}\n  {shown}\n  {caret}^", offset + 1, reason(error))
}

/// The message without the position.
fn reason(error: &serde_json::Error) -> String {
    let message = error.to_string();
    match message.rfind(" at line ") {
        Some(end) => message[..end].to_owned(),
        None => message,
    }
}

/// The last character that was read, in characters from 0; the error counts bytes from 1.
fn offset_of(line: &str, column: usize) -> usize {
    let before = line.char_indices().take_while(|(index, c)| index + c.len_utf8() < column);
    before.count().min(line.chars().count())
}

fn printable(c: char) -> char {
    if c.is_control() { ' ' } else { c }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(text: &str) -> String {
        describe(text, &serde_json::from_str::<serde_json::Value>(text).unwrap_err(), 1)
    }

    #[test]
    fn the_caret_points_at_the_error() {
        assert_eq!(
            described("{\"é\": nope}"),
            "line 1, column 8: expected ident\n  {\"é\": nope}\n         ^"
        );
        assert_eq!(described("{\n\"a\": 1,\n}"), "line 3, column 1: trailing comma\n  }\n  ^");
    }

    #[test]
    fn an_end_too_soon_and_a_long_line_are_shown_too() {
        assert!(described("").starts_with("line 1, column 1: EOF while parsing a value"));
        let long = format!("[{}x]", "1,".repeat(10_000));
        let shown = described(&long);
        assert!(shown.lines().all(|line| line.chars().count() <= SHOWN + 2), "{shown}");
        assert!(shown.lines().nth(1).unwrap().ends_with("1,x]"), "{shown}");
    }
}
