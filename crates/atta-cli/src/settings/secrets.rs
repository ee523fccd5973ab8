//! Connection strings without secrets, for display.

/// The connection string with every password masked: in the user part of a URL, in its parameters, in key=value pairs.
pub(crate) fn without_secrets(text: &str) -> String {
    if let Some((scheme, rest)) = text.split_once("://") {
        let (place, parameters) = match rest.split_once('?') {
            // A question mark in the password looks like the start of the parameters.
            Some((place, parameters))
                if !place.contains('@') && parameters.contains('@') && has_password(place) =>
            {
                let (_, host) = parameters.rsplit_once('@').unwrap_or_default();
                return format!("{scheme}://***@{host}");
            }
            Some((place, parameters)) => (place, Some(parameters)),
            None => (rest, None),
        };
        // The last @ before the path: a password may contain one.
        let authority_end = place.rfind('@').map_or(0, |at| at + 1);
        let (user, host) = place.split_at(authority_end);
        let user = match user.split_once(':') {
            Some((name, _)) => format!("{name}:***@"),
            None => user.to_owned(),
        };
        let parameters = parameters.map_or(String::new(), |list| {
            let shown: Vec<String> = list.split('&').map(|pair| blot(pair, "=")).collect();
            format!("?{}", shown.join("&"))
        });
        return format!("{scheme}://{user}{host}{parameters}");
    }
    if !text.contains('=') {
        // A name, or a URL that lacks its beginning.
        return match (text.find(':'), text.rfind('@')) {
            (Some(colon), Some(at)) if colon < at => format!("{}:***{}", &text[..colon], &text[at..]),
            _ => text.to_owned(),
        };
    }
    // A quoted password may contain spaces, so nothing after it is shown.
    match text.to_ascii_lowercase().find("password") {
        Some(at) => format!("{}password=***", &text[..at]),
        None => text.to_owned(),
    }
}

/// Whether the text after the first colon is not a port.
fn has_password(place: &str) -> bool {
    let port = place.split_once(':').map_or("", |(_, rest)| rest.split('/').next().unwrap_or_default());
    port.chars().any(|c| !c.is_ascii_digit())
}

fn blot(pair: &str, sign: &str) -> String {
    match pair.split_once(sign) {
        Some((key, _)) if key.to_ascii_lowercase().contains("password") => format!("{key}{sign}***"),
        _ => pair.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_hidden_in_every_place() {
        for (text, shown) in [
            ("postgres://me:s3cret@host:5432/app", "postgres://me:***@host:5432/app"),
            ("postgres://me:s3@cret@host/app?sslmode=require", "postgres://me:***@host/app?sslmode=require"),
            ("postgres://me:s3?cret@host/app", "postgres://***@host/app"),
            ("postgres://h:5432/app?user=a@b", "postgres://h:5432/app?user=a@b"),
            ("postgres:/me:s3cret@host/app", "postgres:***@host/app"),
            ("me:s3cret@host/app", "me:***@host/app"),
            ("postgres://me@host/app", "postgres://me@host/app"),
            ("postgres:///app?user=me&password=s3cret", "postgres:///app?user=me&password=***"),
            ("host=here sslpassword='s3 cret' user=me", "host=here sslpassword=***"),
            ("host=here password = s3cret", "host=here password=***"),
            ("my_db", "my_db"),
        ] {
            assert_eq!(without_secrets(text), shown);
            assert!(!without_secrets(text).contains("cret"));
        }
    }
}
