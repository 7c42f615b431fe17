//! Topics, groups and lag, read and changed through the brokers' own ports where `admin` names them.

use super::options::RocketOptions;
use super::registry::Place;
use std::time::Duration;
use tokio::time::Instant;
use windfall_contract::broker::{Lag, OpenError};
use windfall_rocketmq_wire::admin::Admin;
use windfall_rocketmq_wire::{CallError, Client, Granted, Next, Route};

/// After so many redeliveries the server moves a record to its dead letters, where nobody looks: the money would be
/// lost. A record that is never finished comes again once per invisible duration: a million times 30 s is a year.
const MIN_REDELIVERIES: i32 = 1_000_000;
/// The same limit as the proxy counts it, which includes the first delivery.
pub(super) const MIN_ATTEMPTS: i32 = MIN_REDELIVERIES + 1;
/// The redeliveries that a group which is made here is allowed.
const REDELIVERIES: i32 = 1_000_000_000;
/// The time within which a proxy learns of a new topic or group: by its defaults it remembers for 20 s that one is
/// not there.
const PROXY_LEARNS: Duration = Duration::from_secs(25);
const PAUSE: Duration = Duration::from_millis(100);

/// The brokers' own ports; none where `admin` is empty.
#[derive(Clone)]
pub(super) struct Admins {
    brokers: Vec<Admin>,
    /// The time without an answer after which a proxy is taken to be away.
    away: Duration,
}

impl Admins {
    pub(super) fn new(options: &RocketOptions) -> Self {
        let admin = |broker: &String| {
            Admin::new(broker, options.credentials(), options.tls.clone(), options.timeout())
        };
        Self { brokers: options.admin.iter().map(admin).collect(), away: options.connect_timeout() }
    }

    /// Makes a topic, or gives it more queues; without `admin`, it only checks.
    pub(super) async fn ensure_topic(
        &self,
        client: &Client,
        topic: &str,
        queues: u32,
    ) -> Result<(), OpenError> {
        if self.brokers.is_empty() {
            return route_soon(client, topic, self.away).await.map(drop);
        }
        // The proxy first, whether the topic is there or not: where it is away, nothing is waited for.
        match route_soon(client, topic, self.away).await {
            Ok(_) | Err(OpenError::Absent(_)) => {}
            Err(error) => return Err(error),
        }
        let brokers = u32::try_from(self.brokers.len()).unwrap_or(u32::MAX);
        let queues = queues.max(1).div_ceil(brokers);
        let mut all = 0;
        for admin in &self.brokers {
            let found = admin.topic(topic).await.map_err(unreachable)?.map_or(0, |topic| topic.queues);
            if found < queues {
                admin.put_topic(topic, queues).await.map_err(unreachable)?;
            }
            all += found.max(queues);
        }
        let until = Instant::now() + PROXY_LEARNS;
        loop {
            match route(client, topic).await {
                Ok(route) if route.queues >= all as usize => return Ok(()),
                Err(OpenError::Absent(_)) | Ok(_) if Instant::now() < until => {
                    tokio::time::sleep(PAUSE).await
                }
                Ok(route) => {
                    let what =
                        format!("topic {topic} was given {all} queues, and {} are to be seen", route.queues);
                    return Err(OpenError::Unavailable(what));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes a group that has none, and lets it begin at each queue's first record: else the server lets a new group
    /// begin wherever a queue's memory begins, and what was written before would be read by nobody.
    pub(super) async fn ensure_group(&self, (topic, group): &Place) -> Result<(), OpenError> {
        for admin in &self.brokers {
            let found = match admin.has_group(group).await {
                Ok(false) => None,
                // A user who may not list all groups may still ask the broker for one.
                Ok(true) | Err(CallError::Refused { .. }) => admin.group(group).await.map_err(unreachable)?,
                Err(error) => return Err(unreachable(error)),
            };
            match found {
                None => admin.put_group(group, REDELIVERIES).await.map_err(unreachable)?,
                Some(found) => check_redeliveries(group, found.retry_max_times)?,
            }
            let Some(found) = admin.topic(topic).await.map_err(unreachable)? else { continue };
            for queue in 0..found.queues {
                if admin.group_offset(topic, group, queue).await.map_err(unreachable)?.is_none() {
                    let first = admin.min_offset(topic, queue).await.map_err(unreachable)?;
                    admin.put_group_offset(topic, group, queue, first).await.map_err(unreachable)?;
                }
            }
        }
        Ok(())
    }

    /// Records written, and records that the group has taken off its queues.
    pub(super) async fn lag(&self, (topic, group): &Place) -> Result<Lag, OpenError> {
        if self.brokers.is_empty() {
            let what = "RocketMQ tells how far a group is by its brokers' own ports alone: set `admin`";
            return Err(OpenError::Invalid(what.into()));
        }
        let mut lag = Lag::default();
        let mut found = false;
        // What comes again is written to a topic of its own, named in one of two ways.
        let topics = [topic.clone(), format!("%RETRY%{group}_{topic}"), format!("%RETRY%{group}+{topic}")];
        for admin in &self.brokers {
            for name in &topics {
                let Some(config) = admin.topic(name).await.map_err(unreachable)? else { continue };
                found |= name == topic;
                for queue in 0..config.queues {
                    let first = admin.min_offset(name, queue).await.map_err(unreachable)?;
                    let taken = admin.group_offset(name, group, queue).await.map_err(unreachable)?;
                    // Asked last: nothing may be written and taken in between, and so not be counted.
                    let end = admin.max_offset(name, queue).await.map_err(unreachable)?;
                    lag.end += end;
                    lag.committed += taken.unwrap_or(first).min(end);
                }
            }
        }
        if found { Ok(lag) } else { Err(absent(topic)) }
    }
}

/// The route of a topic, which must exist and take records in batches.
pub(super) async fn route(client: &Client, topic: &str) -> Result<Route, OpenError> {
    match client.route(topic).await {
        Ok(route) if route.takes_normal => Ok(route),
        Ok(_) => Err(OpenError::Invalid(format!(
            "topic {topic} takes only messages with an order or a delay; make another with -a +message.type=NORMAL"
        ))),
        Err(error) if error.code() == Some(windfall_rocketmq_wire::proto::Code::TopicNotFound.into()) => {
            Err(absent(topic))
        }
        Err(error) => Err(unreachable(error)),
    }
}

/// The route, where the server may still be learning it. A server that is away or stands still is not waited for: who
/// opens something tries again, and must not block for it.
pub(super) async fn route_soon(client: &Client, topic: &str, away: Duration) -> Result<Route, OpenError> {
    let mut last = OpenError::Unavailable(format!("no answer about topic {topic} within {away:?}"));
    let looking = async {
        loop {
            match route(client, topic).await {
                Err(error @ OpenError::Unavailable(_)) => last = error,
                settled => return settled,
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    match tokio::time::timeout(away, looking).await {
        Ok(settled) => settled,
        Err(_) => Err(last),
    }
}

/// Waits for the settings' echo, and refuses a group that would lose records. With `made`, the group was checked at
/// the brokers, and the proxy may need a while to see it: it is the proxy that moves records to dead letters, so its
/// word counts.
pub(super) async fn check_group(
    client: &Client,
    group: &str,
    wait: Duration,
    made: bool,
) -> Result<(), OpenError> {
    let until = Instant::now() + PROXY_LEARNS;
    let absent = |error: &CallError| {
        error.code() == Some(windfall_rocketmq_wire::proto::Code::ConsumerGroupNotFound.into())
    };
    loop {
        let checked = match client.ready(wait).await {
            Ok(Granted { max_attempts: Some(attempts), .. }) => {
                check_redeliveries(group, i64::from(attempts) - 1)
            }
            Ok(Granted { max_attempts: None, .. }) => return Ok(()),
            Err(error) if absent(&error) => Err(OpenError::Absent(format!(
                "there is no group {group}; set `admin`, or run: \
                 mqadmin updateSubGroup -n <name server> -c <cluster> -g {group} -r {REDELIVERIES}"
            ))),
            Err(error) => return Err(unreachable(error)),
        };
        if checked.is_ok() || !made || Instant::now() >= until {
            return checked;
        }
        client.resync();
        tokio::time::sleep(PAUSE).await;
    }
}

fn check_redeliveries(group: &str, redeliveries: i64) -> Result<(), OpenError> {
    if redeliveries >= MIN_REDELIVERIES.into() {
        return Ok(());
    }
    Err(OpenError::Invalid(format!(
        "group {group} gives up a record after {redeliveries} redeliveries, and a reward would be lost; \
         run: mqadmin updateSubGroup -n <name server> -c <cluster> -g {group} -r {REDELIVERIES}"
    )))
}

fn absent(topic: &str) -> OpenError {
    OpenError::Absent(format!(
        "there is no topic {topic}; set `admin`, or run: \
         mqadmin updateTopic -n <name server> -c <cluster> -t {topic} -r 8 -w 8 -a +message.type=NORMAL"
    ))
}

pub(super) fn unreachable(error: CallError) -> OpenError {
    match error.next() {
        Next::Reconfigure | Next::GiveUp => OpenError::Invalid(error.to_string()),
        Next::Retry | Next::Resync | Next::AskAgain => OpenError::Unavailable(error.to_string()),
    }
}
