//! What belongs to no shard: names and their numbers, the instances that live.

use super::files::{Files, Step};
use super::rows::{Key, Reading};
use std::ops::Bound;
use windfall_contract::due::{KnownName, NameKept, Route, StoreError};

/// Numbers begin at 1.
const NAMES_MAX: u16 = u16::MAX;

/// The number of a name, a new one where it has none. One caller at a time.
pub(super) fn number_of(files: &Files, key: Vec<u8>, names: Key, name: &str) -> Result<u16, StoreError> {
    if let Some(number) = files.get(&key)? {
        return Reading(&number).u16();
    }
    let names = names.end();
    let last = files.last(&names)?.map(|last| Reading(&last[names.len()..]).u16()).transpose()?.unwrap_or(0);
    if last == NAMES_MAX {
        return Err(StoreError::Unusable(format!("all {NAMES_MAX} numbers of names are taken")));
    }
    let number = (last + 1).to_be_bytes();
    let mut step = files.step();
    step.put(key, number.to_vec());
    step.put([&names[..], &number].concat(), name.as_bytes().to_vec());
    step.commit()?;
    Ok(last + 1)
}

/// What the store means by numbers and names, after it was put back where nobody has it. One caller at a time.
pub(super) fn keep_names(files: &Files, known: Vec<KnownName>) -> Result<Vec<NameKept>, StoreError> {
    let mut step = files.step();
    let mut answers = Vec::with_capacity(known.len());
    for KnownName { tenant: (tenant, name), target } in known {
        let by_name = Key::of(b't').bytes(name.as_bytes()).end();
        let by_number = Key::of(b'T').u16(tenant).end();
        let kept = keep(&mut step, by_name, by_number, tenant, &name)?;
        let answer = match target {
            Some((target, name)) if kept != NameKept::Taken => {
                let by_name = Key::of(b'g').u16(tenant).bytes(name.as_bytes()).end();
                let by_number = Key::of(b'G').u16(tenant).u16(target).end();
                worse(kept, keep(&mut step, by_name, by_number, target, &name)?)
            }
            Some(_) | None => kept,
        };
        answers.push(answer);
    }
    // This store loses no names by itself, so that there is seldom anything to write.
    if !step.is_empty() {
        step.commit()?;
    }
    Ok(answers)
}

fn keep(
    step: &mut Step<'_>,
    by_name: Vec<u8>,
    by_number: Vec<u8>,
    number: u16,
    name: &str,
) -> Result<NameKept, StoreError> {
    let has_name = step.get(&by_number)?;
    if has_name.as_ref().is_some_and(|has| has[..] != *name.as_bytes()) {
        return Ok(NameKept::Taken);
    }
    if has_name.is_none() {
        step.put(by_number, name.as_bytes().to_vec());
    }
    match step.get(&by_name)? {
        Some(has) if Reading(&has).u16()? != number => Ok(NameKept::Moved),
        Some(_) if has_name.is_some() => Ok(NameKept::Same),
        Some(_) => Ok(NameKept::PutBack),
        None => {
            step.put(by_name, number.to_be_bytes().to_vec());
            Ok(NameKept::PutBack)
        }
    }
}

/// What two answers come to together.
fn worse(one: NameKept, other: NameKept) -> NameKept {
    let order = [NameKept::Taken, NameKept::Moved, NameKept::PutBack];
    order.into_iter().find(|kept| *kept == one || *kept == other).unwrap_or(NameKept::Same)
}

/// The id of the queue of adds; `fresh` where it has none. One caller at a time.
pub(super) fn queue_id(files: &Files, fresh: Option<u64>) -> Result<Option<u64>, StoreError> {
    if let Some(found) = files.get(b"q")? {
        return Reading(&found).u64().map(Some);
    }
    if let Some(fresh) = fresh {
        let mut step = files.step();
        step.put(b"q".to_vec(), fresh.to_be_bytes().to_vec());
        step.commit()?;
    }
    Ok(fresh)
}

pub(super) fn names(files: &Files, route: Route) -> Result<Option<(String, String)>, StoreError> {
    let tenant = files.get(&Key::of(b'T').u16(route.tenant).end())?;
    let target = files.get(&Key::of(b'G').u16(route.tenant).u16(route.target).end())?;
    match (tenant, target) {
        (Some(tenant), Some(target)) => {
            Ok(Some((Reading(&tenant).text()?.to_owned(), Reading(&target).text()?.to_owned())))
        }
        _ => Ok(None),
    }
}

/// Notes that an instance lives, forgets those that do not, and returns the living ones. One caller at a time.
pub(super) fn beat(
    files: &Files,
    instance: &str,
    ttl_ms: u64,
    now_ms: u64,
) -> Result<Vec<String>, StoreError> {
    let mut step = files.step();
    let value = |end_ms: u64, ttl_ms: u64| [end_ms.to_be_bytes(), ttl_ms.to_be_bytes()].concat();
    let mut living = vec![instance.to_owned()];
    step.put(Key::of(b'b').bytes(instance.as_bytes()).end(), value(now_ms.saturating_add(ttl_ms), ttl_ms));
    for row in files.range(b"b", Bound::Included(b"b".to_vec())) {
        let (key, bytes) = row?;
        let name = Reading(&key[1..]).text()?;
        let mut at = Reading(&bytes);
        let (end_ms, own_ttl_ms) = (at.u64()?, at.u64()?);
        if name == instance {
            continue;
        }
        // The clock may have gone back since it said so.
        let latest_ms = now_ms.saturating_add(own_ttl_ms);
        if end_ms <= now_ms {
            step.remove(key.to_vec());
            continue;
        }
        if end_ms > latest_ms {
            step.put(key.to_vec(), value(latest_ms, own_ttl_ms));
        }
        living.push(name.to_owned());
    }
    step.commit()?;
    living.sort_unstable();
    Ok(living)
}
