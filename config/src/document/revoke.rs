//! Checks `[[revoke]]`: the revoked tokens.

use std::collections::HashSet;

use windfall_contract::rules::{Revocation, Revocations, Revoked};

use super::check::listed;
use super::limits::needed_here;
use super::raw::RawRevocation;
use super::value::{Field, Needed};
use crate::bounds::REVOCATIONS_MAX;
use crate::findings::Findings;
use crate::nearest::shortened;
use crate::refusal::Fault;

const ONE_OF: &str = "give exactly one of `key`, `trade_no`, and `activity` with `before_ms`";

pub(super) fn check_revocations(
    raw: &Field<Vec<Needed<RawRevocation>>>,
    findings: &Findings<'_>,
) -> Revocations {
    let count = raw.get().map_or(0, Vec::len);
    if count > REVOCATIONS_MAX {
        let (found, allowed) = (format!("{count} entries"), format!("at most {REVOCATIONS_MAX} entries"));
        findings.note("revoke", raw.at(), Fault::NotAllowed { found, allowed });
        return Revocations::default();
    }
    let mut seen = HashSet::new();
    let mut entries = Vec::with_capacity(count);
    for (path, at, raw) in listed("revoke", raw) {
        let Some(what) = check_what(&path, at, raw, findings) else {
            continue; // noted
        };
        let (kind, name) = match &what {
            Revoked::Key(key) => ("key", key.to_string()),
            Revoked::Activity { activity, .. } => ("activity", activity.clone()),
            Revoked::TradeNo(trade_no) => ("trade_no", trade_no.clone()),
        };
        let found = format!("{kind} `{}`", shortened(&name));
        if !seen.insert((kind, name)) {
            findings.note(path, at, Fault::Twice { found });
        }
        if let Some(why) = raw.why.get() {
            entries.push(Revocation { what, why: (**why).to_owned() });
        }
    }
    entries.into_iter().collect()
}

fn check_what(
    path: &str,
    at: Option<usize>,
    raw: &RawRevocation,
    findings: &Findings<'_>,
) -> Option<Revoked> {
    let is_of_activity = raw.activity.is_given() || raw.before_ms.is_given();
    match (raw.key.is_given(), is_of_activity, raw.trade_no.is_given()) {
        (true, false, false) => Some(Revoked::Key(raw.key.get()?.0)),
        (false, true, false) => {
            let activity = needed_here(&raw.activity, path, "activity", at, findings);
            let before_ms = needed_here(&raw.before_ms, path, "before_ms", at, findings);
            Some(Revoked::Activity { activity: (**activity?).to_owned(), before_ms: before_ms?.0 })
        }
        (false, false, true) => Some(Revoked::TradeNo((**raw.trade_no.get()?).to_owned())),
        (false, false, false) => {
            findings.note(path, at, Fault::Missing { allowed: ONE_OF.to_owned() });
            None
        }
        _ => {
            let found = "names tokens in more than one way".to_owned();
            findings.note(path, at, Fault::Clash { found, allowed: ONE_OF });
            None
        }
    }
}
