//! [`Rules`] as a document.

use std::fmt::Write as _;

use windfall_contract::rules::{DrainingTopic, Limit, Pacing, Revoked, Rules};

use super::staged::write_staged;

/// Everything is written out, so that a later change of a default changes no document that was kept.
pub(super) fn write(rules: &Rules) -> String {
    let mut out = Out::default();
    out.line(format_args!("version = {}", rules.version));
    out.line(format_args!("types = {}", quoted_list(&rules.bonus_types)));
    // Programs that do not know the key refuse it, and need not as long as nobody uses it.
    if rules.changes_need_approval {
        out.line(format_args!("changes_need_approval = true"));
    }
    for (name, topic) in &rules.topics {
        out.head(format_args!("[topics.{}]", quoted(name)));
        out.line(format_args!("broker = {}", quoted(&topic.broker)));
        out.line(format_args!("partitions = {}", topic.partitions));
    }
    for old in &rules.draining {
        write_draining(old, &mut out);
    }
    for (name, queue) in &rules.queues {
        out.head(format_args!("[queues.{}]", quoted(name)));
        out.line(format_args!("master = {}", quoted(&queue.master)));
        out.line(format_args!("backup = {}", quoted(&queue.backup)));
        out.line(format_args!("ratio = {}", queue.ratio.percent()));
    }
    for route in &rules.routes {
        out.head(format_args!("[[routes]]"));
        out.line(format_args!("activity = {}", quoted(&route.activity.to_string())));
        out.line(format_args!("scene = {}", quoted(&route.scene.to_string())));
        out.line(format_args!("type = {}", quoted(&route.bonus_type.to_string())));
        out.line(format_args!("queue = {}", quoted(&route.queue)));
        out.line(format_args!("requeue = {}", quoted_list(&route.requeue)));
    }
    write_limits(rules, &mut out);
    for budget in &rules.budgets {
        out.head(format_args!("[[budgets]]"));
        out.line(format_args!("kind = {}", quoted(&budget.kind.to_string())));
        out.line(format_args!("activity = {}", quoted(&budget.activity)));
        out.line(format_args!("scene = {}", quoted(&budget.scene)));
        out.line(format_args!("type = {}", quoted(&budget.bonus_type)));
        out.line(format_args!("total = {}", budget.total));
        out.line(format_args!("shards = {}", budget.shards));
    }
    for (name, cap) in &rules.caps {
        out.head(format_args!("[caps.{}]", quoted(name)));
        for (key, amount) in [("order", cap.order), ("total", cap.total)] {
            if let Some(amount) = amount {
                out.line(format_args!("{key} = {amount}"));
            }
        }
    }
    write_pacing(rules, &mut out);
    write_revocations(rules, &mut out);
    if let Some(staged) = &rules.staged {
        write_staged(rules, staged, &mut out);
    }
    out.head(format_args!("[end]"));
    out.0
}

fn write_draining(old: &DrainingTopic, out: &mut Out) {
    out.head(format_args!("[[draining]]"));
    out.line(format_args!("topic = {}", quoted(&old.topic)));
    out.line(format_args!("broker = {}", quoted(&old.broker)));
    out.line(format_args!("partitions = {}", old.partitions));
}

/// The tables of a document that keep these topics read.
pub(super) fn draining_text(topics: &[DrainingTopic]) -> String {
    let mut out = Out::default();
    out.line(format_args!(
        "# Nobody writes to it any more. Remove it when `windfall topics` says that it is empty."
    ));
    for old in topics {
        write_draining(old, &mut out);
    }
    out.0.push('\n');
    out.0
}

fn write_limits(rules: &Rules, out: &mut Out) {
    let mut limit = |head: &str, limit: &Limit| {
        out.head(format_args!("[limits.{head}]"));
        out.line(format_args!("rate_per_s = {}", limit.rate_per_s));
        out.line(format_args!("burst = {}", limit.burst));
    };
    limit("global", &rules.limits.global);
    for (name, own) in &rules.limits.types {
        out.head(format_args!("[limits.types.{}]", quoted(name)));
        out.line(format_args!("rate_per_s = {}", own.limit.rate_per_s));
        out.line(format_args!("burst = {}", own.limit.burst));
        out.line(format_args!("fuse = \"{}\"", own.fuse));
        out.line(format_args!("priority = {}", own.priority));
    }
}

fn write_pacing(rules: &Rules, out: &mut Out) {
    out.head(format_args!("[pacing]"));
    write_pacing_keys(&rules.pacing, out);
}

/// Every key of the pacing in a line of its own, always in the same order.
pub(super) fn write_pacing_keys(pacing: &Pacing, out: &mut Out) {
    out.line(format_args!("hold_max_ms = {}", pacing.hold_max_ms));
    out.line(format_args!("deadline_ms = {}", pacing.deadline_ms));
    out.line(format_args!("requeue_delay_ms = {}", pacing.requeue_delay_ms));
    out.line(format_args!("requeue_delay_max_ms = {}", pacing.requeue_delay_max_ms));
    out.line(format_args!("max_failures = {}", pacing.max_failures));
    out.line(format_args!("grant_batch = {}", pacing.grant_batch));
    out.line(format_args!("in_hand_max = {}", pacing.in_hand_max));
    out.line(format_args!("lane_events_max = {}", pacing.lane_events_max));
    out.line(format_args!("lane_bytes_max = {}", pacing.lane_bytes_max));
}

fn write_revocations(rules: &Rules, out: &mut Out) {
    for entry in rules.revocations.iter() {
        out.head(format_args!("[[revoke]]"));
        match &entry.what {
            Revoked::Key(key) => out.line(format_args!("key = {key}")),
            Revoked::Activity { activity, before_ms } => {
                out.line(format_args!("activity = {}", quoted(activity)));
                out.line(format_args!("before_ms = {before_ms}"));
            }
            Revoked::TradeNo(trade_no) => out.line(format_args!("trade_no = {}", quoted(trade_no))),
        }
        out.line(format_args!("why = {}", quoted(&entry.why)));
    }
}

/// A document that is being written.
#[derive(Default)]
pub(super) struct Out(String);

impl Out {
    pub(super) fn text(&self) -> &str {
        &self.0
    }

    pub(super) fn into_text(self) -> String {
        self.0
    }

    pub(super) fn head(&mut self, head: std::fmt::Arguments<'_>) {
        self.0.push('\n');
        self.line(head);
    }

    pub(super) fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let written = self.0.write_fmt(line).and_then(|()| self.0.write_char('\n'));
        debug_assert!(written.is_ok());
    }
}

/// A TOML string, which is a TOML key too: JSON's escapes are TOML's, and nothing written has control characters.
pub(super) fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{escaped}\"")
}

pub(super) fn quoted_list(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| quoted(name)).collect();
    format!("[{}]", names.join(", "))
}
