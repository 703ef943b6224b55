//! What the plugin `pgoutput` writes, version 1: changes of rows, and of which columns tables have.
//!
//! Where a transaction begins and ends is read by the replication client; this reads all between.

use anyhow::{Context as _, Result, bail, ensure};

/// A message, its texts still where they were received.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message<'a> {
    Relation(Relation),
    Insert {
        relation: u32,
        new: Tuple<'a>,
    },
    Update {
        relation: u32,
        /// The former key, where it changed, or the whole former row of a table with full replica identity.
        old: Option<Tuple<'a>>,
        new: Tuple<'a>,
    },
    Delete {
        relation: u32,
        old: Tuple<'a>,
    },
    Truncate {
        relations: Vec<u32>,
    },
    /// The name of a type, or where a transaction came from: neither matters here.
    Other,
}

/// A table, as its rows are written from now on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Relation {
    pub(super) id: u32,
    pub(super) schema: String,
    pub(super) table: String,
    pub(super) columns: Vec<String>,
}

/// The columns of a row.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tuple<'a>(pub(super) Vec<Value<'a>>);

/// A column of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Null,
    /// A large value that the update did not change: it is not written again.
    Unchanged,
    Text(&'a str),
}

/// Reads one message.
///
/// # Errors
/// It is none: the stream cannot be relied on any more.
pub(super) fn read(bytes: &[u8]) -> Result<Message<'_>> {
    let mut bytes = Bytes(bytes);
    let message = match bytes.byte()? {
        b'R' => {
            let id = bytes.u32()?;
            let (schema, table) = (bytes.text()?.to_owned(), bytes.text()?.to_owned());
            let _identity = bytes.byte()?;
            let count = bytes.u16()?;
            let mut columns = Vec::with_capacity(usize::from(count));
            for _ in 0..count {
                let _in_key = bytes.byte()?;
                columns.push(bytes.text()?.to_owned());
                let _type_and_modifier = bytes.take(8)?;
            }
            Message::Relation(Relation {
                id,
                schema,
                table,
                columns,
            })
        }
        b'I' => {
            let relation = bytes.u32()?;
            let mark = bytes.byte()?;
            ensure!(mark == b'N', "an insert without its row");
            let new = bytes.tuple()?;
            Message::Insert { relation, new }
        }
        b'U' => {
            let relation = bytes.u32()?;
            let (old, new) = match bytes.byte()? {
                b'K' | b'O' => {
                    let old = bytes.tuple()?;
                    let mark = bytes.byte()?;
                    ensure!(mark == b'N', "an update without its row");
                    (Some(old), bytes.tuple()?)
                }
                b'N' => (None, bytes.tuple()?),
                mark => bail!("an update with a tuple of the kind {mark}"),
            };
            Message::Update { relation, old, new }
        }
        b'D' => {
            let relation = bytes.u32()?;
            let mark = bytes.byte()?;
            ensure!(matches!(mark, b'K' | b'O'), "a delete without what was deleted");
            let old = bytes.tuple()?;
            Message::Delete { relation, old }
        }
        b'T' => {
            let count = bytes.u32()?;
            let _options = bytes.byte()?;
            let relations = (0..count).map(|_| bytes.u32()).collect::<Result<_>>()?;
            Message::Truncate { relations }
        }
        b'Y' | b'O' => return Ok(Message::Other),
        tag => bail!("a message of the unknown kind {tag}"),
    };
    ensure!(
        bytes.0.is_empty(),
        "{} bytes after the end of a message",
        bytes.0.len()
    );
    Ok(message)
}

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).context("a message ends early")?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_be_bytes(self.take(2)?.try_into()?))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.take(4)?.try_into()?))
    }

    /// Up to a NUL.
    fn text(&mut self) -> Result<&'a str> {
        let end = self.0.iter().position(|byte| *byte == 0);
        let text = self.take(end.context("a name without its end")?)?;
        self.byte()?;
        Ok(std::str::from_utf8(text)?)
    }

    fn tuple(&mut self) -> Result<Tuple<'a>> {
        let count = self.u16()?;
        let mut values = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            values.push(match self.byte()? {
                b'n' => Value::Null,
                b'u' => Value::Unchanged,
                b't' => {
                    let length = self.u32()? as usize;
                    Value::Text(std::str::from_utf8(self.take(length)?)?)
                }
                kind => bail!("a column of the unknown kind {kind}"),
            });
        }
        Ok(Tuple(values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(values: &[Option<&str>]) -> Vec<u8> {
        let mut bytes = u16::try_from(values.len()).unwrap().to_be_bytes().to_vec();
        for value in values {
            match value {
                None => bytes.push(b'n'),
                Some("unchanged") => bytes.push(b'u'),
                Some(text) => {
                    bytes.push(b't');
                    bytes.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
                    bytes.extend(text.as_bytes());
                }
            }
        }
        bytes
    }

    fn message(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        [&[tag, 0, 0, 0, 7], parts.concat().as_slice()].concat()
    }

    #[test]
    fn each_kind_of_message_is_read() {
        let column = |name: &str| [&[1], name.as_bytes(), &[0; 9]].concat();
        let bytes = message(
            b'R',
            &[b"ringmesh\0slot\0d\0\x02", &column("slot"), &column("owner")],
        );
        let relation = Relation {
            id: 7,
            schema: "ringmesh".into(),
            table: "slot".into(),
            columns: vec!["slot".into(), "owner".into()],
        };
        assert_eq!(read(&bytes).unwrap(), Message::Relation(relation));

        let row = tuple(&[Some("1"), None, Some("unchanged")]);
        let new = || Tuple(vec![Value::Text("1"), Value::Null, Value::Unchanged]);
        let old = || Tuple(vec![Value::Text("2")]);
        let key = tuple(&[Some("2")]);
        assert_eq!(
            read(&message(b'I', &[b"N", &row])).unwrap(),
            Message::Insert {
                relation: 7,
                new: new()
            }
        );
        assert_eq!(
            read(&message(b'U', &[b"N", &row])).unwrap(),
            Message::Update {
                relation: 7,
                old: None,
                new: new()
            }
        );
        for mark in [b"K", b"O"] {
            assert_eq!(
                read(&message(b'U', &[mark, &key, b"N", &row])).unwrap(),
                Message::Update {
                    relation: 7,
                    old: Some(old()),
                    new: new()
                }
            );
            assert_eq!(
                read(&message(b'D', &[mark, &key])).unwrap(),
                Message::Delete {
                    relation: 7,
                    old: old()
                }
            );
        }
        let truncate = [b'T', 0, 0, 0, 2, 0, 0, 0, 0, 7, 0, 0, 0, 8];
        assert_eq!(
            read(&truncate).unwrap(),
            Message::Truncate {
                relations: vec![7, 8]
            }
        );
        assert_eq!(read(b"Yanything").unwrap(), Message::Other);
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let row = tuple(&[Some("1")]);
        let insert = message(b'I', &[b"N", &row]);
        for end in 0..insert.len() {
            assert!(read(&insert[..end]).is_err(), "cut at {end}");
        }
        assert!(read(&[insert.as_slice(), b"x"].concat()).is_err());
        assert!(read(&message(b'I', &[b"K", &row])).is_err());
        assert!(read(&message(b'D', &[b"N", &row])).is_err());
        assert!(read(b"?").is_err());
    }
}
