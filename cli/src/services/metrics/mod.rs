//! The numbers of a process, for Prometheus: what the components count, read at each scrape. `docs/services.md` lists
//! them.

mod downstreams;

use super::parts::Parts;
use super::slow::Slow;
use std::sync::Arc;
use windfall_consumer::{Cause, ConsumerStats};
use windfall_edge::{Kind, Metrics, Sample};
use windfall_queue::virtual_queue::Fanout;
use windfall_reward_service::{RewardHandle, TypeStats};
use windfall_sdk::{Sdk, SdkStats};
use windfall_token_service::{Cause as TokenCause, KeyRingVerifier};
use windfall_wallet::Wallet;

/// Registers everything that the process has.
pub fn register(metrics: &Metrics, parts: &Parts) {
    rules(metrics, parts);
    sending(metrics, parts.sdks.iter().map(|(tenant, sdk)| (tenant.clone(), sdk.clone())).collect());
    if let Some(fanout) = &parts.fanout {
        queues(metrics, fanout);
    }
    if let Some(consuming) = &parts.consuming {
        consuming_topics(metrics, consuming.counters());
    }
    if let Some(rewards) = &parts.rewards {
        grants(metrics, rewards);
    }
    if let Some(book) = &parts.book {
        tokens(metrics, book);
    }
    if let Some(slow) = parts.slow() {
        asked(metrics, slow);
    }
    if let Some(wallet) = &parts.wallet {
        wallets(metrics, wallet);
    }
    downstreams::register(metrics, parts);
}

fn sample(labels: impl IntoIterator<Item = (&'static str, String)>, value: u64) -> Sample {
    // Beyond 2^53 a scrape is off by one in 10^16.
    #[expect(clippy::cast_precision_loss, reason = "metrics are floating point")]
    let value = value as f64;
    Sample { labels: labels.into_iter().collect(), value }
}

fn rules(metrics: &Metrics, parts: &Parts) {
    let live = parts.rules.clone();
    metrics.register(
        "windfall_rules_version",
        "The version of the live rules that runs",
        Kind::Gauge,
        move || vec![sample([], live.current().version)],
    );
    let live = parts.rules.clone();
    metrics.register(
        "windfall_limit_rate_per_second",
        "What the rules let through, by type; `(global)` over all",
        Kind::Gauge,
        move || {
            let limits = &live.current().limits;
            let types = limits.types.iter().map(|(name, own)| (name.clone(), own.limit.rate_per_s));
            let all = types.chain([("(global)".to_owned(), limits.global.rate_per_s)]);
            all.map(|(name, rate)| sample([("type", name)], rate)).collect()
        },
    );
    let live = parts.rules.clone();
    metrics.register(
        "windfall_fuse_state",
        "1 for the state that a type's fuse is in",
        Kind::Gauge,
        move || {
            let rules = live.current();
            let types = rules.limits.types.iter();
            types
                .map(|(name, own)| sample([("type", name.clone()), ("state", own.fuse.to_string())], 1))
                .collect()
        },
    );
}

/// Values by state, where there are several.
type Values = Vec<(Option<&'static str>, u64)>;

/// A counter or gauge of every SDK.
fn of_sdks(
    metrics: &Metrics,
    sdks: &Arc<Vec<(String, Sdk)>>,
    (name, help, kind): (&str, &str, Kind),
    read: impl Fn(&SdkStats) -> Values + Send + Sync + 'static,
) {
    let sdks = Arc::clone(sdks);
    metrics.register(name, help, kind, move || {
        let of_one = |(tenant, sdk): &(String, Sdk)| {
            let labelled = |(state, value): (Option<&'static str>, u64)| {
                let state = state.map(|state| ("state", state.to_owned()));
                sample([("app", tenant.clone())].into_iter().chain(state), value)
            };
            read(&sdk.stats()).into_iter().map(labelled).collect::<Vec<_>>()
        };
        sdks.iter().flat_map(of_one).collect()
    });
}

fn sending(metrics: &Metrics, sdks: Vec<(String, Sdk)>) {
    if sdks.is_empty() {
        return;
    }
    let sdks = Arc::new(sdks);
    let own = |what, read: fn(&SdkStats) -> Values| of_sdks(metrics, &sdks, what, read);
    own(("windfall_sent_events_total", "Rewards taken", Kind::Counter), |stats| vec![(None, stats.sent)]);
    own(("windfall_spool_slots", "Slots of the spool", Kind::Gauge), |stats| {
        vec![(Some("used"), stats.spool_slots.0), (Some("all"), stats.spool_slots.1)]
    });
    own(("windfall_packs", "Packs that no broker has yet", Kind::Gauge), |stats| {
        vec![
            (Some("in_flight"), stats.packs_in_flight as u64),
            (Some("without_route"), stats.packs_waiting as u64),
        ]
    });
    own(("windfall_tokens_total", "Tokens on their way to the store", Kind::Counter), |stats| {
        vec![(Some("written"), stats.tokens_written), (Some("dropped"), stats.tokens_dropped)]
    });
    own(
        ("windfall_token_store_errors_total", "Writes that the token store did not take", Kind::Counter),
        |stats| vec![(None, stats.token_store_failures)],
    );
}

fn queues(metrics: &Metrics, fanout: &Arc<Fanout>) {
    let own = Arc::clone(fanout);
    metrics.register(
        "windfall_queue_records_total",
        "Records, by topic and fate",
        Kind::Counter,
        move || {
            let of_topic = |topic: windfall_queue::virtual_queue::TopicStats| {
                [("sent", topic.sent), ("stored", topic.stored), ("failed", topic.failed)].map(
                    |(fate, value)| {
                        sample([("topic", topic.topic.clone()), ("fate", fate.to_owned())], value)
                    },
                )
            };
            own.stats().topics.into_iter().flat_map(of_topic).collect()
        },
    );
    let own = Arc::clone(fanout);
    metrics.register(
        "windfall_queue_in_flight_records",
        "Records whose fate is open",
        Kind::Gauge,
        move || {
            own.stats()
                .topics
                .into_iter()
                .map(|topic| sample([("topic", topic.topic)], topic.in_flight))
                .collect()
        },
    );
    let own = Arc::clone(fanout);
    metrics.register("windfall_queue_breaker_open", "1 while a topic is passed by", Kind::Gauge, move || {
        let topics = own.stats().topics.into_iter();
        topics.map(|topic| sample([("topic", topic.topic)], topic.breaker_open.into())).collect()
    });
}

fn consuming_topics(metrics: &Metrics, counters: Vec<(String, Arc<ConsumerStats>)>) {
    let counters = Arc::new(counters);
    let own = |name: &str, help: &str, kind: Kind, read: fn(&ConsumerStats) -> u64| {
        let counters = Arc::clone(&counters);
        metrics.register(name, help, kind, move || {
            counters.iter().map(|(topic, stats)| sample([("topic", topic.clone())], read(stats))).collect()
        });
    };
    own("windfall_fetched_events_total", "Events read", Kind::Counter, |stats| stats.events_fetched.get());
    own("windfall_window_records", "Records delivered and not finished", Kind::Gauge, |stats| {
        stats.window_depth.get()
    });
    own("windfall_window_oldest_milliseconds", "Age of the oldest record in hand", Kind::Gauge, |stats| {
        stats.oldest_ms.get()
    });
    own("windfall_stuck_partitions", "Partitions without progress", Kind::Gauge, |stats| {
        stats.stuck_partitions.get()
    });
    own("windfall_salvaged_records_total", "Copies that went to the salvage file", Kind::Counter, |stats| {
        stats.salvaged.get()
    });
    own("windfall_commits_failed_total", "Commits that failed and are tried again", Kind::Counter, |stats| {
        stats.commits_failed.get()
    });
    let all = Arc::clone(&counters);
    metrics.register(
        "windfall_requeued_events_total",
        "Events written back, by cause",
        Kind::Counter,
        move || {
            let of_topic = |(topic, stats): &(String, Arc<ConsumerStats>)| {
                Cause::ALL.map(|cause| {
                    let labels = [("topic", topic.clone()), ("cause", cause.name().to_owned())];
                    sample(labels, stats.requeued(cause))
                })
            };
            all.iter().flat_map(of_topic).collect()
        },
    );
    metrics.register(
        "windfall_lane_events",
        "Events that wait in their type's lane",
        Kind::Gauge,
        move || {
            let of_topic = |(topic, stats): &(String, Arc<ConsumerStats>)| {
                let of_type = |lane: Arc<windfall_consumer::TypeStats>| {
                    sample([("topic", topic.clone()), ("type", lane.name.clone())], lane.lane_events.get())
                };
                stats.types().into_iter().map(of_type).collect::<Vec<_>>()
            };
            counters.iter().flat_map(of_topic).collect()
        },
    );
}

fn grants(metrics: &Metrics, rewards: &RewardHandle) {
    let own = rewards.clone();
    metrics.register("windfall_grants_total", "Grants, by type and answer", Kind::Counter, move || {
        let of_type = |(name, one): (String, TypeStats)| {
            let answers = [
                ("credited", one.credited),
                ("already_credited", one.already_credited),
                ("conflict", one.conflict),
                ("malformed", one.malformed),
                ("budget_exhausted", one.budget_exhausted),
                ("rejected", one.rejected),
                ("retry_downstream", one.retry_downstream),
                ("retry_own", one.retry_own),
            ];
            answers
                .map(|(answer, value)| sample([("type", name.clone()), ("answer", answer.to_owned())], value))
        };
        own.stats().types.into_iter().flat_map(of_type).collect()
    });
    let own = rewards.clone();
    metrics.register(
        "windfall_archived_events_total",
        "New entries of the archive",
        Kind::Counter,
        move || vec![sample([], own.stats().archived)],
    );
    let own = rewards.clone();
    metrics.register(
        "windfall_ledger_waiting_events",
        "Events that wait for the ledger",
        Kind::Gauge,
        move || vec![sample([], own.stats().queued_events as u64)],
    );
    let own = rewards.clone();
    metrics.register("windfall_ledger_commits_total", "Transactions, by outcome", Kind::Counter, move || {
        let stats = own.stats();
        [("committed", stats.commits), ("failed", stats.failed_commits)]
            .map(|(outcome, value)| sample([("outcome", outcome.to_owned())], value))
            .into()
    });
}

fn tokens(metrics: &Metrics, book: &KeyRingVerifier) {
    let own = book.clone();
    metrics.register(
        "windfall_verified_tokens_total",
        "Tokens judged, by verdict",
        Kind::Counter,
        move || {
            let stats = own.stats();
            let illegal = stats.illegal.iter().sum();
            let verdicts =
                [("valid", stats.valid), ("unknown", stats.unknown), ("unavailable", stats.unavailable)];
            let all = verdicts.into_iter().chain([("illegal", illegal)]);
            all.map(|(verdict, value)| sample([("verdict", verdict.to_owned())], value)).collect()
        },
    );
    let own = book.clone();
    metrics.register("windfall_illegal_tokens_total", "Illegal tokens, by cause", Kind::Counter, move || {
        let stats = own.stats();
        let of_cause =
            |cause: TokenCause| sample([("cause", cause.name().to_owned())], stats.illegal_by(cause));
        TokenCause::ALL.into_iter().map(of_cause).collect()
    });
    let own = book.clone();
    metrics.register(
        "windfall_token_reads_failed_total",
        "Reads that the token store did not answer",
        Kind::Counter,
        move || vec![sample([], own.stats().store_failures)],
    );
}

fn asked(metrics: &Metrics, slow: &Slow) {
    let found = slow.found();
    metrics.register(
        "windfall_reserved_orders",
        "Orders that have held budget for a minute; counted up to 1,000",
        Kind::Gauge,
        move || found.lock().waiting.iter().map(|(orders, _)| sample([], *orders)).collect(),
    );
    let found = slow.found();
    metrics.register(
        "windfall_held_withdrawals",
        "Withdrawals whose payer has not answered for a minute; counted up to 1,000",
        Kind::Gauge,
        move || found.lock().waiting.iter().map(|(_, held)| sample([], *held)).collect(),
    );
    let found = slow.found();
    metrics.register(
        "windfall_queue_lag_records",
        "Records written and not committed by the group",
        Kind::Gauge,
        move || {
            let found = found.lock();
            found.lag_records.iter().map(|(topic, lag)| sample([("topic", topic.clone())], *lag)).collect()
        },
    );
    let found = slow.found();
    metrics.register(
        "windfall_budget_left",
        "What budgets have left, smallest unit",
        Kind::Gauge,
        move || {
            let found = found.lock();
            let of_budget = |([activity, scene, bonus_type], left): &([String; 3], u64)| {
                let labels =
                    [("activity", activity.clone()), ("scene", scene.clone()), ("type", bonus_type.clone())];
                sample(labels, *left)
            };
            found.budget_left.iter().map(of_budget).collect()
        },
    );
}

fn wallets(metrics: &Metrics, wallet: &Wallet) {
    let own = wallet.clone();
    metrics.register(
        "windfall_wallet_looks_total",
        "Wallets asked for, by outcome",
        Kind::Counter,
        move || {
            let stats = own.stats();
            let whole = stats.looks.saturating_sub(stats.looks_incomplete);
            let all =
                [("complete", whole), ("incomplete", stats.looks_incomplete), ("failed", stats.looks_failed)];
            all.map(|(outcome, value)| sample([("outcome", outcome.to_owned())], value)).into()
        },
    );
    let own = wallet.clone();
    metrics.register("windfall_withdrawals_total", "Withdrawals, by answer", Kind::Counter, move || {
        let stats = own.stats();
        let all = [
            ("paid", stats.paid),
            ("already_paid", stats.already_paid),
            ("pending", stats.pending),
            ("refused", stats.refused),
            ("short", stats.short),
            ("taken", stats.taken),
            ("unanswered", stats.unanswered),
            ("invalid", stats.invalid),
        ];
        all.map(|(answer, value)| sample([("answer", answer.to_owned())], value)).into()
    });
    let own = wallet.clone();
    metrics.register(
        "windfall_forced_tokens_total",
        "Tokens credited for a withdrawal before their event arrived: asked for, and credited by that",
        Kind::Counter,
        move || {
            let stats = own.stats();
            [("asked", stats.forced), ("credited", stats.forced_credited)]
                .map(|(state, value)| sample([("state", state.to_owned())], value))
                .into()
        },
    );
}
