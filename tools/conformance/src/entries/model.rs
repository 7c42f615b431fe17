//! Random calls on a store, held against a naive one in memory. A seed stands for one sequence of calls; where the store's
//! clock is simulated, it stands for their answers too.

use super::pages::edges;
use super::{Case, Fixture, holds, said, same};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use windfall_contract::entries::{
    Applied, CALL_MAX, Entry, EntryChange, EntryGroup, EntryKey, Expect, To, Woken,
};

/// The variable that names one seed to be run alone.
const SEED: &str = "WINDFALL_ENTRIES_SEED";
const SHARD: u16 = 27;

/// Makes so many random calls with each of the seeds 1 to `seeds`, or with the one that `WINDFALL_ENTRIES_SEED` names.
///
/// # Errors
/// The seed that fails, and what is wrong.
pub async fn run(fixture: &dyn Fixture, seeds: u64, steps: u32) -> Result<(), String> {
    let alone = match std::env::var(SEED) {
        Ok(text) => Some(text.parse::<u64>().map_err(|error| format!("{SEED}: {error}"))?),
        Err(_) => None,
    };
    for seed in alone.map_or(1..=seeds, |seed| seed..=seed) {
        let failed = |what| format!("{}: {what}; run it alone with {SEED}={seed}", fixture.name());
        let mut run = Run::begin(fixture, seed).await.map_err(failed)?;
        for step in 0..steps {
            run.step().await.map_err(|what| failed(format!("step {step}: {what}")))?;
        }
    }
    Ok(())
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % below
    }

    fn size(&mut self, below: usize) -> usize {
        usize::try_from(self.roll(below as u64)).unwrap_or(0)
    }
}

/// What a shard is, without files or servers.
#[derive(Default)]
struct Model {
    entries: BTreeMap<EntryKey, Entry>,
    version: u64,
    given: u64,
}

impl Model {
    fn is_as_expected(&self, change: &EntryChange) -> bool {
        let entry = self.entries.get(&change.key);
        match change.expect {
            Expect::Anything => true,
            Expect::Absent => entry.is_none(),
            Expect::Version(version) => entry.is_some_and(|entry| entry.version == version),
        }
    }

    /// Makes a group as the store says it has, and says what the store had to say.
    fn apply(&mut self, now_ms: u64, group: &EntryGroup, said: Applied) -> Result<(), String> {
        let is_late = group.not_after_ms.is_some_and(|last_ms| now_ms > last_ms);
        let version = match said {
            Applied::Late => return holds("a group is late", is_late),
            _ if is_late => return Err(format!("a late group is {said:?}")),
            Applied::Conflict => {
                let is_conflict = !group.changes.iter().all(|change| self.is_as_expected(change));
                return holds("a group has a conflict", is_conflict);
            }
            Applied::Done(version) => version,
        };
        let is_fit = group.changes.iter().all(|change| self.is_as_expected(change));
        holds("a group that is done has no conflict", is_fit)?;
        holds("versions go up", version > self.version)?;
        self.version = version;
        for EntryChange { key, to, .. } in &group.changes {
            match to {
                To::Same => {}
                To::Deleted => drop(self.entries.remove(key)),
                To::Put { value, wake_ms } => {
                    let (key, wake_ms, value) = (key.clone(), *wake_ms, value.clone());
                    self.entries.insert(key.clone(), Entry { key, version, wake_ms, value });
                }
            }
        }
        Ok(())
    }

    fn woken(&self, limit: usize, found: &Woken) -> Result<(), String> {
        let is_awake = |entry: &&Entry| entry.wake_ms.is_some_and(|wake_ms| wake_ms <= found.now_ms);
        let mut times: Vec<_> = self.entries.values().filter(is_awake).map(|entry| entry.wake_ms).collect();
        times.sort_unstable();
        same("whether there are more", &found.is_cut, &(times.len() > limit))?;
        times.truncate(limit);
        same("times", &found.entries.iter().map(|one| one.wake_ms).collect::<Vec<_>>(), &times)?;
        let keys: BTreeSet<_> = found.entries.iter().map(|entry| &entry.key).collect();
        same("entries that are found once", &keys.len(), &times.len())?;
        for entry in &found.entries {
            same("one to be woken", &Some(entry), &self.entries.get(&entry.key))?;
        }
        Ok(())
    }
}

struct Run<'f> {
    fixture: &'f dyn Fixture,
    case: Option<Case>,
    dice: Dice,
    keys: Vec<EntryKey>,
    model: Model,
    now_ms: u64,
}

impl<'f> Run<'f> {
    /// Deletes what an earlier seed has left.
    async fn begin(fixture: &'f dyn Fixture, seed: u64) -> Result<Self, String> {
        let case = Case::open(fixture, SHARD).await?;
        for entry in case.scan(b"", CALL_MAX).await? {
            let change = EntryChange { key: entry.key, expect: Expect::Anything, to: To::Deleted };
            case.done([change]).await?;
        }
        let version = case.done([super::keep("none", Expect::Absent)?]).await?;
        let given = case.store.numbers(case.shard, 1).await.map_err(said)?;
        let model = Model { version, given, ..Model::default() };
        let now_ms = case.now_ms().await?;
        Ok(Self { fixture, case: Some(case), dice: Dice(seed), keys: edges()?, model, now_ms })
    }

    fn case(&self) -> Result<Case, String> {
        self.case.clone().ok_or_else(|| "the store is closed".into())
    }

    async fn step(&mut self) -> Result<(), String> {
        match self.dice.roll(100) {
            0..60 => self.apply().await,
            60..72 => self.read().await,
            72..84 => self.scan().await,
            84..92 => {
                let limit = 1 + self.dice.size(12);
                let case = self.case()?;
                let found = case.store.woken(case.shard, limit).await.map_err(said)?;
                self.now_ms = found.now_ms;
                self.model.woken(limit, &found)
            }
            92..95 => {
                let count = 1 + self.dice.roll(2_000);
                let case = self.case()?;
                let asked = u32::try_from(count).map_err(said)?;
                let first = case.store.numbers(case.shard, asked).await.map_err(said)?;
                holds("numbers go up", first > self.model.given)?;
                self.model.given = first + count - 1;
                Ok(())
            }
            95..97 => {
                self.case = None;
                self.case = Some(Case::open(self.fixture, SHARD).await?);
                Ok(())
            }
            _ => {
                self.fixture.wait_ms(self.dice.roll(30)).await;
                Ok(())
            }
        }
    }

    async fn apply(&mut self) -> Result<(), String> {
        let groups: Vec<_> = (0..1 + self.dice.roll(5)).map(|_| self.group()).collect();
        let case = self.case()?;
        let (now_ms, applied) = case.store.apply(case.shard, &groups).await.map_err(said)?;
        same("answers", &applied.len(), &groups.len())?;
        self.now_ms = now_ms;
        for (group, said) in groups.iter().zip(applied) {
            self.model.apply(now_ms, group, said).map_err(|what| format!("{what}: {group:?}"))?;
        }
        Ok(())
    }

    fn group(&mut self) -> EntryGroup {
        let mut changes: Vec<EntryChange> = Vec::new();
        for _ in 0..1 + self.dice.roll(4) {
            let change = self.change();
            if changes.iter().all(|other| other.key != change.key) {
                changes.push(change);
            }
        }
        let not_after_ms = match self.dice.roll(10) {
            0 => Some(self.now_ms - 1 - self.dice.roll(1_000)),
            1 => Some(self.now_ms + self.dice.roll(1_000_000)),
            _ => None,
        };
        EntryGroup { changes, not_after_ms }
    }

    fn change(&mut self) -> EntryChange {
        let key = self.key();
        let known = self.model.entries.get(&key).map_or(self.model.version, |entry| entry.version);
        let expect = match self.dice.roll(12) {
            0..4 => Expect::Anything,
            4..6 => Expect::Absent,
            6..11 => Expect::Version(known),
            _ => Expect::Version(known - self.dice.roll(3)),
        };
        let to = match self.dice.roll(20) {
            0..11 => {
                let longest = if self.dice.roll(20) == 0 { 5_000 } else { 40 };
                let length = self.dice.size(longest);
                let value = Bytes::from(vec![u8::try_from(self.dice.roll(256)).unwrap_or(0); length]);
                let wake_ms = match self.dice.roll(5) {
                    0 | 1 => None,
                    2 => Some(self.now_ms - self.dice.roll(100)),
                    3 => Some(self.now_ms + self.dice.roll(60)),
                    _ => Some(self.now_ms + 1_000_000 + self.dice.roll(100)),
                };
                To::Put { value, wake_ms }
            }
            11..16 => To::Deleted,
            _ => To::Same,
        };
        EntryChange { key, expect, to }
    }

    fn key(&mut self) -> EntryKey {
        let at = self.dice.size(self.keys.len());
        self.keys[at].clone()
    }

    async fn read(&mut self) -> Result<(), String> {
        let keys: Vec<_> = (0..self.dice.roll(6)).map(|_| self.key()).collect();
        let case = self.case()?;
        let found = case.store.read(case.shard, &keys).await.map_err(said)?;
        let expected: Vec<_> = keys.iter().map(|key| self.model.entries.get(key).cloned()).collect();
        same("entries that were read", &found, &expected)
    }

    async fn scan(&mut self) -> Result<(), String> {
        let prefix = match self.dice.roll(3) {
            0 => Vec::new(),
            1 => self.key().as_bytes().to_vec(),
            _ => self.key().as_bytes()[..1].to_vec(),
        };
        let after = (self.dice.roll(2) == 0).then(|| self.key());
        let limit = 1 + self.dice.size(20);
        let case = self.case()?;
        let found = case.store.scan(case.shard, &prefix, after.as_ref(), limit).await.map_err(said)?;
        let is_in = |entry: &&Entry| {
            entry.key.as_bytes().starts_with(&prefix) && after.as_ref().is_none_or(|after| entry.key > *after)
        };
        let mut expected: Vec<_> = self.model.entries.values().filter(is_in).cloned().collect();
        let is_cut = expected.len() > limit;
        expected.truncate(limit);
        let next = expected.last().filter(|_| is_cut).map(|entry| entry.key.clone());
        same("entries of a page", &found.entries, &expected)?;
        same("where to go on", &found.next, &next)
    }
}
