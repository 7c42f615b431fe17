//! What the fleet does: one sample a second of the metrics of all instances, shared by all viewers, and the last hour of them.

use crate::answer::Written;
use crate::options::{BUDGETS_MAX, HISTORY_MS, HISTORY_STEP_MS, SAMPLES_MAX, SERIES_MAX};
use crate::samples::{Fold, Followed, PART_READY, followed, read, read_labels};
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

/// The samples that the console has taken.
pub(crate) struct Flow(Mutex<State>);

#[derive(Default)]
struct State {
    series: Vec<Series>,
    /// The place of a series by its metric and its labels.
    index: HashMap<String, usize>,
    /// Whether there were more series than may be.
    is_cut: bool,
    /// The series of gauges that are used up.
    falling: usize,
    /// Whether there were more of these than may be.
    is_falling_cut: bool,
    samples: VecDeque<Taken>,
    /// The counters of each instance as they were last.
    counters: HashMap<String, Counters>,
    newest: Written,
    history: Written,
}

struct Series {
    followed: &'static Followed,
    labels: BTreeMap<String, String>,
    /// What a gauge that is used up had left, and when by the monotonic clock; none before it was seen. With every digit: a
    /// sample has seven, and a budget may have more.
    left: Option<(u64, f64)>,
}

/// One second. `values` has a place for each series that was known then; NaN: nobody showed it.
struct Taken {
    at_ms: u64,
    values: Box<[f32]>,
}

struct Counters {
    at_ns: u64,
    values: HashMap<usize, f64>,
}

/// The last hour of some metrics, a value for each sample: NaN where nobody showed it.
#[derive(Default)]
pub(crate) struct Recorded {
    pub(crate) at_ms: Vec<u64>,
    pub(crate) series: Vec<Line>,
}

/// A series of the last hour.
pub(crate) struct Line {
    pub(crate) name: &'static str,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) values: Vec<f64>,
}

/// A gauge that is used up: what it had left last, and what was used within each of some times before the newest sample.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Falling<const N: usize> {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) left: f64,
    pub(crate) used: [Used; N],
}

/// What was used within a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Used {
    /// The sum of all falls. A rise takes nothing from it: it may be a total that was raised.
    pub(crate) amount: f64,
    /// The part of the time of which there are samples, in seconds.
    pub(crate) known_s: f64,
}

/// What an instance answered.
pub(crate) struct Scraped {
    pub(crate) instance: String,
    pub(crate) text: Result<String, String>,
}

/// An instance as the page shows it.
#[derive(Debug, Default, Serialize)]
struct Instance {
    name: String,
    ok: bool,
    why: Option<String>,
    rules_version: Option<f64>,
    refuses_rules: bool,
    missing: Vec<String>,
}

#[derive(Serialize)]
struct Newest<'a> {
    at_ms: u64,
    is_cut: bool,
    instances: &'a [Instance],
    rules: &'a serde_json::Value,
    series: Vec<(&'static str, &'a BTreeMap<String, String>, f32)>,
}

#[derive(Serialize)]
struct History {
    step_ms: u64,
    at_ms: Vec<u64>,
    series: Vec<Charted>,
}

/// A series of the history: its metric, its labels, and the mean of each step.
type Charted = (&'static str, BTreeMap<String, String>, Vec<Option<f32>>);

impl Default for Flow {
    /// Nothing was sampled yet, which a page can be told.
    fn default() -> Self {
        let mut state = State::default();
        let newest = Written::new(&state.newest(&[], &serde_json::Value::Null));
        state.newest = newest.unwrap_or_default();
        state.history = Written::new(&state.history(HISTORY_STEP_MS)).unwrap_or_default();
        Self(Mutex::new(state))
    }
}

impl Flow {
    /// Takes a sample from what the instances answered at this time. `rules` go to the page as they are.
    pub(crate) fn take(&self, at_ms: u64, at_ns: u64, scraped: &[Scraped], rules: &serde_json::Value) {
        let mut state = self.0.lock();
        let state = &mut *state;
        let mut values = vec![f64::NAN; state.series.len()];
        let mut instances = Vec::with_capacity(scraped.len());
        for one in scraped {
            let mut instance = Instance { name: one.instance.clone(), ..Instance::default() };
            match &one.text {
                Ok(text) => {
                    instance.ok = true;
                    state.add(&one.instance, text, at_ns, &mut values);
                    instance.look(text);
                }
                Err(why) => instance.why = Some(why.clone()),
            }
            instances.push(instance);
        }
        state.counters.retain(|name, _| scraped.iter().any(|one| one.instance == *name));
        state.fall(at_ns, &mut values);
        state.samples.push_back(Taken { at_ms, values: values.into_iter().map(narrow).collect() });
        let is_old = |taken: &Taken| taken.at_ms.saturating_add(HISTORY_MS) <= at_ms;
        while state.samples.len() > SAMPLES_MAX || state.samples.front().is_some_and(is_old) {
            state.samples.pop_front();
        }
        match Written::new(&state.newest(&instances, rules)) {
            Ok(written) => state.newest = written,
            Err(error) => tracing::error!(%error, "a sample of the metrics cannot be written"),
        }
    }

    /// The newest sample, as JSON.
    pub(crate) fn newest(&self) -> Written {
        self.0.lock().newest.clone()
    }

    /// Writes the charted series of all samples, in steps, for all viewers at once: it takes much longer than a sample, so
    /// they do not ask for it each by himself, and nothing waits for it but the sums.
    pub(crate) fn write_history(&self) {
        let history = {
            let mut state = self.0.lock();
            if state.is_cut || state.is_falling_cut {
                state.forget_gone();
            }
            state.history(HISTORY_STEP_MS)
        };
        match Written::new(&history) {
            Ok(written) => self.0.lock().history = written,
            Err(error) => tracing::error!(%error, "the history of the metrics cannot be written"),
        }
    }

    /// The history as it was written last, as JSON.
    pub(crate) fn history(&self) -> Written {
        self.0.lock().history.clone()
    }

    /// All samples of the metrics with these names.
    pub(crate) fn recorded(&self, names: &[&str]) -> Recorded {
        let state = self.0.lock();
        let values = |at: usize| {
            let of = |taken: &Taken| taken.values.get(at).map_or(f64::NAN, |value| f64::from(*value));
            state.samples.iter().map(of).collect()
        };
        let wanted = state.series.iter().enumerate().filter(|(_, one)| names.contains(&one.followed.name));
        let line = |(at, one): (usize, &Series)| Line {
            name: one.followed.name,
            labels: one.labels.clone(),
            values: values(at),
        };
        Recorded {
            at_ms: state.samples.iter().map(|taken| taken.at_ms).collect(),
            series: wanted.map(line).collect(),
        }
    }

    /// The gauges that are used up, and whether there are more than are followed. What was used is summed within each of these
    /// times before the newest sample.
    pub(crate) fn falling<const N: usize>(&self, within_ms: [u64; N]) -> (Vec<Falling<N>>, bool) {
        let state = self.0.lock();
        let now_ms = state.samples.back().map_or(0, |taken| taken.at_ms);
        let from_ms = within_ms.map(|within_ms| now_ms.saturating_sub(within_ms));
        let is_falling = |at: &usize| state.series[*at].followed.fold == Fold::Fall;
        let falling: Vec<usize> = (0..state.series.len()).filter(is_falling).collect();
        let mut sums = vec![([Used::default(); N], None::<u64>); falling.len()];
        let mut before_ms = None;
        for Taken { at_ms, values } in &state.samples {
            for (at, (used, known_ms)) in falling.iter().zip(&mut sums) {
                let Some(per_s) = values.get(*at).filter(|per_s| !per_s.is_nan()) else { continue };
                // A value is the mean since the one before it; the first one, since the sample before it.
                let Some(since_ms) = known_ms.replace(*at_ms).or(before_ms) else { continue };
                for (used, from_ms) in used.iter_mut().zip(from_ms) {
                    let length = Duration::from_millis(at_ms.saturating_sub(since_ms.max(from_ms)));
                    used.amount += f64::from(*per_s) * length.as_secs_f64();
                    used.known_s += length.as_secs_f64();
                }
            }
            before_ms = Some(*at_ms);
        }
        let found = falling.iter().zip(sums).filter_map(|(at, (used, _))| {
            let Series { labels, left, .. } = &state.series[*at];
            Some(Falling { labels: labels.clone(), left: (*left)?.1, used })
        });
        (found.collect(), state.is_falling_cut)
    }
}

impl State {
    /// Adds what an instance shows to the values of this second.
    fn add(&mut self, instance: &str, text: &str, at_ns: u64, values: &mut Vec<f64>) {
        let before = self.counters.remove(instance);
        let mut after = Counters { at_ns, values: HashMap::new() };
        let passed_s = before.as_ref().map(|before| seconds(at_ns.saturating_sub(before.at_ns)));
        for sample in read(text) {
            let Some(followed) = followed(sample.name) else { continue };
            let Some(at) = self.place(followed, sample.labels) else { continue };
            if at >= values.len() {
                values.resize(at + 1, f64::NAN);
            }
            let seen = values[at];
            let known = if seen.is_nan() { 0.0 } else { seen };
            let value = match followed.fold {
                Fold::Sum => known + sample.value,
                Fold::Max | Fold::Fall if seen.is_nan() => sample.value,
                Fold::Max | Fold::Fall => known.max(sample.value),
                Fold::Rate => {
                    after.values.insert(at, sample.value);
                    let (Some(before), Some(passed_s)) = (&before, passed_s.filter(|passed| *passed > 0.0))
                    else {
                        continue;
                    };
                    // A process that was started again counts from 0.
                    let last = before.values.get(&at).copied().filter(|last| *last <= sample.value);
                    known + (sample.value - last.unwrap_or(0.0)) / passed_s
                }
            };
            values[at] = value;
        }
        self.counters.insert(instance.to_owned(), after);
    }

    /// Makes of gauges that are used up what they fell by in a second since they were seen last.
    fn fall(&mut self, at_ns: u64, values: &mut [f64]) {
        let shown = self.series.iter_mut().zip(values).filter(|(_, value)| !value.is_nan());
        for (one, value) in shown.filter(|(one, _)| one.followed.fold == Fold::Fall) {
            let before = one.left.replace((at_ns, *value));
            let passed = before.map(|(before_ns, left)| (seconds(at_ns.saturating_sub(before_ns)), left));
            *value = match passed.filter(|(passed_s, _)| *passed_s > 0.0) {
                Some((passed_s, left)) => (left - *value).max(0.0) / passed_s,
                None => f64::NAN,
            };
        }
    }

    fn place(&mut self, followed: &'static Followed, labels: &str) -> Option<usize> {
        let key = format!("{}{{{labels}", followed.name);
        if let Some(at) = self.index.get(&key) {
            return Some(*at);
        }
        if self.series.len() >= SERIES_MAX {
            self.is_cut = true;
            return None;
        }
        let is_falling = followed.fold == Fold::Fall;
        if is_falling && self.falling >= BUDGETS_MAX {
            self.is_falling_cut = true;
            return None;
        }
        self.falling += usize::from(is_falling);
        let labels = read_labels(labels).into_iter().collect();
        self.series.push(Series { followed, labels, left: None });
        self.index.insert(key, self.series.len() - 1);
        Some(self.series.len() - 1)
    }

    /// Gives back the places of series that no sample has any more, such as those of a topic that was renamed.
    fn forget_gone(&mut self) {
        let mut is_there = vec![false; self.series.len()];
        for taken in &self.samples {
            for (there, value) in is_there.iter_mut().zip(taken.values.iter()) {
                *there |= !value.is_nan();
            }
        }
        for at in self.counters.values().flat_map(|counters| counters.values.keys()) {
            is_there[*at] = true;
        }
        if is_there.iter().all(|there| *there) {
            return;
        }
        let mut next = 0_usize..;
        let moved: Vec<Option<usize>> =
            is_there.iter().map(|there| if *there { next.next() } else { None }).collect();
        let mut kept = is_there.iter();
        self.series.retain(|_| kept.next() == Some(&true));
        self.falling = self.series.iter().filter(|one| one.followed.fold == Fold::Fall).count();
        self.index = self.index.drain().filter_map(|(key, at)| Some((key, moved[at]?))).collect();
        for taken in &mut self.samples {
            let values = taken.values.iter().zip(&is_there).filter(|(_, there)| **there);
            taken.values = values.map(|(value, _)| *value).collect();
        }
        for counters in self.counters.values_mut() {
            counters.values =
                counters.values.drain().filter_map(|(at, value)| Some((moved[at]?, value))).collect();
        }
        (self.is_cut, self.is_falling_cut) = (false, false);
    }

    fn newest<'a>(&'a self, instances: &'a [Instance], rules: &'a serde_json::Value) -> Newest<'a> {
        let taken = self.samples.back();
        let values = taken.map(|taken| &*taken.values).unwrap_or_default();
        // What budgets fall by is for their forecast alone: under the name of the gauge it would mislead.
        let all = self.series.iter().zip(values);
        let shown = all.filter(|(one, value)| !value.is_nan() && one.followed.fold != Fold::Fall);
        Newest {
            at_ms: taken.map_or(0, |taken| taken.at_ms),
            is_cut: self.is_cut,
            instances,
            rules,
            series: shown.map(|(one, value)| (one.followed.name, &one.labels, *value)).collect(),
        }
    }

    fn history(&self, step_ms: u64) -> History {
        let charted: Vec<usize> =
            (0..self.series.len()).filter(|at| self.series[*at].followed.is_charted).collect();
        let mut at_ms: Vec<u64> = Vec::new();
        let mut sums: Vec<Vec<(f64, u32)>> = vec![Vec::new(); charted.len()];
        for taken in &self.samples {
            let step = taken.at_ms / step_ms * step_ms;
            if at_ms.last() != Some(&step) {
                at_ms.push(step);
                sums.iter_mut().for_each(|sums| sums.push((0.0, 0)));
            }
            for (sums, at) in sums.iter_mut().zip(&charted) {
                if let (Some(last), Some(value)) = (sums.last_mut(), taken.values.get(*at))
                    && !value.is_nan()
                {
                    last.0 += f64::from(*value);
                    last.1 += 1;
                }
            }
        }
        let mean = |(sum, count): &(f64, u32)| (*count > 0).then(|| narrow(sum / f64::from(*count)));
        let series = charted.iter().zip(&sums).map(|(at, sums)| {
            let one = &self.series[*at];
            (one.followed.name, one.labels.clone(), sums.iter().map(mean).collect())
        });
        History { step_ms, at_ms, series: series.collect() }
    }
}

impl Instance {
    /// What an instance says about itself alone.
    fn look(&mut self, text: &str) {
        for sample in read(text) {
            match sample.name {
                "windfall_rules_version" => self.rules_version = Some(sample.value),
                "windfall_rules_refuses" => self.refuses_rules = sample.value > 0.0,
                PART_READY if sample.value == 0.0 => {
                    self.missing.extend(read_labels(sample.labels).into_iter().map(|(_, part)| part));
                }
                _ => {}
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a tick's length")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[expect(clippy::cast_possible_truncation, reason = "seven digits are enough for a chart")]
fn narrow(value: f64) -> f32 {
    // Three digits behind the point are shown at most.
    ((value * 1e3).round() / 1e3) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn scraped(instance: &str, text: &str) -> Scraped {
        Scraped { instance: instance.into(), text: Ok(text.into()) }
    }

    fn shown(flow: &Flow) -> Value {
        serde_json::from_slice(&flow.newest().plain).unwrap()
    }

    fn value(flow: &Flow, name: &str) -> Option<f64> {
        let shown = shown(flow);
        let found = shown["series"].as_array().unwrap().iter().find(|one| one[0] == name).cloned();
        found.map(|one| one[2].as_f64().unwrap())
    }

    #[test]
    fn counters_become_rates_of_all_instances_also_when_one_starts_again() {
        let flow = Flow::default();
        let take = |second: u64, a: u64, b: u64| {
            let text = |count: u64| format!("windfall_sent_events_total{{app=\"w\"}} {count}\nother 1\n");
            let all = [scraped("a", &text(a)), scraped("b", &text(b))];
            flow.take(second * 1_000, second * 1_000_000_000, &all, &Value::Null);
            value(&flow, "windfall_sent_events_total")
        };
        assert_eq!(take(1, 1_000, 500), None, "no rate without an earlier value");
        assert_eq!(take(2, 1_010, 505), Some(15.0));
        assert_eq!(take(4, 1_030, 505), Some(10.0), "two seconds later");
        assert_eq!(take(5, 3, 506), Some(4.0), "the first was started again");
    }

    #[test]
    fn gauges_are_added_or_the_largest_and_an_instance_that_is_away_is_named() {
        let flow = Flow::default();
        let text = "windfall_queue_lag_records{topic=\"t\"} 7\nwindfall_lane_events{topic=\"t\",type=\"cash\"} 3\n\
                    windfall_rules_version 4\nwindfall_part_ready{part=\"tokens\"} 0\n";
        let away = Scraped { instance: "c".into(), text: Err("no connection".into()) };
        flow.take(1_000, 0, &[scraped("a", text), scraped("b", text), away], &json!({ "version": 4 }));
        let values =
            ["windfall_queue_lag_records", "windfall_lane_events"].map(|name| value(&flow, name).unwrap());
        assert_eq!(values, [7.0, 6.0]);
        let shown = shown(&flow);
        assert_eq!(
            (&shown["instances"][2]["ok"], &shown["instances"][2]["why"]),
            (&json!(false), &json!("no connection"))
        );
        assert_eq!(
            (&shown["instances"][0]["missing"], &shown["rules"]["version"]),
            (&json!(["tokens"]), &json!(4))
        );
    }

    #[test]
    fn series_and_samples_are_bounded() {
        let flow = Flow::default();
        let line = |at: usize| format!("windfall_queue_lag_records{{topic=\"t{at}\"}} 1\n");
        let text: String = (0..SERIES_MAX + 5).map(line).collect();
        flow.take(0, 0, &[scraped("a", &text)], &Value::Null);
        let found = shown(&flow);
        assert_eq!((found["series"].as_array().unwrap().len(), &found["is_cut"]), (SERIES_MAX, &json!(true)));
        for second in 1..SAMPLES_MAX as u64 + 10 {
            flow.take(second * 1_000, second, &[], &Value::Null);
        }
        assert_eq!(flow.0.lock().samples.len(), SAMPLES_MAX);
        // Fewer samples are not kept for longer.
        flow.take(2 * HISTORY_MS + 60_000, 0, &[], &Value::Null);
        assert_eq!(flow.0.lock().samples.len(), 1);
    }

    #[test]
    fn series_that_are_gone_for_an_hour_make_room() {
        let flow = Flow::default();
        let line =
            |name: &str, at: usize| format!("windfall_queue_lag_records{{topic=\"{name}{at}\"}} {at}\n");
        let stays = "windfall_sent_events_total 100\n".to_owned() + &line("stays", 7);
        let old: String = (0..SERIES_MAX).map(|at| line("old", at)).collect();
        let take = |at_ms: u64, text: &str| {
            flow.take(at_ms, at_ms * 1_000_000, &[scraped("a", text)], &Value::Null);
            flow.write_history();
            shown(&flow)
        };
        assert_eq!(take(0, &(line("gone", 1) + &stays + &old))["is_cut"], json!(true));
        let now = stays.clone() + &line("new", 3);
        // The old ones are gone with their last sample, and then there is room.
        take(HISTORY_MS - 1_000, &now);
        take(HISTORY_MS, &now);
        let found = take(HISTORY_MS + 1_000, &now);
        assert_eq!(found["is_cut"], json!(false));
        let label = |one: &Value| (one[0].clone(), one[1]["topic"].clone(), one[2].clone());
        let found: Vec<_> = found["series"].as_array().unwrap().iter().map(label).collect();
        assert_eq!(found.len(), 3, "{found:?}");
        for (name, topic, value) in [
            ("windfall_queue_lag_records", json!("stays7"), 7.0),
            ("windfall_queue_lag_records", json!("new3"), 3.0),
            ("windfall_sent_events_total", Value::Null, 0.0),
        ] {
            assert!(found.contains(&(json!(name), topic.clone(), json!(value))), "{topic}: {found:?}");
        }
    }

    #[test]
    fn the_history_has_the_mean_of_each_step_and_holes_where_nothing_was_known() {
        let flow = Flow::default();
        for second in 0..40_u64 {
            let text = format!(
                "windfall_queue_lag_records{{topic=\"t\"}} {second}\nwindfall_packs{{state=\"s\"}} 1\n"
            );
            let all = if (20..30).contains(&second) { Vec::new() } else { vec![scraped("a", &text)] };
            flow.take(second * 1_000, second * 1_000_000_000, &all, &Value::Null);
        }
        let read = || -> Value { serde_json::from_slice(&flow.history().plain).unwrap() };
        assert_eq!(read()["at_ms"], json!([]), "it was not written yet");
        flow.write_history();
        let all = read();
        assert_eq!(all["at_ms"], json!([0, 10_000, 20_000, 30_000]));
        assert_eq!(
            all["series"],
            json!([["windfall_queue_lag_records", { "topic": "t" }, [4.5, 14.5, null, 34.5]]])
        );
    }

    /// A budget of so much, as two instances show it that ask the ledger one after the other.
    fn budgets(flow: &Flow, second: u64, left: [u64; 2]) {
        let text =
            |left: u64| format!("windfall_budget_left{{activity=\"a\",scene=\"s\",type=\"cash\"}} {left}\n");
        let all = [scraped("a", &text(left[0])), scraped("b", &text(left[1]))];
        flow.take(second * 1_000, second * 1_000_000_000, &all, &Value::Null);
    }

    #[test]
    fn what_a_budget_fell_by_is_what_was_used_also_over_holes_and_where_its_total_was_raised() {
        let flow = Flow::default();
        let used = |flow: &Flow| flow.falling([3_000, 3_600_000]).0.remove(0);
        assert_eq!(flow.falling([1_000]), (Vec::new(), false), "nothing was shown yet");
        // More digits than a sample has, and little use of it.
        let much = 500_000_000_000;
        budgets(&flow, 1, [much, much]);
        assert_eq!(used(&flow).used, [Used::default(); 2], "nobody knows what was before");
        budgets(&flow, 2, [much - 10, much]);
        budgets(&flow, 3, [much - 10, much - 10]);
        flow.take(4_000, 4_000_000_000, &[], &Value::Null);
        budgets(&flow, 5, [much - 30, much - 30]);
        // Its total is raised, and in the next second 7 are used.
        budgets(&flow, 6, [much + 1_000, much + 1_000]);
        budgets(&flow, 7, [much + 993, much + 993]);
        let found = used(&flow);
        assert_eq!(found.labels["type"], "cash");
        assert_eq!((found.left, found.used[1]), (500_000_000_993.0, Used { amount: 37.0, known_s: 6.0 }));
        // The last three seconds have half of the 20 that were used from the third second to the fifth.
        assert_eq!(found.used[0], Used { amount: 17.0, known_s: 3.0 });
        assert_eq!(
            value(&flow, "windfall_budget_left"),
            None,
            "the page is not shown a rate for what is left"
        );
    }

    #[test]
    fn budgets_take_no_place_of_other_series() {
        let flow = Flow::default();
        let line = |at: usize| format!("windfall_budget_left{{activity=\"a{at}\"}} 1\n");
        let text: String = (0..BUDGETS_MAX + 5).map(line).collect();
        let text = text + "windfall_rules_version 4\n";
        for second in 1..3_u64 {
            flow.take(second * 1_000, second * 1_000_000_000, &[scraped("a", &text)], &Value::Null);
        }
        let (found, is_cut) = flow.falling([1_000]);
        assert_eq!((found.len(), is_cut), (BUDGETS_MAX, true));
        assert_eq!(
            (value(&flow, "windfall_rules_version"), &shown(&flow)["is_cut"]),
            (Some(4.0), &json!(false))
        );
        // The others are followed once the first ones are gone for an hour.
        for at_ms in [HISTORY_MS + 10_000, HISTORY_MS + 11_000, HISTORY_MS + 12_000] {
            flow.take(at_ms, at_ms * 1_000_000, &[scraped("a", &line(BUDGETS_MAX + 1))], &Value::Null);
            flow.write_history();
        }
        let (found, is_cut) = flow.falling([1_000]);
        assert_eq!((found.len(), is_cut), (1, false));
    }

    #[test]
    fn large_gauges_of_instances_are_added_exactly() {
        let flow = Flow::default();
        let text = |value: u64| format!("windfall_waiting_tokens {value}\n");
        let all = [scraped("a", &text(16_777_216)), scraped("b", &text(1)), scraped("c", &text(1))];
        flow.take(1_000, 0, &all, &Value::Null);
        assert_eq!(value(&flow, "windfall_waiting_tokens"), Some(16_777_218.0));
    }
}
