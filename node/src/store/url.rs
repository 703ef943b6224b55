//! The URL of a database, as sqlx shall see it.

use std::borrow::Cow;

use reqwest::Url;

/// The parameters that sqlx knows, beside `options[…]`.
const KNOWN: [&str; 18] = [
    "application_name",
    "dbname",
    "host",
    "hostaddr",
    "options",
    "password",
    "port",
    "ssl-ca",
    "ssl-cert",
    "ssl-key",
    "ssl-mode",
    "ssl-root-cert",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "statement-cache-capacity",
    "user",
];

/// The URL without the parameters that sqlx does not know: it would log them with their values, and a misspelt password is one.
pub(super) fn known(url: &str) -> Cow<'_, str> {
    let Ok(mut parsed) = Url::parse(url) else {
        return url.into();
    };
    let given: Vec<(String, String)> = parsed.query_pairs().into_owned().collect();
    let (kept, unknown): (Vec<_>, Vec<_>) = given
        .into_iter()
        .partition(|(name, _)| KNOWN.contains(&&**name) || name.starts_with("options["));
    if unknown.is_empty() {
        return url.into();
    }
    // Not by name: of a URL that is cut in the wrong place the name may be the secret.
    tracing::warn!(
        ignored = unknown.len(),
        known = KNOWN.join(" "),
        "the database's URL has parameters that are not known here"
    );
    parsed.set_query(None);
    if !kept.is_empty() {
        parsed.query_pairs_mut().extend_pairs(kept);
    }
    String::from(parsed).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_sqlx_would_log_with_its_value_does_not_reach_it() {
        for (given, kept) in [
            ("postgres://me:a%40b@h:5432/app", "postgres://me:a%40b@h:5432/app"),
            (
                "postgres://h/app?sslmode=require&user=me",
                "postgres://h/app?sslmode=require&user=me",
            ),
            (
                "postgres://h/app?options[search_path]=a",
                "postgres://h/app?options[search_path]=a",
            ),
            ("postgres://me:a%40b@h/app?pasword=x", "postgres://me:a%40b@h/app"),
            (
                "postgres://h/app?channel_binding=require&sslmode=require&x",
                "postgres://h/app?sslmode=require",
            ),
            ("no URL ?pasword=x", "no URL ?pasword=x"),
        ] {
            assert_eq!(known(given), kept);
        }
    }
}
