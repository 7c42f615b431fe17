//! Checks the chain: finds transfers that were changed, taken away or added after their range was sealed.

use crate::anchor::{Anchor, AnchorError};
use crate::chain::{self, Head, Page, Row, Seal, hex};
use crate::contract::Read;
use crate::error::LedgerError;
use std::collections::BTreeMap;
use std::fmt;

/// The number of findings that are listed; more are counted.
pub const FINDINGS_MAX: usize = 1_000;
/// The number of seals that are read at once.
const SEALS: u32 = 256;

/// What is wrong with a sealed ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tampering {
    /// A transfer is not what was sealed.
    Changed,
    /// A transfer that was sealed is not there.
    Missing,
    /// A transfer is there that was not sealed with its range.
    Added,
    /// A transfer does not say any more whose it is. No command of Windfall does that: whoever may write the tables did.
    Erased,
    /// The commitments of a range are not what was sealed; the transfers that they belong to cannot be told.
    Commitments,
    /// A name or a budget key that transfers refer to by number is not what it was when they were sealed.
    Names,
    /// A seal is not what was chained, or is missing.
    Chain,
    /// The chain is not the one that was anchored outside the database.
    Anchor,
}

impl Tampering {
    /// Its name, as tools know it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Missing => "missing",
            Self::Added => "added",
            Self::Erased => "erased",
            Self::Commitments => "commitments",
            Self::Names => "names",
            Self::Chain => "chain",
            Self::Anchor => "anchor",
        }
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What kind of thing.
    pub tampering: Tampering,
    /// The seal that it was found in.
    pub seal: i64,
    /// The transfer's number, where it is about one.
    pub transfer: Option<i64>,
    /// The sentence for people.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// What was checked, and found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verified {
    /// The number of seals.
    pub seals: u64,
    /// The number of sealed transfers that were compared.
    pub transfers: u64,
    /// The number of those whose user and order number were erased.
    pub erased: u64,
    /// The number of transfers that are not sealed yet: nothing is said about these.
    pub unsealed: u64,
    /// The time of the oldest of them, in Unix milliseconds.
    pub oldest_unsealed_ms: Option<i64>,
    /// The number of heads that the anchor holds.
    pub anchored: u64,
    /// How often a person has accepted that the database had lost seals which were anchored.
    pub losses: u64,
    /// The last seal, if it is not anchored: its sealer is about to do that, or died before. The next one does it.
    pub unanchored: Option<i64>,
    /// What is wrong, the first [`FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// The number of findings beyond those.
    pub more_findings: u64,
}

impl Verified {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    fn count(&self) -> u64 {
        u64::try_from(self.findings.len()).unwrap_or(u64::MAX).saturating_add(self.more_findings)
    }

    fn find(&mut self, tampering: Tampering, seal: i64, transfer: Option<i64>, what: String) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding { tampering, seal, transfer, what });
        } else {
            self.more_findings += 1;
        }
    }
}

/// Why nothing is verified.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The ledger cannot be read.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The anchor cannot be read.
    #[error(transparent)]
    Anchor(#[from] AnchorError),
}

/// Compares every sealed transfer with its commitment, every range with its seal, each seal with the one before it, and
/// the chain with its anchor.
pub(crate) fn verify(ledger: &dyn Read, anchor: Option<&dyn Anchor>) -> Result<Verified, VerifyError> {
    let mut verified = Verified::default();
    let mut anchored: BTreeMap<i64, [u8; 32]> = BTreeMap::new();
    let heads = anchor.map_or(Ok(Vec::new()), |anchor| anchor.heads())?;
    verified.losses = anchor.map_or(Ok(0), |anchor| anchor.losses())?;
    for head in heads.into_iter().filter(|head| *head != Head::NONE) {
        verified.anchored += 1;
        if anchored.insert(head.seal, head.hash).is_some_and(|other| other != head.hash) {
            let what = format!("seal {} is anchored twice, with different hashes", head.seal);
            verified.find(Tampering::Anchor, head.seal, None, what);
        }
    }
    let mut last: Option<Seal> = None;
    loop {
        let page = ledger.seals(last.as_ref().map_or(0, |last| last.id), SEALS)?;
        if page.is_empty() {
            break;
        }
        for seal in page {
            check_link(last.as_ref(), &seal, &mut verified);
            if let Some(hash) = anchored.remove(&seal.id).filter(|hash| *hash != seal.hash) {
                let what = format!(
                    "seal {} has the hash {}; it was anchored as {}: the chain was rewritten",
                    seal.id,
                    hex(&seal.hash),
                    hex(&hash)
                );
                verified.find(Tampering::Anchor, seal.id, None, what);
            }
            check_range(ledger, &seal, &mut verified)?;
            verified.seals += 1;
            last = Some(seal);
        }
    }
    for seal in anchored.into_keys() {
        let what = format!(
            "seal {seal} was anchored, and is not in the ledger: its end was cut off, or an older copy was restored"
        );
        verified.find(Tampering::Anchor, seal, None, what);
    }
    check_unsealed(ledger, last.as_ref(), &mut verified)?;
    if let (Some(anchor), Some(last)) = (anchor, &last) {
        check_end(anchor, last, &mut verified)?;
    }
    Ok(verified)
}

/// Counts what is not sealed yet, and finds what never would be.
fn check_unsealed(
    ledger: &dyn Read,
    last: Option<&Seal>,
    verified: &mut Verified,
) -> Result<(), LedgerError> {
    let unsealed = ledger.unsealed(last.map_or(i64::MIN, |last| last.to_at))?;
    (verified.unsealed, verified.oldest_unsealed_ms) = (unsealed.rows, unsealed.oldest_ms);
    for row in unsealed.ahead {
        let what = format!(
            "transfer {} has the number {} of a transaction that this server has not begun, so that it is never sealed: it \
             was written by hand, or the ledger was moved here from another server; it is {}",
            row.id,
            row.at,
            described(&row)
        );
        let seal = last.map_or(0, |last| last.id);
        verified.find(Tampering::Added, seal, Some(row.id), what);
    }
    Ok(())
}

/// Whether the anchor reaches to the end of the chain. It is read again, since sealers go on meanwhile. Each of them makes a
/// seal only when the one before it is anchored, so one seal may be without.
fn check_end(anchor: &dyn Anchor, last: &Seal, verified: &mut Verified) -> Result<(), AnchorError> {
    let what = match anchor.heads()?.last() {
        None => format!(
            "none of the {} seals is anchored there: it is not the anchor of this ledger, or it was emptied",
            last.id
        ),
        Some(head) if last.id > head.seal.saturating_add(1) => format!(
            "the seals {} to {} are not anchored: the anchor is an old copy, or its end was cut off",
            head.seal.saturating_add(1),
            last.id
        ),
        Some(head) => {
            verified.unanchored = (last.id > head.seal).then_some(last.id);
            return Ok(());
        }
    };
    verified.find(Tampering::Anchor, last.id, None, what);
    Ok(())
}

/// Whether a seal continues the one before it.
fn check_link(last: Option<&Seal>, seal: &Seal, verified: &mut Verified) {
    let mut broken = |what: String| verified.find(Tampering::Chain, seal.id, None, what);
    let expected = last.map_or(1, |last| last.id.saturating_add(1));
    if seal.id != expected {
        broken(format!("seal {expected} is missing: the next one is {}", seal.id));
    } else if seal.from_at != last.map_or(i64::MIN, |last| last.to_at) {
        broken(format!("seal {} does not begin where the one before it ends", seal.id));
    } else if seal.previous != last.map_or([0; 32], |last| last.hash) {
        broken(format!("seal {} does not continue the hash of the one before it", seal.id));
    }
    if seal.hash != seal.own_hash() || seal.to_at < seal.from_at {
        broken(format!("seal {} was changed: its hash is not that of its columns", seal.id));
    }
}

/// Compares the transfers of a range with their commitments, and these with the seal.
fn check_range(ledger: &dyn Read, seal: &Seal, verified: &mut Verified) -> Result<(), LedgerError> {
    let pages = ledger.seal_pages(seal.id)?;
    let id = seal.id;
    if chain::content(&pages) != seal.content {
        let what = format!("the commitments of seal {id} were changed");
        verified.find(Tampering::Commitments, id, None, what);
    }
    let found_before = verified.count();
    let rows = ledger.sealed_rows(seal.from_at, seal.to_at)?;
    let names = ledger.names_of(&rows)?;
    let mut rows: BTreeMap<i64, Row> = rows.into_iter().map(|row| (row.id, row)).collect();
    for page in &pages {
        check_page(ledger, id, page, &mut rows, verified)?;
    }
    for row in rows.into_values() {
        let what = format!("transfer {} was added after seal {id}: {}", row.id, described(&row));
        verified.find(Tampering::Added, id, Some(row.id), what);
    }
    // Which names they refer to is known where the transfers are those that were sealed.
    if verified.count() == found_before && names.hash() != seal.names {
        let what = format!(
            "a name that transfers of seal {id} refer to was changed, in names or programs: a bonus type, an activity, a \
             scene or a payer"
        );
        verified.find(Tampering::Names, id, None, what);
    }
    Ok(())
}

fn check_page(
    ledger: &dyn Read,
    seal: i64,
    page: &Page,
    rows: &mut BTreeMap<i64, Row>,
    verified: &mut Verified,
) -> Result<(), LedgerError> {
    let Some(committed) = page.rows() else {
        let what = format!("a page of commitments of seal {seal} has another length");
        verified.find(Tampering::Commitments, seal, None, what);
        return Ok(());
    };
    for (id, guard, hash) in committed {
        verified.transfers += 1;
        // One that was moved to another place is not missing.
        let row = match rows.remove(&id) {
            Some(row) => Some(row),
            None => ledger.row(id)?,
        };
        match row {
            Some(row) if chain::is_same(&row, guard, hash) && chain::is_erased(guard) => {
                verified.erased += 1;
                let what = format!(
                    "transfer {id} of seal {seal} was erased: it does not say any more whose it is; no command does that"
                );
                verified.find(Tampering::Erased, seal, Some(id), what);
            }
            Some(row) if chain::is_same(&row, guard, hash) => {}
            Some(row) => {
                let what =
                    format!("transfer {id} was changed after seal {seal}; now it is {}", described(&row));
                verified.find(Tampering::Changed, seal, Some(id), what);
            }
            None => {
                let what = format!("transfer {id} of seal {seal} is missing");
                verified.find(Tampering::Missing, seal, Some(id), what);
            }
        }
    }
    Ok(())
}

fn described(row: &Row) -> String {
    format!(
        "{} of bonus type {} from account {}/{} to {}/{}, kind {}, reference {:?}",
        row.amount,
        row.bonus_type,
        row.debit,
        row.debit_holder,
        row.credit,
        row.credit_holder,
        row.kind,
        row.reference
    )
}
