//! What is shown: a plain model of the fleet at one time, which is drawn or printed as JSON.

use super::findings::{Finding, Level, findings};
use super::rates::{Sample, thousandths};
use super::words::whole;
use serde::Serialize;

/// The latency of calls of the services.
const CALL_BUCKETS: &str = "windfall_edge_call_seconds_bucket";
/// The latency of payers.
const PAYER_BUCKETS: &str = "windfall_connector_seconds_bucket";

/// The metrics that are read; the rest of a reading is passed over.
pub const WATCHED: &[&str] = &[
    "windfall_archived_events_total",
    "windfall_audit_differences",
    "windfall_connector_answers_total",
    PAYER_BUCKETS,
    "windfall_consumer_running",
    "windfall_delayed_records",
    "windfall_draining_topic_records",
    CALL_BUCKETS,
    "windfall_edge_refused_calls_total",
    "windfall_fetched_records_total",
    "windfall_fuse_state",
    "windfall_grants_total",
    "windfall_held_withdrawals",
    "windfall_lane_breaker_open",
    "windfall_lane_events",
    "windfall_lane_finished_events_total",
    "windfall_lane_oldest_milliseconds",
    "windfall_ledger_back_in_time",
    "windfall_ledger_closed",
    "windfall_ledger_commits_total",
    "windfall_ledger_payouts_stopped",
    "windfall_ledger_rules_behind",
    "windfall_ledger_waiting_events",
    "windfall_limit_rate_per_second",
    "windfall_packs",
    "windfall_partitions",
    "windfall_payouts_to_acknowledge",
    "windfall_quarantined_records_total",
    "windfall_queue_breaker_open",
    "windfall_queue_lag_records",
    "windfall_queue_records_total",
    "windfall_refused_calls_total",
    "windfall_requeued_events_total",
    "windfall_reserved_orders",
    "windfall_rules_refuses",
    "windfall_rules_version",
    "windfall_salvage_pending_records",
    "windfall_sent_events_total",
    "windfall_spool_slots",
    "windfall_stuck_partitions",
    "windfall_undecided_orders",
    "windfall_undecided_withdrawals",
    "windfall_unverified_records_total",
    "windfall_waiting_tokens",
    "windfall_window_oldest_milliseconds",
];

/// The fleet at one time. A rate is `None` before its counters were read twice.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Picture {
    /// When the processes were asked last, in Unix milliseconds.
    pub at_ms: u64,
    /// The worst of the findings.
    pub health: Level,
    /// Since when no process answers at all, and why; the rest is from before then.
    pub stale: Option<Stale>,
    /// The newest version of the rules that a process runs.
    pub rules_version: Option<u64>,
    /// The processes that are asked.
    pub processes: Vec<Process>,
    /// What comes in.
    pub senders: Senders,
    /// The topics of the queues.
    pub topics: Vec<Topic>,
    /// The limit over all bonus types, in events per second.
    pub limit_per_s: Option<f64>,
    /// The bonus types, each with its lane.
    pub types: Vec<Type>,
    /// What the ledger decides.
    pub grants: Grants,
    /// How long calls take: those of the services, and those of payers.
    pub latencies: Vec<Latency>,
    /// What did not end as a credit.
    pub ends: Vec<End>,
    /// What needs a look, the worst first.
    pub findings: Vec<Finding>,
}

/// What is said while no process answers.
#[derive(Debug, Clone, Serialize)]
pub struct Stale {
    /// Since when, in Unix milliseconds.
    pub since_ms: u64,
    /// What the first process says, or what is said of it.
    pub why: String,
}

/// A process that is asked.
#[derive(Debug, Clone, Serialize)]
pub struct Process {
    /// The address at which it is asked.
    pub name: String,
    /// Whether it answers, and is ready.
    pub state: ProcessState,
    /// Why it is away or not ready, and what it works without.
    pub why: Vec<String>,
    /// Since when it is away, in Unix milliseconds.
    pub away_since_ms: Option<u64>,
    /// The version of the rules that it runs.
    pub rules_version: Option<u64>,
    /// Whether it refuses newer ones.
    pub refuses_rules: bool,
}

/// Whether a process answers, and is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    /// It answers, and serves.
    Ready,
    /// It answers, and lacks something without which it does not serve.
    NotReady,
    /// It does not answer.
    Away,
}

/// What comes in.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Senders {
    /// Rewards that calls returned a token for, per second.
    pub sent_per_s: Option<f64>,
    /// Calls that were refused because the spool was full, per second.
    pub full_per_s: Option<f64>,
    /// Calls that did not reach their service (no key, no role, no place), per second.
    pub refused_per_s: Option<f64>,
    /// Closed packs that no broker has yet.
    pub packs: u64,
    /// Slots of the spool that are in use.
    pub slots_used: u64,
    /// Slots of the spool in all.
    pub slots: u64,
    /// Tokens that wait for the token store.
    pub tokens: u64,
}

/// A topic of a queue.
#[derive(Debug, Clone, Serialize)]
pub struct Topic {
    /// The name of the topic.
    pub name: String,
    /// Records that are written and not committed; `None`: the broker does not say.
    pub lag: Option<u64>,
    /// How long they last at the rate at which they are read now; `None` while nothing is read.
    pub lag_s: Option<f64>,
    /// Records that brokers have stored, per second.
    pub in_per_s: Option<f64>,
    /// Records that consumers have read, per second.
    pub out_per_s: Option<f64>,
    /// Processes that read it now; `None`: none of those that are asked is a consumer of it.
    pub consumers: Option<u64>,
    /// Partitions that they own.
    pub partitions: u64,
    /// Age of the oldest record in flight, in milliseconds.
    pub oldest_ms: Option<f64>,
    /// Partitions without progress.
    pub stuck: u64,
    /// Whether senders pass it by.
    pub is_breaker_open: bool,
    /// Whether nobody writes to it any more.
    pub is_draining: bool,
}

/// A bonus type and its lane.
#[derive(Debug, Clone, Serialize)]
pub struct Type {
    /// The name of the bonus type.
    pub name: String,
    /// Events that left the lane credited, per second.
    pub rate_per_s: Option<f64>,
    /// What the rules let through, in events per second.
    pub limit_per_s: Option<f64>,
    /// The state of its fuse: closed, pause or divert.
    pub fuse: String,
    /// Events that wait in the lane.
    pub waiting: u64,
    /// How long they last at this rate; `None` while nothing is credited.
    pub clears_s: Option<f64>,
    /// Age of the oldest record of which events wait in the lane, in milliseconds; `None` while none do.
    pub oldest_ms: Option<f64>,
    /// Whether nothing of it is decided, and few are asked for.
    pub is_breaker_open: bool,
    /// Events that left the lane to be written back to a queue, per second.
    pub requeued_per_s: Option<f64>,
}

/// What the ledger decides.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Grants {
    /// Decisions per second.
    pub per_s: Option<f64>,
    /// The same by answer.
    pub answers: Vec<Answer>,
    /// Transactions per second.
    pub commits_per_s: Option<f64>,
    /// Events that wait for the ledger's writer.
    pub waiting: u64,
}

/// Decisions with one answer.
#[derive(Debug, Clone, Serialize)]
pub struct Answer {
    /// The ledger's answer, such as `credited`.
    pub answer: String,
    /// Decisions per second.
    pub per_s: Option<f64>,
}

/// How long calls took between the two readings.
#[derive(Debug, Clone, Serialize)]
pub struct Latency {
    /// The service and its method, or the payer.
    pub name: String,
    /// Calls per second.
    pub per_s: f64,
    /// The median, in milliseconds.
    pub p50_ms: f64,
    /// The time that 99 of 100 calls keep, in milliseconds.
    pub p99_ms: f64,
}

/// What did not end as a credit.
#[derive(Debug, Clone, Serialize)]
pub struct End {
    /// What became of it.
    pub name: &'static str,
    /// Whether it was counted since the processes were started, or is what waits now.
    pub is_counted: bool,
    /// How many there were since then, or are now.
    pub count: u64,
    /// The growth of what is counted in a second; `None` before it was read twice.
    pub per_s: Option<f64>,
}

impl Picture {
    /// The picture of a sample, and of the processes that it is from.
    pub fn of(at_ms: u64, processes: Vec<Process>, sample: &Sample) -> Self {
        let topics: Vec<Topic> = topics(sample);
        let types: Vec<Type> = types(sample);
        let mut picture = Self {
            at_ms,
            rules_version: processes.iter().filter_map(|process| process.rules_version).max(),
            processes,
            senders: senders(sample),
            topics,
            limit_per_s: sample.max("windfall_limit_rate_per_second", &[("type", "(global)")]),
            types,
            grants: grants(sample),
            latencies: latencies(sample),
            ends: ends(sample),
            ..Self::default()
        };
        picture.findings = findings(&picture, sample);
        picture.health = picture.findings.iter().map(|finding| finding.level).max().unwrap_or_default();
        picture
    }

    /// The same with other processes, none of which answers.
    pub fn stale(&self, at_ms: u64, processes: Vec<Process>, stale: Stale) -> Self {
        Self { at_ms, processes, stale: Some(stale), health: Level::Bad, ..self.clone() }
    }
}

fn senders(sample: &Sample) -> Senders {
    Senders {
        sent_per_s: sample.per_s("windfall_sent_events_total", &[]),
        full_per_s: sample.per_s_or_0("windfall_refused_calls_total"),
        refused_per_s: sample.per_s_or_0("windfall_edge_refused_calls_total"),
        // `without_route` are some of those, counted again.
        packs: whole(
            sample
                .all("windfall_packs", &[])
                .filter(|(labels, _)| labels.get("state").is_none_or(|state| state != "without_route"))
                .map(|(_, series)| series.sum)
                .sum(),
        ),
        slots_used: whole(sample.sum("windfall_spool_slots", &[("state", "in_use")])),
        slots: whole(sample.sum("windfall_spool_slots", &[("state", "all")])),
        tokens: whole(sample.sum("windfall_waiting_tokens", &[])),
    }
}

/// How long a number of things lasts at a rate.
fn lasts_s(count: f64, per_s: Option<f64>) -> Option<f64> {
    match per_s {
        _ if count <= 0.0 => Some(0.0),
        Some(per_s) if per_s > 0.0 => Some(thousandths(count / per_s)),
        _ => None,
    }
}

fn topics(sample: &Sample) -> Vec<Topic> {
    let names = sample.values(
        "topic",
        &[
            "windfall_queue_lag_records",
            "windfall_consumer_running",
            "windfall_queue_records_total",
            "windfall_draining_topic_records",
        ],
    );
    let topic = |name: String| {
        let of: &[(&str, &str)] = &[("topic", &name)];
        let left = sample.max("windfall_draining_topic_records", of);
        let lag = sample.max("windfall_queue_lag_records", of).or(left);
        let out_per_s = sample.per_s("windfall_fetched_records_total", of);
        let running = sample.all("windfall_consumer_running", of).next().is_some();
        Topic {
            lag: lag.map(whole),
            lag_s: lag.and_then(|lag| lasts_s(lag, out_per_s)),
            in_per_s: sample.per_s("windfall_queue_records_total", &[("topic", &name), ("fate", "stored")]),
            out_per_s,
            consumers: running.then(|| whole(sample.sum("windfall_consumer_running", of))),
            partitions: whole(sample.sum("windfall_partitions", of)),
            oldest_ms: sample.max("windfall_window_oldest_milliseconds", of),
            stuck: whole(sample.sum("windfall_stuck_partitions", of)),
            is_breaker_open: sample.is_set("windfall_queue_breaker_open", of),
            is_draining: left.is_some(),
            name,
        }
    };
    names.into_iter().map(topic).collect()
}

fn types(sample: &Sample) -> Vec<Type> {
    let mut names = sample
        .values("type", &["windfall_lane_events", "windfall_fuse_state", "windfall_limit_rate_per_second"]);
    // Those in brackets are no types, but what is over all of them.
    names.retain(|name| !name.starts_with('('));
    let one = |name: String| {
        let of: &[(&str, &str)] = &[("type", &name)];
        let left = |outcome| {
            sample.per_s("windfall_lane_finished_events_total", &[("type", &name), ("outcome", outcome)])
        };
        let fuse = sample
            .all("windfall_fuse_state", of)
            .find(|(_, series)| series.max > 0.0)
            .and_then(|(labels, _)| labels.get("state").cloned());
        let (rate_per_s, waiting) = (left("credited"), sample.sum("windfall_lane_events", of));
        Type {
            rate_per_s,
            limit_per_s: sample.max("windfall_limit_rate_per_second", of),
            fuse: fuse.unwrap_or_else(|| "closed".to_owned()),
            waiting: whole(waiting),
            clears_s: lasts_s(waiting, rate_per_s),
            oldest_ms: sample.max("windfall_lane_oldest_milliseconds", of).filter(|_| waiting > 0.0),
            is_breaker_open: sample.is_set("windfall_lane_breaker_open", of),
            requeued_per_s: left("requeued"),
            name,
        }
    };
    names.into_iter().map(one).collect()
}

fn grants(sample: &Sample) -> Grants {
    let per_s = |answer: &str| sample.per_s("windfall_grants_total", &[("answer", answer)]);
    let answers = sample.values("answer", &["windfall_grants_total"]);
    let answers = answers.into_iter().map(|answer| Answer { per_s: per_s(&answer), answer });
    let mut answers: Vec<Answer> = answers.collect();
    answers.sort_by(|one, other| other.per_s.unwrap_or(0.0).total_cmp(&one.per_s.unwrap_or(0.0)));
    Grants {
        per_s: sample.per_s("windfall_grants_total", &[]),
        answers,
        commits_per_s: sample.per_s("windfall_ledger_commits_total", &[]),
        waiting: whole(sample.sum("windfall_ledger_waiting_events", &[])),
    }
}

/// The calls that came between the two readings, the most frequent first.
fn latencies(sample: &Sample) -> Vec<Latency> {
    let of = |name: String, histogram: &str, with: &[(&str, &str)]| {
        let per_s = sample.per_s(histogram, &[with, &[("le", "+Inf")]].concat())?;
        let ms = |quantile| {
            sample.quantile(histogram, with, quantile).map(|seconds| thousandths(seconds * 1_000.0))
        };
        (per_s > 0.0).then_some(Latency { name, per_s, p50_ms: ms(0.5)?, p99_ms: ms(0.99)? })
    };
    let mut found = Vec::new();
    for service in sample.values("service", &[CALL_BUCKETS]) {
        let methods = sample.all(CALL_BUCKETS, &[("le", "+Inf")]);
        let methods = methods.filter(|(labels, _)| labels.get("service") == Some(&service));
        let mut methods: Vec<&String> = methods.filter_map(|(labels, _)| labels.get("method")).collect();
        methods.sort_unstable();
        methods.dedup();
        // What reads this picture is no call of a service.
        for method in methods.into_iter().filter(|_| service != "none") {
            let with = [("service", service.as_str()), ("method", method.as_str())];
            found.extend(of(format!("{service}/{method}"), CALL_BUCKETS, &with));
        }
    }
    for payer in sample.values("connector", &[PAYER_BUCKETS]) {
        found.extend(of(format!("payer {payer}"), PAYER_BUCKETS, &[("connector", payer.as_str())]));
    }
    found.sort_by(|one, other| other.per_s.total_cmp(&one.per_s));
    found
}

fn ends(sample: &Sample) -> Vec<End> {
    let counted = |name, metric| End {
        name,
        is_counted: true,
        count: whole(sample.sum(metric, &[])),
        per_s: sample.per_s_or_0(metric),
    };
    let waiting = |name, value: f64| End { name, is_counted: false, count: whole(value), per_s: None };
    let max = |metric| sample.max(metric, &[]).unwrap_or(0.0);
    vec![
        counted("archived", "windfall_archived_events_total"),
        counted("requeued", "windfall_requeued_events_total"),
        counted("quarantined", "windfall_quarantined_records_total"),
        counted("unverified", "windfall_unverified_records_total"),
        waiting("salvaged", sample.sum("windfall_salvage_pending_records", &[])),
        waiting("delayed", sample.sum("windfall_delayed_records", &[])),
        waiting("reserved", max("windfall_reserved_orders")),
        waiting("held", max("windfall_held_withdrawals")),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::rates::Rates;
    use super::*;
    use std::time::Duration;

    /// A metric that was renamed would leave a hole in the picture.
    #[test]
    fn every_metric_that_is_read_is_in_the_services_list() {
        let listed = include_str!("../../../../docs/services.md");
        for name in WATCHED {
            let declared = name.strip_suffix("_bucket").unwrap_or(name);
            assert!(listed.contains(&format!("| `{declared}` |")), "{name}");
        }
    }

    fn text(second: u64) -> String {
        format!(
            "windfall_sent_events_total{{app=\"w\"}} {sent}\n\
             windfall_queue_lag_records{{topic=\"rain\"}} 500\n\
             windfall_queue_records_total{{topic=\"rain\",fate=\"stored\"}} {sent}\n\
             windfall_fetched_records_total{{topic=\"rain\"}} {read}\n\
             windfall_consumer_running{{topic=\"rain\"}} 1\n\
             windfall_window_oldest_milliseconds{{topic=\"rain\"}} 1500\n\
             windfall_draining_topic_records{{topic=\"old\",broker=\"b\"}} 3\n\
             windfall_lane_events{{topic=\"rain\",type=\"cash\"}} 200\n\
             windfall_lane_events{{topic=\"rain\",type=\"badge\"}} 0\n\
             windfall_lane_oldest_milliseconds{{topic=\"rain\",type=\"cash\"}} 1200\n\
             windfall_lane_oldest_milliseconds{{topic=\"rain\",type=\"badge\"}} 0\n\
             windfall_lane_finished_events_total{{topic=\"rain\",type=\"cash\",outcome=\"credited\"}} {read}\n\
             windfall_limit_rate_per_second{{type=\"(global)\"}} 1000\n\
             windfall_limit_rate_per_second{{type=\"cash\"}} 50\n\
             windfall_fuse_state{{type=\"badge\",state=\"closed\"}} 0\n\
             windfall_fuse_state{{type=\"badge\",state=\"pause\"}} 1\n\
             windfall_grants_total{{type=\"cash\",answer=\"credited\"}} {read}\n\
             windfall_edge_call_seconds_bucket{{le=\"0.1\",face=\"http\",service=\"Rewards\",method=\"Grant\"}} {read}\n\
             windfall_edge_call_seconds_bucket{{le=\"+Inf\",face=\"http\",service=\"Rewards\",method=\"Grant\"}} {read}\n\
             windfall_archived_events_total 7\n",
            sent = 100 * second,
            read = 50 * second,
        )
    }

    fn process(name: &str) -> Process {
        Process {
            name: name.into(),
            state: ProcessState::Ready,
            why: Vec::new(),
            away_since_ms: None,
            rules_version: Some(4),
            refuses_rules: false,
        }
    }

    #[test]
    fn a_picture_has_the_path_of_rewards() {
        let mut rates = Rates::default();
        rates.take(Duration::from_secs(1), [("a", text(1).as_str())], WATCHED);
        let sample = rates.take(Duration::from_secs(2), [("a", text(2).as_str())], WATCHED);
        let picture = Picture::of(7, vec![process("a")], &sample);
        assert_eq!(
            (picture.senders.sent_per_s, picture.rules_version, picture.limit_per_s),
            (Some(100.0), Some(4), Some(1_000.0))
        );
        let [old, rain] = &picture.topics[..] else { panic!("{picture:?}") };
        assert_eq!((rain.lag, rain.lag_s, rain.in_per_s), (Some(500), Some(10.0), Some(100.0)));
        assert_eq!((old.lag, old.lag_s, old.consumers, old.is_draining), (Some(3), None, None, true));
        let [badge, cash] = &picture.types[..] else { panic!("{picture:?}") };
        assert_eq!((cash.rate_per_s, cash.limit_per_s, cash.clears_s), (Some(50.0), Some(50.0), Some(4.0)));
        assert_eq!((cash.oldest_ms, badge.oldest_ms, badge.fuse.as_str()), (Some(1_200.0), None, "pause"));
        assert_eq!((picture.latencies[0].name.as_str(), picture.latencies[0].per_s), ("Rewards/Grant", 50.0));
        assert_eq!((picture.ends[0].name, picture.ends[0].count), ("archived", 7));
        let found: Vec<&str> = picture.findings.iter().map(|finding| finding.text.as_str()).collect();
        assert_eq!(found, ["The fuse of badge is at pause.", "cash waits for its limit of 50/s."]);
        assert_eq!(picture.health, Level::Look);
    }

    #[test]
    fn nothing_at_all_is_a_picture_too() {
        let picture = Picture::of(0, vec![process("a")], &Sample::default());
        assert!(picture.topics.is_empty() && picture.types.is_empty() && picture.findings.is_empty());
        assert_eq!((picture.health, picture.senders.sent_per_s), (Level::Well, None));
    }
}
