//! What the kernel of a host drops, by iptables in its namespace.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use anyhow::Result;

use super::command::run;

/// The rules of one host: named groups of lines, which come and go together.
#[derive(Debug)]
pub(super) struct Firewall {
    space: String,
    groups: BTreeMap<String, Vec<String>>,
}

impl Firewall {
    pub(super) fn new(space: String) -> Firewall {
        Firewall {
            space,
            groups: BTreeMap::new(),
        }
    }

    /// Sets a group; one of the same name is replaced.
    pub(super) async fn set(&mut self, group: impl Into<String>, lines: Vec<String>) -> Result<()> {
        self.groups.insert(group.into(), lines);
        self.apply().await
    }

    /// Takes a group away, if there is one.
    pub(super) async fn remove(&mut self, group: &str) -> Result<()> {
        match self.groups.remove(group) {
            Some(_) => self.apply().await,
            None => Ok(()),
        }
    }

    /// Takes all groups away.
    pub(super) async fn clear(&mut self) -> Result<()> {
        if self.groups.is_empty() {
            return Ok(());
        }
        self.groups.clear();
        self.apply().await
    }

    /// Replaces all rules at once.
    async fn apply(&self) -> Result<()> {
        let mut table = "*filter\n:INPUT ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n".to_owned();
        for line in self.groups.values().flatten() {
            table += line;
            table.push('\n');
        }
        table += "COMMIT\n";
        self.restore(&table).await
    }

    /// Sends what this host sends to others at another address, for as long as the host lives.
    pub(super) async fn redirect(&self, lines: &[String]) -> Result<()> {
        self.restore(&format!("*nat\n{}\nCOMMIT\n", lines.join("\n")))
            .await
    }

    async fn restore(&self, table: &str) -> Result<()> {
        let space = self.space.as_str();
        let arguments = ["netns", "exec", space, "iptables-restore", "--wait", "10"];
        run("ip", &arguments, table).await.map(drop)
    }
}

/// Drops what comes from an address.
pub(super) fn drop_from(address: Ipv4Addr) -> String {
    format!("-A INPUT -s {address} -j DROP")
}

/// Drops what comes from an address with this probability.
pub(super) fn lose_from(address: Ipv4Addr, probability: f64) -> String {
    format!("-A INPUT -s {address} -m statistic --mode random --probability {probability:.4} -j DROP")
}

/// Drops what goes to a port of an address. TCP takes that for a loss.
pub(super) fn drop_to(address: Ipv4Addr, port: u16) -> String {
    format!("-A OUTPUT -p tcp -d {address} --dport {port} -j DROP")
}

/// Answers what goes to a port of an address with a reset.
pub(super) fn reject_to(address: Ipv4Addr, port: u16) -> String {
    format!("-A OUTPUT -p tcp -d {address} --dport {port} -j REJECT --reject-with tcp-reset")
}

/// Drops what comes from a port of an address.
pub(super) fn drop_port_from(address: Ipv4Addr, port: u16) -> String {
    format!("-A INPUT -p tcp -s {address} --sport {port} -j DROP")
}

/// Drops all fragments but the first of a datagram.
pub(super) fn drop_fragments() -> String {
    "-A INPUT -f -j DROP".to_owned()
}
