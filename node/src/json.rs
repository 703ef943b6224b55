//! Checks a payload's JSON text and keeps it as sent.
//!
//! A payload passes through Postgres and through handlers in any language, so what is taken must mean the same to all of
//! them. Refused are: nesting deeper than [`MAX_DEPTH`], an object with the same key twice (some readers take the first,
//! some the last), `\u0000` (Postgres stores none in text), halves of a surrogate pair (no text in UTF-8), and numbers
//! beyond the range of a 64-bit float (some readers make them infinite, some fail). All other numbers keep their text, digit
//! for digit.
//!
//! The check is one pass with its own bounded stack: no input, however deep, can overflow the thread's.

use std::borrow::Cow;

use serde_json::value::RawValue;

/// The longest payload, in bytes of its text.
pub const MAX_BYTES: usize = 1 << 20;

/// How many arrays and objects may stand within each other: what serde_json reads by default.
pub const MAX_DEPTH: usize = 127;

/// Why a text is no payload. Places are counted in bytes from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Longer than [`MAX_BYTES`].
    #[error("a payload has at most {MAX_BYTES} bytes, this one has {bytes}")]
    TooLarge {
        /// Its length.
        bytes: usize,
    },
    /// Not JSON (RFC 8259).
    #[error("no JSON: {what} at byte {at}")]
    Syntax {
        /// What was found or missed.
        what: &'static str,
        /// Where.
        at: usize,
    },
    /// Nested deeper than [`MAX_DEPTH`].
    #[error("nested deeper than {MAX_DEPTH} at byte {at}")]
    TooDeep {
        /// Where the first level too many begins.
        at: usize,
    },
    /// The escape `\u0000`.
    #[error("\\u0000 at byte {at}: Postgres stores no NUL in text")]
    Nul {
        /// Where the escape begins.
        at: usize,
    },
    /// An escaped half of a surrogate pair without its other half.
    #[error("half of a surrogate pair at byte {at}: it is no character in UTF-8")]
    LoneSurrogate {
        /// Where the escape begins.
        at: usize,
    },
    /// An object names a key twice.
    #[error("an object names the key at byte {at} twice: readers differ in which one counts")]
    DuplicateKey {
        /// Where one of the two begins.
        at: usize,
    },
    /// Beyond the range of a 64-bit float.
    #[error("the number at byte {at} is beyond the range of a 64-bit float")]
    NumberRange {
        /// Where it begins.
        at: usize,
    },
}

/// Checks a text and takes it as a payload, without the white space around it.
///
/// # Errors
/// Any of [`Error`].
pub fn payload(text: &str) -> Result<Box<RawValue>, Error> {
    check(text)?;
    RawValue::from_string(text.to_owned()).map_err(|_| Error::Syntax {
        what: "an unreadable value",
        at: 0,
    })
}

/// Checks a value that serde_json has cut out of a larger text already.
///
/// # Errors
/// Any of [`Error`].
pub fn raw(value: &RawValue) -> Result<Box<RawValue>, Error> {
    check(value.get())?;
    Ok(value.to_owned())
}

/// Checks a text without keeping it.
///
/// # Errors
/// Any of [`Error`].
pub fn check(text: &str) -> Result<(), Error> {
    if text.len() > MAX_BYTES {
        return Err(Error::TooLarge { bytes: text.len() });
    }
    Scanner {
        text,
        bytes: text.as_bytes(),
        at: 0,
        keys: Vec::new(),
    }
    .document()
}

/// What encloses the place of the scanner. An object remembers where its keys begin among all open keys.
#[derive(Clone, Copy)]
enum Frame {
    Array,
    Object { keys_from: usize },
}

struct Scanner<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    /// The keys of all open objects, unescaped, each with its place; those of the innermost object stand last.
    keys: Vec<(Cow<'a, str>, usize)>,
}

impl<'a> Scanner<'a> {
    fn document(mut self) -> Result<(), Error> {
        let mut stack: Vec<Frame> = Vec::new();
        'values: loop {
            self.space();
            match self.peek() {
                Some(open @ (b'{' | b'[')) => {
                    if stack.len() == MAX_DEPTH {
                        return Err(Error::TooDeep { at: self.at });
                    }
                    self.at += 1;
                    self.space();
                    if open == b'[' {
                        stack.push(Frame::Array);
                        if self.peek() != Some(b']') {
                            continue 'values;
                        }
                    } else {
                        stack.push(Frame::Object {
                            keys_from: self.keys.len(),
                        });
                        if self.peek() != Some(b'}') {
                            self.key()?;
                            continue 'values;
                        }
                    }
                }
                Some(b'"') => {
                    self.at += 1;
                    self.string(None)?;
                }
                Some(b'-' | b'0'..=b'9') => self.number()?,
                Some(b't') => self.word("true")?,
                Some(b'f') => self.word("false")?,
                Some(b'n') => self.word("null")?,
                Some(_) => return Err(self.syntax("no value")),
                None => return Err(self.syntax("the text ends")),
            }
            // A value has ended, or an empty array or object is about to.
            loop {
                self.space();
                let Some(frame) = stack.last().copied() else {
                    return if self.at == self.bytes.len() {
                        Ok(())
                    } else {
                        Err(self.syntax("something after the value"))
                    };
                };
                match (frame, self.peek()) {
                    (Frame::Array, Some(b']')) => self.at += 1,
                    (Frame::Object { keys_from }, Some(b'}')) => {
                        self.at += 1;
                        self.end_keys(keys_from)?;
                    }
                    (Frame::Array, Some(b',')) => {
                        self.at += 1;
                        continue 'values;
                    }
                    (Frame::Object { .. }, Some(b',')) => {
                        self.at += 1;
                        self.key()?;
                        continue 'values;
                    }
                    (_, None) => return Err(self.syntax("the text ends")),
                    (Frame::Array, _) => return Err(self.syntax("neither `,` nor `]`")),
                    (Frame::Object { .. }, _) => return Err(self.syntax("neither `,` nor `}`")),
                }
                stack.pop();
            }
        }
    }

    fn syntax(&self, what: &'static str) -> Error {
        Error::Syntax { what, at: self.at }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn word(&mut self, word: &'static str) -> Result<(), Error> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return Err(self.syntax("no value"));
        }
        self.at += word.len();
        Ok(())
    }

    /// Reads `"key" :`.
    fn key(&mut self) -> Result<(), Error> {
        self.space();
        let begin = self.at;
        if self.peek() != Some(b'"') {
            return Err(self.syntax("no key"));
        }
        self.at += 1;
        let from = self.at;
        let mut unescaped = String::new();
        self.string(Some(&mut unescaped))?;
        let plain = &self.text[from..self.at - 1];
        let key = if unescaped.is_empty() {
            Cow::Borrowed(plain)
        } else {
            Cow::Owned(unescaped)
        };
        self.keys.push((key, begin));
        self.space();
        if self.peek() != Some(b':') {
            return Err(self.syntax("no `:`"));
        }
        self.at += 1;
        Ok(())
    }

    /// Sorting, not hashing: nobody can craft keys that make it slow.
    fn end_keys(&mut self, from: usize) -> Result<(), Error> {
        let keys = &mut self.keys[from..];
        if keys.len() > 1 {
            keys.sort_unstable();
            if let Some(twins) = keys.windows(2).find(|pair| pair[0].0 == pair[1].0) {
                return Err(Error::DuplicateKey { at: twins[1].1 });
            }
        }
        self.keys.truncate(from);
        Ok(())
    }

    /// Reads a string from behind its first quote to behind its last. If it has escapes and `unescaped` is asked for, the
    /// whole string's meaning is put there; else that stays empty.
    fn string(&mut self, mut unescaped: Option<&mut String>) -> Result<(), Error> {
        let mut plain_from = self.at;
        loop {
            match self.peek() {
                Some(b'"') => {
                    if let Some(out) = unescaped
                        && !out.is_empty()
                    {
                        out.push_str(&self.text[plain_from..self.at]);
                    }
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => {
                    let plain = plain_from..self.at;
                    let c = self.escape()?;
                    if let Some(out) = unescaped.as_deref_mut() {
                        out.push_str(&self.text[plain]);
                        out.push(c);
                    }
                    plain_from = self.at;
                }
                Some(0..=0x1f) => return Err(self.syntax("an unescaped control character in a string")),
                Some(_) => self.at += 1,
                None => return Err(self.syntax("the text ends")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Error> {
        let begin = self.at;
        self.at += 1;
        let short = self.peek().ok_or_else(|| self.syntax("the text ends"))?;
        self.at += 1;
        Ok(match short {
            b'"' | b'\\' | b'/' => char::from(short),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.four_digits()?;
                match first {
                    0 => return Err(Error::Nul { at: begin }),
                    0xd800..=0xdbff => {
                        if !self.bytes[self.at..].starts_with(b"\\u") {
                            return Err(Error::LoneSurrogate { at: begin });
                        }
                        self.at += 2;
                        let second = self.four_digits()?;
                        if !(0xdc00..=0xdfff).contains(&second) {
                            return Err(Error::LoneSurrogate { at: begin });
                        }
                        let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                        char::from_u32(code).ok_or(Error::LoneSurrogate { at: begin })?
                    }
                    code => char::from_u32(code).ok_or(Error::LoneSurrogate { at: begin })?,
                }
            }
            _ => {
                self.at = begin;
                return Err(self.syntax("an unknown escape"));
            }
        })
    }

    fn four_digits(&mut self) -> Result<u32, Error> {
        let mut code = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            code = code << 4 | digit.ok_or_else(|| self.syntax("no hexadecimal digit"))?;
            self.at += 1;
        }
        Ok(code)
    }

    fn number(&mut self) -> Result<(), Error> {
        let begin = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        let mut exponent = false;
        if matches!(self.peek(), Some(b'e' | b'E')) {
            exponent = true;
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        // Fewer characters without an exponent cannot leave the range, and most numbers are short. serde_json, which handlers
        // read with, leaves it a little earlier: it rounds on the way.
        let text = &self.text[begin..self.at];
        let in_range = |text: &str| {
            text.parse::<f64>().is_ok_and(f64::is_finite) && serde_json::from_str::<f64>(text).is_ok()
        };
        if (exponent || text.len() > 300) && !in_range(text) {
            return Err(Error::NumberRange { at: begin });
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Error> {
        let from = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == from {
            Err(self.syntax("no digit"))
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn nested(depth: usize) -> String {
        format!("{}{}", "[".repeat(depth), "]".repeat(depth))
    }

    #[test]
    fn what_means_the_same_to_every_reader_is_taken_as_sent() {
        let many_keys = (0..100_000)
            .map(|n| format!("\"{n}\":0"))
            .collect::<Vec<_>>()
            .join(",");
        let long = format!("\"{}\"", "x".repeat(MAX_BYTES - 2));
        for text in [
            "0",
            "-0",
            "null",
            "true",
            "\"\"",
            "[]",
            "{}",
            " [ ] ",
            "[[],{}]",
            "{\"a\":{\"a\":1},\"b\":{\"a\":2}}",
            "9007199254740993",
            "9223372036854775808",
            "18446744073709551616",
            "1e-400",
            "1e308",
            "1.0E+2",
            "0.10",
            "\"\\ud83d\\ude00\"",
            "\"\u{202e}\u{200b}\"",
            "\"\\/\\b\"",
            "{\"A\":1,\"a\":2}",
            "{\"\":1}",
            &"1".repeat(300),
            &nested(127),
            &format!("{{{many_keys}}}"),
            &long,
        ] {
            let kept = payload(text).unwrap_or_else(|e| panic!("{e}: {}", &text[..text.len().min(80)]));
            assert_eq!(kept.get(), text.trim());
        }
    }

    #[test]
    fn what_readers_would_take_differently_is_refused() {
        use Error::{DuplicateKey, LoneSurrogate, Nul, NumberRange, TooDeep, TooLarge};
        let too_long = format!("\"{}\"", "x".repeat(MAX_BYTES - 1));
        for (text, error) in [
            (nested(128), TooDeep { at: 127 }),
            ("[".repeat(1_000_000), TooDeep { at: 127 }),
            ("{\"a\":".repeat(200_000), TooDeep { at: 635 }),
            (too_long, TooLarge { bytes: MAX_BYTES + 1 }),
            (r#"{"a":1,"a":2}"#.into(), DuplicateKey { at: 7 }),
            (r#"{"a":1,"b":{},"\u0061":2}"#.into(), DuplicateKey { at: 14 }),
            (r#"[{"x":[{"a":1,"a":1}]}]"#.into(), DuplicateKey { at: 14 }),
            (r#"{"":1,"":2}"#.into(), DuplicateKey { at: 6 }),
            (r#""a\u0000""#.into(), Nul { at: 2 }),
            (r#"{"\u0000":1}"#.into(), Nul { at: 2 }),
            (r#""\ud800""#.into(), LoneSurrogate { at: 1 }),
            (r#""\udc00""#.into(), LoneSurrogate { at: 1 }),
            (r#""\ud800\u0041""#.into(), LoneSurrogate { at: 1 }),
            ("1e400".into(), NumberRange { at: 0 }),
            ("[-1e309]".into(), NumberRange { at: 1 }),
            ("9".repeat(400), NumberRange { at: 0 }),
        ] {
            assert_eq!(
                payload(&text).unwrap_err(),
                error,
                "{}",
                &text[..text.len().min(80)]
            );
        }
    }

    #[test]
    fn what_is_no_json_is_refused() {
        for text in [
            "",
            " ",
            "{",
            "[",
            "[1",
            "[1,",
            "[1,]",
            "{\"a\"",
            "{\"a\":",
            "{\"a\":1",
            "{\"a\":1,}",
            "{a:1}",
            "{'a':1}",
            "1 2",
            "[] x",
            "}",
            "NaN",
            "Infinity",
            "-Infinity",
            "nul",
            "nulll",
            "True",
            "01",
            "-",
            "+1",
            ".5",
            "1.",
            "1e",
            "1e+",
            "0x10",
            "--1",
            "\"",
            "\"\\\"",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\\u12g4\"",
            "\"\n\"",
            "\"\0\"",
            "\u{feff}{}",
            "[1]//c",
            "/*c*/1",
            "[1 2]",
            "{\"a\" 1}",
            "{,}",
            "[,]",
            "\u{a0}1",
        ] {
            assert!(
                matches!(payload(text), Err(Error::Syntax { .. })),
                "{text:?}: {:?}",
                payload(text)
            );
        }
        assert!(
            payload("\u{feff}{}")
                .unwrap_err()
                .to_string()
                .contains("at byte 0")
        );
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[^\0]*".prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 64, 8, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                proptest::collection::btree_map("[^\0]*", inner, 0..8)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn every_value_that_serde_writes_is_taken(value in any_json()) {
            let text = serde_json::to_string(&value).unwrap();
            let kept = payload(&text).unwrap();
            prop_assert_eq!(kept.get(), &text);
            prop_assert!(check(&serde_json::to_string_pretty(&value).unwrap()).is_ok());
        }

        /// Whatever passes, serde_json reads as well: a handler never sees a payload that it cannot parse.
        #[test]
        fn what_is_taken_parses(text in r#"[\[\]{}",:0-9eE+\-. truefalsn\\ud8/]{0,24}"#) {
            if check(&text).is_ok() {
                prop_assert!(serde_json::from_str::<Value>(&text).is_ok(), "{}", text);
            }
        }
    }
}
