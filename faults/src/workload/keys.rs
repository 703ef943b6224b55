//! Which keys a workload uses, and how often.

use rand::Rng;
use rand::distr::Distribution;
use rand::distr::weighted::WeightedIndex;

/// Some keys of a Zipf distribution: the one of rank r is drawn with a weight of 1/r.
#[derive(Debug, Clone)]
pub(super) struct Zipf {
    ranks: Vec<usize>,
    weights: WeightedIndex<f64>,
    share: f64,
}

impl Zipf {
    /// The keys of ranks from 1 to `keys` whose rank leaves `part` when divided by `parts`: so each of `parts` writers has keys
    /// of its own, with their own weights.
    pub(super) fn part(keys: usize, part: usize, parts: usize) -> Option<Zipf> {
        let ranks: Vec<usize> = (1..=keys).filter(|rank| rank % parts == part).collect();
        let weight = |rank: &usize| 1.0 / *rank as f64;
        let all: f64 = (1..=keys).map(|rank| weight(&rank)).sum();
        let own: f64 = ranks.iter().map(weight).sum();
        let weights = WeightedIndex::new(ranks.iter().map(weight)).ok()?;
        Some(Zipf {
            ranks,
            weights,
            share: own / all,
        })
    }

    /// How much of all draws these keys have.
    pub(super) fn share(&self) -> f64 {
        self.share
    }

    /// A rank.
    pub(super) fn draw(&self, rng: &mut impl Rng) -> usize {
        self.ranks[self.weights.sample(rng)]
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    use super::*;

    #[test]
    fn key_of_rank_r_comes_with_weight_one_over_r() {
        let zipf = Zipf::part(10_000, 0, 1).unwrap();
        let mut rng = StdRng::seed_from_u64(7);
        let mut drawn = vec![0_u32; 10_001];
        for _ in 0..100_000 {
            drawn[zipf.draw(&mut rng)] += 1;
        }
        // The sum of 1/r up to 10,000 is 9.788.
        for (rank, expected) in [(1, 10_217), (2, 5_108), (10, 1_022), (100, 102)] {
            let off = f64::from(drawn[rank].abs_diff(expected)) / f64::from(expected);
            assert!(
                off < 0.4,
                "rank {rank} came {} times, not about {expected}",
                drawn[rank]
            );
        }
    }

    #[test]
    fn parts_share_no_key_and_together_have_all() {
        let parts: Vec<Zipf> = (0..15).filter_map(|part| Zipf::part(10_000, part, 15)).collect();
        let mut ranks: Vec<usize> = parts.iter().flat_map(|part| part.ranks.clone()).collect();
        ranks.sort_unstable();
        assert!(ranks.into_iter().eq(1..=10_000));
        let share: f64 = parts.iter().map(Zipf::share).sum();
        assert!((share - 1.0).abs() < 1e-9);
    }
}
