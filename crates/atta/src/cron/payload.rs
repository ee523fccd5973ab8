//! The payload of an item (a JSON5 object in a crontab, any JSON in code), and the payload of the jobs that it adds.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, json};

use super::problem::Problem;

/// How deeply objects and arrays may be nested: the parser is recursive, and the stack is finite.
const DEPTH: usize = 100;

pub(super) const EXPECTED_PAYLOAD: &str = "a JSON5 object on the same line, such as {onboarding: false}";

/// Reads an object. Offsets are counted from the start of `text`.
pub(super) fn read(text: &str) -> Result<Value, Problem> {
    if !text.ends_with('}') {
        let end = text.chars().count();
        return Err(Problem::new(end, "the payload does not end with }", EXPECTED_PAYLOAD));
    }
    json5::from_str::<Payload>(text).map(|payload| payload.0).map_err(|error| {
        let offset = match error.position() {
            Some(position) if position.line == 0 => position.column,
            _ => 0,
        };
        let message = match error.code() {
            Some(code) => format!("the payload is not valid JSON5: {code}"),
            None => format!("the payload is not valid JSON5: {error}"),
        };
        Problem::new(offset, message, EXPECTED_PAYLOAD)
    })
}

/// The payload of the job for the tick `at`: an object gets a member `_cron`, any other value stays as it is.
pub(super) fn of_job(payload: Option<&Value>, at: DateTime<Utc>, backfilled: bool) -> Value {
    let mut object = match payload {
        Some(Value::Object(object)) => object.clone(),
        Some(Value::Null) | None => Map::new(),
        Some(other) => return other.clone(),
    };
    let ts = at.format("%Y-%m-%dT%H:%M:%S%.3fZ").to_string();
    object.insert("_cron".into(), json!({ "ts": ts, "backfilled": backfilled }));
    Value::Object(object)
}

struct Payload(Value);

impl<'de> serde::Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Payload, D::Error> {
        Depth(0).deserialize(deserializer).map(Payload)
    }
}

/// Reads any value, up to a limited depth.
struct Depth(usize);

impl<'de> DeserializeSeed<'de> for Depth {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        if self.0 > DEPTH {
            return Err(D::Error::custom(format!(
                "objects and arrays are nested more than {DEPTH} levels deep"
            )));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Depth {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    /// NaN and the infinities become null, as they do in Node.
    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(value) = values.next_element_seed(Depth(self.0 + 1))? {
            array.push(value);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = members.next_key::<String>()? {
            object.insert(key, members.next_value_seed(Depth(self.0 + 1))?);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json5_is_read() {
        let payload = read("{a: 'b', \"c\": [1, +2, .5, 0x10, NaN,], /* # */ d: null, e: true}").unwrap();
        assert_eq!(payload, json!({ "a": "b", "c": [1, 2, 0.5, 16, null], "d": null, "e": true }));
    }

    /// A job's payload is JSON, which lacks these numbers. JavaScript writes them as null, so crontabs that have them work
    /// with graphile-worker, and here.
    #[test]
    fn numbers_that_json_lacks_become_null() {
        let payload = read("{a: NaN, b: Infinity, c: -Infinity, d: 1e999, e: [-NaN, +Infinity]}").unwrap();
        assert_eq!(payload, json!({ "a": null, "b": null, "c": null, "d": null, "e": [null, null] }));
        let payload =
            read("{a: 0xFFFFFFFFFFFFFFFFFFFFFFFF, b: -0xFFFFFFFFFFFFFFFFFF, c: 0xFFFFFFFFFFFFFFFF}");
        let expected =
            json!({ "a": 79228162514264337593543950335.0, "b": -4722366482869645213695.0, "c": u64::MAX });
        assert_eq!(payload.unwrap(), expected);
    }

    #[test]
    fn an_error_has_its_position() {
        assert_eq!(read("{a: 1, b: oh}").unwrap_err().offset, 10);
        assert_eq!(read("{a: 1").unwrap_err().offset, 5);
    }

    #[test]
    fn a_payload_that_is_nested_too_deeply_is_rejected() {
        let deep = format!("{{a:{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(read(&deep).unwrap_err().message.contains("nested more than"));
        let fine = format!("{{a:{}{}}}", "[".repeat(90), "]".repeat(90));
        assert!(read(&fine).is_ok());
    }

    #[test]
    fn a_job_knows_its_tick() {
        let at = "2026-03-01T08:00:00Z".parse().unwrap();
        let payload = of_job(Some(&json!({ "a": 1, "_cron": "mine" })), at, true);
        let cron = json!({ "ts": "2026-03-01T08:00:00.000Z", "backfilled": true });
        assert_eq!(payload, json!({ "a": 1, "_cron": cron }));
        assert_eq!(of_job(None, at, true), json!({ "_cron": cron }));
        assert_eq!(of_job(Some(&json!([1])), at, true), json!([1]));
    }
}
