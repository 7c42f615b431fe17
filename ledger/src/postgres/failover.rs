//! Whether an address may fail over: without a synchronous standby the next server lacks the newest commits, although
//! their callers were told that they are credited.

use super::budget_keys::text;
use super::link::Address;
use super::session::Session;
use crate::error::{LedgerError, OpenError};

const SETTINGS: &str =
    "SELECT current_setting('synchronous_standby_names'), current_setting('synchronous_commit')";

/// Refuses an address with several hosts whose server does not wait for a standby, unless the options ask for it. Once
/// the ledger is open, it is only logged: what was promoted may have no standby yet.
pub(super) fn check(session: &Session, address: &Address, is_first: bool) -> Result<(), OpenError> {
    let hosts = address.config.get_hosts().len().max(address.config.get_hostaddrs().len());
    if hosts < 2 || address.options.failover_without_synchronous_standby {
        return Ok(());
    }
    let Some(why) = session
        .query_once(SETTINGS)
        .and_then(|rows| {
            let Some(row) = rows.first() else { return Ok(None) };
            Ok(missing(text(row, 0)?, text(row, 1)?))
        })
        .map_err(|error| unread(address, &error))?
    else {
        return Ok(());
    };
    let place = &address.place;
    if is_first {
        return Err(OpenError::Invalid(format!(
            "{place}: the address names several hosts, but {why}, so that a fail-over loses rewards that were answered as \
             credited; set synchronous_standby_names, name one host, or allow it with \
             failover_without_synchronous_standby"
        )));
    }
    tracing::warn!("{place}: {why}; another fail-over would lose rewards that were answered as credited");
    Ok(())
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
