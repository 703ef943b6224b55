//! The framing of Postgres' protocol, version 3, as far as a proxy needs it: where messages begin and end, which requests
//! write, which replies tell of a commit.
//!
//! A message is a type byte, four bytes of length (which counts itself), and its body; the first ones of a client have no
//! type byte. <https://www.postgresql.org/docs/current/protocol-message-formats.html>

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

/// Requests for encryption instead of a startup message.
const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;

/// A stream of bytes, cut into messages.
#[derive(Debug)]
pub(super) struct Stream {
    /// What was read and not yet taken.
    pub(super) bytes: Vec<u8>,
    /// Whether the next message has a type byte.
    typed: bool,
}

/// One message: its type (0 for one without) and where it lies in [`Stream::bytes`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: u8,
    pub(super) all: Range<usize>,
    pub(super) body: Range<usize>,
}

impl Stream {
    pub(super) fn of_client() -> Stream {
        let (bytes, typed) = (Vec::with_capacity(16 * 1024), false);
        Stream { bytes, typed }
    }

    pub(super) fn of_server() -> Stream {
        Stream {
            typed: true,
            ..Stream::of_client()
        }
    }

    /// The message that begins at this place, if all of it was read.
    pub(super) fn message(&mut self, at: usize) -> Option<Message> {
        let head = usize::from(self.typed);
        let length = self.bytes.get(at + head..at + head + 4)?;
        let length = u32::from_be_bytes(length.try_into().ok()?) as usize;
        let body = at + head + 4..at + head + length.max(4);
        if self.bytes.len() < body.end {
            return None;
        }
        let kind = if self.typed { self.bytes[at] } else { 0 };
        if !self.typed && !self.asks_encryption(&body) {
            self.typed = true;
        }
        Some(Message {
            kind,
            all: at..body.end,
            body,
        })
    }

    /// Whether the body of an untyped message asks for encryption, which is answered by one byte and followed by another
    /// untyped message.
    pub(super) fn asks_encryption(&self, body: &Range<usize>) -> bool {
        let code = self.bytes.get(body.start..body.start + 4);
        let code = code.and_then(|code| code.try_into().ok()).map(u32::from_be_bytes);
        matches!(code, Some(SSL_REQUEST | GSS_REQUEST))
    }
}

/// What a session has asked and not yet been answered, and what is known of its transaction.
#[derive(Debug, Default)]
pub(super) struct Session {
    pending: VecDeque<Asked>,
    /// Prepared statements and portals, and whether they write.
    statements: HashMap<Vec<u8>, bool>,
    portals: HashMap<Vec<u8>, bool>,
    /// Something was written in the transaction that is open.
    wrote: bool,
    /// A command was completed by which what was written becomes a commit at the next `ReadyForQuery`.
    completed: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Asked {
    /// One statement of the extended protocol, answered by one completion.
    Execute { writes: bool },
    /// A simple query of any number of statements.
    Query { writes: bool },
    /// Answered by `ReadyForQuery`.
    Sync,
}

/// What a reply means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reply {
    /// Nothing of interest.
    Other,
    /// A command has ended that wrote, or that ends a transaction which did: the commit is certain with the next `Ready`.
    Wrote,
    /// The server waits for the next request; `committed`: what was written is committed now.
    Ready { committed: bool },
}

impl Session {
    /// Takes note of a client's message; true: it ends a request, after which the server answers.
    pub(super) fn on_request(&mut self, kind: u8, body: &[u8]) -> bool {
        match kind {
            b'P' => {
                let (name, rest) = text(body);
                let (query, _) = text(rest);
                self.statements.insert(name.to_vec(), writes(query));
            }
            b'B' => {
                let (portal, rest) = text(body);
                let (statement, _) = text(rest);
                let writes = self.statements.get(statement).copied().unwrap_or(true);
                self.portals.insert(portal.to_vec(), writes);
            }
            b'E' => {
                let (portal, _) = text(body);
                let writes = self.portals.get(portal).copied().unwrap_or(true);
                self.pending.push_back(Asked::Execute { writes });
            }
            b'C' => match body.split_first() {
                Some((b'S', name)) => drop(self.statements.remove(text(name).0)),
                Some((b'P', name)) => drop(self.portals.remove(text(name).0)),
                _ => {}
            },
            b'Q' => {
                let writes = writes(text(body).0);
                self.pending.push_back(Asked::Query { writes });
                return true;
            }
            b'S' => {
                self.pending.push_back(Asked::Sync);
                return true;
            }
            _ => {}
        }
        false
    }

    /// Takes note of a server's message.
    pub(super) fn on_reply(&mut self, kind: u8, body: &[u8]) -> Reply {
        match kind {
            b'C' => self.on_completion(text(body).0),
            // An empty query, a portal that was not read to its end.
            b'I' | b's' => {
                self.answered_execute();
                Reply::Other
            }
            b'E' => {
                self.completed = false;
                Reply::Other
            }
            b'Z' => {
                while let Some(asked) = self.pending.pop_front() {
                    if matches!(asked, Asked::Sync | Asked::Query { .. }) {
                        break;
                    }
                }
                let idle = body.first() == Some(&b'I');
                let committed = idle && self.completed && self.wrote;
                if idle {
                    self.wrote = false;
                }
                self.completed = false;
                Reply::Ready { committed }
            }
            _ => Reply::Other,
        }
    }

    fn on_completion(&mut self, tag: &[u8]) -> Reply {
        let writes = match self.pending.front() {
            Some(Asked::Query { writes }) => *writes,
            _ => self.answered_execute(),
        };
        let word = tag.split(|byte| *byte == b' ').next().unwrap_or_default();
        match word {
            b"ROLLBACK" => self.completed = false,
            b"COMMIT" => self.completed = true,
            b"BEGIN" => {}
            b"INSERT" | b"UPDATE" | b"DELETE" | b"MERGE" | b"COPY" => {
                self.wrote = true;
                self.completed = true;
            }
            _ if writes => {
                self.wrote = true;
                self.completed = true;
            }
            // A read after a write of the same pipeline.
            _ => {}
        }
        if self.completed && self.wrote {
            Reply::Wrote
        } else {
            Reply::Other
        }
    }

    fn answered_execute(&mut self) -> bool {
        match self.pending.front() {
            Some(Asked::Execute { writes }) => {
                let writes = *writes;
                self.pending.pop_front();
                writes
            }
            _ => false,
        }
    }
}

/// A text up to its NUL, and what follows.
fn text(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes.iter().position(|byte| *byte == 0) {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, &[]),
    }
}

/// Whether a query may write: one that reads through a data-modifying WITH has the tag SELECT.
fn writes(query: &[u8]) -> bool {
    const WORDS: [&[u8]; 5] = [b"insert", b"update", b"delete", b"merge", b"enqueue"];
    let word = |byte: &u8| !(byte.is_ascii_alphanumeric() || *byte == b'_');
    query
        .split(word)
        .any(|found| WORDS.iter().any(|word| found.eq_ignore_ascii_case(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = if kind == 0 { Vec::new() } else { vec![kind] };
        bytes.extend((body.len() as u32 + 4).to_be_bytes());
        bytes.extend(body);
        bytes
    }

    #[test]
    fn messages_are_found_whatever_pieces_they_come_in() {
        let mut all = message(0, &SSL_REQUEST.to_be_bytes());
        all.extend(message(0, b"\0\x03\0\0user\0me\0\0"));
        all.extend(message(b'Q', b"select 1\0"));
        let mut stream = Stream::of_client();
        let (mut at, mut kinds) = (0, Vec::new());
        for byte in all {
            stream.bytes.push(byte);
            while let Some(message) = stream.message(at) {
                kinds.push((message.kind, stream.asks_encryption(&message.body)));
                at = message.all.end;
            }
        }
        assert_eq!(kinds, [(0, true), (0, false), (b'Q', false)]);
    }

    /// What is asked, what is answered, and what the answers mean.
    fn replies(session: &mut Session, asked: &[(u8, &[u8])], answered: &[(u8, &[u8])]) -> Vec<Reply> {
        for (kind, body) in asked {
            session.on_request(*kind, body);
        }
        let replies = answered.iter().map(|(kind, body)| session.on_reply(*kind, body));
        replies.collect()
    }

    const READY: (u8, &[u8]) = (b'Z', b"I");
    const OPEN: (u8, &[u8]) = (b'Z', b"T");

    #[test]
    fn single_write_of_the_extended_protocol_commits() {
        let mut session = Session::default();
        let parse: (u8, &[u8]) = (b'P', b"s1\0with w as (update t set a = 1) select 1\0\0\0");
        let run: [(u8, &[u8]); 4] = [parse, (b'B', b"\0s1\0"), (b'E', b"\0\0\0\0\0"), (b'S', b"")];
        let found = replies(&mut session, &run, &[(b'C', b"SELECT 1\0"), READY]);
        assert_eq!(found, [Reply::Wrote, Reply::Ready { committed: true }]);
        // Prepared before, executed again.
        let found = replies(&mut session, &run[1..], &[(b'C', b"SELECT 1\0"), READY]);
        assert_eq!(found[1], Reply::Ready { committed: true });
    }

    #[test]
    fn read_is_no_commit() {
        let mut session = Session::default();
        let found = replies(
            &mut session,
            &[(b'Q', b"select updated from t\0")],
            &[(b'C', b"SELECT 1\0"), READY],
        );
        assert_eq!(found, [Reply::Other, Reply::Ready { committed: false }]);
    }

    #[test]
    fn transaction_commits_at_its_commit_and_only_if_it_wrote() {
        for (wrote, update) in [(true, "update t set a = 1\0"), (false, "select 1\0")] {
            let mut session = Session::default();
            replies(&mut session, &[(b'Q', b"BEGIN\0")], &[(b'C', b"BEGIN\0"), OPEN]);
            let tag: &[u8] = if wrote { b"UPDATE 1\0" } else { b"SELECT 1\0" };
            let found = replies(&mut session, &[(b'Q', update.as_bytes())], &[(b'C', tag), OPEN]);
            assert_eq!(found[1], Reply::Ready { committed: false });
            let found = replies(
                &mut session,
                &[(b'Q', b"COMMIT\0")],
                &[(b'C', b"COMMIT\0"), READY],
            );
            assert_eq!(found[1], Reply::Ready { committed: wrote });
        }
    }

    #[test]
    fn rollbacks_and_errors_are_no_commits() {
        let mut session = Session::default();
        let update: [(u8, &[u8]); 1] = [(b'Q', b"update t set a = 1\0")];
        replies(&mut session, &[(b'Q', b"BEGIN\0")], &[(b'C', b"BEGIN\0"), OPEN]);
        replies(&mut session, &update, &[(b'C', b"UPDATE 1\0"), OPEN]);
        let found = replies(
            &mut session,
            &[(b'Q', b"ROLLBACK\0")],
            &[(b'C', b"ROLLBACK\0"), READY],
        );
        assert_eq!(found[1], Reply::Ready { committed: false });
        // A deferred constraint speaks after the completion.
        let found = replies(
            &mut session,
            &update,
            &[(b'C', b"UPDATE 1\0"), (b'E', b""), READY],
        );
        assert_eq!(found[2], Reply::Ready { committed: false });
    }
}
