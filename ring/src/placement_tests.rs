use proptest::prelude::*;

use super::*;

fn strict() -> Settings {
    Settings {
        load_bound: None,
        ..Settings::default()
    }
}

fn nodes(count: i64) -> Vec<Member> {
    (1..=count)
        .map(|n| Member::new(format!("node-{n}"), Incarnation(n), 1))
        .collect()
}

fn without(members: &[Member], name: &str) -> Vec<Member> {
    members
        .iter()
        .filter(|member| member.name != name)
        .cloned()
        .collect()
}

/// The digest is from an independent program. Nodes of two releases compare it, so it is frozen too.
#[test]
fn golden_placement() {
    let members: Vec<_> = (1..)
        .zip(["n1", "n2", "n3"])
        .map(|(n, name)| Member::new(name, Incarnation(n), 1))
        .collect();
    let placement = Placement::compute(&members, &Settings::default());
    assert_eq!(
        placement.counts().into_values().collect::<Vec<_>>(),
        [1323, 1376, 1397]
    );
    assert_eq!(placement.digest(), "01aaf66212a0b5f2");
}

/// Where the bound bites: SHA-256 over the owners' names, from an independent program.
#[test]
fn golden_placement_with_overflow() {
    let placement = Placement::compute(
        &nodes(20),
        &Settings {
            load_bound: Some(1.05),
            ..Settings::default()
        },
    );
    let owners: Vec<_> = Slot::all()
        .map(|slot| placement.member(slot).unwrap().name.clone())
        .collect();
    assert_eq!(hex(&Sha256::digest(owners.join("\n"))[..8]), "dddb80326991b656");
}

#[test]
fn without_members_nobody_owns_anything() {
    let idle = Member::new("idle", Incarnation(1), 0);
    for members in [&[][..], &[idle]] {
        let placement = Placement::compute(members, &Settings::default());
        assert!(Slot::all().all(|slot| placement.owner(slot).is_none()));
    }
}

#[test]
fn up_to_twenty_nodes_of_one_weight_the_bound_does_not_bite() {
    for count in [1, 2, 3, 5, 10, 15, 20] {
        let members = nodes(count);
        let bounded = Placement::compute(&members, &Settings::default());
        assert_eq!(
            bounded.owners,
            Placement::compute(&members, &strict()).owners,
            "{count} nodes"
        );
    }
}

#[test]
fn up_to_sixty_four_nodes_only_the_slots_of_who_comes_or_goes_move() {
    let mut smaller = Placement::compute(&nodes(1), &strict());
    for count in 2..=64 {
        let members = nodes(count);
        let larger = Placement::compute(&members, &strict());
        // Read forwards the last one joins, read backwards it dies.
        let last = Some(Incarnation(count));
        for slot in Slot::all() {
            let (before, after) = (smaller.owner(slot), larger.owner(slot));
            assert!(
                before == after || after == last,
                "{slot} moved with {count} nodes"
            );
        }
        let share = f64::from(SLOTS) / count as f64;
        let taken = larger.count(Incarnation(count)) as f64;
        assert!(taken <= 1.25 * share, "of {count} nodes the last took {taken}");
        smaller = larger;
    }
}

#[test]
fn a_hundred_nodes_stay_within_the_bound_and_move_little_else() {
    let members = nodes(100);
    let before = Placement::compute(&members, &Settings::default());
    assert_eq!(
        before.counts().into_values().max(),
        Some(52),
        "ceil(1.25 * 4096 / 100)"
    );
    for dead in ["node-1", "node-40", "node-99"] {
        let after = Placement::compute(&without(&members, dead), &Settings::default());
        let extra = before
            .diff(&after)
            .iter()
            .filter(|step| {
                step.from
                    .is_some_and(|from| format!("node-{}", from.get()) != dead)
            })
            .count();
        assert!(extra <= 8, "{extra} slots of others moved when {dead} died");
    }
}

#[test]
fn a_member_gets_slots_in_proportion_to_its_weight() {
    let members: Vec<_> = (1..)
        .zip([1, 2, 4, 0])
        .map(|(n, weight)| Member::new(format!("node-{n}"), Incarnation(n), weight))
        .collect();
    let counts = Placement::compute(&members, &Settings::default()).counts();
    for member in &members {
        let share = f64::from(SLOTS) * f64::from(member.weight) / 7.0;
        let count = counts[&member.incarnation] as f64;
        assert!(
            (count - share).abs() <= share * 0.15,
            "{} has {count} of {share}",
            member.name
        );
    }
}

#[test]
fn a_restart_under_the_same_name_keeps_the_places_and_changes_the_digest() {
    let before = Placement::compute(&nodes(3), &Settings::default());
    let mut members = nodes(3);
    members[1].incarnation = Incarnation(9);
    let after = Placement::compute(&members, &Settings::default());
    assert!(
        before
            .diff(&after)
            .iter()
            .all(|step| step.from == Some(Incarnation(2)) && step.to == Some(Incarnation(9)))
    );
    assert_eq!(before.diff(&after).len(), before.count(Incarnation(2)));
    assert_ne!(before.digest(), after.digest());
    assert_ne!(before.digest(), Placement::compute(&nodes(3), &strict()).digest());
}

#[test]
fn settings_are_checked_and_write_no_bound_as_none() {
    let read = |json: &str| serde_json::from_str::<Settings>(json);
    assert_eq!(read("{}").unwrap(), Settings::default());
    assert_eq!(read(r#"{"load_bound": "none"}"#).unwrap(), strict());
    assert_eq!(read(r#"{"load_bound": 2}"#).unwrap().load_bound, Some(2.0));
    assert_eq!(read(r#"{"load_bound": "1.5"}"#).unwrap().load_bound, Some(1.5));
    assert!(
        read(r#"{"load_bound": "little"}"#)
            .unwrap_err()
            .to_string()
            .contains("load_bound must be a number")
    );
    assert!(read(r#"{"tokns": 1}"#).is_err());
    assert_eq!(
        serde_json::to_string(&strict()).unwrap(),
        r#"{"tokens":512,"load_bound":"none","version":1}"#
    );

    assert_eq!(Settings::default().validate(), Ok(()));
    for (json, error) in [
        (r#"{"tokens": 0}"#, "tokens must be from 1 to 4096, not 0"),
        (
            r#"{"load_bound": 0.5}"#,
            "load_bound must be \"none\" or a number from 1 on, not 0.5",
        ),
        (
            r#"{"version": 2}"#,
            "ring version 2 is not known here, this binary has 1",
        ),
    ] {
        assert_eq!(read(json).unwrap().validate().unwrap_err().to_string(), error);
    }
}

/// Up to eight members whose names sort in surprising ways, of weights 0 to 3.
fn some_members() -> impl Strategy<Value = Vec<Member>> {
    let names = ["2", "10", "A", "a", "ä", "a\u{308}", "node-1", "node-10"];
    proptest::sample::subsequence(names.to_vec(), 2..=names.len()).prop_flat_map(|names| {
        let count = names.len();
        proptest::collection::vec(0..=3_u32, count).prop_map(move |weights| {
            (1..)
                .zip(names.iter().zip(weights))
                .map(|(n, (name, weight))| Member::new(*name, Incarnation(n), weight))
                .collect()
        })
    })
}

fn some_settings() -> impl Strategy<Value = Settings> {
    proptest::option::of(1.0..1.5_f64).prop_map(|load_bound| Settings {
        tokens: 32,
        load_bound,
        ..Settings::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_order_of_the_members_does_not_matter(
        (members, shuffled) in some_members().prop_flat_map(|m| (Just(m.clone()), Just(m).prop_shuffle())),
        settings in some_settings(),
    ) {
        let placement = Placement::compute(&members, &settings);
        prop_assert_eq!(&placement, &Placement::compute(&shuffled, &settings));
        prop_assert_eq!(placement.digest(), Placement::compute(&shuffled, &settings).digest());
    }

    #[test]
    fn a_slot_walks_on_only_from_a_member_that_is_full_of_its_own(members in some_members(), bound in 1.0..1.2_f64) {
        let settings = Settings { tokens: 32, load_bound: Some(bound), ..Settings::default() };
        let placement = Placement::compute(&members, &settings);
        let plain = Placement::compute(&members, &Settings { load_bound: None, ..settings });
        for step in placement.diff(&plain) {
            let full = step.to.unwrap();
            prop_assert!(placement.slots_of(full).all(|slot| plain.owner(slot) == Some(full)), "{:?}", step);
        }
    }

    /// Read forwards a death, backwards a join: what moves is what the leaver had, and otherwise only slots that the
    /// bound keeps from the first member of their walk, before or after. With the strict ring there are none of these.
    #[test]
    fn a_change_moves_only_the_leavers_slots_and_the_overflow(members in some_members(), settings in some_settings()) {
        let leaver = &members[0];
        let rest = without(&members, &leaver.name);
        let overflows = |members: &[Member]| {
            let placement = Placement::compute(members, &settings);
            let plain = Placement::compute(members, &Settings { load_bound: None, ..settings });
            let overflow: Vec<_> = placement.diff(&plain).into_iter().map(|step| step.slot).collect();
            (placement, overflow)
        };
        let (before, overflow_before) = overflows(&members);
        let (after, overflow_after) = overflows(&rest);
        for step in before.diff(&after) {
            prop_assert!(
                step.from == Some(leaver.incarnation)
                    || overflow_before.contains(&step.slot)
                    || overflow_after.contains(&step.slot),
                "{:?} had no reason", step
            );
        }
        prop_assert!(settings.load_bound.is_some() || overflow_before.is_empty());
    }

    #[test]
    fn no_member_gets_more_than_the_bound_and_every_slot_has_an_owner(
        members in some_members(),
        bound in 1.0..1.5_f64,
    ) {
        let settings = Settings { tokens: 32, load_bound: Some(bound), ..Settings::default() };
        let placement = Placement::compute(&members, &settings);
        let total: u32 = members.iter().map(|member| member.weight).sum();
        for member in &members {
            let most = (bound * f64::from(SLOTS) * f64::from(member.weight) / f64::from(total)).ceil();
            prop_assert!(total == 0 || placement.count(member.incarnation) as f64 <= most);
        }
        prop_assert!(total == 0 || Slot::all().all(|slot| placement.owner(slot).is_some()));
    }
}
