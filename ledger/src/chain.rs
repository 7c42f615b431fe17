//! The chain of sealed ranges: what is hashed, and how. Pure; [`crate::Sealer`] makes it, and [`crate::verify`] checks it.
//!
//! Each transfer has a commitment over its columns, in which those that belong to a person are hashed with a salt of their
//! own. Who erases them keeps that inner hash in place of the salt, and the chain stays whole. A range is the hash of
//! its commitments; a seal is the hash of the range and of the seal before it.

use crate::error::LedgerError;
use crate::journal::{BUDGET, FUNDING, SETTLEMENT, USER};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// A SHA-256.
pub(crate) type Hash = [u8; 32];

/// The rows of a page of commitments.
pub(crate) const PAGE_ROWS: usize = 1_024;
/// A salt, or the inner hash of a row whose personal columns were erased, and which of them it is.
const GUARD_BYTES: usize = 33;
const SALT: u8 = 0;
const ERASED: u8 = 1;

/// A row of the journal, as it is sealed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    /// Its place: ranges are closed by it. The row's number in a file, its transaction's number in PostgreSQL.
    pub at: i64,
    pub id: i64,
    pub kind: i64,
    pub bonus_type: i64,
    pub debit: i64,
    pub debit_holder: i64,
    pub credit: i64,
    pub credit_holder: i64,
    pub amount: i64,
    pub prev: i64,
    pub time_ms: i64,
    pub reference: String,
}

impl Row {
    /// The hash of what belongs to a person: the user, and the order number, which may contain it.
    fn personal(&self, salt: &[u8]) -> Hash {
        let mut hash = Sha256::new_with_prefix(b"windfall transfer, personal");
        hash.update(salt);
        for (kind, holder) in [(self.debit, self.debit_holder), (self.credit, self.credit_holder)] {
            hash.update(if kind == USER { holder } else { 0 }.to_le_bytes());
        }
        hash.update(self.reference.as_bytes());
        hash.finalize().into()
    }

    fn commitment(&self, personal: &Hash) -> Hash {
        let other = |kind: i64, holder: i64| if kind == USER { 0 } else { holder };
        let mut hash = Sha256::new_with_prefix(b"windfall transfer");
        for value in [
            self.at,
            self.id,
            self.kind,
            self.bonus_type,
            self.debit,
            other(self.debit, self.debit_holder),
            self.credit,
            other(self.credit, self.credit_holder),
            self.amount,
            self.prev,
            self.time_ms,
        ] {
            hash.update(value.to_le_bytes());
        }
        hash.update(personal);
        hash.finalize().into()
    }

    /// Whether nothing of a person is left in it.
    fn is_erased(&self) -> bool {
        let left = |kind: i64, holder: i64| kind == USER && holder != 0;
        !left(self.debit, self.debit_holder)
            && !left(self.credit, self.credit_holder)
            && self.reference.is_empty()
    }
}

/// Up to [`PAGE_ROWS`] commitments, side by side.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Page {
    /// The rows' numbers, 8 bytes each.
    pub ids: Vec<u8>,
    /// [`GUARD_BYTES`] each.
    pub guards: Vec<u8>,
    /// The commitments, 32 bytes each.
    pub hashes: Vec<u8>,
}

impl Page {
    /// Commits to rows, with 32 bytes of salt for each.
    fn of(rows: &[Row], salts: &[u8]) -> Self {
        let mut page = Self::default();
        for (row, salt) in rows.iter().zip(salts.chunks_exact(32)) {
            page.ids.extend(row.id.to_le_bytes());
            page.guards.push(SALT);
            page.guards.extend(salt);
            page.hashes.extend(row.commitment(&row.personal(salt)));
        }
        page
    }

    /// Each row's number, guard and commitment. `None` where the page itself is damaged.
    pub fn rows(&self) -> Option<impl Iterator<Item = (i64, &[u8], &[u8])>> {
        let count = self.ids.len() / 8;
        let is_sound = self.ids.len() == count * 8
            && self.guards.len() == count * GUARD_BYTES
            && self.hashes.len() == count * 32;
        is_sound.then(|| {
            let ids =
                self.ids.chunks_exact(8).map(|id| i64::from_le_bytes(id.try_into().unwrap_or_default()));
            let rest = self.guards.chunks_exact(GUARD_BYTES).zip(self.hashes.chunks_exact(32));
            ids.zip(rest).map(|(id, (guard, hash))| (id, guard, hash))
        })
    }
}

/// Whether a guard says that its row's personal columns were erased.
pub(crate) fn is_erased(guard: &[u8]) -> bool {
    guard.first() == Some(&ERASED)
}

/// Whether a row is the one that was committed to.
pub(crate) fn is_same(row: &Row, guard: &[u8], hash: &[u8]) -> bool {
    let personal = match guard.split_first() {
        Some((&SALT, salt)) => row.personal(salt),
        Some((&ERASED, inner)) if row.is_erased() => inner.try_into().unwrap_or_default(),
        _ => return false,
    };
    row.commitment(&personal)[..] == *hash
}

/// What the numbers in transfers stand for: bonus types, activities and payers are rows of `names`, budgets are rows of
/// `programs`, which are three names. `None` where there is no such row.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Names {
    /// The activity, the scene and the bonus type.
    budget_keys: BTreeMap<i64, Option<[i64; 3]>>,
    names: BTreeMap<i64, Option<String>>,
}

impl Names {
    /// The numbers that occur in rows, without what they stand for.
    pub fn of(rows: &[Row]) -> Self {
        let mut own = Self::default();
        for row in rows {
            own.names.insert(row.bonus_type, None);
            for (kind, holder) in [(row.debit, row.debit_holder), (row.credit, row.credit_holder)] {
                if kind == BUDGET {
                    own.budget_keys.insert(holder, None);
                } else if kind == FUNDING || kind <= SETTLEMENT {
                    own.names.insert(holder, None);
                }
            }
        }
        own
    }

    pub fn budget_key_ids(&self) -> Vec<i64> {
        self.budget_keys.keys().copied().collect()
    }

    /// Sets a budget key; its names have to be set too.
    pub fn set_budget_key(&mut self, id: i64, names: [i64; 3]) {
        self.budget_keys.insert(id, Some(names));
        for name in names {
            self.names.entry(name).or_default();
        }
    }

    /// To be asked for when the budget keys are set.
    pub fn name_ids(&self) -> Vec<i64> {
        self.names.keys().copied().collect()
    }

    pub fn set_name(&mut self, id: i64, name: String) {
        self.names.insert(id, Some(name));
    }

    pub fn hash(&self) -> Hash {
        let mut hash = Sha256::new_with_prefix(b"windfall names");
        for (id, names) in &self.budget_keys {
            hash.update(id.to_le_bytes());
            hash.update([u8::from(names.is_some())]);
            for name in names.unwrap_or_default() {
                hash.update(name.to_le_bytes());
            }
        }
        hash.update(i64::MIN.to_le_bytes());
        for (id, name) in &self.names {
            let text = name.as_deref().unwrap_or_default();
            hash.update(id.to_le_bytes());
            hash.update([u8::from(name.is_some())]);
            hash.update(u64::try_from(text.len()).unwrap_or(u64::MAX).to_le_bytes());
            hash.update(text.as_bytes());
        }
        hash.finalize().into()
    }
}

/// A sealed range of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seal {
    /// Its number, from 1 on.
    pub id: i64,
    /// The first place of the range.
    pub from_at: i64,
    /// The first place behind it.
    pub to_at: i64,
    /// The number of transfers in it.
    pub rows: i64,
    /// When it was sealed, in Unix milliseconds.
    pub sealed_ms: i64,
    /// The hash of the seal before it, zeros for the first.
    pub previous: [u8; 32],
    /// The hash of its commitments.
    pub content: [u8; 32],
    /// The hash of the names that its transfers refer to by number.
    pub names: [u8; 32],
    /// Its own hash, which the next one continues.
    pub hash: [u8; 32],
}

impl Seal {
    /// Seals rows, which are sorted by place and number, behind `last`, up to `to_at`; with 32 bytes of salt for each.
    pub(crate) fn of(
        last: Option<&Self>,
        to_at: i64,
        rows: &[Row],
        names: &Names,
        salts: &[u8],
        now_ms: i64,
    ) -> (Self, Vec<Page>) {
        let pages: Vec<Page> = rows
            .chunks(PAGE_ROWS)
            .zip(salts.chunks(PAGE_ROWS * 32))
            .map(|(rows, salts)| Page::of(rows, salts))
            .collect();
        let mut seal = Self {
            id: last.map_or(1, |last| last.id.saturating_add(1)),
            from_at: last.map_or(i64::MIN, |last| last.to_at),
            to_at,
            rows: i64::try_from(rows.len()).unwrap_or(i64::MAX),
            sealed_ms: now_ms,
            previous: last.map_or([0; 32], |last| last.hash),
            content: content(&pages),
            names: names.hash(),
            hash: [0; 32],
        };
        seal.hash = seal.own_hash();
        (seal, pages)
    }

    /// The hash that its columns must have.
    pub(crate) fn own_hash(&self) -> Hash {
        let mut hash = Sha256::new_with_prefix(b"windfall seal");
        for value in [self.id, self.from_at, self.to_at, self.rows, self.sealed_ms] {
            hash.update(value.to_le_bytes());
        }
        hash.update(self.previous);
        hash.update(self.content);
        hash.update(self.names);
        hash.finalize().into()
    }

    /// What is kept of it outside the database.
    pub fn head(&self) -> Head {
        Head { seal: self.id, hash: self.hash }
    }
}

/// The hash of a range's commitments. The salts are not in it, so that one can be erased.
pub(crate) fn content(pages: &[Page]) -> Hash {
    let mut hash = Sha256::new_with_prefix(b"windfall range");
    for page in pages {
        hash.update(&page.ids);
        hash.update(&page.hashes);
    }
    hash.finalize().into()
}

/// What is behind the last seal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Unsealed {
    /// The number of transfers.
    pub rows: u64,
    /// The time of the oldest, in Unix milliseconds.
    pub oldest_ms: Option<i64>,
    /// Those at places that no transaction has reached yet, so that no seal would ever come to them; the first ones.
    pub ahead: Vec<Row>,
}

/// The end of the chain at some moment, which is kept outside the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The number of the last seal.
    pub seal: i64,
    /// Its hash.
    pub hash: [u8; 32],
}

impl Head {
    /// The head of a chain without seals, which the first seal continues.
    pub const NONE: Self = Self { seal: 0, hash: [0; 32] };
}

/// A hash as text.
pub(crate) fn hex(hash: &[u8]) -> String {
    let digits = hash.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.filter_map(|digit| char::from_digit(u32::from(digit), 16)).collect()
}

/// A stored hash; an error names what it belongs to.
pub(crate) fn stored_hash(bytes: &[u8], what: &str) -> Result<Hash, LedgerError> {
    bytes.try_into().map_err(|_| LedgerError::Damaged(format!("{what} has a hash of {} bytes", bytes.len())))
}

/// Random salts for so many rows.
pub(crate) fn salts(rows: usize) -> Result<Vec<u8>, LedgerError> {
    let mut salts = vec![0; rows * 32];
    getrandom::fill(&mut salts)
        .map_err(|error| LedgerError::Unavailable(format!("the system gives no random numbers: {error}")))?;
    Ok(salts)
}

/// Where a range ends that holds about `rows_max` rows of those that are closed. `rows` are sorted by place, and `more`
/// says that they are not all: then the last place may be incomplete, and is left to the next range. `None` where all of
/// them are of one place.
pub(crate) fn cut(rows: &mut Vec<Row>, more: bool, horizon: i64) -> Option<i64> {
    if !more {
        #[cfg(feature = "sabotage")]
        if crate::sabotage::seals_skip_a_row() {
            rows.pop();
        }
        return Some(horizon);
    }
    let last = rows.last()?.at;
    if rows.first()?.at == last {
        return None;
    }
    rows.retain(|row| row.at < last);
    Some(last)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    fn row(id: i64) -> Row {
        Row {
            at: id / 2,
            id,
            kind: 0,
            bonus_type: 3,
            debit: 2,
            debit_holder: 1,
            credit: USER,
            credit_holder: 7,
            amount: 10,
            prev: 0,
            time_ms: 1_000,
            reference: "a".into(),
        }
    }

    fn sealed(rows: &[Row]) -> (Seal, Vec<Page>) {
        let salts: Vec<u8> = (0..rows.len() * 32).map(|at| u8::try_from(at % 251).unwrap()).collect();
        Seal::of(None, 100, rows, &Names::of(rows), &salts, 5)
    }

    fn is_first_same(row: &Row, page: &Page) -> bool {
        let (id, guard, hash) = page.rows().unwrap().next().unwrap();
        id == row.id && is_same(row, guard, hash)
    }

    #[test]
    fn every_column_is_committed_to() {
        let own = row(1);
        let (_, pages) = sealed(std::slice::from_ref(&own));
        assert!(is_first_same(&own, &pages[0]));
        let changes: [fn(&mut Row); 11] = [
            |row| row.at += 1,
            |row| row.kind = 4,
            |row| row.bonus_type = 4,
            |row| row.debit = 1,
            |row| row.debit_holder = 2,
            |row| row.credit = -3,
            |row| row.credit_holder = 8,
            |row| row.amount = 11,
            |row| row.prev = 1,
            |row| row.time_ms = 1_001,
            |row| row.reference = "b".into(),
        ];
        for (nth, change) in changes.into_iter().enumerate() {
            let mut other = own.clone();
            change(&mut other);
            assert!(!is_first_same(&other, &pages[0]), "column {nth}");
        }
    }

    /// What belongs to a person can be erased with its salt; what does not cannot be changed along with it.
    #[test]
    fn erasing_a_person_leaves_the_chain_whole() {
        let own = row(1);
        let (seal, mut pages) = sealed(std::slice::from_ref(&own));
        let salt = pages[0].guards[1..].to_vec();
        pages[0].guards[0] = ERASED;
        pages[0].guards[1..].copy_from_slice(&own.personal(&salt));
        let erased = Row { credit_holder: 0, reference: String::new(), ..own.clone() };
        assert!(is_first_same(&erased, &pages[0]));
        assert_eq!(content(&pages), seal.content);
        for other in [own, Row { amount: 11, ..erased.clone() }, Row { credit_holder: 8, ..erased }] {
            assert!(!is_first_same(&other, &pages[0]), "{other:?}");
        }
    }

    #[test]
    fn every_name_that_a_row_refers_to_is_hashed() {
        let payer = Row { credit: SETTLEMENT, credit_holder: 9, ..row(1) };
        let mut own = Names::of(&[row(1), payer]);
        assert_eq!((own.budget_key_ids(), own.name_ids()), (vec![1], vec![3, 9]));
        own.set_budget_key(1, [4, 5, 3]);
        assert_eq!(own.name_ids(), [3, 4, 5, 9]);
        for id in own.name_ids() {
            own.set_name(id, format!("name {id}"));
        }
        let mut others = vec![own.clone(); 2];
        others[0].set_name(9, "bank".into());
        others[1].set_budget_key(1, [5, 4, 3]);
        assert!(others.iter().all(|other| other.hash() != own.hash()));
    }

    #[test]
    fn a_range_ends_between_two_places() {
        let rows: Vec<Row> = (0..7).map(row).collect();
        let mut all = rows.clone();
        assert_eq!((cut(&mut all, false, 9), all.len()), (Some(9), 7));
        assert_eq!((cut(&mut all, true, 9), all.len()), (Some(3), 6));
        assert_eq!(cut(&mut rows[..2].to_vec(), true, 9), None, "all of one place");
    }

    #[test]
    fn a_seal_names_everything_that_it_says() {
        let (seal, _) = sealed(&[row(1), row(2)]);
        let changes: [fn(&mut Seal); 8] = [
            |seal| seal.id += 1,
            |seal| seal.from_at += 1,
            |seal| seal.to_at += 1,
            |seal| seal.rows += 1,
            |seal| seal.sealed_ms += 1,
            |seal| seal.previous[0] ^= 1,
            |seal| seal.content[0] ^= 1,
            |seal| seal.names[0] ^= 1,
        ];
        for change in changes {
            let mut other = seal.clone();
            change(&mut other);
            assert_ne!(other.own_hash(), seal.hash);
        }
    }
}
