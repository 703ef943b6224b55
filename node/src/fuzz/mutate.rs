//! Changes good inputs, and runs a target on what becomes of them.

use std::time::Instant;

/// Longer inputs are cut.
const LONGEST: usize = 1 << 16;

/// What parsers stumble over.
const WORDS: &[&[u8]] = &[
    b"\0",
    b"\xff",
    b"\xc0\xaf",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"\r\n",
    b"\r\n\r\n",
    b"\\u0000",
    b"\\ud800",
    b"\\u0061",
    b"\\",
    b"\"",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"null",
    b"true",
    b"NaN",
    b"inf",
    b"1e400",
    b"-1",
    b"-0",
    b"0.1",
    b"9223372036854775808",
    b"18446744073709551616",
    b"2147483648",
    b"4096",
    b"%00",
    b"%ff",
    b"%2f",
    b"..",
    b"?wait=",
    b"&",
    b"T24:00:60.999999999Z",
    b"+23:59",
    b"infinity",
    b"years",
    b"ns",
    b"transfer-encoding: chunked\r\n",
    b"content-length: 5\r\n",
    b"\"key\":",
    b"\"payload\":",
    b"\"run_at\":",
    b"@",
    b"://",
];

/// splitmix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`, which is above 0.
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap_or(0)
    }

    fn byte(&mut self) -> u8 {
        self.next().to_be_bytes()[0]
    }

    /// A part of so many bytes; mostly a short one.
    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let from = self.below(length + 1);
        let most = if self.below(4) == 0 {
            length - from
        } else {
            (length - from).min(8)
        };
        from..from + self.below(most + 1)
    }

    /// One of the good inputs, changed a few times.
    pub(crate) fn mutant(&mut self, good: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = good[self.below(good.len())].clone();
        // One in sixteen stays as it is.
        for _ in 0..self.below(16).min(8) {
            self.change(&mut bytes, good);
            bytes.truncate(LONGEST);
        }
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>, good: &[Vec<u8>]) {
        let length = bytes.len();
        match self.below(11) {
            0 if length > 0 => {
                let at = self.below(length);
                bytes[at] ^= 1 << self.below(8);
            }
            1 if length > 0 => {
                let at = self.below(length);
                bytes[at] = self.byte();
            }
            2 => bytes.truncate(self.below(length + 1)),
            3 => {
                let gone = self.range(length);
                bytes.drain(gone);
            }
            4 => {
                let part = self.range(length);
                let copy = bytes[part].to_vec();
                let at = self.below(length + 1);
                bytes.splice(at..at, copy);
            }
            // The beginning of this one, the end of another.
            5 => {
                let other = &good[self.below(good.len())];
                bytes.truncate(self.below(length + 1));
                bytes.extend(&other[self.below(other.len() + 1)..]);
            }
            6 => {
                let word = WORDS[self.below(WORDS.len())];
                let at = self.below(length + 1);
                bytes.splice(at..at, word.iter().copied());
            }
            7 => {
                let word = WORDS[self.below(WORDS.len())];
                let part = self.range(length);
                bytes.splice(part, word.iter().copied());
            }
            8 => {
                let part = self.range(length);
                let at = part.end;
                let times = self.below(200);
                let copies = bytes[part].repeat(times);
                bytes.splice(at..at, copies);
            }
            // Another number in place of one.
            9 => {
                let Some(from) = bytes.iter().position(u8::is_ascii_digit) else {
                    return;
                };
                let digits = bytes[from..]
                    .iter()
                    .take_while(|byte| byte.is_ascii_digit())
                    .count();
                let number = match self.below(4) {
                    0 => self.next().to_string(),
                    1 => u64::MAX.wrapping_shl(u32::from(self.byte()) % 64).to_string(),
                    2 => self.byte().to_string(),
                    _ => "9".repeat(self.below(400)),
                };
                bytes.splice(from..from + digits, number.into_bytes());
            }
            _ => {
                let more = self.below(16);
                for _ in 0..more {
                    let byte = self.byte();
                    let at = self.below(bytes.len() + 1);
                    bytes.insert(at, byte);
                }
            }
        }
    }
}

/// How many cases each target gets: `FUZZ_CASES`, else a few.
pub(crate) fn cases() -> u64 {
    let cases = std::env::var("FUZZ_CASES").ok();
    cases.map_or(2_000, |text| text.parse().expect("FUZZ_CASES is a number"))
}

/// Runs a target on its good inputs, and on as many changed ones as told. The same ones each time, unless `FUZZ_SEED` is set.
pub(super) fn run(name: &str) {
    let target = super::TARGETS
        .iter()
        .find(|target| target.name == name)
        .expect("there is such a target");
    let good = (target.seeds)();
    good.iter().for_each(|input| (target.run)(input));
    let seed = std::env::var("FUZZ_SEED").map_or(1, |text| text.parse().expect("FUZZ_SEED is a number"));
    let mut random = Random(seed);
    let (began, cases) = (Instant::now(), cases());
    for number in 0..cases {
        let input = random.mutant(&good);
        let done = std::panic::catch_unwind(|| (target.run)(&input));
        if done.is_err() {
            panic!(
                "case {number} of {name}, seed {seed}: {:?}",
                String::from_utf8_lossy(&input)
            );
        }
    }
    println!("{name}: {cases} cases in {:.0?}", began.elapsed());
}
