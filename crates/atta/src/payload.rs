//! Payloads: decoding into the type of the task, and writing in ASCII.

use serde::de::value::Error as NoUnit;
use serde::de::{DeserializeOwned, Deserializer, Error as _, IgnoredAny, Visitor};
use serde::forward_to_deserialize_any;

/// Decodes a payload. A unit struct accepts any object as well as null: adding a job without a payload stores `{}`, and
/// cron adds `_cron`.
pub(crate) fn decode<T: DeserializeOwned>(json: &str) -> serde_json::Result<T> {
    serde_json::from_str(json).or_else(|error| match is_object(json) {
        true => T::deserialize(Unit).map_err(|NoUnit { .. }| error),
        false => Err(error),
    })
}

/// Writes JSON without characters beyond ASCII. They occur only in strings, which may have escapes.
pub(crate) fn in_ascii(json: &str) -> String {
    let mut ascii = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_ascii() {
            ascii.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            ascii.push_str(&format!("\\u{unit:04x}"));
        }
    }
    ascii
}

fn is_object(json: &str) -> bool {
    json.trim_start().starts_with('{') && serde_json::from_str::<IgnoredAny>(json).is_ok()
}

/// Gives a value to unit structs only. Other types that accept null, such as an `Option` in a tuple struct, get an
/// error: they would silently drop an object that does not match them.
struct Unit;

impl<'de> Deserializer<'de> for Unit {
    type Error = NoUnit;

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, NoUnit> {
        Err(NoUnit::custom("no unit struct"))
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _name: &str, visitor: V) -> Result<V::Value, NoUnit> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit newtype_struct seq
        tuple tuple_struct map struct enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use serde_json::{Value, json};

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Nothing;

    #[derive(Debug, Deserialize)]
    struct Maybe(#[allow(dead_code)] Option<Number>);

    #[derive(Debug, Deserialize)]
    struct Number {
        #[allow(dead_code)]
        n: u8,
    }

    #[test]
    fn a_unit_struct_takes_any_object_and_null() {
        for json in ["{}", r#"{"_cron":{"ts":"x"}}"#, " {\"a\":[1]}", "null"] {
            assert!(decode::<Nothing>(json).is_ok(), "{json}");
        }
        for json in ["[]", "1", r#""{}""#, "true", "{"] {
            assert!(decode::<Nothing>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn an_object_that_does_not_fit_is_never_dropped() {
        assert!(decode::<Maybe>("null").is_ok());
        assert!(decode::<Maybe>(r#"{"n":"x"}"#).is_err());
        assert!(decode::<Number>("{}").is_err());
        assert!(decode::<()>("{}").is_err());
    }

    #[test]
    fn json_in_ascii_is_the_same_value() {
        let value = json!({ "grüße 世界": "😀\u{7f}\n\"" });
        let ascii = in_ascii(&value.to_string());
        assert!(ascii.is_ascii(), "{ascii}");
        assert_eq!(serde_json::from_str::<Value>(&ascii).unwrap(), value);
    }
}
