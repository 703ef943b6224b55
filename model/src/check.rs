//! Running a model: to its end, or to a counterexample that has to be there.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Instant;

use stateright::{Checker, CheckerBuilder, Expectation, HasDiscoveries, Model, Property};

/// What a run looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Explored {
    /// Different states.
    pub states: usize,
    /// The longest path, in steps.
    pub depth: usize,
}

/// Explores all states, breadth first. Every property must hold: no `always` broken, no `eventually` missed, and every
/// `sometimes` met, so that what holds is not empty.
///
/// # Panics
/// With the path, if a property does not hold.
pub fn holds<M>(name: &str, model: M) -> Explored
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let began = Instant::now();
    let checker = CheckerBuilder::threads(model.checker(), threads())
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let mut wrong = Vec::new();
    for property in checker.model().properties() {
        match (property.expectation, checker.discovery(property.name)) {
            (Expectation::Sometimes, None) => wrong.push(format!("never: {}", property.name)),
            (Expectation::Always | Expectation::Eventually, Some(path)) => {
                wrong.push(format!(
                    "broken: {}\n{}",
                    property.name,
                    told(&path.into_actions())
                ));
            }
            _ => {}
        }
    }
    let explored = Explored {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
    };
    println!(
        "{name}: {} states, depth {}, {:.1} s",
        explored.states,
        explored.depth,
        began.elapsed().as_secs_f64()
    );
    assert!(wrong.is_empty(), "{name}: {}", wrong.join("\n"));
    explored
}

/// Looks for the shortest path to a state that breaks this property, replays it, and answers with its actions.
///
/// # Panics
/// If no state breaks it.
pub fn finds<M>(model: M, property: &'static str) -> Vec<M::Action>
where
    M: Model + Clone + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let began = Instant::now();
    let mut states = 0;
    let mut shortest: Option<Vec<M::Action>> = None;
    loop {
        let mut checker = UntilBroken {
            model: model.clone(),
            property,
        }
        .checker()
        .finish_when(HasDiscoveries::AnyOf([property].into()));
        if let Some(path) = &shortest {
            // The checker goes on for a while after a discovery, and answers with the last one. So is there a shorter one?
            checker = checker.target_max_depth(path.len() + 1);
        }
        let checker = checker.spawn_bfs().join();
        states = checker.unique_state_count().max(states);
        match checker.discovery(property) {
            Some(path) => shortest = Some(path.into_actions()),
            None => break,
        }
    }
    let actions = shortest.unwrap_or_else(|| panic!("nothing breaks {property} in {states} states"));
    println!(
        "{property}: broken after {} steps ({states} states, {:.1} s)\n{}",
        actions.len(),
        began.elapsed().as_secs_f64(),
        told(&actions)
    );
    replay(&model, property, &actions);
    actions
}

/// A model whose paths end where a property is broken.
struct UntilBroken<M> {
    model: M,
    property: &'static str,
}

impl<M: Model> Model for UntilBroken<M> {
    type State = M::State;
    type Action = M::Action;

    fn init_states(&self) -> Vec<M::State> {
        self.model.init_states()
    }

    fn actions(&self, state: &M::State, actions: &mut Vec<M::Action>) {
        if self.holds(state) {
            self.model.actions(state, actions);
        }
    }

    fn next_state(&self, state: &M::State, action: M::Action) -> Option<M::State> {
        self.model.next_state(state, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let property = self.model.property(self.property);
        vec![match property.expectation {
            Expectation::Eventually => {
                Property::eventually(property.name, |this: &Self, state: &M::State| {
                    this.has_come(state)
                })
            }
            Expectation::Always | Expectation::Sometimes => {
                Property::always(property.name, |this: &Self, state: &M::State| this.holds(state))
            }
        }]
    }
}

impl<M: Model> UntilBroken<M> {
    fn holds(&self, state: &M::State) -> bool {
        let property = self.model.property(self.property);
        property.expectation == Expectation::Eventually || (property.condition)(&self.model, state)
    }

    fn has_come(&self, state: &M::State) -> bool {
        (self.model.property(self.property).condition)(&self.model, state)
    }
}

/// Walks the path again and sees that the property breaks at its end and not before.
fn replay<M>(model: &M, property: &'static str, actions: &[M::Action])
where
    M: Model,
    M::Action: Clone + Debug + PartialEq,
{
    let property = model.property(property);
    let mut state = model.init_states().swap_remove(0);
    for action in actions {
        if property.expectation == Expectation::Always {
            assert!((property.condition)(model, &state), "broken before its end");
        }
        let mut possible = Vec::new();
        model.actions(&state, &mut possible);
        assert!(possible.contains(action), "not possible: {action:?}");
        state = model
            .next_state(&state, action.clone())
            .expect("an action leads somewhere");
    }
    assert!(!(property.condition)(model, &state), "not broken at the end");
}

/// Walks all paths, depth first, and sees that none of them comes back to a state that it has passed.
///
/// Only then is an `eventually` that [`holds`] worth its name: the checker looks at it where a path ends, and takes a path that
/// goes round in a circle for one that has ended well.
///
/// # Panics
/// If some path goes round in a circle.
pub fn ends<M>(model: &M)
where
    M: Model,
    M::State: Hash,
{
    let mark = |state: &M::State| {
        let mut hasher = DefaultHasher::new();
        state.hash(&mut hasher);
        hasher.finish()
    };
    // Seen, and whether all paths from there have been walked.
    let mut seen: HashMap<u64, bool> = HashMap::new();
    let mut path: Vec<(u64, Vec<M::State>)> = Vec::new();
    let mut next = model.init_states();
    loop {
        while let Some(state) = next.pop() {
            let mark = mark(&state);
            match seen.get(&mark) {
                Some(true) => {}
                Some(false) => panic!("a path of {} steps ends in a circle", path.len()),
                None => {
                    seen.insert(mark, false);
                    path.push((mark, std::mem::take(&mut next)));
                    next = model.next_states(&state);
                }
            }
        }
        let Some((mark, rest)) = path.pop() else { return };
        seen.insert(mark, true);
        next = rest;
    }
}

fn told<A: Debug>(actions: &[A]) -> String {
    actions.iter().map(|action| format!("    {action:?}\n")).collect()
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
