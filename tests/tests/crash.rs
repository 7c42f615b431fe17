//! kill -9 at seeded moments, and a resume each time: nothing lost, nothing double, nothing different (I1, I2, I3).

#![allow(clippy::unwrap_used)] // a test ends where its premise fails

use std::path::{Path, PathBuf};
use std::time::Duration;
use windfall_tests::{Ended, Run, Seed, assert_clean, figure, plain, scratch};

/// Data directories, each with its own story.
const STORIES: u64 = 4;
/// Stories told at a time: more would starve each other on two cores.
const AT_A_TIME: usize = 2;
const REWARDS: u64 = 16_000;
const RAIN_S: u64 = 5;

/// When a kill comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// So long after the process was started.
    Age(u64),
    /// So long after it has said this.
    After(&'static str, u64),
    /// So long after the last trouble, while what has rained is still on its way: see [`Demo::limit_badges`].
    Draining(u64),
}

/// The five kills of one story, in their order.
fn moments(seed: &mut Seed) -> [Moment; 5] {
    const EARLY: [&str; 3] =
        ["writes some records of cash-a twice", "refuses topic cash-a", "hangs on topic cash-a"];
    const LATE: [&str; 3] = ["cuts the limit of coin", "to divert", "the token store is down"];
    let early = EARLY[usize::try_from(seed.below(3)).unwrap()];
    let late = LATE[usize::try_from(seed.below(3)).unwrap()];
    [
        Moment::Age(seed.below(100)),
        Moment::After(early, seed.below(300)),
        Moment::Age(seed.below(400)),
        Moment::After(late, seed.below(300)),
        Moment::Draining(seed.below(700)),
    ]
}

#[test]
fn twenty_kills_lose_nothing_and_pay_nothing_twice() {
    let binary = plain();
    let seed = Seed::new("twenty_kills_lose_nothing_and_pay_nothing_twice");
    let tell = |worker: u64| {
        let seed = &seed;
        move || (worker..STORIES).step_by(AT_A_TIME).map(|number| story(binary, seed, number)).sum::<u64>()
    };
    let kills: u64 = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..STORIES).take(AT_A_TIME).map(|worker| scope.spawn(tell(worker))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    assert_eq!(kills, 20, "a kill that does not hit shows nothing");
}

/// A process is weakest while it starts: files half made, what is left half taken over.
#[test]
fn kills_in_a_row_while_it_starts_harm_nothing() {
    let mut seed = Seed::new("kills_in_a_row_while_it_starts_harm_nothing");
    let dir = scratch();
    let demo = Demo::new(plain(), dir.path().join("data"), 4_000, 2, 1);
    for kill in 0..25 {
        let age = Duration::from_millis(seed.below(if kill < 12 { 60 } else { 500 }));
        demo.go_on().start().kill_at(age);
    }
    demo.finish(&format!("seed {}", seed.replay()));
}

/// A broker's or a store's files are made once a directory: what a kill leaves half made must open all the same.
#[test]
fn a_kill_while_the_files_are_made_harms_nothing() {
    let mut seed = Seed::new("a_kill_while_the_files_are_made_harms_nothing");
    for _ in 0..25 {
        let dir = scratch();
        let demo = Demo { calm: true, ..Demo::new(plain(), dir.path().join("data"), 200, 0, 1) };
        let age_ms = 2 + seed.below(70);
        demo.go_on().start().kill_at(Duration::from_millis(age_ms));
        demo.finish(&format!("seed {}, killed after {age_ms} ms", seed.replay()));
    }
}

/// The rain's own record, cut anywhere in its last line: what it says no more is an answer or a token that the kill
/// swallowed, never a refusal and never a false token.
#[test]
fn a_line_of_the_record_that_a_kill_cut_is_no_line() {
    let dir = scratch();
    let demo = Demo { calm: true, ..Demo::new(plain(), dir.path().join("data"), 300, 0, 1) };
    assert_eq!(demo.go_on().end().code, Some(0));
    let record = demo.data.join("rain/00.log");
    let whole = std::fs::read_to_string(&record).unwrap();
    for kind in ["A ", "T "] {
        let start = whole.rfind(&format!("\n{kind}")).unwrap() + 1;
        let line = whole[start..].lines().next().unwrap();
        let cuts = (1..line.len()).filter(|kept| *kept < 9 || kept % 60 == 0 || kept + 3 > line.len());
        for kept in cuts {
            std::fs::write(&record, &whole[..start + kept]).unwrap();
            demo.finish(&format!("cut to {:?}", &line[..kept]));
        }
    }
}

/// One directory, five kills, and the end. Returns the kills that hit.
fn story(binary: &Path, seed: &Seed, number: u64) -> u64 {
    let mut seed = seed.part(number);
    let dir = scratch();
    let demo = Demo::new(binary, dir.path().join("data"), REWARDS, RAIN_S, seed.below(1_000_000));
    let mut kills = 0;
    let mut told = format!("seed {}, story {number}:", seed.replay());
    for moment in moments(&mut seed) {
        told += &format!(" {moment:?}");
        if let Some(ended) = demo.kill(moment) {
            panic!("{told}: it ended before the kill: {ended}");
        }
        kills += 1;
        if kills == 2 {
            // From here on badges trickle, so that there is something left to drain when the rain is over.
            demo.limit_badges(5, 1);
        }
    }
    demo.limit_badges(2_000, 200);
    demo.finish(&told);
    println!("{told}: clean");
    kills
}

struct Demo {
    binary: PathBuf,
    data: PathBuf,
    rewards: u64,
    rain_s: u64,
    seed: u64,
    calm: bool,
}

impl Demo {
    fn new(binary: &Path, data: PathBuf, rewards: u64, rain_s: u64, seed: u64) -> Self {
        Self { binary: binary.to_owned(), data, rewards, rain_s, seed, calm: false }
    }

    /// The demo, or its resume once there is one.
    fn go_on(&self) -> Run {
        let run = Run::new(&self.binary).args(["demo", "--json", "--data"]).arg(&self.data);
        if self.data.join("demo.toml").exists() {
            return run.arg("--resume");
        }
        let run =
            if self.calm { run.args(["--calm", "--users", "15"]) } else { run.args(["--users", "2000"]) };
        run.args(["--rewards", &self.rewards.to_string()]).args([
            "--seconds-of-rain",
            &self.rain_s.to_string(),
            "--seed",
            &self.seed.to_string(),
        ])
    }

    /// Goes on and is killed at this moment. How it ended, if it did so before.
    fn kill(&self, moment: Moment) -> Option<Ended> {
        let (words, wait_ms) = match moment {
            Moment::Age(age_ms) => return self.go_on().start().kill_at(Duration::from_millis(age_ms)),
            Moment::After(words, wait_ms) => (words, wait_ms),
            Moment::Draining(wait_ms) => ("the badge downstream is as before", wait_ms),
        };
        let mut run = self.go_on().start();
        if !run.wait_for(words) {
            return Some(run.end());
        }
        let age = run.age() + Duration::from_millis(wait_ms);
        run.kill_at(age)
    }

    /// Sets the limit of badges, as an operator does while no demo runs.
    fn limit_badges(&self, rate_per_s: u64, burst: u64) {
        let file = self.data.join("rules/rules.toml");
        let rules = std::fs::read_to_string(&file).unwrap();
        let mut badge = false;
        let changed: Vec<String> = rules
            .lines()
            .map(|line| {
                badge = if line.starts_with('[') { line.contains("badge") } else { badge };
                match line.split_once(" = ") {
                    Some(("rate_per_s", _)) if badge => format!("rate_per_s = {rate_per_s}"),
                    Some(("burst", _)) if badge => format!("burst = {burst}"),
                    _ => line.to_owned(),
                }
            })
            .collect();
        let set =
            Run::new(&self.binary).args(["rules", "set", "-", "--who", "crash test", "--why", "badges"]);
        let set = set.arg("--file").arg(&file).stdin(changed.join("\n") + "\n").end();
        assert!(set.code == Some(0) && set.stdout.contains("now"), "{set}");
    }

    /// Resumes to the end and demands that nothing is lost, double or mismatched.
    fn finish(&self, told: &str) {
        let ended = self.go_on().end();
        assert_eq!(ended.code, Some(0), "{told}: {ended}");
        let report = ended.json();
        assert_clean(&report, told);
        let asked = ["sent", "refused", "unanswered"].map(|key| figure(&report, &format!("total.{key}")));
        assert_eq!(asked.iter().sum::<u64>(), self.rewards, "{told}: {report:#}");
        assert_eq!(asked[1], 0, "{told}: no call was refused: {report:#}");
        let again = Run::new(&self.binary).args(["reconcile", "--json", "--data"]).arg(&self.data).end();
        assert_eq!(again.code, Some(0), "{told}: {again}");
        assert_eq!(again.json()["total"], report["total"], "{told}");
    }
}
