//! The rules that values must keep, alone and with each other.

use std::time::Duration;

use ringmesh_ring::Member;

use super::{Config, DatabaseUrl, HostPort};
use crate::secret::Secret;

/// The longest name of a node.
pub(super) const MAX_NAME: usize = 64;
const MIN_SECRET: usize = 16;
const DAY: Duration = Duration::from_secs(24 * 3600);
const MINUTE: Duration = Duration::from_secs(60);
const MS: Duration = Duration::from_millis(1);

/// A rule that does not hold, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{option}: {text}")]
pub struct Problem {
    /// The option to change.
    pub option: &'static str,
    /// What is wrong, with the values.
    pub text: String,
}

impl Problem {
    /// From a text that begins with the option's name.
    fn about(option: &'static str, text: &str) -> Self {
        Problem {
            option,
            text: text.strip_prefix(option).unwrap_or(text).trim_start().to_owned(),
        }
    }
}

/// Whether a name may hold this character.
pub(super) fn in_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_.-".contains(c)
}

/// The rules that do not hold, at most one for each option: the others about it may only follow from the first.
#[derive(Debug, Default)]
struct Found(Vec<Problem>);

impl Found {
    fn check(&mut self, holds: bool, option: &'static str, text: impl FnOnce() -> String) {
        if !holds {
            self.add(Problem { option, text: text() });
        }
    }

    fn add(&mut self, problem: Problem) {
        if self.0.iter().all(|known| known.option != problem.option) {
            self.0.push(problem);
        }
    }
}

impl Config {
    /// Checks all values, alone and with each other. Nothing is connected, bound or resolved.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn validate(&self) -> Result<(), Problem> {
        self.problems().into_iter().next().map_or(Ok(()), Err)
    }

    /// As [`Config::validate`], with all rules that do not hold, at most one for each option; none: the values fit.
    pub fn problems(&self) -> Vec<Problem> {
        let mut found = Found::default();
        self.check_names(&mut found);
        self.check_lease_url(&mut found);
        self.check_secrets(&mut found);
        self.check_addresses(&mut found);
        self.check_lease_and_ring(&mut found);
        self.check_times(&mut found);
        self.check_sizes(&mut found);
        found.0
    }

    fn check_names(&self, found: &mut Found) {
        for (option, name) in [("name", &self.name), ("cluster_id", &self.cluster_id)] {
            let valid = (1..=MAX_NAME).contains(&name.len()) && name.chars().all(in_name);
            found.check(valid, option, || {
                format!("must be 1 to {MAX_NAME} of A-Z a-z 0-9 _ . -, not {name:?}")
            });
        }
        let url = self.database_url.as_str();
        found.check(!url.is_empty(), "database_url", || {
            "is not set; give the mesh's database, as postgres://user:password@host:port/database".to_owned()
        });
        found.check(
            url.starts_with("postgres://") || url.starts_with("postgresql://"),
            "database_url",
            || "must start with postgres:// or postgresql://".to_owned(),
        );
    }

    fn check_lease_url(&self, found: &mut Found) {
        let url = self.lease_url.as_ref().map(DatabaseUrl::as_str);
        let fits = |url: &str| url.starts_with("postgres://") || url.starts_with("postgresql://");
        found.check(url.is_none_or(fits), "lease_url", || {
            "must start with postgres:// or postgresql://".to_owned()
        });
    }

    fn check_addresses(&self, found: &mut Found) {
        let pairs = [
            ("advertise", self.listen, self.advertise.clone()),
            ("gossip_advertise", self.gossip, self.gossip_advertise.clone()),
        ];
        for (option, listen, advertise) in pairs {
            let address = advertise.as_ref().and_then(HostPort::ip);
            found.check(!address.is_some_and(|ip| ip.is_unspecified()), option, || {
                "nobody can reach an unspecified address; give one of this host's".to_owned()
            });
            found.check(
                advertise.is_some() || !listen.ip().is_unspecified(),
                option,
                || {
                    format!(
                        "must be set when listening on {listen}, which the other nodes cannot reach by that address"
                    )
                },
            );
        }
        let far = self
            .seeds
            .iter()
            .find(|seed| seed.ip().is_some_and(|ip| !ip.is_loopback()));
        found.check(far.is_none() || !self.gossip.ip().is_loopback(), "gossip", || {
            format!(
                "listens on {} only, from where the seed {} cannot be reached",
                self.gossip,
                far.map(HostPort::to_string).unwrap_or_default()
            )
        });
    }

    fn check_secrets(&self, found: &mut Found) {
        let text_of = |secret: &Option<Secret>| secret.as_ref().map(|secret| secret.expose().to_owned());
        for (option, text) in [
            ("cluster_secret", text_of(&self.cluster_secret)),
            ("token", text_of(&self.token)),
        ] {
            let Some(text) = text else { continue };
            found.check(
                text.len() >= MIN_SECRET && text.bytes().all(|byte| byte.is_ascii_graphic()),
                option,
                || format!("must be {MIN_SECRET} or more visible ASCII characters, without spaces"),
            );
        }
        let listening = [self.listen, self.gossip].into_iter().map(HostPort::from);
        let advertised = [&self.advertise, &self.gossip_advertise]
            .into_iter()
            .flatten()
            .cloned();
        let outward = listening.chain(advertised).find(|address| !address.is_loopback());
        if let Some(address) = outward {
            found.check(self.cluster_secret.is_some(), "cluster_secret", || {
                format!("must be set when the node is reached at {address}, which is not loopback")
            });
        }
        let loopback = self.listen.ip().is_loopback();
        found.check(loopback || self.token.is_some(), "token", || {
            format!(
                "must be set when listening on {}, which is not loopback",
                self.listen
            )
        });
    }

    fn check_lease_and_ring(&self, found: &mut Found) {
        use ringmesh_ring::lease::Error as Lease;
        use ringmesh_ring::placement::Error as Ring;
        if let Err(error) = self.terms().validate() {
            let option = match error {
                Lease::NoRenewal => "renew_every",
                Lease::ShortTtl { .. } => "ttl",
                Lease::NoMargin | Lease::LongMargin { .. } => "margin",
            };
            found.add(Problem::about(option, &error.to_string()));
        }
        if let Err(error) = self.placement().validate() {
            let option = match error {
                Ring::LoadBound(_) => "load_bound",
                Ring::Tokens(_) | Ring::Version(_) => "tokens",
            };
            found.add(Problem::about(option, &error.to_string()));
        }
        let most = Member::MAX_WEIGHT;
        found.check((1..=most).contains(&self.weight), "weight", || {
            format!("must be from 1 to {most}, not {}", self.weight)
        });
    }

    fn check_times(&self, found: &mut Found) {
        let ranges = [
            ("ttl", self.ttl, 300 * MS, 10 * MINUTE),
            ("renew_every", self.renew_every, 10 * MS, MINUTE),
            ("tick", self.tick, 10 * MS, MINUTE),
            ("join_window", self.join_window, Duration::ZERO, MINUTE),
            ("rejoin_delay", self.rejoin_delay, Duration::ZERO, DAY),
            ("drain_deadline", self.drain_deadline, Duration::ZERO, DAY),
            ("run_grace", self.run_grace, Duration::ZERO, 60 * MINUTE),
            ("backoff_min", self.backoff_min, MS, DAY),
            ("backoff_max", self.backoff_max, MS, 30 * DAY),
            ("retention", self.retention, DAY, 3650 * DAY),
            ("idempotency_window", self.idempotency_window, MINUTE, 3650 * DAY),
            ("inbox_window", self.inbox_window, MINUTE, 3650 * DAY),
        ];
        for (option, value, least, most) in ranges {
            found.check((least..=most).contains(&value), option, || {
                let text = |duration| humantime::format_duration(duration).to_string();
                format!(
                    "must be from {} to {}, not {}",
                    text(least),
                    text(most),
                    text(value)
                )
            });
        }
        found.check(self.backoff_min <= self.backoff_max, "backoff_min", || {
            format!(
                "must be at most backoff_max: {:?} against {:?}",
                self.backoff_min, self.backoff_max
            )
        });
        found.check(
            self.idempotency_window <= self.retention,
            "idempotency_window",
            || {
                "must be at most retention: a repeated submit would name a task that is not kept any more"
                    .to_owned()
            },
        );
    }

    fn check_sizes(&self, found: &mut Found) {
        let ranges = [
            ("concurrency", self.concurrency, 1, 100_000),
            ("room", self.room, 256, 10_000_000),
            ("cache_keys", self.cache_keys, 1, 100_000_000),
            ("connections", self.connections, 1, 10_000),
            ("hot_connections", self.hot_connections, 1, 10_000),
            ("max_connections", self.max_connections, 16, 1_000_000),
        ];
        for (option, value, least, most) in ranges {
            found.check((least..=most).contains(&value), option, || {
                format!("must be from {least} to {most}, not {value}")
            });
        }
        found.check(self.room >= self.concurrency, "room", || {
            format!(
                "must be at least concurrency: {} against {}",
                self.room, self.concurrency
            )
        });
    }
}
