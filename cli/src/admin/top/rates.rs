//! Readings of metrics become a sample: the gauges of all processes together, and of each counter what it grows by in a second.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use windfall_console::{read_labels, read_samples};

/// The names and values of labels.
type Labels = BTreeMap<String, String>;

/// The counters of each process as they were last, which the next reading is compared with.
#[derive(Debug, Default)]
pub struct Rates(HashMap<String, Counters>);

#[derive(Debug, Default)]
struct Counters {
    at: Duration,
    values: HashMap<String, f64>,
}

/// The watched series of all processes at one time.
#[derive(Debug, Default)]
pub struct Sample {
    series: HashMap<&'static str, BTreeMap<Labels, Series>>,
    /// Whether a process was compared with an earlier reading.
    has_rates: bool,
}

/// One series over all processes that show it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Series {
    /// The sum, for a gauge of what each process has of its own, and for a counter.
    pub sum: f64,
    /// The largest, for a gauge of what all processes see alike.
    pub max: f64,
    /// The growth of a counter in a second; `None` before it was read twice.
    pub per_s: Option<f64>,
}

impl Rates {
    /// Takes what the processes that answered say, by their names, at a time of a clock that never goes back. Of the metrics
    /// only those that are watched are kept.
    ///
    /// A counter that went back is a new start of its process, and has grown by all that it shows. A process that was away is
    /// compared with its last answer, and one that answers for the first time has no rates yet.
    pub fn take<'a>(
        &mut self,
        at: Duration,
        said: impl IntoIterator<Item = (&'a str, &'a str)>,
        watched: &[&'static str],
    ) -> Sample {
        let mut sample = Sample::default();
        for (process, text) in said {
            let before = self.0.remove(process);
            let mut now = Counters { at, values: HashMap::new() };
            let passed_s = before.as_ref().map(|before| at.saturating_sub(before.at).as_secs_f64());
            let passed_s = passed_s.filter(|passed| *passed > 0.0);
            sample.has_rates |= passed_s.is_some();
            for line in read_samples(text) {
                let Some(name) = watched.iter().find(|name| **name == line.name) else { continue };
                let per_s = is_counter(name).then(|| {
                    let key = format!("{name}{{{}", line.labels);
                    let last = before.as_ref().and_then(|before| before.values.get(&key)).copied();
                    now.values.insert(key, line.value);
                    // A process that was started again counts from 0, as does a series that was not there before.
                    let last = last.filter(|last| *last <= line.value).unwrap_or(0.0);
                    passed_s.map(|passed_s| (line.value - last) / passed_s)
                });
                sample.add(name, read_labels(line.labels).into_iter().collect(), line.value, per_s.flatten());
            }
            self.0.insert(process.to_owned(), now);
        }
        sample
    }
}

impl Sample {
    fn add(&mut self, name: &'static str, labels: Labels, value: f64, per_s: Option<f64>) {
        let series = self.series.entry(name).or_default().entry(labels);
        let both = |one: Option<f64>, other: Option<f64>| match (one, other) {
            (Some(one), Some(other)) => Some(one + other),
            (one, other) => one.or(other),
        };
        series
            .and_modify(|series| {
                series.sum += value;
                series.max = series.max.max(value);
                series.per_s = both(series.per_s, per_s);
            })
            .or_insert(Series { sum: value, max: value, per_s });
    }

    /// The series of a metric whose labels have these values.
    pub fn all<'a>(
        &'a self,
        name: &str,
        with: &'a [(&'a str, &'a str)],
    ) -> impl Iterator<Item = (&'a Labels, &'a Series)> {
        let has =
            |labels: &Labels| with.iter().all(|(key, value)| labels.get(*key).is_some_and(|it| it == value));
        self.series.get(name).into_iter().flatten().filter(move |(labels, _)| has(labels))
    }

    /// Their sum; 0 where nobody shows one.
    pub fn sum(&self, name: &str, with: &[(&str, &str)]) -> f64 {
        self.all(name, with).map(|(_, series)| series.sum).sum()
    }

    /// The largest; `None` where nobody shows one.
    pub fn max(&self, name: &str, with: &[(&str, &str)]) -> Option<f64> {
        self.all(name, with).map(|(_, series)| series.max).reduce(f64::max)
    }

    /// Whether one of them is above 0.
    pub fn is_set(&self, name: &str, with: &[(&str, &str)]) -> bool {
        self.max(name, with).is_some_and(|value| value > 0.0)
    }

    /// The growth of counters in a second; `None` where none was read twice.
    pub fn per_s(&self, name: &str, with: &[(&str, &str)]) -> Option<f64> {
        self.all(name, with)
            .filter_map(|(_, series)| series.per_s)
            .reduce(|one, other| one + other)
            .map(thousandths)
    }

    /// The same of all series of a counter that shows none before the first of its kind.
    pub fn per_s_or_0(&self, name: &str) -> Option<f64> {
        self.per_s(name, &[]).or_else(|| self.has_rates.then_some(0.0))
    }

    /// Every value of a label among some metrics, in order.
    pub fn values(&self, label: &str, names: &[&str]) -> Vec<String> {
        let series = names.iter().filter_map(|name| self.series.get(name)).flat_map(BTreeMap::keys);
        let mut values: Vec<String> = series.filter_map(|labels| labels.get(label)).cloned().collect();
        values.sort_unstable();
        values.dedup();
        values
    }

    /// A quantile of what a histogram has counted since the reading before, by linear interpolation in its bucket; `None` if it
    /// has counted nothing. What is above the last bound is taken to be at it.
    pub fn quantile(&self, histogram: &str, with: &[(&str, &str)], quantile: f64) -> Option<f64> {
        let mut bounds: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
        for (labels, series) in self.all(histogram, with) {
            let Some(bound) = labels.get("le").and_then(|bound| bound.parse::<f64>().ok()) else { continue };
            // Of numbers that are not negative, the order of the bits is that of the numbers.
            bounds.entry(bound.max(0.0).to_bits()).or_insert((bound, 0.0)).1 += series.per_s?;
        }
        let all = bounds.values().last()?.1;
        if all <= 0.0 {
            return None;
        }
        let (mut below, mut counted) = (0.0, 0.0);
        for (bound, until) in bounds.into_values() {
            if until >= quantile * all {
                let share =
                    if until > counted { (quantile * all - counted) / (until - counted) } else { 1.0 };
                return Some(if bound.is_finite() { below + (bound - below) * share } else { below });
            }
            (below, counted) = (bound, until);
        }
        Some(below)
    }
}

/// A number with three digits behind the point.
pub fn thousandths(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// Counters, and the series of histograms.
fn is_counter(name: &str) -> bool {
    ["_total", "_bucket", "_count", "_sum"].iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: &str = "windfall_sent_events_total";
    const LAG: &str = "windfall_queue_lag_records";
    const BUCKET: &str = "windfall_connector_seconds_bucket";

    fn sent(count: u64) -> String {
        format!("# TYPE x counter\n{SENT}{{app=\"w\"}} {count}\nother_total 7\n")
    }

    fn take(rates: &mut Rates, second: u64, said: &[(&str, &str)]) -> Sample {
        rates.take(Duration::from_secs(second), said.iter().copied(), &[SENT, LAG, BUCKET])
    }

    #[test]
    fn the_first_reading_has_totals_and_no_rates() {
        let mut rates = Rates::default();
        let first = take(&mut rates, 1, &[("a", &sent(1_000)), ("b", &sent(500))]);
        assert_eq!((first.per_s(SENT, &[]), first.sum(SENT, &[])), (None, 1_500.0));
        assert_eq!(first.per_s("other_total", &[]), None, "it is not watched");
        let second = take(&mut rates, 2, &[("a", &sent(1_010)), ("b", &sent(505))]);
        assert_eq!(second.per_s(SENT, &[("app", "w")]), Some(15.0));
        assert_eq!(second.per_s(SENT, &[("app", "other")]), None);
        assert_eq!((first.per_s_or_0(BUCKET), second.per_s_or_0(BUCKET)), (None, Some(0.0)));
    }

    #[test]
    fn a_counter_that_went_back_is_a_new_start_and_no_negative_or_huge_rate() {
        let mut rates = Rates::default();
        take(&mut rates, 1, &[("a", &sent(1_000_000)), ("b", &sent(500))]);
        let restarted = take(&mut rates, 3, &[("a", &sent(20)), ("b", &sent(504))]);
        assert_eq!(restarted.per_s(SENT, &[]), Some(12.0));
        let next = take(&mut rates, 4, &[("a", &sent(50)), ("b", &sent(504))]);
        assert_eq!(next.per_s(SENT, &[]), Some(30.0));
    }

    #[test]
    fn a_process_that_was_away_is_compared_with_its_last_answer() {
        let mut rates = Rates::default();
        take(&mut rates, 1, &[("a", &sent(100)), ("b", &sent(100))]);
        let alone = take(&mut rates, 2, &[("a", &sent(110))]);
        assert_eq!((alone.per_s(SENT, &[]), alone.sum(SENT, &[])), (Some(10.0), 110.0));
        let back = take(&mut rates, 11, &[("a", &sent(110)), ("b", &sent(200))]);
        assert_eq!(back.per_s(SENT, &[]), Some(10.0), "100 in the 10 seconds since its last answer");
        let new = take(&mut rates, 12, &[("a", &sent(115)), ("c", &sent(9_999))]);
        assert_eq!(new.per_s(SENT, &[]), Some(5.0), "what a new process had counted before is no rate");
    }

    #[test]
    fn a_series_that_is_new_in_a_known_process_has_counted_from_0_and_no_time_is_no_rate() {
        let mut rates = Rates::default();
        take(&mut rates, 1, &[("a", "")]);
        assert_eq!(take(&mut rates, 2, &[("a", &sent(5))]).per_s(SENT, &[]), Some(5.0));
        assert_eq!(take(&mut rates, 2, &[("a", &sent(9))]).per_s(SENT, &[]), None);
    }

    #[test]
    fn gauges_are_summed_and_the_largest_is_known() {
        let line = |topic: &str, lag: u64| format!("{LAG}{{topic=\"{topic}\"}} {lag}\n");
        let (one, other) = (line("x", 7) + &line("y", 1), line("x", 9));
        let sample = take(&mut Rates::default(), 1, &[("a", &one), ("b", &other)]);
        assert_eq!(
            (sample.sum(LAG, &[("topic", "x")]), sample.max(LAG, &[("topic", "x")])),
            (16.0, Some(9.0))
        );
        assert_eq!(sample.values("topic", &[LAG, SENT]), ["x", "y"]);
        assert_eq!((sample.max(LAG, &[("topic", "z")]), sample.is_set(LAG, &[])), (None, true));
    }

    #[test]
    fn quantiles_are_of_what_was_counted_since_the_reading_before() {
        let mut rates = Rates::default();
        let buckets = |counts: [u64; 3]| -> String {
            let each = ["0.1", "1.0", "+Inf"].iter().zip(counts);
            each.map(|(le, count)| format!("{BUCKET}{{le=\"{le}\",connector=\"bank\"}} {count}\n")).collect()
        };
        let bank: &[_] = &[("connector", "bank")];
        let first = take(&mut rates, 1, &[("a", &buckets([1_000, 1_000, 1_000]))]);
        assert_eq!(first.quantile(BUCKET, bank, 0.5), None);
        let second = take(&mut rates, 2, &[("a", &buckets([1_000, 1_010, 1_010]))]);
        let found = second.quantile(BUCKET, bank, 0.5).unwrap();
        assert!((found - 0.55).abs() < 1e-9, "{found}");
        let third = take(&mut rates, 3, &[("a", &buckets([1_000, 1_010, 1_020]))]);
        assert_eq!(third.quantile(BUCKET, bank, 0.99), Some(1.0), "beyond the last bound");
        let idle = take(&mut rates, 4, &[("a", &buckets([1_000, 1_010, 1_020]))]);
        assert_eq!(idle.quantile(BUCKET, bank, 0.5), None, "nothing was counted");
    }
}
