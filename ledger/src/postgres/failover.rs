//! Synchronous standbys: whether an address may fail over, and commits that wait for a standby which is away. Without
//! such a standby the next server lacks the newest commits, although their callers were told that they are credited.

use super::address::Address;
use super::budget_keys::{cell, text};
use super::session::Session;
use crate::error::{LedgerError, OpenError};

const SETTINGS: &str =
    "SELECT current_setting('synchronous_standby_names'), current_setting('synchronous_commit')";

/// Checks an address with several hosts whose server does not wait for a standby. It is refused where `refuses` says so,
/// because the ledger is new, unless the options ask for it. A ledger that is there goes on, and the log and a gauge tell
/// of it: what was promoted may have no standby yet, and its processes must be able to start.
pub(super) fn check(session: &Session, address: &Address, refuses: bool) -> Result<(), OpenError> {
    let hosts = address.config.get_hosts().len().max(address.config.get_hostaddrs().len());
    if hosts < 2 || address.options.failover_without_synchronous_standby {
        return Ok(());
    }
    let why = session
        .query_once(SETTINGS)
        .and_then(|rows| {
            let Some(row) = rows.first() else { return Ok(None) };
            Ok(missing(text(row, 0)?, text(row, 1)?))
        })
        .map_err(|error| unread(address, &error))?;
    if let Some(guard) = &address.guard {
        guard.set_alone(why.is_some());
    }
    let Some(why) = why else { return Ok(()) };
    let place = &address.place;
    if refuses {
        return Err(OpenError::Invalid(format!(
            "{place}: the address names several hosts, but {why}, so that a fail-over loses rewards that were answered as \
             credited; set synchronous_standby_names, name one host, or allow it with \
             failover_without_synchronous_standby"
        )));
    }
    tracing::warn!("{place}: {why}; another fail-over would lose rewards that were answered as credited");
    Ok(())
}

/// Refuses a further connection for writing, while a commit of an earlier one waits for a standby for longer than any
/// answer is waited for. No time-out of the server ends such a wait, and its connection is not given back: without this,
/// each attempt would leave one more, until the server has none left, not even for reading.
pub(super) fn check_waiting(session: &Session, address: &Address) -> Result<(), OpenError> {
    let longest_ms = address.options.answer_timeout().as_millis();
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = current_user \
         AND application_name = current_setting('application_name') AND wait_event = 'SyncRep' \
         AND query_start < clock_timestamp() - interval '{longest_ms} milliseconds'"
    );
    let waiting: i64 = session
        .query_once(&sql)
        .and_then(|rows| rows.first().map_or(Ok(0), |row| cell(row, 0)))
        .map_err(|error| unread(address, &error))?;
    if waiting == 0 {
        return Ok(());
    }
    let what = format!(
        "{waiting} commits have waited for a synchronous standby for more than {longest_ms} ms, so no further one is begun; \
         bring the standby back, or take it out of synchronous_standby_names and never promote it"
    );
    Err(OpenError::Unreachable { path: address.place.clone(), what })
}

/// Why a commit does not wait for a standby, where it does not.
fn missing(standbys: &str, commit: &str) -> Option<String> {
    if standbys.trim().is_empty() {
        return Some("the server has no synchronous standby (synchronous_standby_names is empty)".into());
    }
    // `off` is raised to `on` by every connection.
    (commit == "local").then(|| "its commits do not wait for one (synchronous_commit is local)".into())
}

fn unread(address: &Address, error: &LedgerError) -> OpenError {
    OpenError::Unreachable { path: address.place.clone(), what: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_waits_for_a_standby_where_it_names_one_and_commits_wait() {
        for waits in ["on", "remote_apply", "remote_write", "off"] {
            assert_eq!(missing("FIRST 1 (s1)", waits), None);
            assert!(missing(" ", waits).unwrap().contains("synchronous_standby_names"));
        }
        assert!(missing("s1", "local").unwrap().contains("local"));
    }
}
