//! Changes to the text of a JSON value that leave the value as it is, for texts that are passed on without being parsed.

/// Appends JSON as one line. JSON strings contain no line breaks, so line breaks between its parts can become spaces.
pub(crate) fn append_line(out: &mut Vec<u8>, json: &str) {
    let from = out.len();
    out.extend_from_slice(json.as_bytes());
    for byte in &mut out[from..] {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
}

/// JSON without the white space between its parts.
pub(crate) fn compact(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let (mut in_string, mut is_escaped) = (false, false);
    for letter in json.chars() {
        if in_string {
            out.push(letter);
            in_string = is_escaped || letter != '"';
            is_escaped = !is_escaped && letter == '\\';
        } else if !letter.is_ascii_whitespace() {
            out.push(letter);
            in_string = letter == '"';
        }
    }
    out
}

/// JSON with \ufffd in place of every unpaired half of a surrogate pair: strings in JavaScript and Python can contain
/// these, and hosts send them.
pub(crate) fn without_half_pairs(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let length = match (surrogate(rest), rest.get(6..).and_then(surrogate)) {
            (None, _) => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            (Some(Half::First), Some(Half::Second)) => 12,
            (Some(_), _) => 0,
        };
        if length == 0 {
            out.push_str("\\ufffd");
            rest = &rest[6..];
        } else {
            out.push_str(&rest[..length]);
            rest = &rest[length..];
        }
    }
    out + rest
}

enum Half {
    First,
    Second,
}

/// Whether the text begins with the escape of half a surrogate pair.
fn surrogate(text: &str) -> Option<Half> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    match u16::from_str_radix(digits, 16).ok()? {
        0xd800..=0xdbff => Some(Half::First),
        0xdc00..=0xdfff => Some(Half::Second),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_space_between_the_parts_goes() {
        let json = "{ \"a b\" : [1 , \"x \\\" y \\\\\" ,\n\ttrue ] }";
        assert_eq!(compact(json), "{\"a b\":[1,\"x \\\" y \\\\\",true]}");
        assert_eq!(compact(" null "), "null");
    }

    #[test]
    fn half_a_surrogate_pair_is_replaced_and_all_else_stays() {
        let mended =
            without_half_pairs(r#""\ud83d\ude00 \ud83d \ude00 \\ud83d \n\"\u00e4 \ud83d\ud83d\ude00""#);
        assert_eq!(mended, r#""\ud83d\ude00 \ufffd \ufffd \\ud83d \n\"\u00e4 \ufffd\ud83d\ude00""#);
        for odd in ["\\", "\\u", "\\ud8", "\\ü", "\\ud83d\\", "\\ud83d\\u"] {
            assert!(!without_half_pairs(odd).is_empty());
        }
    }
}
