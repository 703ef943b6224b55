//! Arguments of commands. Also part of the test that runs them as processes, so it uses nothing else of this crate.

/// How a command ends: its exit code, and a part of what it says.
pub(crate) struct Row {
    pub(crate) arguments: &'static [&'static [u8]],
    pub(crate) input: &'static [u8],
    pub(crate) code: i32,
    pub(crate) says: &'static str,
}

pub(crate) fn count() -> usize {
    ROWS.len()
}

macro_rules! rows {
    ($( $code:literal $says:literal: $($argument:literal)* $(, $input:expr)?; )*) => {
        pub(crate) const ROWS: &[Row] = &[$(Row {
            arguments: &[$($argument),*],
            input: rows!(@ $($input)?),
            code: $code,
            says: $says,
        }),*];
    };
    (@) => { b"" };
    (@ $input:expr) => { $input };
}

rows! {
    // Keys and kinds.
    3 "key: ": b"submit" b"echo" b"";
    3 "kind: ": b"submit" b"" b"a";
    3 "kind: ": b"submit" b"a b" b"a";
    3 "kind: ": b"submit" b"\x1b[2J" b"a";
    3 "kind: ": b"submit" b"'; drop table ringmesh.task; --" b"a";
    2 "UTF-8": b"submit" b"echo" b"\xff";
    2 "UTF-8": b"submit" b"echo" b"\xed\xa0\x80";
    2 "UTF-8": b"submit" b"\xc0\xaf" b"a";
    2 "UTF-8": b"key" b"\xff";
    2 "at least one byte": b"key" b"";
    0 "": b"submit" b"echo" b"'; drop table ringmesh.task; --";
    0 "": b"submit" b"echo" b"caf\xc3\xa9";
    0 "": b"submit" b"echo" b"cafe\xcc\x81";
    0 "": b"submit" b"echo" b"..";
    0 "": b"submit" b"echo" b"\r\nx-evil: 1";
    0 "": b"submit" b"--" b"echo" b"--help";
    // Payloads.
    2 "payload": b"submit" b"echo" b"a" b"";
    2 "payload": b"submit" b"echo" b"a" b"{";
    2 "payload": b"submit" b"echo" b"a" b"hello";
    2 "payload": b"submit" b"echo" b"a" b"1 2";
    2 "payload": b"submit" b"echo" b"a" b"NaN";
    2 "payload": b"submit" b"echo" b"a" b"\xef\xbb\xbf1";
    3 "payload: ": b"submit" b"echo" b"a" b"\"\\u0000\"";
    3 "payload: ": b"submit" b"echo" b"a" b"\"\\ud800\"";
    3 "payload: ": b"submit" b"echo" b"a" b"{\"a\":1,\"a\":2}";
    3 "payload: ": b"submit" b"echo" b"a" b"1e400";
    // Numbers and times.
    2 "--priority": b"submit" b"echo" b"a" b"--priority" b"10";
    2 "--priority": b"submit" b"echo" b"a" b"--priority=-1";
    2 "--priority": b"submit" b"echo" b"a" b"--priority" b"99999999999999999999";
    2 "--max-attempts": b"submit" b"echo" b"a" b"--max-attempts" b"0";
    2 "--max-attempts": b"submit" b"echo" b"a" b"--max-attempts" b"1001";
    2 "--max-attempts": b"submit" b"echo" b"a" b"--max-attempts" b"1.5";
    3 "timeout: ": b"submit" b"echo" b"a" b"--timeout" b"0";
    3 "timeout: ": b"submit" b"echo" b"a" b"--timeout" b"25h";
    2 "--timeout": b"submit" b"echo" b"a" b"--timeout" b"NaN";
    2 "--timeout": b"submit" b"echo" b"a" b"--timeout" b"1e400";
    2 "--timeout": b"submit" b"echo" b"a" b"--timeout=-1";
    3 "delay: ": b"submit" b"echo" b"a" b"--delay" b"11years";
    2 "--delay": b"submit" b"echo" b"a" b"--delay" b"soon";
    2 "--delay": b"submit" b"echo" b"a" b"--delay" b"18446744073709551616s";
    3 "run_at: ": b"submit" b"echo" b"a" b"--run-at" b"+10000-01-01T00:00:00Z";
    3 "run_at: ": b"submit" b"echo" b"a" b"--run-at" b"0000-01-01T00:00:00Z";
    2 "--run-at": b"submit" b"echo" b"a" b"--run-at" b"tomorrow";
    2 "--run-at": b"submit" b"echo" b"a" b"--run-at" b"2030-02-30T00:00:00Z";
    2 "cannot be used with": b"submit" b"echo" b"a" b"--delay" b"1s" b"--run-at" b"2030-01-01T00:00:00Z";
    3 "idempotency_key: ": b"submit" b"echo" b"a" b"--idempotency-key" b"";
    // Ids and names.
    2 "SLOT-NUMBER": b"get" b"";
    2 "SLOT-NUMBER": b"get" b"1";
    2 "SLOT-NUMBER": b"get" b"4096-1";
    2 "SLOT-NUMBER": b"get" b"01-1";
    2 "SLOT-NUMBER": b"get" b"1-9223372036854775808";
    2 "SLOT-NUMBER": b"cancel" b"../../v1/mesh";
    2 "SLOT-NUMBER": b"cancel" b"1-1?wait=1s";
    2 "UTF-8": b"get" b"\xff";
    3 "no node of this name": b"drain" b"../tasks";
    3 "no node of this name": b"drain" b"a?b#c";
    3 "no node of this name": b"drain" b"a\r\nx-evil: 1";
    // Where the node is.
    2 "URL": b"mesh" b"--url" b"";
    2 "URL": b"mesh" b"--url" b"file:///etc/passwd";
    2 "URL": b"mesh" b"--url" b"http://";
    2 "URL": b"mesh" b"--url" b"//evil.example";
    2 "URL": b"mesh" b"--url" b"localhost:7101";
    // Files.
    2 "nowhere": b"submit" b"--file" b"/nowhere/at/all";
    1 "": b"submit" b"--file" b"/";
    0 "0 tasks submitted": b"submit" b"--file" b"-";
    3 "line 1": b"submit" b"--file" b"-", b"\0\n";
    3 "line 1": b"submit" b"--file" b"-", b"{\"kind\":\"\xff\"}\n";
    3 "line 1": b"submit" b"--file" b"-", b"[[[[[[[[[[[[[[[[[[[[\n";
    3 "line 2": b"submit" b"--file" b"-", b"{\"kind\":\"echo\",\"key\":\"a\",\"payload\":1}\n{\"kind\":\"echo\",\"key\":\"a\"}\n";
    3 "priority: ": b"submit" b"--file" b"-", b"{\"kind\":\"echo\",\"key\":\"a\",\"payload\":1,\"priority\":10}";
    0 "1 task submitted": b"submit" b"--file" b"-", b"\xef\xbb\xbf{\"kind\":\"echo\",\"key\":\"a\",\"payload\":1}\r\n\r\n";
    // Options of a node.
    2 "ttl: ": b"config" b"--database-url" b"postgres://localhost/a" b"--ttl" b"0s";
    2 "margin: ": b"config" b"--database-url" b"postgres://localhost/a" b"--margin" b"1h";
    2 "name: ": b"config" b"--database-url" b"postgres://localhost/a" b"--name" b"a'; drop table ringmesh.node; --";
    2 "tokens: ": b"config" b"--database-url" b"postgres://localhost/a" b"--tokens" b"0";
    2 "--slots": b"config" b"--slots" b"8";
    2 "database_url: ": b"migrate" b"--database-url" b"mysql://localhost/a";
    2 "weight: ": b"node" b"--database-url" b"postgres://localhost/a" b"--weight" b"-1";
    2 "cluster_secret: ": b"node" b"--database-url" b"postgres://localhost/a" b"--listen" b"0.0.0.0:0";
}
