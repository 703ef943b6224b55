//! The mutants: what each of them breaks, by which text, and which test must see it.

use super::{Change, Mutant, Package, Test};

const RING_LEASE: &str = "ring/src/lease.rs";
const NODE_LEASE: &str = "node/src/lease.rs";
const SQL_CLAIM: &str = "node/src/store/sql/claim.sql";
const SQL_EFFECTS: &str = "migrations/0004_effects.sql";
const SQL_FINISH: &str = "node/src/store/sql/finish.sql";
const SQL_GRANT: &str = "node/src/store/sql/grant.sql";
const SQL_RETRY: &str = "node/src/store/sql/retry.sql";

/// What finds the row of a task whose run ended; the same in each statement about ended runs.
const FOUND: Found = Found {
    whole: "where t.slot = d.slot and t.id = d.id and t.epoch = d.epoch and t.attempt = d.attempt",
    without_attempt: "where t.slot = d.slot and t.id = d.id and t.epoch = d.epoch",
};
/// What stands on the target of such a statement.
const TARGET: Found = Found {
    whole: "where t.ctid = d.place and t.epoch = d.epoch and t.attempt = d.attempt",
    without_attempt: "where t.ctid = d.place and t.epoch = d.epoch",
};

struct Found {
    whole: &'static str,
    without_attempt: &'static str,
}

impl Found {
    const fn without_attempt(&self, file: &'static str) -> Change {
        change(file, self.whole, self.without_attempt)
    }
}

const fn change(file: &'static str, from: &'static str, to: &'static str) -> Change {
    Change { file, from, to }
}

const fn ring(name: &'static str) -> Test {
    let package = Package::Ring;
    Test { package, name }
}

const fn node(name: &'static str) -> Test {
    let package = Package::Node;
    Test { package, name }
}

/// All mutants; those of the ring first, since they are built quickest.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "ring-not-sorted",
        breaks: "the tokens of the ring stand in the order in which they were made",
        changes: &[change(
            "ring/src/ring.rs",
            "        tokens.sort_unstable();\n",
            "",
        )],
        tests: &[ring("ring::tests::golden_walks")],
    },
    Mutant {
        name: "expiry-by-the-nodes-clock",
        breaks: "a peer's silence counts by the node's clock alone, the node's own silence included",
        changes: &[change(RING_LEASE, "if !gapless {", "if !gapless && false {")],
        tests: &[ring(
            "lease::tests::a_stall_of_the_database_of_two_ttls_expires_nobody",
        )],
    },
    Mutant {
        name: "orphan-sweep-only-at-start",
        breaks: "only the first look counts for how long a slot lies without an owner",
        changes: &[change(
            "ring/src/plan.rs",
            "Some((epoch, count.saturating_add(1)))",
            "Some((epoch, count))",
        )],
        tests: &[ring(
            "plan::tests::a_slot_that_lies_for_two_ticks_is_taken_by_anybody",
        )],
    },
    Mutant {
        name: "renewal-anchored-at-reply",
        breaks: "trust counts from the answer to a renewal, though the lease began before it",
        changes: &[change(
            NODE_LEASE,
            "trusted_until(sent, &terms)",
            "trusted_until(clock::now(), &terms)",
        )],
        tests: &[node("lease::tests::trust_counts_from_the_sending_of_a_renewal")],
    },
    Mutant {
        name: "expiry-by-the-servers-clock",
        breaks: "a peer counts as expired when its lease is over by the database's clock, whatever this node could see",
        changes: &[change(
            NODE_LEASE,
            "let expired = self.watch.on_read(sent, clock::now(), &counters);",
            "self.watch.on_read(sent, clock::now(), &counters);
        let me = self.parts.me.incarnation;
        let over = peers.iter().filter(|peer| peer.incarnation != me && peer.lease_ms <= 0);
        let expired: Vec<_> = over.map(|peer| (peer.incarnation, peer.renewals)).collect();",
        )],
        tests: &[node(
            "lease::tests::a_lease_that_is_over_by_the_servers_clock_is_not_expired_by_that_alone",
        )],
    },
    Mutant {
        name: "no-fence",
        breaks: "a finish is written whoever owns the slot by now",
        changes: &[change(
            SQL_FINISH,
            "then true else false end",
            "then true else true end",
        )],
        tests: &[node(
            "store::claims::tests::a_stale_owner_can_neither_claim_nor_write",
        )],
    },
    Mutant {
        name: "no-lease-in-the-fence",
        breaks: "a claim asks for the slot's owner, not for whether its owner is fenced or cut short",
        changes: &[change(SQL_CLAIM, "    where exists (select from fence)\n", "")],
        tests: &[node(
            "store::claims::tests::a_node_that_was_cut_short_writes_nothing_and_its_claim_says_so",
        )],
    },
    Mutant {
        name: "fence-read-before",
        breaks: "a finish reads its node's row without locking it, so that a fence may come in between",
        changes: &[change(
            SQL_FINISH,
            "lease_until > clock_timestamp()\n    for key share\n",
            "lease_until > clock_timestamp()\n",
        )],
        tests: &[node(
            "store::fence_races_tests::a_finish_that_waited_ends_nothing_after_the_fence",
        )],
    },
    Mutant {
        name: "fence-by-a-bare-update",
        breaks: "a fence does not wait for the node's own writers, whose lock an update of these columns passes",
        changes: &[change(
            "node/src/store/sql/lock_node.sql",
            "n.renewals))\nfor update",
            "n.renewals))",
        )],
        tests: &[node(
            "store::fence_races_tests::no_writer_of_a_node_commits_after_its_fence",
        )],
    },
    Mutant {
        name: "fence-without-the-counter",
        breaks: "a fencer that waited for a renewal fences the node all the same",
        changes: &[change(
            "node/src/store/sql/set_fenced.sql",
            "and ($4::bigint is null\n",
            "and (true or $4::bigint is null\n",
        )],
        tests: &[node(
            "store::renewal_races_tests::a_renewal_that_its_fencer_waits_for_wins",
        )],
    },
    Mutant {
        name: "renewal-by-the-number-it-saw",
        breaks: "a renewal that waited for another one of its node takes the moved lease for a lost one",
        changes: &[change(
            "node/src/store/sql/renew.sql",
            "and l.renewals >= (",
            "and l.renewals = (",
        )],
        tests: &[node(
            "store::renewal_races_tests::of_two_renewals_at_once_neither_reads_fenced",
        )],
    },
    Mutant {
        name: "grant-guarded-only-in-a-cte",
        breaks: "a grant checks owner and epoch only in its first look, by its snapshot",
        changes: &[
            change(SQL_GRANT, "    for update of s skip locked\n", ""),
            change(
                SQL_GRANT,
                " and s.epoch = free.epoch and s.owner is distinct from $1",
                "",
            ),
        ],
        tests: &[node(
            "store::fence_races_tests::a_grant_takes_no_slot_that_was_granted_meanwhile",
        )],
    },
    Mutant {
        name: "claim-without-epoch-and-attempt",
        breaks: "a claim takes what its snapshot picked, by number, whatever has become of it",
        changes: &[change(
            SQL_CLAIM,
            "where t.ctid = p.place and coalesce(t.wait, '') = '' and t.epoch is distinct from p.epoch and t.attempt = p.attempt",
            "where t.slot = p.slot and t.id = p.id and coalesce(t.wait, '') = ''",
        )],
        tests: &[node(
            "store::fence_races_tests::claims_that_waited_for_the_same_tasks_take_each_once",
        )],
    },
    Mutant {
        name: "late-claims-pass",
        breaks: "a claim that its node gave up takes tasks also after its slot was settled",
        changes: &[change(SQL_CLAIM, " and s.settled < $7", " and $7::bigint > 0")],
        tests: &[
            node("store::settle_races_tests::a_claim_that_arrives_after_its_slot_was_settled_is_refused"),
            node("store::settle_races_tests::a_claim_that_waited_while_its_slot_was_settled_is_refused"),
        ],
    },
    Mutant {
        name: "finish-without-attempt",
        breaks: "a run ends its task also after the task was claimed anew under the same epoch",
        changes: &[
            FOUND.without_attempt(SQL_FINISH),
            TARGET.without_attempt(SQL_FINISH),
        ],
        tests: &[node(
            "store::claims::tests::a_finish_under_an_older_attempt_does_nothing",
        )],
    },
    Mutant {
        name: "run-token-not-checked",
        breaks: "a run sends its task back to wait also after the task was claimed anew under the same epoch",
        changes: &[
            FOUND.without_attempt(SQL_RETRY),
            TARGET.without_attempt(SQL_RETRY),
        ],
        tests: &[node(
            "store::fence_races_tests::nothing_is_sent_back_under_an_older_attempt",
        )],
    },
    Mutant {
        name: "sweep-without-its-guard",
        breaks: "the sweep of idempotency ids deletes those of open tasks",
        changes: &[change(
            "node/src/store/sql/forget_idempotency.sql",
            "          and not exists (select from ringmesh.task t where t.slot = i.slot and t.id = i.task)\n",
            "",
        )],
        tests: &[node(
            "store::races_tests::an_idempotency_id_is_kept_while_its_task_is_open",
        )],
    },
    Mutant {
        name: "idempotency-without-unique-index",
        breaks: "nothing keeps an idempotency id from being written twice",
        changes: &[change(
            "migrations/0001_mesh_and_tasks.sql",
            "    primary key (slot, key, kind, id_key)\n",
            "    check (true)\n",
        )],
        tests: &[node("http::tests::submits::one_idempotency_key_gives_one_task")],
    },
    Mutant {
        name: "guard-without-its-tasks-lock",
        breaks: "the commit of a guarded transaction reads its task without locking it",
        changes: &[change(SQL_EFFECTS, "one.attempt for share;", "one.attempt;")],
        tests: &[node(
            "store::effects_races_tests::a_guarded_task_cannot_be_claimed_anew_while_its_transaction_commits",
        )],
    },
    Mutant {
        name: "guard-by-a-key-share",
        breaks: "the commit of a guarded transaction locks its task in a way that a claim anew passes",
        changes: &[change(
            SQL_EFFECTS,
            "one.attempt for share;",
            "one.attempt for key share;",
        )],
        tests: &[node(
            "store::effects_races_tests::a_guarded_task_cannot_be_claimed_anew_while_its_transaction_commits",
        )],
    },
    Mutant {
        name: "guard-locks-before-foreign-keys",
        breaks: "a commit waits for others, as deferred foreign keys do, with its node locked",
        changes: &[change(
            SQL_EFFECTS,
            "    if not new.last then\n",
            "    if false then\n",
        )],
        tests: &[node(
            "store::effects_races_tests::a_deferred_foreign_key_that_waits_does_not_hold_up_a_fencer",
        )],
    },
    Mutant {
        name: "guard-that-replication-passes",
        breaks: "a session that says that it replicates passes over the look at the commit",
        changes: &[change(
            SQL_EFFECTS,
            "alter table ringmesh.at_commit enable always trigger at_commit;\n",
            "",
        )],
        tests: &[node(
            "store::effects_refused_tests::a_session_that_replicates_is_refused_as_any_other",
        )],
    },
    Mutant {
        name: "applied-by-found",
        breaks: "an id that came again is told as new, since counting it succeeded",
        changes: &[change(SQL_EFFECTS, "    return first;\n", "    return found;\n")],
        tests: &[node(
            "store::inbox_races_tests::an_id_that_came_again_is_not_applied_and_is_counted",
        )],
    },
    Mutant {
        name: "hint-without-tick",
        breaks: "a node looks for tasks only when a hint told of them",
        changes: &[change(
            "node/src/dispatch/engine/periodic.rs",
            "if self.next.news <= now {",
            "if self.next.news < 0 {",
        )],
        tests: &[node(
            "dispatch::tests::tasks_of_a_key_run_one_at_a_time_in_the_order_of_their_submits",
        )],
    },
    Mutant {
        name: "release-before-drain",
        breaks: "a slot is told to be quiet, and is handed on, while a run of it goes on",
        changes: &[change(
            "node/src/dispatch/lanes.rs",
            "owned.tasks == 0 && owned.claim.is_none()",
            "owned.claim.is_none()",
        )],
        tests: &[node(
            "dispatch::tests::a_leaving_slot_gives_back_what_waits_and_lets_runs_end",
        )],
    },
    Mutant {
        name: "probe-by-the-highest-number-seen",
        breaks: "a probe goes on after the highest number that was claimed, though a lower one may commit later",
        changes: &[change(
            "node/src/dispatch/lanes.rs",
            "_ if !full => horizon,",
            "Some(last) if !full => last + 1,\n                _ if !full => horizon,",
        )],
        tests: &[node(
            "dispatch::lanes::tests::late_commits_late_answers_and_lifted_holds_keep_the_order",
        )],
    },
    Mutant {
        name: "next-before-the-finish",
        breaks: "the next task of a key starts when the run of the one before is over, before its end is committed",
        changes: &[change(
            "node/src/dispatch/engine/runs.rs",
            "let row = self.finish_row(lane, run, task, end, began, failed);\n        self.outbox.push(row);",
            "let row = self.finish_row(lane, run, task, end, began, failed);\n        self.outbox.push(row);\n        self.lanes.done(lane, run);",
        )],
        tests: &[node(
            "dispatch::tests::the_next_task_of_a_key_waits_for_the_commit_of_the_one_before",
        )],
    },
];
