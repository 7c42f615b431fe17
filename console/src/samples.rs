//! Metrics as services show them: Prometheus' text, and which of its series the console follows.

/// How the values of a series in several instances become one, and a counter's growth a rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fold {
    /// A counter: what it grows by in a second, summed.
    Rate,
    /// A gauge of what each instance has of its own: the sum.
    Sum,
    /// A gauge of what all instances see alike: the largest.
    Max,
    /// A gauge of what all instances see alike, and that is used up: what the largest falls by in a second.
    Fall,
}

/// A metric that the console follows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Followed {
    pub(crate) name: &'static str,
    pub(crate) fold: Fold,
    /// Whether its last hour is shown as a chart.
    pub(crate) is_charted: bool,
}

/// A line of the text.
#[derive(Debug, PartialEq)]
pub struct Sample<'a> {
    /// The name of the series.
    pub name: &'a str,
    /// The labels as they are written, without the braces.
    pub labels: &'a str,
    /// The value, which is finite.
    pub value: f64,
}

const fn rate(name: &'static str) -> Followed {
    Followed { name, fold: Fold::Rate, is_charted: false }
}

const fn sum(name: &'static str) -> Followed {
    Followed { name, fold: Fold::Sum, is_charted: false }
}

const fn max(name: &'static str) -> Followed {
    Followed { name, fold: Fold::Max, is_charted: false }
}

const fn fall(name: &'static str) -> Followed {
    Followed { name, fold: Fold::Fall, is_charted: false }
}

const fn charted(followed: Followed) -> Followed {
    Followed { is_charted: true, ..followed }
}

/// The path of a reward from its sender to its payer; then timers, task queues, jobs, and what the auditor has found.
pub(crate) const FOLLOWED: &[Followed] = &[
    charted(rate("windfall_sent_events_total")),
    rate("windfall_refused_calls_total"),
    sum("windfall_packs"),
    sum("windfall_spool_slots"),
    sum("windfall_waiting_tokens"),
    rate("windfall_queue_records_total"),
    sum("windfall_queue_in_flight_records"),
    max("windfall_queue_breaker_open"),
    charted(max("windfall_queue_lag_records")),
    rate("windfall_fetched_records_total"),
    rate("windfall_fetched_events_total"),
    sum("windfall_consumer_running"),
    sum("windfall_partitions"),
    max("windfall_window_oldest_milliseconds"),
    sum("windfall_stuck_partitions"),
    sum("windfall_delayed_records"),
    max("windfall_draining_topic_records"),
    charted(sum("windfall_lane_events")),
    max("windfall_lane_oldest_milliseconds"),
    max("windfall_lane_breaker_open"),
    charted(rate("windfall_lane_finished_events_total")),
    rate("windfall_requeued_events_total"),
    max("windfall_limit_rate_per_second"),
    max("windfall_fuse_state"),
    sum("windfall_salvage_pending_records"),
    charted(rate("windfall_grants_total")),
    rate("windfall_ledger_commits_total"),
    sum("windfall_ledger_waiting_events"),
    charted(rate("windfall_archived_events_total")),
    max("windfall_ledger_closed"),
    max("windfall_ledger_rules_behind"),
    max("windfall_ledger_back_in_time"),
    max("windfall_ledger_payouts_stopped"),
    charted(rate("windfall_connector_answers_total")),
    max("windfall_reserved_orders"),
    max("windfall_held_withdrawals"),
    max("windfall_undecided_orders"),
    max("windfall_undecided_withdrawals"),
    max("windfall_payouts_to_acknowledge"),
    fall("windfall_budget_left"),
    max("windfall_rules_version"),
    max("windfall_rules_refuses"),
    max("windfall_scheduler_waiting_tasks"),
    max("windfall_scheduler_waiting_tasks_max"),
    sum("windfall_scheduler_due_tasks"),
    sum("windfall_scheduler_retrying_tasks"),
    max("windfall_scheduler_target_away"),
    rate("windfall_scheduler_added_tasks_total"),
    rate("windfall_scheduler_attempts_total"),
    rate("windfall_scheduler_late_tasks_total"),
    rate("windfall_scheduler_dead_tasks_total"),
    sum("windfall_scheduler_owned_shards"),
    max("windfall_scheduler_shards"),
    max("windfall_taskqueue_jobs"),
    max("windfall_taskqueue_oldest_ready_milliseconds"),
    rate("windfall_taskqueue_produced_jobs_total"),
    rate("windfall_taskqueue_consumed_jobs_total"),
    rate("windfall_jobs_started_total"),
    rate("windfall_jobs_ended_total"),
    max("windfall_jobs_executors"),
    sum("windfall_jobs_waiting_runs"),
    max("windfall_audit_differences"),
];

/// The metric that says which parts an instance works without.
pub(crate) const PART_READY: &str = "windfall_part_ready";

/// The metric of this name, where the console follows it.
pub(crate) fn followed(name: &str) -> Option<&'static Followed> {
    FOLLOWED.iter().find(|followed| followed.name == name)
}

/// The lines of a scrape that the console reads; the rest need not be kept until all instances have answered.
pub(crate) fn followed_lines(text: &str) -> String {
    let is_read = |line: &&str| {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        followed(name).is_some() || name == PART_READY
    };
    text.lines().filter(is_read).flat_map(|line| [line, "\n"]).collect()
}

/// Reads the lines of a scrape; what is no sample is passed over.
pub fn read(text: &str) -> impl Iterator<Item = Sample<'_>> {
    text.lines().filter_map(read_line)
}

fn read_line(line: &str) -> Option<Sample<'_>> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    if name.is_empty() || name.starts_with('#') {
        return None;
    }
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => rest.split_at_checked(end_of_labels(rest)?)?,
        None => ("", rest),
    };
    let value = rest.trim_start_matches('}').split_ascii_whitespace().next()?.parse::<f64>().ok()?;
    value.is_finite().then_some(Sample { name, labels, value })
}

/// Where the labels' closing brace stands: braces and quotes may stand in a value.
fn end_of_labels(text: &str) -> Option<usize> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b'}' if !is_quoted => return Some(at),
            _ => {}
        }
    }
    None
}

/// The names and values of labels as they are written.
pub fn read_labels(text: &str) -> Vec<(String, String)> {
    let mut labels = Vec::new();
    let mut rest = text;
    while let Some((name, after)) = rest.split_once("=\"") {
        let mut value = String::new();
        let mut signs = after.char_indices();
        let mut end = after.len();
        while let Some((at, sign)) = signs.next() {
            match sign {
                '"' => {
                    end = at + 1;
                    break;
                }
                '\\' => match signs.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, other)) => value.push(other),
                    None => {}
                },
                other => value.push(other),
            }
        }
        labels.push((name.trim_start_matches(',').to_owned(), value));
        rest = after.get(end..).unwrap_or_default();
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_prometheus_writes_them() {
        let text = "# HELP a b\n# TYPE a counter\na_total{topic=\"x}y\",type=\"a\\\"b\\\\\"} 12.5\nb 3 1700000000\nbad{x=\"1\" 2\n\nc NaN\n";
        let found: Vec<_> = read(text).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!((found[0].name, found[0].value), ("a_total", 12.5));
        assert_eq!(found[1], Sample { name: "b", labels: "", value: 3.0 });
        let labels = read_labels(found[0].labels);
        let expected =
            [("topic", "x}y"), ("type", "a\"b\\")].map(|(name, value)| (name.into(), value.into()));
        assert_eq!(labels, expected);
    }

    #[test]
    fn what_the_console_does_not_follow_is_not_kept() {
        let text = "# TYPE a counter\nother{x=\"1\"} 1\nwindfall_packs{state=\"s\"} 2\nwindfall_part_ready{part=\"t\"} 0\n";
        let kept = followed_lines(text);
        assert_eq!(kept, "windfall_packs{state=\"s\"} 2\nwindfall_part_ready{part=\"t\"} 0\n");
    }

    #[test]
    fn nothing_that_is_sent_instead_of_metrics_ends_in_a_panic() {
        for text in
            ["", "{", "a{", "a{b", "a{b=", "a{b=\"", "a{b=\"\\", "a{}", "a{} x", "a} 1", "é{é=\"é\"} 1"]
        {
            for sample in read(text) {
                read_labels(sample.labels);
            }
            read_labels(text);
        }
        assert_eq!(read("é{é=\"é\"} 1").count(), 1);
    }

    /// A metric that was renamed would leave a hole in the page.
    #[test]
    fn every_metric_is_in_the_services_list() {
        let listed = include_str!("../../docs/services.md");
        for Followed { name, fold, .. } in FOLLOWED {
            let kind = if *fold == Fold::Rate { "counter" } else { "gauge" };
            assert!(listed.contains(&format!("| `{name}` | {kind} |")), "{name} is no {kind}");
        }
    }
}
