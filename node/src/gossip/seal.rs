//! The seal around each gossip datagram: who may speak, and whether it speaks now.
//!
//! chitchat authenticates nothing and compares its cluster id only on the first of its three messages. Here every datagram
//! carries an HMAC under a key made from the cluster's secret and id, and a proof that it is not a recording.
//!
//! # Against replay, without comparing clocks
//!
//! Each socket draws a random *session* when it opens and counts its datagrams. A receiver offers a number that rises once
//! a second on its own clock; a sender proves that it speaks now by sending back the receiver's session and the last number
//! that it heard from it. So a datagram is delivered only if
//!
//! - it names this receiver's session: what was recorded before a restart, or on its way to another node, is void;
//! - its number was offered less than [`FRESH`] ago: what an attacker held back is void after that time;
//! - its counter is new within the sender's session: a sliding window per sender, of which [`SENDERS`] are kept. When one
//!   is forgotten, every number that it may have used is void for senders that are not known (`floor`), so forgetting opens no gap.
//!
//! A datagram without such a proof (first contact, a restarted receiver, two nodes that did not talk for a while) is answered
//! with a *challenge*, which is shorter than any datagram that causes it, and the sender sends it once more. A challenge names the
//! counter of the datagram that it answers and is accepted once, so a recorded one teaches nothing. Every datagram carries
//! its sender's offer along, so a conversation costs one extra round trip at its start and none later.
//!
//! What remains: nothing is encrypted. An attacker on the path can hold a datagram back and deliver it once within [`FRESH`], under
//! another source address too, and drop what it likes; it can thus hide a death from gossip for that long. Whoever knows the
//! secret can say anything. None of this touches ownership, which only Postgres decides.
//!
//! Nothing here does IO or reads a clock.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The largest payload of a UDP datagram over IPv4, in bytes.
pub(super) const MAX_DATAGRAM: usize = 65_507;

/// The largest payload that fits into a datagram under its seal, in bytes.
pub(super) const MAX_PAYLOAD: usize = MAX_DATAGRAM - HEADER - TAG;

/// How long a number offered by a receiver proves that its sender speaks now, in seconds of the receiver's clock.
///
/// In a mesh of 400 nodes two given nodes talk every 13 s on average; longer silences cost one challenge.
const FRESH: u64 = 30;

/// Senders whose windows are kept; more than the mesh has nodes.
const SENDERS: usize = 1024;

/// Addresses for which a proof is kept; losing one costs one challenge.
const ROUTES: usize = 1024;

/// Datagrams that are kept for the case that they are challenged.
const SENT: usize = 256;

/// The format of the seal and of what is in it; a node that speaks another one is not understood.
const FORMAT: u8 = 1;
const KIND_GOSSIP: u8 = 0;
const KIND_CHALLENGE: u8 = 1;

const SESSION: usize = 16;
const HEADER: usize = 2 + SESSION + 8 + SESSION + 8 + 8;
const TAG: usize = 16;

/// Why a datagram was not delivered; the label `reason` of the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Too short, of another format, or of an unknown kind.
    Malformed,
    /// Its MAC does not fit: another cluster, another secret, or an attacker.
    Forged,
    /// This node's own datagram came back.
    Own,
    /// Heard before, or an answer to nothing that was asked.
    Replayed,
    /// Without proof that its sender speaks now. Normal at first contact; the sender was challenged.
    Unproven,
    /// Authentic, but not understood by this node's gossip library.
    Undecodable,
    /// Not sent, since it does not fit into a datagram.
    TooLarge,
}

impl Reason {
    pub(super) const COUNT: usize = 7;

    pub(super) fn label(self) -> &'static str {
        match self {
            Reason::Malformed => "malformed",
            Reason::Forged => "forged",
            Reason::Own => "own",
            Reason::Replayed => "replayed",
            Reason::Unproven => "unproven",
            Reason::Undecodable => "undecodable",
            Reason::TooLarge => "too_large",
        }
    }
}

/// What a received datagram asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Opened {
    /// Deliver this part of the datagram.
    Deliver(Range<usize>),
    /// Nothing was delivered: send this back to where the datagram came from.
    Challenge(Vec<u8>),
    /// A peer wants proof: send this datagram to it in place of the one that it refused.
    Again { to: SocketAddr, datagram: Vec<u8> },
    /// Nothing was delivered, and nothing is to be done.
    Dropped(Reason),
}

type Session = [u8; SESSION];

struct Header {
    kind: u8,
    sender: Session,
    counter: u64,
    receiver: Session,
    /// The receiver's number that the sender heard last; 0 for none.
    proof: u64,
    /// The sender's own number at that time.
    offer: u64,
}

impl Header {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend([FORMAT, self.kind]);
        out.extend(self.sender);
        out.extend(self.counter.to_be_bytes());
        out.extend(self.receiver);
        out.extend(self.proof.to_be_bytes());
        out.extend(self.offer.to_be_bytes());
    }

    fn read(mut bytes: &[u8]) -> Option<Header> {
        let [format, kind] = take(&mut bytes)?;
        let header = Header {
            kind,
            sender: take(&mut bytes)?,
            counter: u64::from_be_bytes(take(&mut bytes)?),
            receiver: take(&mut bytes)?,
            proof: u64::from_be_bytes(take(&mut bytes)?),
            offer: u64::from_be_bytes(take(&mut bytes)?),
        };
        (format == FORMAT).then_some(header)
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = bytes.split_first_chunk::<N>()?;
    *bytes = tail;
    Some(*head)
}

/// Which counters of one sender were heard.
struct Window {
    highest: u64,
    /// Bit `i` stands for `highest - i`.
    heard: u128,
}

impl Window {
    /// Starts at `counter`, with all below it void: what a forgotten window had heard must not be heard again.
    fn starting_at(counter: u64) -> Window {
        Window {
            highest: counter,
            heard: u128::MAX,
        }
    }

    fn admit(&mut self, counter: u64) -> bool {
        if counter > self.highest {
            let ahead = u32::try_from(counter - self.highest).unwrap_or(u32::MAX);
            self.heard = self.heard.checked_shl(ahead).unwrap_or(0) | 1;
            self.highest = counter;
            return true;
        }
        let Some(bit) = u32::try_from(self.highest - counter)
            .ok()
            .and_then(|back| 1u128.checked_shl(back))
        else {
            return false;
        };
        let is_new = self.heard & bit == 0;
        self.heard |= bit;
        is_new
    }
}

struct Sender {
    window: Window,
    /// The highest of this receiver's numbers that it has proved.
    proof: u64,
}

/// What to prove to the node behind an address.
#[derive(Clone, Copy)]
struct Route {
    session: Session,
    number: u64,
}

struct Sent {
    counter: u64,
    to: SocketAddr,
    /// None if the datagram was an answer to a challenge: it is not sent a third time.
    payload: Option<Vec<u8>>,
}

/// Seals what one socket sends, and opens what it receives.
pub(super) struct Channel {
    mac: Hmac<Sha256>,
    session: Session,
    counter: u64,
    floor: u64,
    senders: HashMap<Session, Sender>,
    routes: BTreeMap<SocketAddr, Route>,
    sent: VecDeque<Sent>,
}

impl Channel {
    /// `session` must be random: a session that is used twice voids what stands against replay.
    pub(super) fn new(key: [u8; 32], session: Session) -> Channel {
        Channel {
            mac: Hmac::<Sha256>::new_from_slice(&key).expect("HMAC takes keys of any length"),
            session,
            counter: 0,
            floor: 0,
            senders: HashMap::new(),
            routes: BTreeMap::new(),
            sent: VecDeque::new(),
        }
    }

    /// Seals a payload for an address. `now` is the time since the channel was made.
    ///
    /// Gives None if the payload is longer than [`MAX_PAYLOAD`]; nothing changed then.
    pub(super) fn seal(&mut self, now: Duration, to: SocketAddr, payload: Vec<u8>) -> Option<Vec<u8>> {
        if payload.len() > MAX_PAYLOAD {
            return None;
        }
        let datagram = self.seal_for(now, to, &payload);
        self.remember(to, Some(payload));
        Some(datagram)
    }

    /// Opens a datagram. `now` is the time since the channel was made, and never steps back.
    pub(super) fn open(&mut self, now: Duration, from: SocketAddr, datagram: &[u8]) -> Opened {
        let Some((sealed, tag)) = datagram.split_last_chunk::<TAG>() else {
            return Opened::Dropped(Reason::Malformed);
        };
        let mac = self.mac.clone().chain_update(sealed);
        if mac.verify_truncated_left(tag).is_err() {
            return Opened::Dropped(Reason::Forged);
        }
        let Some(header) = Header::read(sealed) else {
            return Opened::Dropped(Reason::Malformed);
        };
        if header.sender == self.session {
            return Opened::Dropped(Reason::Own);
        }
        match header.kind {
            KIND_GOSSIP => self.on_gossip(now, from, &header, HEADER..sealed.len()),
            KIND_CHALLENGE => self.on_challenge(now, &header, &sealed[HEADER..]),
            _ => Opened::Dropped(Reason::Malformed),
        }
    }

    fn on_gossip(
        &mut self,
        now: Duration,
        from: SocketAddr,
        header: &Header,
        payload: Range<usize>,
    ) -> Opened {
        if !self.is_proven(now, header) {
            return Opened::Challenge(self.challenge(now, header));
        }
        match self.senders.get_mut(&header.sender) {
            Some(sender) => {
                if !sender.window.admit(header.counter) {
                    return Opened::Dropped(Reason::Replayed);
                }
                sender.proof = sender.proof.max(header.proof);
            }
            None => self.admit_sender(header),
        }
        self.learn(from, header);
        Opened::Deliver(payload)
    }

    fn on_challenge(&mut self, now: Duration, header: &Header, payload: &[u8]) -> Opened {
        let Ok(counter) = payload.try_into().map(u64::from_be_bytes) else {
            return Opened::Dropped(Reason::Malformed);
        };
        if header.receiver != self.session {
            return Opened::Dropped(Reason::Replayed);
        }
        let Some(at) = self.sent.iter().position(|sent| sent.counter == counter) else {
            return Opened::Dropped(Reason::Replayed);
        };
        let Some(sent) = self.sent.remove(at) else {
            return Opened::Dropped(Reason::Replayed);
        };
        self.learn(sent.to, header);
        let Some(payload) = sent.payload else {
            return Opened::Dropped(Reason::Unproven);
        };
        let datagram = self.seal_for(now, sent.to, &payload);
        self.remember(sent.to, None);
        Opened::Again {
            to: sent.to,
            datagram,
        }
    }

    fn is_proven(&self, now: Duration, header: &Header) -> bool {
        let offer = self.offer(now);
        header.receiver == self.session
            && header.proof <= offer
            && header.proof.saturating_add(FRESH) >= offer
            && (header.proof > self.floor || self.senders.contains_key(&header.sender))
    }

    fn admit_sender(&mut self, header: &Header) {
        if self.senders.len() >= SENDERS {
            let stalest = self
                .senders
                .iter()
                .min_by_key(|(session, sender)| (sender.proof, **session));
            if let Some((&session, sender)) = stalest {
                self.floor = self.floor.max(sender.proof);
                self.senders.remove(&session);
            }
        }
        let sender = Sender {
            window: Window::starting_at(header.counter),
            proof: header.proof,
        };
        self.senders.insert(header.sender, sender);
    }

    fn learn(&mut self, from: SocketAddr, header: &Header) {
        let heard = Route {
            session: header.sender,
            number: header.offer,
        };
        if let Some(route) = self.routes.get_mut(&from) {
            // Datagrams overtake each other: an older number of the same session must not replace a newer one.
            if route.session != heard.session || route.number < heard.number {
                *route = heard;
            }
            return;
        }
        if self.routes.len() >= ROUTES {
            let stalest = self.routes.iter().min_by_key(|(_, route)| route.number);
            if let Some((&address, _)) = stalest {
                self.routes.remove(&address);
            }
        }
        self.routes.insert(from, heard);
    }

    fn remember(&mut self, to: SocketAddr, payload: Option<Vec<u8>>) {
        if self.sent.len() >= SENT {
            self.sent.pop_front();
        }
        self.sent.push_back(Sent {
            counter: self.counter,
            to,
            payload,
        });
    }

    fn challenge(&mut self, now: Duration, challenged: &Header) -> Vec<u8> {
        self.counter += 1;
        let header = Header {
            kind: KIND_CHALLENGE,
            sender: self.session,
            counter: self.counter,
            receiver: challenged.sender,
            proof: 0,
            offer: self.offer(now),
        };
        self.finish(&header, &challenged.counter.to_be_bytes())
    }

    fn seal_for(&mut self, now: Duration, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
        self.counter += 1;
        let route = self.routes.get(&to).copied();
        let header = Header {
            kind: KIND_GOSSIP,
            sender: self.session,
            counter: self.counter,
            receiver: route.map_or([0; SESSION], |route| route.session),
            proof: route.map_or(0, |route| route.number),
            offer: self.offer(now),
        };
        self.finish(&header, payload)
    }

    fn finish(&self, header: &Header, payload: &[u8]) -> Vec<u8> {
        let mut datagram = Vec::with_capacity(HEADER + payload.len() + TAG);
        header.write(&mut datagram);
        datagram.extend(payload);
        let tag = self.mac.clone().chain_update(&datagram).finalize();
        datagram.extend(&tag.into_bytes()[..TAG]);
        datagram
    }

    /// Never 0, which stands for "none heard", and above the floor, so that a challenge always helps.
    fn offer(&self, now: Duration) -> u64 {
        now.as_secs().max(self.floor) + 1
    }
}

/// A datagram of these bytes under a good MAC, as whoever knows the secret can make it.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn forge(key: [u8; 32], bytes: &[u8]) -> Vec<u8> {
    let mac = Hmac::<Sha256>::new_from_slice(&key).expect("HMAC takes keys of any length");
    let tag = mac.chain_update(bytes).finalize();
    [bytes, &tag.into_bytes()[..TAG]].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const T0: Duration = Duration::ZERO;

    fn channel(name: u8) -> Channel {
        Channel::new([9; 32], [name; SESSION])
    }

    fn address(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn seal(from: &mut Channel, now: Duration, to: u16) -> Vec<u8> {
        from.seal(now, address(to), b"payload".to_vec())
            .expect("short enough")
    }

    /// Lets `a` (at port 1) and `b` (at port 2) make first contact; gives the datagram that `b` delivered.
    fn meet(a: &mut Channel, b: &mut Channel, now: Duration) -> Vec<u8> {
        let first = seal(a, now, 2);
        let Opened::Challenge(challenge) = b.open(now, address(1), &first) else {
            panic!("first contact is challenged");
        };
        assert!(challenge.len() < first.len() + 8);
        let Opened::Again { to, datagram } = a.open(now, address(2), &challenge) else {
            panic!("a challenge is answered");
        };
        assert_eq!(to, address(2));
        assert!(delivers(b, now, &datagram));
        datagram
    }

    fn delivers(to: &mut Channel, now: Duration, datagram: &[u8]) -> bool {
        match to.open(now, address(1), datagram) {
            Opened::Deliver(payload) => {
                assert_eq!(&datagram[payload], b"payload");
                true
            }
            _ => false,
        }
    }

    #[test]
    fn a_conversation_costs_one_challenge() {
        let (mut a, mut b) = (channel(1), channel(2));
        meet(&mut a, &mut b, T0);
        let answer = b.seal(T0, address(1), b"payload".to_vec()).expect("short");
        assert!(matches!(a.open(T0, address(2), &answer), Opened::Deliver(_)));
        let next = seal(&mut a, T0, 2);
        assert!(delivers(&mut b, T0, &next));
    }

    #[test]
    fn a_datagram_is_delivered_once() {
        let (mut a, mut b) = (channel(1), channel(2));
        let datagram = meet(&mut a, &mut b, T0);
        assert_eq!(
            b.open(T0, address(1), &datagram),
            Opened::Dropped(Reason::Replayed)
        );
    }

    #[test]
    fn overtaken_datagrams_are_delivered_once() {
        let (mut a, mut b) = (channel(1), channel(2));
        meet(&mut a, &mut b, T0);
        let older = seal(&mut a, T0, 2);
        let newer = seal(&mut a, T0, 2);
        assert!(delivers(&mut b, T0, &newer));
        assert!(delivers(&mut b, T0, &older));
        assert!(!delivers(&mut b, T0, &older));
        assert!(!delivers(&mut b, T0, &newer));
    }

    #[test]
    fn a_recording_is_void_after_the_receiver_restarts() {
        let (mut a, mut b) = (channel(1), channel(2));
        let datagram = meet(&mut a, &mut b, T0);
        let mut restarted = channel(3);
        assert!(!delivers(&mut restarted, T0, &datagram));
    }

    #[test]
    fn a_recording_is_void_for_another_node() {
        let (mut a, mut b, mut c) = (channel(1), channel(2), channel(3));
        let datagram = meet(&mut a, &mut b, T0);
        meet(&mut a, &mut c, T0);
        assert!(!delivers(&mut c, T0, &datagram));
    }

    #[test]
    fn a_datagram_held_back_is_void_after_a_while() {
        let (mut a, mut b) = (channel(1), channel(2));
        meet(&mut a, &mut b, T0);
        let held = seal(&mut a, T0, 2);
        let late = Duration::from_secs(FRESH + 1);
        assert!(!delivers(&mut b, late, &held));
        meet(&mut a, &mut b, late);
    }

    #[test]
    fn a_forgotten_sender_cannot_be_replayed_and_comes_back() {
        let (mut a, mut b) = (channel(1), channel(2));
        let recording = meet(&mut a, &mut b, T0);
        for n in 0..SENDERS as u128 {
            let mut other = Channel::new([9; 32], (n + (1 << 120)).to_be_bytes());
            let later = Duration::from_secs(1);
            meet(&mut other, &mut b, later);
        }
        assert_eq!(b.senders.len(), SENDERS);
        assert!(!b.senders.contains_key(&a.session));
        assert!(!delivers(&mut b, Duration::from_secs(1), &recording));
        meet(&mut a, &mut b, Duration::from_secs(1));
        assert!(!delivers(&mut b, Duration::from_secs(1), &recording));
    }

    #[test]
    fn a_recorded_challenge_teaches_nothing() {
        let (mut a, mut b) = (channel(1), channel(2));
        let first = seal(&mut a, T0, 2);
        let Opened::Challenge(challenge) = b.open(T0, address(1), &first) else {
            panic!("first contact is challenged");
        };
        assert!(matches!(a.open(T0, address(2), &challenge), Opened::Again { .. }));
        assert_eq!(
            a.open(T0, address(2), &challenge),
            Opened::Dropped(Reason::Replayed)
        );
        assert_eq!(
            channel(3).open(T0, address(2), &challenge),
            Opened::Dropped(Reason::Replayed)
        );
    }

    #[test]
    fn challenges_end() {
        let (mut a, mut b) = (channel(1), channel(2));
        let first = seal(&mut a, T0, 2);
        let Opened::Challenge(challenge) = b.open(T0, address(1), &first) else {
            panic!("first contact is challenged");
        };
        let Opened::Again { datagram, .. } = a.open(T0, address(2), &challenge) else {
            panic!("a challenge is answered");
        };
        let mut restarted = channel(3);
        let Opened::Challenge(second) = restarted.open(T0, address(1), &datagram) else {
            panic!("the proof was for another session");
        };
        assert_eq!(a.open(T0, address(2), &second), Opened::Dropped(Reason::Unproven));
        let next = seal(&mut a, T0, 2);
        assert!(
            delivers(&mut restarted, T0, &next),
            "the second challenge was learned from"
        );
    }

    #[test]
    fn another_key_is_forged_and_an_echo_is_own() {
        let mut b = channel(2);
        let mut stranger = Channel::new([8; 32], [1; SESSION]);
        let datagram = seal(&mut stranger, T0, 2);
        assert_eq!(b.open(T0, address(1), &datagram), Opened::Dropped(Reason::Forged));
        let echo = seal(&mut b, T0, 2);
        assert_eq!(b.open(T0, address(2), &echo), Opened::Dropped(Reason::Own));
    }

    #[test]
    fn a_payload_that_does_not_fit_is_refused() {
        let mut a = channel(1);
        assert!(a.seal(T0, address(2), vec![0; MAX_PAYLOAD + 1]).is_none());
        let largest = a.seal(T0, address(2), vec![0; MAX_PAYLOAD]).expect("fits");
        assert_eq!(largest.len(), MAX_DATAGRAM);
    }

    proptest! {
        #[test]
        fn no_bytes_panic_or_pass(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let opened = channel(2).open(T0, address(1), &bytes);
            let refused = matches!(opened, Opened::Dropped(Reason::Malformed | Reason::Forged));
            prop_assert!(refused);
        }

        /// Whoever knows the secret may still send nonsense.
        #[test]
        fn no_authentic_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), format in any::<bool>()) {
            let mut bytes = bytes;
            if format && bytes.len() > 1 {
                bytes[0] = FORMAT;
                bytes[1] %= 3;
            }
            let mut b = channel(2);
            let bytes = forge([9; 32], &bytes);
            let opened = b.open(T0, address(1), &bytes);
            let delivered = matches!(opened, Opened::Deliver(_));
            prop_assert!(!delivered);
        }

        #[test]
        fn a_changed_or_cut_datagram_is_dropped(at in any::<prop::sample::Index>(), flip in 1..=255u8, cut in any::<bool>()) {
            let (mut a, mut b) = (channel(1), channel(2));
            meet(&mut a, &mut b, T0);
            let mut datagram = seal(&mut a, T0, 2);
            let at = at.index(datagram.len());
            if cut {
                datagram.truncate(at);
            } else {
                datagram[at] ^= flip;
            }
            prop_assert!(!delivers(&mut b, T0, &datagram));
        }

        /// The window against a plain set.
        #[test]
        fn the_window_admits_each_counter_at_most_once(counters in prop::collection::vec(0u64..400, 1..300)) {
            let mut window = Window::starting_at(counters[0]);
            let mut heard: std::collections::HashSet<u64> = (0..=counters[0]).collect();
            let mut highest = counters[0];
            for counter in counters {
                let is_new = heard.insert(counter) && counter + 128 > highest;
                highest = highest.max(counter);
                prop_assert_eq!(window.admit(counter), is_new);
            }
        }
    }
}
