//! A statement with its argument written into it, for drivers that send an argument only in a second round trip.
//!
//! The argument is written in base64, which has no character that is special to the server's parser, whatever the
//! settings of the session are.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Replaces `$1` in a statement by the argument, and removes the comments. A `$1` within quotes, in the name of a
/// schema, is not replaced.
pub(super) fn with_literal(sql: &str, argument: &str) -> String {
    let encoded = base64(argument.as_bytes());
    let literal = format!("pg_catalog.convert_from(pg_catalog.decode('{encoded}', 'base64'), 'UTF8')");
    let mut filled = String::with_capacity(sql.len() + 2 * literal.len());
    let mut rest = sql;
    while let Some(at) = rest.find(['$', '-', '\'', '"']) {
        filled.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("$1") {
            filled.push_str(&literal);
            rest = after;
        } else if rest.starts_with("--") {
            rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
        } else {
            let end = end_of_quoted(rest);
            filled.push_str(&rest[..end]);
            rest = &rest[end..];
        }
    }
    filled + rest
}

/// Where the quoted text ends with which `text` begins; after the first character if that is not a quote. A doubled
/// quote ends one text and begins the next, which has the same result.
fn end_of_quoted(text: &str) -> usize {
    let Some(quote) = text.chars().next().filter(|c| matches!(c, '\'' | '"')) else { return 1 };
    text[1..].find(quote).map_or(text.len(), |at| at + 2)
}

fn base64(bytes: &[u8]) -> String {
    let mut encoded = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |n: usize| u32::from(three.get(n).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for n in 0..4 {
            let sextet = (bits >> (18 - 6 * n)) as usize & 63;
            encoded.push(if n <= three.len() { char::from(ALPHABET[sextet]) } else { '=' });
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_pads_to_four() {
        let all = ["", "f", "fo", "foo", "foob", "fooba", "foobar", "\u{ff}\u{3ff}"];
        let encoded = all.map(|text| base64(text.as_bytes()));
        assert_eq!(encoded, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy", "w7/Pvw=="]);
    }

    #[test]
    fn only_the_parameter_is_replaced() {
        let sql = "-- it's $1\nselect \"a$1\".f($1::text, 'o''$1', 2-1, $atta) -- $1";
        let literal = "pg_catalog.convert_from(pg_catalog.decode('Zm9v', 'base64'), 'UTF8')";
        let expected = format!("\nselect \"a$1\".f({literal}::text, 'o''$1', 2-1, $atta) ");
        assert_eq!(with_literal(sql, "foo"), expected);
    }
}
