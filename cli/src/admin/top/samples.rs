//! Pictures for tests.

use super::findings::{Finding, Level};
use super::picture::{End, Grants, Latency, Picture, Process, ProcessState, Senders, Topic, Type};

pub fn topic(name: &str, lag: Option<u64>, rate: f64) -> Topic {
    Topic {
        name: name.into(),
        lag,
        lag_s: lag.map(|_| 12.5),
        in_per_s: Some(rate),
        out_per_s: Some(rate / 2.0),
        consumers: Some(2),
        partitions: 8,
        oldest_ms: Some(1_500.0),
        stuck: 0,
        is_breaker_open: false,
        is_draining: false,
    }
}

pub fn one_type(name: &str, waiting: u64) -> Type {
    Type {
        name: name.into(),
        rate_per_s: Some(980.0),
        limit_per_s: Some(1_000.0),
        fuse: "closed".into(),
        waiting,
        clears_s: Some(0.5),
        oldest_ms: Some(20.0),
        is_breaker_open: false,
        requeued_per_s: Some(0.0),
    }
}

/// A fleet of two processes, three topics and two bonus types, one of which is paused.
pub fn picture() -> Picture {
    let process = |name: &str, state| Process {
        name: name.into(),
        state,
        why: Vec::new(),
        away_since_ms: None,
        rules_version: Some(17),
        refuses_rules: false,
    };
    let unknown = Topic {
        lag: None,
        lag_s: None,
        in_per_s: None,
        out_per_s: None,
        consumers: None,
        ..topic("unknown", None, 0.0)
    };
    Picture {
        at_ms: 1_801_915_199_000,
        health: Level::Bad,
        stale: None,
        rules_version: Some(17),
        processes: vec![
            process("https://a.example:8080", ProcessState::Ready),
            process("https://b.example:8080", ProcessState::Away),
        ],
        senders: Senders {
            sent_per_s: Some(12_345.0),
            full_per_s: Some(0.0),
            refused_per_s: Some(1.5),
            packs: 3,
            slots_used: 40,
            slots: 4_096,
            tokens: 7,
        },
        topics: vec![
            topic("rain", Some(40), 800.0),
            Topic { is_breaker_open: true, ..topic("rain-backup", Some(9_000), 200.0) },
            unknown,
        ],
        limit_per_s: Some(5_000.0),
        types: vec![
            Type { fuse: "pause".into(), rate_per_s: Some(0.0), clears_s: None, ..one_type("badge", 0) },
            one_type("cash", 500),
        ],
        grants: Grants { per_s: Some(980.0), answers: Vec::new(), commits_per_s: Some(12.0), waiting: 4 },
        latencies: vec![Latency { name: "Rewards/Grant".into(), per_s: 980.0, p50_ms: 1.25, p99_ms: 48.0 }],
        ends: vec![
            End { name: "archived", is_counted: true, count: 3, per_s: Some(0.0) },
            End { name: "requeued", is_counted: true, count: 1_200, per_s: Some(15.0) },
            End { name: "held", is_counted: false, count: 2, per_s: None },
        ],
        findings: vec![
            Finding { level: Level::Bad, text: "The breaker of topic rain-backup is open.".into() },
            Finding { level: Level::Look, text: "The fuse of badge is at pause.".into() },
        ],
    }
}
