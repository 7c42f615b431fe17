//! Who fires which shard: rendezvous hashing, so that an instance that comes or goes moves its own shards alone.

use super::jitter::mix;
use windfall_contract::due::Shard;

/// Whether a shard belongs to `instance` among those that live.
pub(super) fn is_mine(shard: Shard, instance: &str, living: &[String]) -> bool {
    let mine = (score(shard, instance), instance);
    living.iter().all(|other| (score(shard, other), other.as_str()) <= mine)
}

fn score(shard: Shard, instance: &str) -> u64 {
    let name = windfall_contract::fnv1a(instance.as_bytes());
    mix(name ^ mix(u64::from(shard.0).wrapping_add(0x9e37_79b9_7f4a_7c15)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners(living: &[&str]) -> Vec<String> {
        let names: Vec<_> = living.iter().map(|&name| name.to_owned()).collect();
        let owner = |shard| {
            let mut owners = names.iter().filter(|name| is_mine(Shard(shard), name, &names));
            let owner = owners.next().cloned().expect("each shard has an owner");
            assert_eq!(owners.next(), None, "and no other");
            owner
        };
        (0..64).map(owner).collect()
    }

    #[test]
    fn each_shard_has_one_owner_and_an_instance_that_goes_moves_its_own_shards_alone() {
        let three = owners(&["a", "b", "c"]);
        let two = owners(&["a", "b"]);
        for (before, after) in three.iter().zip(&two) {
            assert!(before == after || before == "c");
        }
        for name in ["a", "b", "c"] {
            let count = three.iter().filter(|owner| *owner == name).count();
            assert!((8..=40).contains(&count), "{name} has {count}");
        }
    }
}
