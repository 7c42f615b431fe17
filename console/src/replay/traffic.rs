//! What came of each bonus type in the last hour, worked out from what consumers show.
//!
//! No metric counts by type what is sent or what waits in a broker. So what has arrived of a type by a sample is computed as a
//! sum: the events that have left its lane for good, those in its lane, and its share of the topic's backlog in the broker. The
//! backlog is the lag in records times the mean number of events per record, less the events in lanes. It is divided among the
//! types in proportion to the events in their lanes or, if all lanes are empty, to the events that have left them for good.

use crate::flow::Recorded;
use std::collections::BTreeMap;

const LAG: &str = "windfall_queue_lag_records";
const RECORDS: &str = "windfall_fetched_records_total";
const EVENTS: &str = "windfall_fetched_events_total";
const LANE: &str = "windfall_lane_events";
const FINISHED: &str = "windfall_lane_finished_events_total";
/// The outcome of an event that comes again.
const REQUEUED: &str = "requeued";

/// The metrics by which traffic is worked out.
pub(crate) const METRICS: [&str; 5] = [LAG, RECORDS, EVENTS, LANE, FINISHED];

/// What was requeued within this time is taken to wait in the broker.
const CYCLE_S: f64 = 60.0;
/// A gauge that changes twice within this time is taken to have moved along a line, because lags are asked for every few seconds only.
const POLLED_S: f64 = 12.0;

/// What came, by type.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// The times of the samples, in seconds from the first one.
    pub(crate) at_s: Vec<f64>,
    /// Of each type, what had come by each sample, summed. What waited at the first one is in it, as if it had come then.
    pub(crate) came: BTreeMap<String, Vec<f64>>,
    /// Of each type, the events that left for good: credited or archived.
    pub(crate) passed: BTreeMap<String, f64>,
    /// The records that wait at the end in topics of which nobody knows whose they are, or how many events: nothing was fetched there.
    pub(crate) unknown: BTreeMap<String, f64>,
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
    /// What was requeued, summed.
    requeued: Vec<f64>,
}

impl Traffic {
    pub(crate) fn of(recorded: &Recorded) -> Self {
        let first = recorded.at_ms.first().copied().unwrap_or_default();
        let at_s: Vec<f64> = recorded.at_ms.iter().map(|at| seconds(at.saturating_sub(first))).collect();
        let (mut came, mut unknown): (BTreeMap<String, Vec<f64>>, _) = (BTreeMap::new(), BTreeMap::new());
        let mut passed: BTreeMap<String, f64> = BTreeMap::new();
        for (name, topic) in topics(recorded, &at_s) {
            for (name, own) in &topic.types {
                *passed.entry(name.clone()).or_default() += last(&own.finished);
            }
            let (arrivals, unknown_records) = topic.arrivals(&at_s);
            if unknown_records >= 1.0 {
                unknown.insert(name, unknown_records);
            }
            for (name, own) in arrivals {
                let all = came.entry(name).or_insert_with(|| vec![0.0; at_s.len()]);
                all.iter_mut().zip(own).for_each(|(all, own)| *all += own);
            }
        }
        came.retain(|_, all| all.last().is_some_and(|all| *all >= 1.0));
        Self { at_s, came, passed, unknown }
    }
}

fn topics(recorded: &Recorded, at_s: &[f64]) -> BTreeMap<String, Topic> {
    let mut topics: BTreeMap<String, Topic> = BTreeMap::new();
    for line in &recorded.series {
        let Some(topic) = line.labels.get("topic") else { continue };
        let topic = topics.entry(topic.clone()).or_default();
        let of_type = || line.labels.get("type").cloned().unwrap_or_default();
        match line.name {
            LAG => topic.lag = drawn(held(&line.values), at_s),
            RECORDS => topic.records = last(&summed(&line.values, at_s)),
            EVENTS => topic.events = last(&summed(&line.values, at_s)),
            LANE => topic.types.entry(of_type()).or_default().lane = held(&line.values),
            FINISHED => {
                let own = topic.types.entry(of_type()).or_default();
                let outcome = line.labels.get("outcome").map_or("", String::as_str);
                let summed = summed(&line.values, at_s);
                let sums = if outcome == REQUEUED { &mut own.requeued } else { &mut own.finished };
                sums.resize(at_s.len(), 0.0);
                sums.iter_mut().zip(summed).for_each(|(all, sum)| *all += sum);
            }
            _ => {}
        }
    }
    topics
}

impl Topic {
    /// By type, what had come by each sample; and the records that wait at the end for nobody knows which type.
    fn arrivals(&self, at_s: &[f64]) -> (Vec<(String, Vec<f64>)>, f64) {
        let per_record = (self.records >= 1.0).then(|| (self.events / self.records).max(1.0));
        let types: Vec<&Type> = self.types.values().collect();
        let finished: Vec<f64> = types.iter().map(|one| last(&one.finished)).collect();
        let mut came = vec![Vec::with_capacity(at_s.len()); types.len()];
        let (mut all_came, mut unknown_records) = (0.0_f64, 0.0);
        for at in 0..at_s.len() {
            let lanes: Vec<f64> = types.iter().map(|one| value(&one.lane, at)).collect();
            let waits: Vec<f64> =
                types.iter().zip(&lanes).map(|(one, lane)| lane + one.requeued_lately(at, at_s)).collect();
            let weights = if waits.iter().sum::<f64>() >= 1.0 { &waits } else { &finished };
            let all_weights: f64 = weights.iter().sum();
            let lag = value(&self.lag, at);
            let behind = match per_record.filter(|_| all_weights >= 1.0) {
                Some(per_record) => (lag * per_record - lanes.iter().sum::<f64>()).max(0.0),
                None => 0.0,
            };
            let is_known = per_record.is_some() && all_weights >= 1.0;
            unknown_records = if is_known { 0.0 } else { lag };
            let by_now: Vec<f64> = (0..types.len())
                .map(|one| {
                    value(&types[one].finished, at)
                        + lanes[one]
                        + behind * weights[one] / all_weights.max(1.0)
                })
                .collect();
            // What has come does not go again, and no more has come than there is: where the shares move from one type to another, a
            // part of what came for all is what came for each.
            let all_by_now = by_now.iter().sum::<f64>().max(all_came);
            let before = |one: usize| came[one].last().copied().unwrap_or_default();
            let more: Vec<f64> =
                (0..types.len()).map(|one: usize| f64::max(by_now[one] - before(one), 0.0)).collect();
            let all_more: f64 = more.iter().sum();
            let part = if all_more > 0.0 { ((all_by_now - all_came) / all_more).min(1.0) } else { 0.0 };
            let next: Vec<f64> = (0..types.len()).map(|one| before(one) + more[one] * part).collect();
            came.iter_mut().zip(next).for_each(|(came, next)| came.push(next));
            all_came = all_by_now;
        }
        (self.types.keys().cloned().zip(came).collect(), unknown_records)
    }
}

impl Type {
    fn requeued_lately(&self, at: usize, at_s: &[f64]) -> f64 {
        let from = at_s.partition_point(|one| *one < at_s[at] - CYCLE_S);
        (value(&self.requeued, at) - value(&self.requeued, from)).max(0.0)
    }
}

fn value(values: &[f64], at: usize) -> f64 {
    values.get(at).copied().unwrap_or_default()
}

fn last(values: &[f64]) -> f64 {
    values.last().copied().unwrap_or_default()
}

/// A gauge, which stays what it was while nobody shows it, and was at first what it was known to be first.
fn held(values: &[f64]) -> Vec<f64> {
    let mut last = values.iter().copied().find(|value| !value.is_nan()).unwrap_or_default();
    let hold = |value: &f64| {
        last = if value.is_nan() { last } else { *value };
        last
    };
    values.iter().map(hold).collect()
}

/// A gauge that is asked for now and then, with lines between its changes where these are close to each other.
fn drawn(mut values: Vec<f64>, at_s: &[f64]) -> Vec<f64> {
    let mut from = 0;
    for at in 1..values.len().min(at_s.len()) {
        if (values[at] - values[from]).abs() < f64::EPSILON {
            continue;
        }
        let (first, step, length_s) = (values[from], values[at] - values[from], at_s[at] - at_s[from]);
        if length_s <= POLLED_S && length_s > 0.0 {
            for between in from + 1..at {
                values[between] = first + step * (at_s[between] - at_s[from]) / length_s;
            }
        }
        from = at;
    }
    values
}

/// What a rate has come to by each sample. A rate behind a hole is the mean of the hole.
fn summed(values: &[f64], at_s: &[f64]) -> Vec<f64> {
    let mut sum = 0.0;
    let mut known_s: Option<f64> = None;
    let mut before_s = at_s.first().copied().unwrap_or_default();
    let add = |(value, at_s): (&f64, &f64)| {
        if !value.is_nan() {
            // Before its first value the series was not there.
            sum += value * (at_s - known_s.unwrap_or(before_s)).max(0.0);
            known_s = Some(*at_s);
        }
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
        assert_eq!(found.passed["cash"], 42.0);
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
        // 10 records of 100 events each wait, 40 of them in lanes, by 3 to 1; and no more than that has come when one lane is empty.
        assert_eq!(found.came["cash"], [750.0, 750.0]);
        assert_eq!(found.came["badge"], [250.0, 250.0]);
        assert!(!found.came.contains_key("none"));
    }

    #[test]
    fn lanes_that_wait_in_turns_are_not_twice_the_backlog() {
        let lane = |kind, of: fn(usize) -> f64| {
            let values: Vec<f64> = (0..100).map(of).collect();
            line(LANE, &[("topic", "t"), ("type", kind)], &values)
        };
        let mut rates = vec![1.0; 100];
        rates[0] = f64::NAN;
        let found = traffic(
            100,
            vec![
                line(LAG, &[("topic", "t")], &[1_000.0; 100]),
                line(RECORDS, &[("topic", "t")], &rates),
                line(EVENTS, &[("topic", "t")], &rates),
                lane("cash", |at| if at % 2 == 0 { 10.0 } else { 0.0 }),
                lane("badge", |at| if at % 2 == 1 { 10.0 } else { 0.0 }),
            ],
        );
        let all: f64 = found.came.values().map(|came| came[99]).sum();
        assert_eq!(all, 1_000.0, "{found:?}");
    }

    #[test]
    fn what_a_fuse_sends_back_waits_for_that_type() {
        let finished = |kind, outcome| {
            line(FINISHED, &[("topic", "t"), ("type", kind), ("outcome", outcome)], &[f64::NAN, 10.0, 10.0])
        };
        let found = traffic(
            3,
            vec![
                line(LAG, &[("topic", "t")], &[0.0, 500.0, 500.0]),
                line(RECORDS, &[("topic", "t")], &[f64::NAN, 10.0, 10.0]),
                line(EVENTS, &[("topic", "t")], &[f64::NAN, 10.0, 10.0]),
                finished("badge", "requeued"),
                finished("cash", "credited"),
            ],
        );
        assert_eq!((found.came["badge"][2], found.came["cash"][2]), (500.0, 20.0));
    }

    #[test]
    fn a_topic_of_which_nothing_was_fetched_is_not_known() {
        let found = traffic(
            2,
            vec![
                line(LAG, &[("topic", "stuck")], &[900.0, 1_000.0]),
                line(LANE, &[("topic", "stuck"), ("type", "cash")], &[50.0, 50.0]),
                line(LAG, &[("topic", "empty")], &[0.0, 0.0]),
            ],
        );
        assert_eq!(found.unknown, BTreeMap::from([("stuck".to_owned(), 1_000.0)]));
        assert_eq!(found.came["cash"], [50.0, 50.0], "what its lane holds is known");
    }

    #[test]
    fn holes_take_nothing_away_and_a_lag_that_is_asked_for_now_and_then_is_a_line() {
        let nan = f64::NAN;
        assert_eq!(
            summed(&[nan, nan, 5.0, nan, nan, 10.0], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]),
            [0.0, 0.0, 5.0, 5.0, 5.0, 35.0]
        );
        assert_eq!(held(&[nan, 7.0, nan, 9.0]), [7.0, 7.0, 7.0, 9.0]);
        let at_s: Vec<f64> = [0.0, 1.0, 2.0, 3.0, 4.0, 60.0].into();
        assert_eq!(drawn(vec![0.0, 0.0, 0.0, 0.0, 8.0, 9.0], &at_s), [0.0, 2.0, 4.0, 6.0, 8.0, 9.0]);
        assert_eq!(drawn(vec![1.0, 1.0, 1.0, 1.0, 1.0, 9.0], &at_s), [1.0, 1.0, 1.0, 1.0, 1.0, 9.0]);
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
                line(RECORDS, &[("topic", "t")], &[f64::NAN, 40.0]),
                line(EVENTS, &[("topic", "t")], &[f64::NAN, 40.0]),
                line(LAG, &[("topic", "silent")], &[100.0, 100.0]),
            ],
        );
        assert_eq!((found.came["cash"][1], found.came["badge"][1]), (36.0, 12.0));
        assert_eq!(found.came.len(), 2);
        assert!(traffic(0, Vec::new()).came.is_empty());
    }
}
