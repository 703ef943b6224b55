//! When which fault begins and is healed: decided before the run, from the seed alone.

use std::fmt;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};

/// How faults follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rhythm {
    /// One fault at a time, so long; then so long none.
    Turns(Duration, Duration),
    /// Each five seconds another random set of faults acts; a quarter of the time none does.
    Subsets,
    /// The first fault acts all the time; the others follow each other meanwhile, as in turns.
    Beneath(Duration, Duration),
    /// Begins all faults one after the other, in random order, lets them act together, and heals them in another order.
    Swizzle,
}

impl Rhythm {
    /// 5 s with a fault, 5 s without.
    pub const FIVES: Rhythm = Rhythm::Turns(Duration::from_secs(5), Duration::from_secs(5));
}

impl fmt::Display for Rhythm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rhythm::Turns(on, off) => write!(f, "{}/{} s", on.as_secs_f64(), off.as_secs_f64()),
            Rhythm::Beneath(on, off) => {
                write!(f, "all the time, {}/{} s", on.as_secs_f64(), off.as_secs_f64())
            }
            Rhythm::Subsets => f.write_str("subsets"),
            Rhythm::Swizzle => f.write_str("swizzle"),
        }
    }
}

/// A step of a schedule; faults are named by their place in the scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It begins, with this seed for what it draws.
    Begin(usize, u64),
    /// It is healed.
    Heal(usize),
}

/// From the start of the fault phase on.
pub type Schedule = Vec<(Duration, Step)>;

/// Between two steps of a swizzle, and the length of a subset.
const BEAT: Duration = Duration::from_secs(5);
/// Between two beginnings or healings of a swizzle.
const STAGGER: Duration = Duration::from_secs(1);

/// The steps of a fault phase. All that begins is healed at its end, if not before.
pub fn schedule(rhythm: Rhythm, faults: usize, seed: u64, length: Duration) -> Schedule {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut steps = Schedule::new();
    let mut at = Duration::ZERO;
    if faults == 0 {
        return steps;
    }
    let mut acting = vec![false; faults];
    if let Rhythm::Beneath(..) = rhythm {
        steps.push((at, Step::Begin(0, rng.random())));
        acting[0] = true;
    }
    // In turns each fault comes equally often, in random order.
    let mut deck: Vec<usize> = Vec::new();
    while at < length {
        match rhythm {
            Rhythm::Turns(on, off) => {
                if deck.is_empty() {
                    deck = (0..faults).collect();
                    deck.shuffle(&mut rng);
                }
                let fault = deck.pop().unwrap_or_default();
                steps.push((at, Step::Begin(fault, rng.random())));
                steps.push((at + on, Step::Heal(fault)));
                at += on + off;
            }
            Rhythm::Beneath(..) if faults == 1 => at = length,
            Rhythm::Beneath(on, off) => {
                let fault = rng.random_range(1..faults);
                steps.push((at, Step::Begin(fault, rng.random())));
                steps.push((at + on, Step::Heal(fault)));
                at += on + off;
            }
            Rhythm::Subsets => {
                let quiet = rng.random_ratio(1, 4);
                for (fault, acts) in acting.iter_mut().enumerate() {
                    let wanted = !quiet && rng.random_ratio(1, 2);
                    match (*acts, wanted) {
                        (false, true) => steps.push((at, Step::Begin(fault, rng.random()))),
                        (true, false) => steps.push((at, Step::Heal(fault))),
                        (true, true) | (false, false) => {}
                    }
                    *acts = wanted;
                }
                at += BEAT;
            }
            Rhythm::Swizzle => {
                let mut order: Vec<usize> = (0..faults).collect();
                order.shuffle(&mut rng);
                for fault in &order {
                    steps.push((at, Step::Begin(*fault, rng.random())));
                    at += STAGGER;
                }
                at += BEAT;
                order.shuffle(&mut rng);
                for fault in &order {
                    steps.push((at, Step::Heal(*fault)));
                    at += STAGGER;
                }
                at += BEAT;
            }
        }
    }
    for (fault, _) in acting.iter().enumerate().filter(|(_, acts)| **acts) {
        steps.push((at, Step::Heal(fault)));
    }
    steps
}

/// When steps are due in a run in which some faults take their time to begin or to heal: what begins after that is later by as much, so
/// that each fault and each rest last as long as they should; what has begun before heals as long after its beginning as it should.
#[derive(Debug)]
pub struct Pace {
    late: Duration,
    began_late: Vec<Duration>,
}

impl Pace {
    /// For so many faults.
    pub fn new(faults: usize) -> Pace {
        Pace {
            late: Duration::ZERO,
            began_late: vec![Duration::ZERO; faults],
        }
    }

    /// When this step is due that was to come `at`, if it is `now`; both, and the answer, from the start of the fault phase on.
    pub fn due(&mut self, at: Duration, step: Step, now: Duration) -> Duration {
        let due = match step {
            Step::Begin(..) => at + self.late,
            Step::Heal(fault) => at + self.began_late[fault],
        };
        self.late = self.late.max(now.saturating_sub(at));
        if let Step::Begin(fault, _) = step {
            self.began_late[fault] = self.late;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RHYTHMS: [Rhythm; 4] = [
        Rhythm::FIVES,
        Rhythm::Beneath(Duration::from_secs(5), Duration::from_secs(5)),
        Rhythm::Subsets,
        Rhythm::Swizzle,
    ];

    #[test]
    fn same_seed_gives_the_same_schedule_and_another_seed_another() {
        for rhythm in RHYTHMS {
            let of = |seed| schedule(rhythm, 4, seed, Duration::from_secs(120));
            assert_eq!(of(7), of(7));
            assert_ne!(of(7), of(8), "{rhythm}");
        }
    }

    #[test]
    fn what_begins_is_healed_before_it_begins_again() {
        for (rhythm, seed) in RHYTHMS
            .into_iter()
            .flat_map(|rhythm| (0..50).map(move |seed| (rhythm, seed)))
        {
            let mut acting = [false; 4];
            let mut last = Duration::ZERO;
            for (at, step) in schedule(rhythm, 4, seed, Duration::from_secs(120)) {
                assert!(at >= last);
                last = at;
                let (fault, begins) = match step {
                    Step::Begin(fault, _) => (fault, true),
                    Step::Heal(fault) => (fault, false),
                };
                assert_eq!(
                    acting[fault], !begins,
                    "{rhythm}, seed {seed}: {step:?} at {at:?}"
                );
                acting[fault] = begins;
            }
            assert_eq!(acting, [false; 4], "{rhythm}, seed {seed}");
        }
    }

    #[test]
    fn in_turns_every_fault_comes_before_one_comes_again() {
        let steps = schedule(Rhythm::FIVES, 5, 3, Duration::from_secs(50));
        let mut begun: Vec<usize> = steps
            .iter()
            .filter_map(|(_, step)| match step {
                Step::Begin(fault, _) => Some(*fault),
                Step::Heal(_) => None,
            })
            .collect();
        begun.sort_unstable();
        assert_eq!(begun, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn beneath_others_the_first_fault_begins_once_and_ends_last() {
        let beneath = Rhythm::Beneath(Duration::from_secs(2), Duration::from_secs(3));
        let steps = schedule(beneath, 3, 3, Duration::from_secs(50));
        let first: Vec<usize> = (0..steps.len())
            .filter(|place| matches!(steps[*place].1, Step::Begin(0, _) | Step::Heal(0)))
            .collect();
        assert_eq!(first, [0, steps.len() - 1]);
        assert_eq!(steps.len(), 2 + 2 * 10);
        let alone = schedule(beneath, 1, 3, Duration::from_secs(50));
        assert_eq!(alone.last(), Some(&(Duration::from_secs(50), Step::Heal(0))));
    }

    #[test]
    fn about_a_quarter_of_the_time_of_subsets_is_quiet() {
        // Four faults are all left out by chance in one of sixteen draws; together with the quarter that is 0.30.
        let steps = schedule(Rhythm::Subsets, 4, 11, Duration::from_secs(50_000));
        let mut acting = 0_i32;
        let (mut quiet, mut last) = (Duration::ZERO, Duration::ZERO);
        for (at, step) in steps {
            if acting == 0 {
                quiet += at - last;
            }
            last = at;
            acting += if matches!(step, Step::Begin(..)) { 1 } else { -1 };
        }
        let part = quiet.as_secs_f64() / 50_000.0;
        assert!((0.25..0.35).contains(&part), "{part}");
    }

    #[test]
    fn what_is_late_makes_late_what_follows_and_not_the_end_of_what_was_there_before() {
        let of = Duration::from_secs;
        let mut pace = Pace::new(2);
        assert_eq!(pace.due(of(0), Step::Begin(0, 1), of(0)), of(0));
        assert_eq!(pace.due(of(10), Step::Begin(1, 2), of(0)), of(10));
        // It took 7 s to begin, and should act for one.
        assert_eq!(pace.due(of(11), Step::Heal(1), of(17)), of(11));
        assert_eq!(pace.due(of(13), Step::Begin(1, 3), of(17)), of(19));
        assert_eq!(pace.due(of(14), Step::Heal(1), of(19)), of(20));
        assert_eq!(pace.due(of(60), Step::Heal(0), of(20)), of(60));
    }
}
