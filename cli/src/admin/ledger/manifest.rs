//! What an export says about itself: its files with their checksums, and what they hold. The checksum of the manifest names the
//! export.

use super::export::read_orders;
use super::parquet;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use windfall_contract::accounts::{Reason, Status};
use windfall_ledger::{DetachedBudget, OrderRow};

/// The name of the manifest's file.
pub const FILE: &str = "manifest.json";
/// The format, by its name and its version.
const FORMAT: &str = "windfall activity export 1";

/// The manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: String,
    /// The version of the binary that wrote it.
    pub written_by: String,
    /// The activity.
    pub activity: String,
    /// When it was closed, by whom, and why.
    pub closed_ms: i64,
    pub closed_by: String,
    pub closed_because: String,
    /// When the export ended, in Unix milliseconds.
    pub exported_ms: i64,
    pub orders: Exported,
    pub transfers: Exported,
    pub archive: Exported,
    /// What [`OrdersDigest`] makes of all orders.
    pub orders_digest: String,
    /// The sums of the orders.
    pub budgets: Vec<Budget>,
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exported {
    pub file: String,
    pub rows: u64,
    pub bytes: u64,
    pub sha256: String,
}

/// The orders of one budget key: a scene and a bonus type of the activity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// The number that orders and transfers name it by.
    pub budget: i64,
    pub scene: String,
    pub bonus_type: String,
    pub orders: i64,
    pub credited: i64,
    /// What was credited, in the smallest unit.
    pub amount: i64,
}

impl Manifest {
    /// The manifest of an export that has just been written.
    pub fn new(
        activity: &windfall_ledger::ClosedActivity,
        exported_ms: i64,
        files: [Exported; 3],
        sums: &Sums,
    ) -> Self {
        let [orders, transfers, archive] = files;
        Self {
            format: FORMAT.into(),
            written_by: format!("windfall {}", env!("CARGO_PKG_VERSION")),
            activity: activity.activity.clone(),
            closed_ms: activity.closed_ms,
            closed_by: activity.operator.clone(),
            closed_because: activity.reason.clone(),
            exported_ms,
            orders,
            transfers,
            archive,
            orders_digest: sums.digest.to_string(),
            budgets: sums.budgets.values().cloned().collect(),
        }
    }

    /// Reads the manifest of an export, and its checksum.
    pub fn read(folder: &Path) -> Result<(Self, String)> {
        let path = folder.join(FILE);
        let bytes = std::fs::read(&path)
            .with_context(|| format!("{} cannot be read: this is no export", path.display()))?;
        let manifest: Self = serde_json::from_slice(&bytes)
            .with_context(|| format!("{} is not the manifest of an export", path.display()))?;
        if manifest.format != FORMAT {
            bail!("{} has the format {:?}; this build reads {FORMAT:?}", path.display(), manifest.format);
        }
        Ok((manifest, hex(&Sha256::digest(&bytes))))
    }

    /// Compares the files, and each order in them, with what the manifest says. Returns what is wrong.
    pub fn compare(&self, folder: &Path) -> Vec<String> {
        let wrong = self.compare_files(folder);
        if !wrong.is_empty() {
            return wrong;
        }
        let mut sums = Sums::default();
        match read_orders(&folder.join(&self.orders.file), &self.activity, |order| sums.add(order)) {
            Err(error) => vec![format!("{error:#}")],
            Ok(()) if self.has(&sums) => Vec::new(),
            Ok(()) => {
                vec![format!("{}: its orders are not those that the manifest sums up", self.orders.file)]
            }
        }
    }

    /// Whether these are the orders of the export.
    fn has(&self, sums: &Sums) -> bool {
        self.orders.rows == sums.rows
            && self.orders_digest == sums.digest.to_string()
            && self.budgets.iter().eq(sums.budgets.values())
    }

    /// Compares the files with what the manifest says of them. Returns what is wrong.
    fn compare_files(&self, folder: &Path) -> Vec<String> {
        let mut wrong = Vec::new();
        for said in [&self.orders, &self.transfers, &self.archive] {
            let path = folder.join(&said.file);
            // A name that leads elsewhere is none of ours.
            if Path::new(&said.file).file_name() != Some(said.file.as_ref()) {
                wrong.push(format!("{FILE}: {:?} is not the name of a file in this folder", said.file));
                continue;
            }
            let (bytes, sha256) = match sum_up(&path) {
                Ok(found) => found,
                Err(error) => {
                    wrong.push(format!("{error:#}"));
                    continue;
                }
            };
            if (bytes, &sha256) != (said.bytes, &said.sha256) {
                wrong.push(format!(
                    "{}: {bytes} bytes with the checksum {sha256}; the manifest says {} bytes with {}",
                    said.file, said.bytes, said.sha256
                ));
                continue;
            }
            match parquet::rows_of(&path) {
                Ok(rows) if rows == said.rows => {}
                Ok(rows) => {
                    wrong.push(format!("{}: {rows} rows; the manifest says {}", said.file, said.rows));
                }
                Err(error) => wrong.push(format!("{error:#}")),
            }
        }
        wrong
    }

    /// What the ledger's orders differ in from those of the export; `None` where they are the same.
    pub fn difference(&self, sums: &Sums) -> Option<String> {
        let (has, ledger) = (self.orders.rows, sums.rows);
        if has != ledger {
            return Some(format!("the export has {has} orders, the ledger {ledger}"));
        }
        (!self.has(sums))
            .then(|| format!("the export and the ledger have {has} orders each, and these are not the same"))
    }

    /// What the ledger is to remember of the orders.
    pub fn detached_budgets(&self) -> Vec<DetachedBudget> {
        let of = |one: &Budget| DetachedBudget {
            budget: one.budget,
            orders: one.orders,
            credited: one.credited,
            amount: one.amount,
        };
        self.budgets.iter().map(of).collect()
    }
}

/// The sums of orders, whatever their order.
#[derive(Debug, Default)]
pub struct Sums {
    pub rows: u64,
    digest: OrdersDigest,
    budgets: BTreeMap<i64, Budget>,
}

impl Sums {
    /// Adds an order.
    pub fn add(&mut self, row: &OrderRow) {
        let OrderRow { order, budget, .. } = row;
        self.rows += 1;
        self.digest.add(row);
        let own = self.budgets.entry(*budget).or_insert_with(|| Budget {
            budget: *budget,
            scene: order.scene.clone(),
            bonus_type: order.bonus_type.clone(),
            orders: 0,
            credited: 0,
            amount: 0,
        });
        own.orders += 1;
        if order.status == Status::Credited {
            own.credited += 1;
            own.amount = own.amount.saturating_add(order.amount);
        }
    }
}

/// The sum of 128 bits of each order's SHA-256: the same for the same orders in whatever sequence they are read. It tells orders that
/// have changed by accident; against who forges rows on purpose there are the files' own checksums and the chain of seals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct OrdersDigest(u128);

impl OrdersDigest {
    fn add(&mut self, row: &OrderRow) {
        let OrderRow { order, budget, paid_by } = row;
        let mut hash = Sha256::new_with_prefix(b"windfall order");
        let status = status_words(order.status);
        for text in
            [&order.key, &order.scene, &order.bonus_type, &order.payer, status.0, status.1.unwrap_or("")]
        {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        }
        let decided = order.decided_ms.unwrap_or(i64::MIN);
        for number in [order.user_id, *budget, order.amount, order.created_ms, decided, *paid_by] {
            hash.update(number.to_le_bytes());
        }
        let hash: [u8; 32] = hash.finalize().into();
        let half = hash.first_chunk().copied().unwrap_or_default();
        self.0 = self.0.wrapping_add(u128::from_le_bytes(half));
    }
}

impl std::fmt::Display for OrdersDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Each reason with its word.
const REASONS: [(Reason, &str); 7] = [
    (Reason::BudgetExhausted, "budget_exhausted"),
    (Reason::Unbudgeted, "unbudgeted"),
    (Reason::OverOrderCap, "over_order_cap"),
    (Reason::OverTypeCap, "over_type_cap"),
    (Reason::DownstreamRefused, "downstream_refused"),
    (Reason::Released, "released"),
    (Reason::ActivityClosed, "activity_closed"),
];

/// A status as words: what it is, and why it was rejected.
pub fn status_words(status: Status) -> (&'static str, Option<&'static str>) {
    match status {
        Status::Reserved => ("reserved", None),
        Status::Credited => ("credited", None),
        Status::Rejected(reason) => {
            ("rejected", REASONS.iter().find(|(own, _)| *own == reason).map(|(_, word)| *word))
        }
    }
}

/// The reason that a word says.
pub fn reason_of_word(word: &str) -> Result<Reason> {
    let found = REASONS.iter().find(|(_, own)| *own == word).map(|(reason, _)| *reason);
    found.with_context(|| format!("an order has the unknown reason {word:?}"))
}

/// The size of a file, and its SHA-256.
pub fn sum_up(path: &Path) -> Result<(u64, String)> {
    let failed = || format!("{} cannot be read", path.display());
    let mut file = File::open(path).with_context(failed)?;
    let (mut hash, mut bytes, mut part) = (Sha256::new(), 0, vec![0; 1 << 20]);
    loop {
        let read = file.read(&mut part).with_context(failed)?;
        if read == 0 {
            return Ok((bytes, hex(&hash.finalize())));
        }
        bytes += read as u64;
        hash.update(&part[..read]);
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string does not fail.
        if write!(text, "{byte:02x}").is_err() {
            text.clear();
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use windfall_contract::accounts::StoredOrder;

    fn order(key: &str, amount: i64, status: Status) -> OrderRow {
        let order = StoredOrder {
            key: key.into(),
            trade_no: key.into(),
            user_id: 1,
            activity: "spring".into(),
            scene: "rain".into(),
            bonus_type: "cash".into(),
            amount,
            status,
            payer: String::new(),
            created_ms: 1,
            decided_ms: None,
        };
        OrderRow { order, budget: 4, paid_by: 2 }
    }

    fn sums(orders: &[OrderRow]) -> Sums {
        let mut sums = Sums::default();
        orders.iter().for_each(|order| sums.add(order));
        sums
    }

    #[test]
    fn sums_do_not_depend_on_the_sequence_and_tell_each_change() {
        use windfall_contract::accounts::Reason::BudgetExhausted;
        let (one, other) =
            (order("a", 5, Status::Credited), order("b", 7, Status::Rejected(BudgetExhausted)));
        let both = sums(&[one.clone(), other.clone()]);
        assert_eq!(both.digest, sums(&[other.clone(), one.clone()]).digest);
        assert_eq!(
            both.budgets[&4],
            Budget { orders: 2, credited: 1, amount: 5, ..both.budgets[&4].clone() }
        );
        let own = &one.order;
        for changed in [
            StoredOrder { amount: 6, ..own.clone() },
            StoredOrder { key: "c".into(), ..own.clone() },
            StoredOrder { user_id: 2, ..own.clone() },
            StoredOrder { decided_ms: Some(0), ..own.clone() },
            StoredOrder { payer: "bank".into(), ..own.clone() },
            StoredOrder { status: Status::Reserved, ..own.clone() },
        ] {
            let changed = OrderRow { order: changed, ..one.clone() };
            assert_ne!(both.digest, sums(&[changed, other.clone()]).digest);
        }
    }
}
