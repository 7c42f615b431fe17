//! Reads `[[revoke]]`: tokens that count no more.

use std::collections::HashSet;

use super::build::{SCENE_NAME, check_name, is_scene_name};
use super::walk::{Findings, Section};
use crate::bounds::{self, REVOCATIONS_MAX, TRADE_NO_MAX_BYTES, WHY_MAX_BYTES};
use crate::nearest::shortened;
use crate::refusal::Fault;
use windfall_contract::rules::{Revocation, Revocations, Revoked};

const TRADE_NO: &str = "1 to 128 visible ASCII characters";
const WHY: &str = "1 to 256 bytes without control characters";
const ONE_OF: &str = "give exactly one of `key`, `trade_no`, and `activity` with `before_ms`";

pub(super) fn read_revocations(root: &Section<'_, '_>, findings: &mut Findings<'_>) -> Revocations {
    let sections = root.list("revoke", findings);
    if sections.len() > REVOCATIONS_MAX {
        let fault = Fault::NotAllowed {
            found: format!("{} entries", sections.len()),
            allowed: format!("at most {REVOCATIONS_MAX} entries"),
        };
        findings.note("revoke", root.at_value("revoke"), fault);
        return Revocations::default();
    }
    let mut seen = HashSet::new();
    let mut entries = Vec::with_capacity(sections.len());
    for section in &sections {
        let Some(entry) = read_one(section, findings) else {
            continue; // noted
        };
        let (kind, name) = match &entry.what {
            Revoked::Key(key) => ("key", key.to_string()),
            Revoked::Activity { activity, .. } => ("activity", activity.clone()),
            Revoked::TradeNo(trade_no) => ("trade_no", trade_no.clone()),
        };
        let found = format!("{kind} `{}`", shortened(&name));
        if !seen.insert((kind, name)) {
            findings.note(section.path(), section.at(), Fault::Twice { found });
        }
        entries.push(entry);
    }
    entries.into_iter().collect()
}

fn read_one(section: &Section<'_, '_>, findings: &mut Findings<'_>) -> Option<Revocation> {
    section.only(&["key", "activity", "before_ms", "trade_no", "why"], findings);
    let why = section.needed_text("why", WHY, findings);
    if let Some(why) = why {
        let fits = |text: &str| {
            (1..=WHY_MAX_BYTES).contains(&text.len()) && !text.contains(|c: char| c.is_control())
        };
        check_name(&section.path_of("why"), why, fits, WHY, findings);
    }
    let has = |key| section.has(key);
    let what = match (has("key"), has("activity") || has("before_ms"), has("trade_no")) {
        (true, false, false) => {
            let key = section.number("key", bounds::REVOKED_KEY, findings)?;
            Revoked::Key(u32::try_from(key).ok()?)
        }
        (false, true, false) => {
            let activity = section.needed_text("activity", SCENE_NAME, findings);
            let before_ms = section.number("before_ms", bounds::REVOKED_BEFORE_MS, findings);
            let activity = activity?;
            check_name(&section.path_of("activity"), activity, is_scene_name, SCENE_NAME, findings);
            Revoked::Activity {
                activity: activity.text.to_owned(),
                before_ms: i64::try_from(before_ms?).ok()?,
            }
        }
        (false, false, true) => {
            let trade_no = section.needed_text("trade_no", TRADE_NO, findings)?;
            let fits = |text: &str| {
                (1..=TRADE_NO_MAX_BYTES).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
            };
            check_name(&section.path_of("trade_no"), trade_no, fits, TRADE_NO, findings);
            Revoked::TradeNo(trade_no.text.to_owned())
        }
        (false, false, false) => {
            findings.note(section.path(), section.at(), Fault::Missing { allowed: ONE_OF.to_owned() });
            return None;
        }
        _ => {
            let found = "names tokens in more than one way".to_owned();
            findings.note(section.path(), section.at(), Fault::Clash { found, allowed: ONE_OF });
            return None;
        }
    };
    Some(Revocation { what, why: why?.text.to_owned() })
}
