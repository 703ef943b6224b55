//! PgBouncer between nodes and Postgres.

use std::path::Path;

use anyhow::{Result, bail};
use async_trait::async_trait;
use rand::rngs::StdRng;

use super::{Begun, Fault, about};
use crate::lab::{Lab, Options, Pooling};

pub(super) fn all() -> Vec<Box<dyn Fault>> {
    use {Pooling::*, What::*};
    vec![
        Box::new(Pooler::of("pooler-restart", Session, Restart)),
        Box::new(Pooler::of("pooler-reload", Session, Reload)),
        Box::new(Pooler::of("pooler-of-two", Session, Two)),
        Box::new(Pooler::of("pooler-transaction-restart", Transaction, Restart)),
        Box::new(Pooler::of("pooler-transaction-of-two", Transaction, Two)),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// It ends, with all connections, and starts again.
    Restart,
    /// It reads its settings again.
    Reload,
    /// It has two sessions for all nodes.
    Two,
}

/// N24: what happens to a pooler that the nodes reach Postgres through, with sessions of their own or only transactions.
///
/// Expected: in session mode as over direct connections; in transaction mode too, with the lease as the only notice of a
/// death, which a node says when it starts.
struct Pooler {
    name: &'static str,
    pooling: Pooling,
    what: What,
}

impl Pooler {
    fn of(name: &'static str, pooling: Pooling, what: What) -> Pooler {
        Pooler { name, pooling, what }
    }
}

/// More sessions than all nodes want.
const MANY: u32 = 200;

#[async_trait]
impl Fault for Pooler {
    fn id(&self) -> &'static str {
        "N24"
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn can(&self) -> Result<()> {
        if !Path::new("/usr/sbin/pgbouncer").exists() {
            bail!("PgBouncer is not installed (Debian: pgbouncer)");
        }
        Ok(())
    }

    fn prepare(&self, options: &mut Options) {
        options.pooler = Some(self.pooling);
    }

    async fn begin(&mut self, lab: &mut Lab, _: &mut StdRng) -> Result<Begun> {
        match self.what {
            What::Restart => lab.pooler()?.restart().await?,
            What::Reload => lab.pooler()?.reload(MANY).await?,
            What::Two => {
                lab.pooler()?.reload(2).await?;
                // Sessions that are open stay; new ones wait.
                for host in lab.nodes() {
                    host.proxy().reset();
                }
            }
        }
        Ok(about(lab, &[], "").await)
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        lab.pooler()?.reload(MANY).await
    }
}
