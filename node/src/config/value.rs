//! The types of options: how their text is read and shown.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use crate::secret::Secret;
use crate::store::Pooler;

/// A type of option.
pub trait Value: Sized {
    /// What a value looks like, for help texts.
    const SHAPE: &'static str;
    /// Whether it is never shown, and has no flag.
    const SECRET: bool = false;
    /// Whether a variable may name a file that holds it.
    const FROM_FILE: bool = Self::SECRET;

    /// Reads it from the text of a variable or a flag.
    ///
    /// # Errors
    /// What a value should look like.
    fn parse(text: &str) -> Result<Self, String>;

    /// Reads it from a value of the file.
    ///
    /// # Errors
    /// What a value should look like.
    fn from_toml(value: &toml::Value) -> Result<Self, String> {
        match value {
            toml::Value::String(text) => Self::parse(text),
            toml::Value::Integer(number) => Self::parse(&number.to_string()),
            toml::Value::Float(number) => Self::parse(&number.to_string()),
            toml::Value::Boolean(flag) => Self::parse(&flag.to_string()),
            other => Err(format!(
                "expected {}, not a TOML {}",
                Self::SHAPE,
                other.type_str()
            )),
        }
    }

    /// Its text, masked if it is secret; `None`: not set.
    fn show(&self) -> Option<String>;
}

macro_rules! by_from_str {
    ($type:ty, $shape:literal) => {
        impl Value for $type {
            const SHAPE: &'static str = $shape;

            fn parse(text: &str) -> Result<Self, String> {
                text.parse().map_err(|_| format!("expected {}", $shape))
            }

            fn show(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
    };
}

macro_rules! optional {
    ($type:ty) => {
        impl Value for Option<$type> {
            const SHAPE: &'static str = <$type as Value>::SHAPE;
            const SECRET: bool = <$type as Value>::SECRET;
            const FROM_FILE: bool = <$type as Value>::FROM_FILE;

            fn parse(text: &str) -> Result<Self, String> {
                <$type as Value>::parse(text).map(Some)
            }

            fn from_toml(value: &toml::Value) -> Result<Self, String> {
                <$type as Value>::from_toml(value).map(Some)
            }

            fn show(&self) -> Option<String> {
                self.as_ref().and_then(Value::show)
            }
        }
    };
}

by_from_str!(u32, "a whole number");
by_from_str!(bool, "true or false");
by_from_str!(SocketAddr, "an IP address and a port");
by_from_str!(HostPort, "a host and a port");
by_from_str!(LogFormat, "text or json");
by_from_str!(Pooler, "auto, none or transaction");
optional!(DatabaseUrl);
optional!(HostPort);
optional!(Secret);

impl Value for String {
    const SHAPE: &'static str = "text";

    fn parse(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }

    fn from_toml(value: &toml::Value) -> Result<Self, String> {
        value
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| format!("expected text, not a TOML {}", value.type_str()))
    }

    fn show(&self) -> Option<String> {
        Some(self.clone())
    }
}

impl Value for Duration {
    const SHAPE: &'static str = "a duration such as 500ms, 3s or 7days";

    fn parse(text: &str) -> Result<Self, String> {
        humantime::parse_duration(text).map_err(|_| format!("expected {}", Self::SHAPE))
    }

    fn show(&self) -> Option<String> {
        Some(humantime::format_duration(*self).to_string())
    }
}

impl Value for Option<f64> {
    const SHAPE: &'static str = "a number or none";

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(None),
            text => text
                .parse()
                .map(Some)
                .map_err(|_| format!("expected {}", Self::SHAPE)),
        }
    }

    fn show(&self) -> Option<String> {
        Some(self.map_or_else(|| "none".to_owned(), |number| number.to_string()))
    }
}

impl Value for Vec<HostPort> {
    const SHAPE: &'static str = "hosts and ports";

    fn parse(text: &str) -> Result<Self, String> {
        text.split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(HostPort::parse)
            .collect()
    }

    fn from_toml(value: &toml::Value) -> Result<Self, String> {
        let items = value
            .as_array()
            .ok_or_else(|| format!("expected a list of {}", Self::SHAPE))?;
        items.iter().map(HostPort::from_toml).collect()
    }

    fn show(&self) -> Option<String> {
        let texts: Vec<String> = self.iter().map(HostPort::to_string).collect();
        (!texts.is_empty()).then(|| texts.join(","))
    }
}

impl Value for Secret {
    const SHAPE: &'static str = "text";
    const SECRET: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        Ok(Secret::new(text.to_owned()))
    }

    fn from_toml(value: &toml::Value) -> Result<Self, String> {
        value
            .as_str()
            .map(|text| Secret::new(text.to_owned()))
            .ok_or_else(|| "expected text".to_owned())
    }

    fn show(&self) -> Option<String> {
        Some("***".to_owned())
    }
}

impl Value for DatabaseUrl {
    const SHAPE: &'static str = "a postgres:// URL";
    const FROM_FILE: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        Ok(DatabaseUrl::from(text))
    }

    fn show(&self) -> Option<String> {
        (!self.0.is_empty()).then(|| self.to_string())
    }
}

/// The URL of a database. Shown without what may be a password.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct DatabaseUrl(String);

impl DatabaseUrl {
    /// The whole URL, with its password.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for DatabaseUrl {
    fn from(url: &str) -> Self {
        DatabaseUrl(url.to_owned())
    }
}

impl From<String> for DatabaseUrl {
    fn from(url: String) -> Self {
        DatabaseUrl(url)
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((scheme, rest)) = self.0.split_once("://") else {
            return f.write_str("***");
        };
        let (at, query) = (rest.rfind('@'), rest.find('?'));
        // What is no URL may be a password anywhere, and an `@` behind a `?` may belong to one.
        if reqwest::Url::parse(&self.0).is_err() || (query.is_some() && at > query) {
            return write!(f, "{scheme}://***");
        }
        // Parameters may hold a password too (`?password=…`).
        let (rest, parameters) = match rest.split_once('?') {
            Some((rest, _)) => (rest, "?***"),
            None => (rest, ""),
        };
        match rest.rsplit_once('@') {
            Some((login, place)) => match login.split_once(':') {
                Some((user, _)) => write!(f, "{scheme}://{user}:***@{place}{parameters}"),
                None => write!(f, "{scheme}://{login}@{place}{parameters}"),
            },
            None => write!(f, "{scheme}://{rest}{parameters}"),
        }
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A host, by name or by address, and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    host: String,
    port: u16,
}

/// Text that is no host and port.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a host and a port, such as node-1:7101 or [::1]:7101")]
pub struct BadHostPort;

impl HostPort {
    /// The host's address, if it is one and no name.
    pub fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// Its address; of several, the first of IPv4.
    ///
    /// # Errors
    /// The name has no address now.
    pub async fn resolve(&self) -> std::io::Result<SocketAddr> {
        let mut found: Vec<SocketAddr> = tokio::net::lookup_host((self.host.as_str(), self.port))
            .await?
            .collect();
        found.sort_by_key(SocketAddr::is_ipv6);
        found
            .into_iter()
            .next()
            .ok_or_else(|| std::io::Error::other(format!("{} has no address", self.host)))
    }

    /// Whether only this host reaches it: a loopback address, or the name `localhost`.
    pub fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.ip().is_some_and(|ip| ip.is_loopback())
    }
}

impl FromStr for HostPort {
    type Err = BadHostPort;

    fn from_str(text: &str) -> Result<Self, BadHostPort> {
        let (host, port) = text.rsplit_once(':').ok_or(BadHostPort)?;
        let port = port.parse().ok().filter(|port| *port != 0).ok_or(BadHostPort)?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let valid = match bracketed {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                !host.is_empty()
                    && host.len() <= 253
                    && host
                        .bytes()
                        .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
            }
        };
        if !valid {
            return Err(BadHostPort);
        }
        Ok(HostPort {
            host: bracketed.unwrap_or(host).to_owned(),
            port,
        })
    }
}

impl From<SocketAddr> for HostPort {
    fn from(address: SocketAddr) -> Self {
        HostPort {
            host: address.ip().to_string(),
            port: address.port(),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl FromStr for LogFormat {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => Err(()),
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        })
    }
}

/// The host's name, with what a node's name may not hold replaced; `node` where it has none.
pub(super) fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .unwrap_or_default();
    let name: String = name
        .trim()
        .chars()
        .take(super::check::MAX_NAME)
        .map(|c| if super::check::in_name(c) { c } else { '-' })
        .collect();
    if name.is_empty() { "node".to_owned() } else { name }
}
