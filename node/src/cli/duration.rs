//! Durations as the HTTP API takes them.

use std::time::Duration;

/// A time like `90s` or `1h30m`, or a plain number of seconds.
pub(crate) fn read(text: &str) -> Result<Duration, String> {
    let expected = || "expected a time like 500ms, 3s or 1h30m, or a number of seconds".to_owned();
    match text.parse() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|_| expected()),
        Err(_) => humantime::parse_duration(text).map_err(|_| expected()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_number_is_seconds() {
        let ms = |text: &str| read(text).map(|time| time.as_millis());
        assert_eq!((ms("3"), ms("0.5"), ms("1m 2s")), (Ok(3000), Ok(500), Ok(62_000)));
        for bad in ["", "-1", "nan", "inf", "3 parsecs"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
