//! What came of each bonus type in the last hour, worked out from what consumers show.
//!
//! Nobody counts by type what is sent, and what waits in a broker has no type that a metric knows. So the arrivals are those by
//! which what has left the lanes and what waits add up: a topic's lag, in events by the mean size of its records, is laid to the
//! types whose lanes wait in it, in the same proportions, and where no lane waits to those that were granted from it.

use crate::flow::Recorded;
use std::collections::BTreeMap;

const LAG: &str = "windfall_queue_lag_records";
const RECORDS: &str = "windfall_fetched_records_total";
const EVENTS: &str = "windfall_fetched_events_total";
const LANE: &str = "windfall_lane_events";
const FINISHED: &str = "windfall_lane_finished_events_total";

/// The metrics by which traffic is worked out.
pub(crate) const METRICS: [&str; 5] = [LAG, RECORDS, EVENTS, LANE, FINISHED];

/// What came, by type.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// The times of the samples, in seconds from the first one.
    pub(crate) at_s: Vec<f64>,
    /// Of each type, what had come by each sample, summed. What waited at the first one is in it, as if it had come then.
    pub(crate) came: BTreeMap<String, Vec<f64>>,
}

#[derive(Default)]
struct Topic {
    lag: Vec<f64>,
    records: f64,
    events: f64,
    types: BTreeMap<String, Type>,
}

#[derive(Default)]
struct Type {
    lane: Vec<f64>,
    /// What has left its lane for good, summed.
    finished: Vec<f64>,
}

impl Traffic {
    pub(crate) fn of(recorded: &Recorded) -> Self {
        let first = recorded.at_ms.first().copied().unwrap_or_default();
        let at_s: Vec<f64> = recorded.at_ms.iter().map(|at| seconds(at.saturating_sub(first))).collect();
        let mut came: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for topic in topics(recorded, &at_s).values() {
            for (name, own) in topic.arrivals(at_s.len()) {
                let all = came.entry(name).or_insert_with(|| vec![0.0; at_s.len()]);
                all.iter_mut().zip(own).for_each(|(all, own)| *all += own);
            }
        }
        came.retain(|_, all| all.last().is_some_and(|all| *all >= 1.0));
        Self { at_s, came }
    }
}

fn topics(recorded: &Recorded, at_s: &[f64]) -> BTreeMap<String, Topic> {
    let mut topics: BTreeMap<String, Topic> = BTreeMap::new();
    for line in &recorded.series {
        let Some(topic) = line.labels.get("topic") else { continue };
        let topic = topics.entry(topic.clone()).or_default();
        let of_type = || line.labels.get("type").cloned().unwrap_or_default();
        match line.name {
            LAG => topic.lag = held(&line.values),
            RECORDS => topic.records = summed(&line.values, at_s).last().copied().unwrap_or_default(),
            EVENTS => topic.events = summed(&line.values, at_s).last().copied().unwrap_or_default(),
            LANE => topic.types.entry(of_type()).or_default().lane = held(&line.values),
            // What is requeued comes again.
            FINISHED if line.labels.get("outcome").is_some_and(|outcome| outcome != "requeued") => {
                let own = topic.types.entry(of_type()).or_default();
                let sums = summed(&line.values, at_s);
                own.finished.resize(at_s.len(), 0.0);
                own.finished.iter_mut().zip(sums).for_each(|(all, sum)| *all += sum);
            }
            _ => {}
        }
    }
    topics
}

impl Topic {
    /// By type, what had come by each sample.
    fn arrivals(&self, samples: usize) -> Vec<(String, Vec<f64>)> {
        let per_record = if self.records >= 1.0 { (self.events / self.records).max(1.0) } else { 1.0 };
        let value = |values: &[f64], at: usize| values.get(at).copied().unwrap_or_default();
        let granted = |one: &Type| one.finished.last().copied().unwrap_or_default();
        let granted_by_all: f64 = self.types.values().map(granted).sum();
        let mut came: Vec<_> =
            self.types.keys().map(|name| (name.clone(), Vec::with_capacity(samples))).collect();
        for at in 0..samples {
            let in_lanes: f64 = self.types.values().map(|one| value(&one.lane, at)).sum();
            let behind = (value(&self.lag, at) * per_record - in_lanes).max(0.0);
            for ((_, came), one) in came.iter_mut().zip(self.types.values()) {
                let in_lane = value(&one.lane, at);
                let share = match (in_lanes >= 1.0, granted_by_all >= 1.0) {
                    (true, _) => in_lane / in_lanes,
                    (false, true) => granted(one) / granted_by_all,
                    (false, false) => 0.0,
                };
                let by_now = value(&one.finished, at) + in_lane + behind * share;
                // What has come does not go again; that a sum falls is a guess that was too high.
                let before = came.last().copied().unwrap_or_default();
                came.push(by_now.max(before));
            }
        }
        came
    }
}

/// A gauge, which stays what it was while nobody shows it.
fn held(values: &[f64]) -> Vec<f64> {
    let mut last = 0.0;
    let hold = |value: &f64| {
        last = if value.is_nan() { last } else { *value };
        last
    };
    values.iter().map(hold).collect()
}

/// What a rate has come to by each sample.
fn summed(values: &[f64], at_s: &[f64]) -> Vec<f64> {
    let mut sum = 0.0;
    let mut before_s = at_s.first().copied().unwrap_or_default();
    let add = |(value, at_s): (&f64, &f64)| {
        let rate = if value.is_nan() { 0.0 } else { *value };
        sum += rate * (at_s - before_s);
        before_s = *at_s;
        sum
    };
    values.iter().zip(at_s).map(add).collect()
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds of an hour")]
fn seconds(ms: u64) -> f64 {
    ms as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::Line;

    fn line(name: &'static str, labels: &[(&str, &str)], values: &[f64]) -> Line {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Line { name, labels, values: values.to_vec() }
    }

    fn traffic(samples: u64, series: Vec<Line>) -> Traffic {
        Traffic::of(&Recorded { at_ms: (0..samples).map(|at| 5_000 + at * 1_000).collect(), series })
    }

    #[test]
    fn what_was_granted_and_what_waits_is_what_came() {
        let finished = |outcome, values: &[f64]| {
            line(FINISHED, &[("topic", "t"), ("type", "cash"), ("outcome", outcome)], values)
        };
        let found = traffic(
            4,
            vec![
                finished("credited", &[f64::NAN, 10.0, 10.0, 20.0]),
                finished("archived", &[f64::NAN, 1.0, 1.0, 0.0]),
                finished("requeued", &[f64::NAN, 500.0, 500.0, 500.0]),
                line(LANE, &[("topic", "t"), ("type", "cash")], &[4.0, 4.0, 14.0, f64::NAN]),
            ],
        );
        assert_eq!(found.at_s, [0.0, 1.0, 2.0, 3.0]);
        // 4 waited; 11 came and went; 21 came, of which 10 wait; 20 came and went.
        assert_eq!(found.came["cash"], [4.0, 15.0, 36.0, 56.0]);
    }

    #[test]
    fn a_backlog_in_the_broker_belongs_to_the_types_whose_lanes_wait() {
        let lane = |kind, values: &[f64]| line(LANE, &[("topic", "t"), ("type", kind)], values);
        let found = traffic(
            2,
            vec![
                line(LAG, &[("topic", "t")], &[10.0, 10.0]),
                line(RECORDS, &[("topic", "t")], &[f64::NAN, 2.0]),
                line(EVENTS, &[("topic", "t")], &[f64::NAN, 200.0]),
                lane("cash", &[30.0, 30.0]),
                lane("badge", &[10.0, 0.0]),
                lane("none", &[0.0, 0.0]),
            ],
        );
        // 10 records of 100 events each wait, 40 of them in lanes, by 3 to 1.
        assert_eq!(found.came["cash"], [750.0, 1_000.0]);
        assert_eq!(found.came["badge"], [250.0, 250.0], "what has come does not go again");
        assert!(!found.came.contains_key("none"));
    }

    #[test]
    fn where_no_lane_waits_a_backlog_belongs_to_what_is_granted_and_a_topic_of_nothing_to_nobody() {
        let finished = |kind, rate: f64| {
            line(FINISHED, &[("topic", "t"), ("type", kind), ("outcome", "credited")], &[f64::NAN, rate])
        };
        let found = traffic(
            2,
            vec![
                finished("cash", 30.0),
                finished("badge", 10.0),
                line(LAG, &[("topic", "t")], &[0.0, 8.0]),
                line(LAG, &[("topic", "silent")], &[100.0, 100.0]),
            ],
        );
        assert_eq!((found.came["cash"][1], found.came["badge"][1]), (36.0, 12.0));
        assert_eq!(found.came.len(), 2);
        assert!(traffic(0, Vec::new()).came.is_empty());
    }
}
