//! What handlers keep in memory for a key, while this node owns its slot.
//!
//! All tasks of a key run here, one at a time, so what one run loaded is warm for the next. A key's cache goes when its slot
//! leaves, and when more keys than the bound were used since (the least recently used goes first).

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ringmesh_ring::{Key, Slot};

use crate::run::let_go;
use crate::telemetry::{field, metric};

type Values = Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>;

/// The caches of all keys of one node.
#[derive(Debug)]
pub(crate) struct Caches {
    most: usize,
    keys: Mutex<Keys>,
    hits: AtomicU64,
    misses: AtomicU64,
}

#[derive(Debug, Default)]
struct Keys {
    by_key: HashMap<Key, Entry>,
    by_use: BTreeMap<u64, Key>,
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    slot: Slot,
    used: u64,
    values: Arc<Values>,
}

impl Caches {
    /// For at most so many keys.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Caches {
            most: most.max(1),
            keys: Mutex::default(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        })
    }

    fn values(&self, slot: Slot, key: &Key) -> Arc<Values> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = &mut *keys;
        keys.clock += 1;
        let now = keys.clock;
        let values = if let Some(entry) = keys.by_key.get_mut(key) {
            keys.by_use.remove(&entry.used);
            entry.used = now;
            entry.values.clone()
        } else {
            let values = Arc::<Values>::default();
            keys.by_key.insert(
                key.clone(),
                Entry {
                    slot,
                    used: now,
                    values: values.clone(),
                },
            );
            values
        };
        keys.by_use.insert(now, key.clone());
        while keys.by_key.len() > self.most {
            let Some((_, oldest)) = keys.by_use.pop_first() else {
                break;
            };
            if let Some(entry) = keys.by_key.remove(&oldest) {
                let_go(entry);
            }
        }
        values
    }

    /// Drops the caches of the keys of these slots.
    pub(crate) fn forget(&self, slots: &std::collections::HashSet<Slot>) {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let gone: Vec<Entry> = keys
            .by_key
            .extract_if(|_, entry| slots.contains(&entry.slot))
            .map(|(_, entry)| entry)
            .collect();
        for entry in &gone {
            keys.by_use.remove(&entry.used);
        }
        drop(keys);
        gone.into_iter().for_each(let_go);
    }

    /// Keys held, hits, misses.
    pub(crate) fn stats(&self) -> (usize, u64, u64) {
        let keys = self
            .keys
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .by_key
            .len();
        (
            keys,
            self.hits.load(Ordering::Relaxed),
            self.misses.load(Ordering::Relaxed),
        )
    }
}

impl Drop for Caches {
    fn drop(&mut self) {
        let keys = self.keys.get_mut().unwrap_or_else(PoisonError::into_inner);
        keys.by_key.drain().for_each(let_go);
    }
}

/// The place for one value of type `T` in the cache of a task's key.
#[derive(Debug, Clone)]
pub struct Cache<T> {
    values: Arc<Values>,
    caches: Arc<Caches>,
    of: std::marker::PhantomData<fn() -> T>,
}

impl<T: Any + Send + Sync> Cache<T> {
    pub(crate) fn new(caches: &Arc<Caches>, slot: Slot, key: &Key) -> Self {
        Cache {
            values: caches.values(slot, key),
            caches: caches.clone(),
            of: std::marker::PhantomData,
        }
    }

    fn peek(&self) -> Option<Arc<T>> {
        let values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        values.get(&TypeId::of::<T>())?.clone().downcast().ok()
    }

    /// The value that an earlier run of this key left here.
    pub fn get(&self) -> Option<Arc<T>> {
        let value = self.peek();
        let (count, result) = match value {
            Some(_) => (&self.caches.hits, "hit"),
            None => (&self.caches.misses, "miss"),
        };
        count.fetch_add(1, Ordering::Relaxed);
        metrics::counter!(metric::CACHE_LOOKUPS, field::OUTCOME => result).increment(1);
        value
    }

    /// Leaves a value for the next runs of this key, in place of the former.
    pub fn insert(&self, value: T) -> Arc<T> {
        let value = Arc::new(value);
        self.values
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(TypeId::of::<T>(), value.clone());
        value
    }

    /// Drops the value, for instance because it proved stale.
    pub fn remove(&self) {
        self.values
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&TypeId::of::<T>());
    }

    /// The value, loaded first if there is none. Runs of one key do not overlap, so nobody else loads it meanwhile.
    ///
    /// # Errors
    /// That of `load`; nothing was inserted.
    pub async fn get_or_load<E, F>(&self, load: F) -> Result<Arc<T>, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        if let Some(value) = self.get() {
            return Ok(value);
        }
        Ok(self.insert(load.await?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    #[test]
    fn a_value_is_warm_for_the_next_run_of_its_key_only() {
        let caches = Caches::new(10);
        let (a, b) = (key("a"), key("b"));
        Cache::<u32>::new(&caches, Slot::of(&a), &a).insert(7);
        assert_eq!(
            Cache::<u32>::new(&caches, Slot::of(&a), &a).get().as_deref(),
            Some(&7)
        );
        assert_eq!(Cache::<u64>::new(&caches, Slot::of(&a), &a).get(), None);
        assert_eq!(Cache::<u32>::new(&caches, Slot::of(&b), &b).get(), None);
        assert_eq!(caches.stats(), (2, 1, 2));
    }

    #[test]
    fn the_least_recently_used_key_goes_first() {
        let caches = Caches::new(2);
        for text in ["a", "b", "a", "c"] {
            let key = key(text);
            Cache::<u32>::new(&caches, Slot::of(&key), &key).insert(1);
        }
        let has = |text: &str| caches.keys.lock().unwrap().by_key.contains_key(&key(text));
        assert!(has("a") && has("c") && !has("b"));
    }

    #[test]
    fn a_slot_that_leaves_takes_its_caches_with_it() {
        let caches = Caches::new(10);
        let (a, b) = (key("a"), key("b"));
        Cache::<u32>::new(&caches, Slot::of(&a), &a).insert(1);
        Cache::<u32>::new(&caches, Slot::of(&b), &b).insert(1);
        caches.forget(&[Slot::of(&a)].into());
        assert_eq!(Cache::<u32>::new(&caches, Slot::of(&a), &a).get(), None);
        assert!(Cache::<u32>::new(&caches, Slot::of(&b), &b).get().is_some());
    }
}
