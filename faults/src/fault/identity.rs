//! Nodes that are not who they seem to be.

use anyhow::Result;
use async_trait::async_trait;
use rand::RngExt as _;
use rand::rngs::StdRng;
use ringmesh::dev::process::Tied;

use super::process::{Share, start_again};
use super::{Begun, Fault, about};
use crate::lab::Lab;
use crate::workload::note::EVENTS;

pub(super) fn all() -> Vec<Box<dyn Fault>> {
    vec![
        Box::new(Impostor::of("clone", Kind::SameName)),
        Box::new(Impostor::of("stranger", Kind::OtherMesh)),
        Box::new(Restarted::of("other-address", Change::Address)),
        Box::new(Restarted::of("no-seeds", Change::Seeds)),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A second node of the same name, in the same mesh, at other ports.
    SameName,
    /// A node of another mesh, that has the same secret and gossips to this mesh's seeds.
    OtherMesh,
}

/// N8: another process claims to be a node that there is, or gossips from another mesh.
///
/// Expected: a second node of a name that lives is refused, and the first keeps its slots; a node of another mesh is never
/// taken for a member.
struct Impostor {
    name: &'static str,
    kind: Kind,
    process: Option<Tied>,
}

impl Impostor {
    fn of(name: &'static str, kind: Kind) -> Impostor {
        let process = None;
        Impostor { name, kind, process }
    }
}

#[async_trait]
impl Fault for Impostor {
    fn id(&self) -> &'static str {
        "N8"
    }

    fn name(&self) -> &'static str {
        self.name
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        let node = Share::One.draw(rng, lab.nodes().len())[0];
        let begun = about(lab, &[node], "").await;
        let host = &lab.nodes()[node];
        let mut changed = vec![
            ("RINGMESH_LISTEN", "0.0.0.0:7111".to_owned()),
            ("RINGMESH_ADVERTISE", format!("{}:7111", host.address())),
            ("RINGMESH_GOSSIP", format!("{}:7211", host.address())),
        ];
        if self.kind == Kind::OtherMesh {
            changed.push(("RINGMESH_CLUSTER_ID", "another".to_owned()));
            let own = host.env("RINGMESH_DATABASE_URL").unwrap_or_default();
            // Another database of the same server.
            let other = own.rsplit_once('/').map_or(own, |(server, _)| server);
            changed.push(("RINGMESH_DATABASE_URL", format!("{other}/postgres")));
            // What it notes is nothing that this mesh's node of its name did.
            let folder = lab.events_dir().with_file_name("events-of-another");
            std::fs::create_dir_all(&folder)?;
            changed.push((EVENTS, folder.display().to_string()));
        }
        self.process = Some(host.another(&changed).await?);
        Ok(begun)
    }

    async fn heal(&mut self, _: &mut Lab) -> Result<()> {
        self.process = None;
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// It comes back at another address.
    Address,
    /// It comes back with seeds that no server of names knows.
    Seeds,
}

/// N16: a node is killed, and comes back under its name with another address, or without seeds. Healing brings it back as it
/// was.
///
/// Expected: it is the same member to the ring, and gets its slots back; without seeds of its own it is found by the others.
struct Restarted {
    name: &'static str,
    change: Change,
    hit: Option<usize>,
    seeds: Option<String>,
}

impl Restarted {
    fn of(name: &'static str, change: Change) -> Restarted {
        Restarted {
            name,
            change,
            hit: None,
            seeds: None,
        }
    }
}

#[async_trait]
impl Fault for Restarted {
    fn id(&self) -> &'static str {
        "N16"
    }

    fn name(&self) -> &'static str {
        self.name
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        let node = rng.random_range(0..lab.nodes().len());
        let begun = about(lab, &[node], "").await;
        lab.nodes_mut()[node].kill().await?;
        self.hit = Some(node);
        match self.change {
            Change::Address => lab.readdress(node).await?,
            Change::Seeds => {
                let host = &mut lab.nodes_mut()[node];
                self.seeds = host.unset_env("RINGMESH_SEEDS");
                host.set_env("RINGMESH_SEEDS", "nobody.invalid:7201");
            }
        }
        lab.nodes_mut()[node].spawn().await?;
        Ok(begun)
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        let Some(node) = self.hit.take() else {
            return Ok(());
        };
        lab.nodes_mut()[node].kill().await?;
        match self.change {
            Change::Address => lab.readdress(node).await?,
            Change::Seeds => {
                if let Some(seeds) = self.seeds.take() {
                    lab.nodes_mut()[node].set_env("RINGMESH_SEEDS", &seeds);
                }
            }
        }
        start_again(lab, &[node]).await
    }
}
