//! What a job does, between the wire and our own form.

use crate::JobsError;
use crate::definition::{Block, Delivery, Destination, JobName, JobSpec, Priority, Retries};
use crate::routing::Strategy;
use crate::schedule::{
    At, CronSchedule, FireAllLimit, FixedDelay, FixedRate, Misfire, Schedule, ScheduleError, Times,
};
use windfall_proto::v1;

const TIMEOUT_DEFAULT_S: u32 = 300;

/// A job's spec as a caller gave it. Ranges are checked where it is put.
///
/// # Errors
/// [`JobsError::WrongField`] or [`JobsError::WrongName`]: what is missing or is no known value.
pub(super) fn spec_of(wire: Option<v1::JobSpec>) -> Result<JobSpec, JobsError> {
    let wire = wire.ok_or_else(|| wrong("spec", "it is missing"))?;
    let retries = wire.retries.unwrap_or_default();
    let children = wire.children.iter().map(|child| JobName::new(child));
    Ok(JobSpec {
        schedule: schedule_of(wire.schedule)?,
        destination: destination_of(wire.destination)?,
        params: wire.params,
        timeout_s: match (wire.no_timeout, wire.timeout_s) {
            (true, 0) => 0,
            (true, _) => return Err(wrong("spec.no_timeout", "a job has either this or a `timeout_s`")),
            (false, 0) => TIMEOUT_DEFAULT_S,
            (false, timeout_s) => timeout_s,
        },
        retries: match retries.wait_max_ms {
            0 => Retries::Fixed { max: retries.max, wait_ms: retries.wait_ms },
            max_ms => Retries::Exponential { max: retries.max, first_ms: retries.wait_ms, max_ms },
        },
        misfire: misfire_of(wire.misfire, wire.fire_all_max)?,
        block: block_of(wire.block)?,
        delivery: delivery_of(wire.delivery)?,
        priority: priority_of(wire.priority)?,
        children: children.collect::<Result<_, _>>()?,
        starts_ms: Some(wire.starts_ms).filter(|time_ms| *time_ms > 0),
        ends_ms: Some(wire.ends_ms).filter(|time_ms| *time_ms > 0),
        alarm_email: Some(wire.alarm_email).filter(|address| !address.is_empty()),
    })
}

/// A job's spec as callers see it.
pub(super) fn wire_of(spec: &JobSpec) -> v1::JobSpec {
    let (misfire, fire_all_max) = match spec.misfire {
        Misfire::DoNothing => (v1::JobMisfire::DoNothing, 0),
        Misfire::FireOnceNow => (v1::JobMisfire::FireOnceNow, 0),
        Misfire::FireAll(limit) => (v1::JobMisfire::FireAll, limit.get()),
    };
    v1::JobSpec {
        schedule: Some(wire_schedule(&spec.schedule)),
        destination: Some(wire_destination(&spec.destination)),
        params: spec.params.clone(),
        timeout_s: spec.timeout_s,
        no_timeout: spec.timeout_s == 0,
        retries: Some(match spec.retries {
            Retries::Fixed { max, wait_ms } => v1::JobRetries { max, wait_ms, wait_max_ms: 0 },
            Retries::Exponential { max, first_ms, max_ms } => {
                v1::JobRetries { max, wait_ms: first_ms, wait_max_ms: max_ms }
            }
        }),
        misfire: misfire.into(),
        fire_all_max,
        block: wire_block(spec.block).into(),
        delivery: match spec.delivery {
            Delivery::AtLeastOnce => v1::JobDelivery::AtLeastOnce,
            Delivery::AtMostOnce => v1::JobDelivery::AtMostOnce,
        }
        .into(),
        priority: match spec.priority {
            Priority::Urgent => v1::JobPriority::Urgent,
            Priority::Normal => v1::JobPriority::Normal,
            Priority::Bulk => v1::JobPriority::Bulk,
        }
        .into(),
        children: spec.children.iter().map(ToString::to_string).collect(),
        starts_ms: spec.starts_ms.unwrap_or(0),
        ends_ms: spec.ends_ms.unwrap_or(0),
        alarm_email: spec.alarm_email.clone().unwrap_or_default(),
    }
}

/// What an executor does with a run beside another one.
pub(super) const fn wire_block(block: Block) -> v1::JobBlock {
    match block {
        Block::SerialExecution => v1::JobBlock::SerialExecution,
        Block::DiscardLater => v1::JobBlock::DiscardLater,
        Block::CoverEarly => v1::JobBlock::CoverEarly,
    }
}

/// A field that cannot be used.
pub(super) fn wrong(field: &'static str, what: impl Into<String>) -> JobsError {
    JobsError::WrongField { field, what: what.into() }
}

fn schedule_of(wire: Option<v1::job_spec::Schedule>) -> Result<Schedule, JobsError> {
    use v1::job_spec::Schedule as Wire;
    let missing =
        || wrong("spec.schedule", "one of cron, fixed_rate, fixed_delay, at and times must be given");
    let schedule = match wire.ok_or_else(missing)? {
        Wire::Cron(cron) => {
            let zone = if cron.zone.is_empty() { "UTC" } else { &cron.zone };
            CronSchedule::new(&cron.expression, zone).map(Schedule::Cron)
        }
        Wire::FixedRate(rate) => FixedRate::new(rate.every_ms, rate.start_ms).map(Schedule::FixedRate),
        Wire::FixedDelay(delay) => FixedDelay::new(delay.delay_ms).map(Schedule::FixedDelay),
        Wire::At(at) => At::new(at.time_ms).map(Schedule::At),
        Wire::Times(times) => Times::new(times.times_ms).map(Schedule::Times),
    };
    schedule.map_err(|error| match error {
        ScheduleError::UnknownZone { .. } => wrong("spec.cron.zone", error.to_string()),
        other => wrong("spec.schedule", other.to_string()),
    })
}

fn wire_schedule(schedule: &Schedule) -> v1::job_spec::Schedule {
    use v1::job_spec::Schedule as Wire;
    match schedule {
        Schedule::Cron(cron) => Wire::Cron(v1::CronSchedule {
            expression: cron.expression().to_owned(),
            zone: cron.zone().to_owned(),
        }),
        Schedule::FixedRate(rate) => {
            Wire::FixedRate(v1::FixedRate { every_ms: rate.every_ms(), start_ms: rate.start_ms() })
        }
        Schedule::FixedDelay(delay) => Wire::FixedDelay(v1::FixedDelay { delay_ms: delay.delay_ms() }),
        Schedule::At(at) => Wire::At(v1::OneTime { time_ms: at.time_ms() }),
        Schedule::Times(times) => Wire::Times(v1::TimeList { times_ms: times.times_ms().to_vec() }),
    }
}

fn destination_of(wire: Option<v1::job_spec::Destination>) -> Result<Destination, JobsError> {
    use v1::job_spec::Destination as Wire;
    match wire.ok_or_else(|| wrong("spec.destination", "executor or target must be given"))? {
        Wire::Executor(executor) => Ok(Destination::Executor {
            routing: routing_of(executor.routing)?,
            app: executor.app,
            handler: executor.handler,
        }),
        Wire::Target(target) => Ok(Destination::Target { name: target.name }),
    }
}

fn wire_destination(destination: &Destination) -> v1::job_spec::Destination {
    use v1::job_spec::Destination as Wire;
    match destination {
        Destination::Executor { app, handler, routing } => Wire::Executor(v1::ExecutorDestination {
            app: app.clone(),
            handler: handler.clone(),
            routing: wire_routing(*routing).into(),
        }),
        Destination::Target { name } => Wire::Target(v1::TargetDestination { name: name.clone() }),
    }
}

fn unknown(field: &'static str, value: i32) -> JobsError {
    wrong(field, format!("{value} is no value of it that is known here"))
}

fn routing_of(wire: i32) -> Result<Strategy, JobsError> {
    use v1::JobRouting as Wire;
    let routing = Wire::try_from(wire).map_err(|_| unknown("spec.executor.routing", wire))?;
    Ok(match routing {
        Wire::Unspecified => Strategy::default(),
        known => Strategy::ALL
            .into_iter()
            .find(|strategy| wire_routing(*strategy) == known)
            .ok_or_else(|| unknown("spec.executor.routing", wire))?,
    })
}

const fn wire_routing(strategy: Strategy) -> v1::JobRouting {
    use v1::JobRouting as Wire;
    match strategy {
        Strategy::First => Wire::First,
        Strategy::Last => Wire::Last,
        Strategy::Round => Wire::Round,
        Strategy::Random => Wire::Random,
        Strategy::ConsistentHash => Wire::ConsistentHash,
        Strategy::LeastFrequentlyUsed => Wire::LeastFrequentlyUsed,
        Strategy::LeastRecentlyUsed => Wire::LeastRecentlyUsed,
        Strategy::Failover => Wire::Failover,
        Strategy::Busyover => Wire::Busyover,
        Strategy::ShardingBroadcast => Wire::ShardingBroadcast,
        Strategy::LeastLoaded => Wire::LeastLoaded,
    }
}

fn misfire_of(wire: i32, fire_all_max: u32) -> Result<Misfire, JobsError> {
    use v1::JobMisfire as Wire;
    let misfire = Wire::try_from(wire).map_err(|_| unknown("spec.misfire", wire))?;
    if misfire != Wire::FireAll && fire_all_max > 0 {
        return Err(wrong("spec.fire_all_max", "it goes with the misfire strategy FIRE_ALL alone"));
    }
    match misfire {
        Wire::Unspecified => Ok(Misfire::default()),
        Wire::DoNothing => Ok(Misfire::DoNothing),
        Wire::FireOnceNow => Ok(Misfire::FireOnceNow),
        Wire::FireAll => {
            let limit = FireAllLimit::new(fire_all_max);
            let what = || format!("1 to {}, not {fire_all_max}", crate::schedule::FIRE_ALL_MAX);
            limit.map(Misfire::FireAll).ok_or_else(|| wrong("spec.fire_all_max", what()))
        }
    }
}

fn block_of(wire: i32) -> Result<Block, JobsError> {
    use v1::JobBlock as Wire;
    Ok(match Wire::try_from(wire).map_err(|_| unknown("spec.block", wire))? {
        Wire::Unspecified => Block::default(),
        Wire::SerialExecution => Block::SerialExecution,
        Wire::DiscardLater => Block::DiscardLater,
        Wire::CoverEarly => Block::CoverEarly,
    })
}

fn delivery_of(wire: i32) -> Result<Delivery, JobsError> {
    use v1::JobDelivery as Wire;
    Ok(match Wire::try_from(wire).map_err(|_| unknown("spec.delivery", wire))? {
        Wire::Unspecified => Delivery::default(),
        Wire::AtLeastOnce => Delivery::AtLeastOnce,
        Wire::AtMostOnce => Delivery::AtMostOnce,
    })
}

fn priority_of(wire: i32) -> Result<Priority, JobsError> {
    use v1::JobPriority as Wire;
    Ok(match Wire::try_from(wire).map_err(|_| unknown("spec.priority", wire))? {
        Wire::Unspecified => Priority::default(),
        Wire::Urgent => Priority::Urgent,
        Wire::Normal => Priority::Normal,
        Wire::Bulk => Priority::Bulk,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire() -> v1::JobSpec {
        v1::JobSpec {
            schedule: Some(v1::job_spec::Schedule::Cron(v1::CronSchedule {
                expression: "0 0/5 * * * ?".into(),
                zone: "Asia/Shanghai".into(),
            })),
            destination: Some(v1::job_spec::Destination::Executor(v1::ExecutorDestination {
                app: "mailer".into(),
                handler: "send".into(),
                routing: v1::JobRouting::Failover.into(),
            })),
            ..v1::JobSpec::default()
        }
    }

    #[test]
    fn a_spec_is_shown_as_it_was_given_and_what_is_left_out_has_its_default() {
        let spec = spec_of(Some(wire())).unwrap();
        assert_eq!(
            (spec.timeout_s, spec.misfire, spec.retries),
            (300, Misfire::DoNothing, Retries::default())
        );
        assert_eq!(spec_of(Some(wire_of(&spec))).unwrap(), spec);
        for strategy in Strategy::ALL {
            let destination =
                Destination::Executor { app: "a".into(), handler: "h".into(), routing: strategy };
            assert_eq!(destination_of(Some(wire_destination(&destination))).unwrap(), destination);
        }
        let all = JobSpec {
            schedule: Schedule::Times(Times::new(vec![3, 1, 2]).unwrap()),
            destination: Destination::Target { name: "hook".into() },
            params: "p".into(),
            timeout_s: 7,
            retries: Retries::Exponential { max: 3, first_ms: 1, max_ms: 9 },
            misfire: Misfire::FireAll(FireAllLimit::new(7).unwrap()),
            block: Block::CoverEarly,
            delivery: Delivery::AtLeastOnce,
            priority: Priority::Bulk,
            children: vec![JobName::new("next").unwrap()],
            starts_ms: Some(1),
            ends_ms: Some(9),
            alarm_email: Some("on-call@example.com".into()),
        };
        assert_eq!(spec_of(Some(wire_of(&all))).unwrap(), all);
        let endless = JobSpec { timeout_s: 0, ..all };
        assert_eq!(spec_of(Some(wire_of(&endless))).unwrap(), endless);
        for schedule in [
            Schedule::FixedRate(FixedRate::new(1_000, 5).unwrap()),
            Schedule::FixedDelay(FixedDelay::new(2_000).unwrap()),
            Schedule::At(At::new(7).unwrap()),
        ] {
            assert_eq!(schedule_of(Some(wire_schedule(&schedule))).unwrap(), schedule);
        }
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_field() {
        let cron = |expression: &str, zone: &str| v1::JobSpec {
            schedule: Some(v1::job_spec::Schedule::Cron(v1::CronSchedule {
                expression: expression.into(),
                zone: zone.into(),
            })),
            ..wire()
        };
        let executor = |routing| v1::JobSpec {
            destination: Some(v1::job_spec::Destination::Executor(v1::ExecutorDestination {
                app: "a".into(),
                handler: "h".into(),
                routing,
            })),
            ..wire()
        };
        for (bad, words) in [
            (None, "`spec`"),
            (Some(v1::JobSpec { schedule: None, ..wire() }), "`spec.schedule`"),
            (Some(v1::JobSpec { destination: None, ..wire() }), "`spec.destination`"),
            (Some(cron("0 0/5 * * * ?", "Mars/Olympus")), "`spec.cron.zone`: \"Mars/Olympus\""),
            (Some(cron("61 * * * * ?", "UTC")), "`spec.schedule`: cron expression"),
            (Some(executor(99)), "`spec.executor.routing`: 99"),
            (Some(v1::JobSpec { misfire: 9, ..wire() }), "`spec.misfire`: 9"),
            (Some(v1::JobSpec { misfire: 3, ..wire() }), "`spec.fire_all_max`: 1 to 1000"),
            (Some(v1::JobSpec { fire_all_max: 3, ..wire() }), "`spec.fire_all_max`"),
            (Some(v1::JobSpec { no_timeout: true, timeout_s: 5, ..wire() }), "`spec.no_timeout`"),
            (Some(v1::JobSpec { block: 9, ..wire() }), "`spec.block`"),
            (Some(v1::JobSpec { delivery: 9, ..wire() }), "`spec.delivery`"),
            (Some(v1::JobSpec { priority: 9, ..wire() }), "`spec.priority`"),
            (Some(v1::JobSpec { children: vec!["a b".into()], ..wire() }), "`a b` is no name of a job"),
        ] {
            let why = spec_of(bad).unwrap_err().to_string();
            assert!(why.contains(words), "{words}: {why}");
        }
    }
}
