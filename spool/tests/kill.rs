//! `kill -9` at any moment: each event that was answered Ok is found by the next start (I2).
//!
//! The sender is this very test binary, started again with [`CHILD`] set. It says on its standard output what it was
//! answered, a line each, and a line that was not written whole does not count.

#![allow(clippy::unwrap_used, reason = "a test, its helpers included")]

mod files;

use files::{instances, only_instance};
use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use windfall_spool::{NoRoom, Recovered, SealedPack, Spool, SpoolOptions};

const CHILD: &str = "WINDFALL_SPOOL_TEST_CHILD";
const THREADS: u32 = 2;
const ROUNDS: u64 = 20;
const SEED: &str = "WINDFALL_SPOOL_TEST_SEED";

/// One test at a time: between fork and exec, a child holds a copy of every lock that its parent holds, and a
/// spool that another test has just closed would seem to have an owner.
static ALONE: Mutex<()> = Mutex::new(());

fn options() -> SpoolOptions {
    SpoolOptions { total_bytes: 1 << 20, slot_bytes: 4 << 10, slot_events: 16, ..SpoolOptions::default() }
}

/// Event `index` of `thread` in `round`: who it is, and bytes that follow from it.
fn event(round: u32, thread: u32, index: u32) -> Vec<u8> {
    let name = format!("{round}.{thread}.{index}");
    let filler = usize::try_from(index % 97).unwrap();
    let mut out = format!("{name}:{:filler$}\n", "").into_bytes();
    out.insert(0, b'#');
    out
}

/// Not a test by itself: the sender that is killed.
#[test]
fn child() {
    let Ok(what) = std::env::var(CHILD) else { return };
    let (what, root) = what.split_once('@').unwrap();
    let (task, round) = what.split_once(' ').unwrap();
    let (root, round) = (Path::new(root), round.parse().unwrap());
    match task {
        "send" => {
            // What earlier rounds left stays where it is.
            let (spool, _left) = Spool::open(root, &options()).unwrap();
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let spool = &spool;
                    scope.spawn(move || send_for_ever(spool, round, thread));
                }
            });
        }
        "restart" => restart_for_ever(root, round),
        _ => panic!("{task}"),
    }
}

/// Appends without end, and acknowledges the oldest pack when several are under way.
fn send_for_ever(spool: &Spool, round: u32, thread: u32) {
    let mut sent = std::collections::VecDeque::<SealedPack>::new();
    let mut open = spool.claim(&thread.to_le_bytes()).unwrap();
    for index in 0.. {
        let event = event(round, thread, index);
        if let Err(NoRoom) = open.append(&event) {
            sent.push_back(open.seal(b"head"));
            if sent.len() > 8 {
                let acknowledged = sent.pop_front().unwrap();
                free(acknowledged);
            }
            open = spool.claim(&thread.to_le_bytes()).unwrap();
            open.append(&event).unwrap();
        }
        say(&format!("ok {round}.{thread}.{index}"));
    }
}

/// Starts, sends a part of what was left, stores a little, and dies, without end. Geometries alternate, so that
/// directories are made, adopted and deleted all the time.
fn restart_for_ever(root: &Path, round: u32) {
    for life in 0.. {
        let slot_bytes = 4096 + 1024 * (life % 3);
        let (spool, left) = Spool::open(root, &SpoolOptions { slot_bytes, ..options() }).unwrap();
        assert_eq!((left.torn_entries, left.unrecovered.len()), (0, 0));
        for (at, pack) in left.packs.into_iter().enumerate() {
            if at % 4 > 0 {
                free(pack.seal(b"head"));
            }
        }
        let mut pack = spool.claim(b"").unwrap();
        for index in 3 * life..3 * life + 3 {
            pack.append(&event(round, 0, index)).unwrap();
            say(&format!("ok {round}.0.{index}"));
        }
    }
}

/// Says that a pack's events may be gone from now on, and lets them go.
fn free(acknowledged: SealedPack) {
    for name in names(acknowledged.events()) {
        say(&format!("freed {name}"));
    }
    acknowledged.free();
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

/// The names in a pack's events, each of which must be whole.
fn names(events: &[u8]) -> Vec<String> {
    let text = std::str::from_utf8(events).unwrap();
    text.split_inclusive('\n')
        .map(|one| {
            let name = one.strip_prefix('#').unwrap().split(':').next().unwrap();
            let parts: Vec<u32> = name.split('.').map(|part| part.parse().unwrap()).collect();
            assert_eq!(one.as_bytes(), event(parts[0], parts[1], parts[2]), "not as it was appended");
            name.to_owned()
        })
        .collect()
}

fn start(task: &str, round: u64, root: &Path) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(CHILD, format!("{task} {round}@{}", root.display()))
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    (child, out)
}

/// SplitMix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// What a child said until it was killed.
#[derive(Default)]
struct Said {
    stored: BTreeSet<String>,
    freed: BTreeSet<String>,
}

/// Kills a child some time after it has said some lines.
fn run_and_kill(task: &str, round: u64, root: &Path, mut seed: u64, lines_max: u64) -> Said {
    let (mut child, mut out) = start(task, round, root);
    let (lines, micros) = (random(&mut seed) % lines_max, random(&mut seed) % 3000);
    let mut said = Said::default();
    let mut line = Vec::new();
    let mut read = 0;
    let mut killed = false;
    loop {
        line.clear();
        out.read_until(b'\n', &mut line).unwrap();
        let Some(whole) = line.strip_suffix(b"\n") else { break };
        let whole = std::str::from_utf8(whole).unwrap();
        // The last two words: the test runner's own may stand before the child's first.
        let mut words = whole.rsplit(' ');
        if let (Some(name), Some(said_of_it)) = (words.next(), words.next()) {
            match said_of_it {
                "ok" => drop(said.stored.insert(name.to_owned())),
                "freed" => drop(said.freed.insert(name.to_owned())),
                _ => {}
            }
        }
        read += 1;
        if read > lines && !killed {
            std::thread::sleep(Duration::from_micros(micros));
            child.kill().unwrap();
            killed = true;
        }
    }
    child.wait().unwrap();
    assert!(killed, "the child ended by itself");
    said
}

/// What the moments of the kills follow from.
fn seed() -> u64 {
    let given = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("replay with {SEED}={seed}");
    seed
}

fn all_names(recovered: &Recovered) -> BTreeSet<String> {
    recovered.packs.iter().flat_map(|pack| names(pack.events())).collect()
}

#[test]
fn every_event_answered_ok_is_found_after_kill_9() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let seed = seed();
    let mut state = seed;
    let root = tempfile::tempdir().unwrap();
    let mut waiting = BTreeSet::new();
    let mut stored = 0;
    for round in 0..ROUNDS {
        let said = run_and_kill("send", round, root.path(), random(&mut state), 3000);
        stored += said.stored.len();
        waiting.extend(said.stored.difference(&said.freed).cloned());
        let (_spool, recovered) = Spool::open(root.path(), &options()).unwrap();
        assert_eq!(recovered.torn_entries, 0);
        assert!(recovered.unrecovered.is_empty());
        let found = all_names(&recovered);
        let lost: Vec<_> = waiting.difference(&found).collect();
        assert!(lost.is_empty(), "round {round}, {SEED}={seed}: lost {lost:?}");
        // Some are acknowledged now; the rest stays for a later round.
        for pack in recovered.packs {
            if !random(&mut state).is_multiple_of(3) {
                for name in names(pack.events()) {
                    waiting.remove(&name);
                }
                pack.seal(b"head").free();
            }
        }
    }
    assert!(stored > 1000, "{stored} events: the children came to nothing");
    only_instance(root.path());
}

#[test]
fn killed_while_they_adopt_and_delete_each_others_directories_nothing_is_lost() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let seed = seed();
    let mut state = seed;
    let root = tempfile::tempdir().unwrap();
    let (mut stored, mut freed) = (BTreeSet::new(), BTreeSet::new());
    for round in (0..ROUNDS).step_by(2) {
        let whos = [(round, random(&mut state)), (round + 1, random(&mut state))];
        std::thread::scope(|scope| {
            let children = whos.map(|(who, seed)| {
                let root = root.path();
                scope.spawn(move || run_and_kill("restart", who, root, seed, 200))
            });
            for child in children {
                let said = child.join().unwrap();
                stored.extend(said.stored);
                freed.extend(said.freed);
            }
        });
        let (_spool, recovered) = Spool::open(root.path(), &options()).unwrap();
        assert_eq!((recovered.torn_entries, recovered.unrecovered.len()), (0, 0));
        let found = all_names(&recovered);
        let lost: Vec<_> = stored.difference(&freed).filter(|name| !found.contains(*name)).collect();
        assert!(lost.is_empty(), "round {round}, {SEED}={seed}: lost {lost:?}");
    }
    assert!(!stored.is_empty() && !freed.is_empty(), "the children came to nothing");
    let (_spool, recovered) = Spool::open(root.path(), &options()).unwrap();
    recovered.packs.into_iter().for_each(|pack| pack.seal(&[]).free());
    only_instance(root.path());
}

#[test]
fn two_processes_have_a_directory_each_and_leave_each_other_alone() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let root = tempfile::tempdir().unwrap();
    let (mut child, out) = start("send", 0, root.path());
    let mut lines = out.lines().map(Result::unwrap);
    lines.by_ref().find(|line| line.starts_with("ok 0.0")).unwrap();

    let (spool, recovered) = Spool::open(root.path(), &options()).unwrap();
    assert!(recovered.packs.is_empty() && recovered.adopted_instances == 0);
    assert_eq!(instances(root.path()).len(), 2);
    spool.claim(b"parent").unwrap().append(b"mine").unwrap();
    lines.by_ref().find(|line| line.starts_with("ok 0.1")).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();

    // The child's is adopted; ours is not, though it has the same root.
    let (_third, recovered) = Spool::open(root.path(), &options()).unwrap();
    assert_eq!(recovered.adopted_instances, 1);
    let found = all_names(&recovered);
    assert!(found.iter().any(|name| name.starts_with("0.0.")), "{found:?}");
    assert_eq!(spool.usage().slots_in_use, 1);
}

#[cfg(feature = "sabotage")]
#[test]
fn a_skipped_spool_is_noticed() {
    // Not in this process, whose other tests open spools, too.
    if std::env::var(CHILD).as_deref() != Ok("sabotage") {
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_skipped_spool_is_noticed"])
            .env(CHILD, "sabotage")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let stored_and_found = |on| {
        windfall_spool::sabotage::skip_spool(on);
        let (spool, _) = Spool::open(root.path(), &options()).unwrap();
        spool.claim(b"").unwrap().append(b"answered Ok").unwrap();
        drop(spool);
        let (_spool, recovered) = Spool::open(root.path(), &options()).unwrap();
        recovered.packs.len()
    };
    assert_eq!(stored_and_found(true), 0);
    assert_eq!(stored_and_found(false), 1);
}
