//! When the events of reserved orders are to be written again: one owner for each order and due time, over all processes.
//!
//! The tables are the ledger's own and additive (`order_copies` and `order_copies_listing`): no version of the schema says
//! that they are there. They are made where they are missing, when they are first asked for; a user who may not make them is
//! told so ([`Listing::NoTables`]). A process of an older version knows nothing of them, and does no harm to them.
//!
//! - **Listing.** One process at a time lists a page of the reserved orders that came of age. The place up to which it has
//!   come is stored with the page, so another process goes on there if it dies. A place is a key, so what comes in front of it
//!   meanwhile is listed by the next pass.
//! - **Taking.** Whoever takes orders that are due gets those that nobody else takes at this moment (`FOR UPDATE SKIP
//!   LOCKED`), and they are due again only at the end of a lease. A process that dies before it has written them, or before it
//!   has noted that, leaves them due by then: an event may be written once more, which credits nothing twice (I1), and none
//!   is lost (I2).
//! - **Noting.** What was written is due again when the caller says.
//!
//! The clocks of the processes must agree within the age at which orders are listed. One that is further ahead, while it is, has
//! events written more often than needed, since the others set back what it has set ([`ListCopies::ahead_ms`]); they are credited
//! once all the same. Only rows of reserved orders are set back: a row whose order has ended is forgotten when its time has come.
//!
//! An order is named by its key, as it is stored, which never changes: a row that was written under a number alone, before
//! version 6 of the schema, goes on to be found. Pages go by these keys.

use windfall_contract::accounts::StoredOrder;

/// How reserved orders are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListCopies {
    /// The present time, in Unix milliseconds.
    pub now_ms: i64,
    /// The age at which an order is listed, and due for the first time.
    pub after_ms: i64,
    /// The pause between two passes over all reserved orders.
    pub pause_ms: i64,
    /// An order of the page that is due further ahead than this and twice its age is due now. No clock that is right sets such
    /// a time where this is the time of a lease, or the age at which orders are listed, whichever is longer: whoever has taken
    /// or written it had a clock that is ahead, and it would be nobody's until its time comes.
    pub ahead_ms: i64,
    /// The number of orders of a page at most.
    pub limit: u32,
}

/// What a call that lists orders has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listing {
    /// The tables are missing, and this user may not make or use them.
    NoTables,
    /// Another process is at it, or the pass that was the last one is not long ago.
    NotNow,
    /// So many orders were looked at; fewer than the limit end the pass.
    Page(u64),
}

/// A budget key with orders that wait for a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyKey {
    /// Its number.
    pub budget_key: i64,
    /// Its activity.
    pub activity: String,
    /// Its scene.
    pub scene: String,
    /// Its bonus type.
    pub bonus_type: String,
}

/// An order that its taker writes again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostOrder {
    /// The number of its budget key.
    pub budget_key: i64,
    /// The order.
    pub order: StoredOrder,
}

/// What was taken.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TakenCopies {
    /// The number of orders that were due, with those that are not reserved any more and were forgotten. Fewer than the limit
    /// say that nothing more is due that nobody else has.
    pub due: u64,
    /// Those that are still reserved: the caller's until its lease ends.
    pub orders: Vec<LostOrder>,
}

/// Which orders are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakeCopies<'a> {
    /// The numbers of their budget keys.
    pub budget_keys: &'a [i64],
    /// They were due by this time.
    pub due_ms: i64,
    /// The end of the lease: they are due again by then, unless it is noted that they were written.
    pub lease_ends_ms: i64,
    /// The number of orders at most.
    pub limit: u32,
}

/// An order whose event was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrittenCopy<'a> {
    /// The number of its budget key.
    pub budget_key: i64,
    /// Its key, as it is stored.
    pub key: &'a str,
    /// When it is due again.
    pub next_write_ms: i64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Attempt, BudgetSet, Ledger, LedgerOptions, Order};

    const AFTER_MS: i64 = 100;
    const LEASE_MS: i64 = 50;

    /// Lists and takes what a process takes whose clock is at this time, and returns how many these are.
    fn take(ledger: &mut Ledger, now_ms: i64) -> u64 {
        let ahead_ms = AFTER_MS.max(LEASE_MS);
        let how = ListCopies { now_ms, after_ms: AFTER_MS, pause_ms: 1, ahead_ms, limit: 9 };
        ledger.list_copies(&how).unwrap();
        let budget_keys: Vec<i64> = ledger.copy_keys().unwrap().iter().map(|key| key.budget_key).collect();
        let which = TakeCopies {
            budget_keys: &budget_keys,
            due_ms: now_ms,
            lease_ends_ms: now_ms + LEASE_MS,
            limit: 9,
        };
        let taken = ledger.take_copies(&which).unwrap();
        assert_eq!(taken.orders.len() as u64, taken.due);
        taken.due
    }

    #[test]
    fn what_a_clock_that_is_ahead_has_taken_is_taken_at_its_time_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(folder.path().join("ledger.db"), &LedgerOptions::default()).unwrap();
        let (activity, scene, bonus_type) = ("spring", "rain", "cash");
        ledger.set_budgets(&[BudgetSet { activity, scene, bonus_type, total: 9, shards: 1 }]).unwrap();
        let order =
            Order { trade_no: "a", user_id: 1, activity, scene, bonus_type, amount: 1, time_ms: 1_000 };
        ledger.transact(|tx| tx.promise(&[order], Attempt::Normal)).unwrap();
        assert_eq!((take(&mut ledger, 1_099), take(&mut ledger, 1_100), take(&mut ledger, 1_149)), (0, 1, 0));
        let budget_key = ledger.copy_keys().unwrap()[0].budget_key;
        let key = "a spring";
        // It was written at an age of 100 and of 190: neither time is too far ahead.
        for (now_ms, next_write_ms) in [(1_100, 1_200), (1_190, 1_200), (1_200, 1_400)] {
            ledger.note_copies(&[WrittenCopy { budget_key, key, next_write_ms }]).unwrap();
            assert_eq!(take(&mut ledger, now_ms), 0, "{now_ms}");
        }
        // A process whose clock is a day ahead takes it, and dies.
        let day_ms = 86_400_000;
        assert_eq!(take(&mut ledger, 1_200 + day_ms), 1);
        // It is due from the moment on that it is found, not since it came of age.
        let how = ListCopies { now_ms: 1_200, after_ms: AFTER_MS, pause_ms: 1, ahead_ms: AFTER_MS, limit: 9 };
        assert_eq!(ledger.list_copies(&how).unwrap(), Listing::Page(1));
        let budget_keys = [budget_key];
        let which = TakeCopies { budget_keys: &budget_keys, due_ms: 1_199, lease_ends_ms: 1_250, limit: 9 };
        assert_eq!(ledger.take_copies(&which).unwrap(), TakenCopies::default());
        assert_eq!(
            (take(&mut ledger, 1_201), take(&mut ledger, 1_202)),
            (1, 0),
            "once, by one of the others"
        );
        // Another one writes it, and says when it is due again.
        ledger.note_copies(&[WrittenCopy { budget_key, key, next_write_ms: 1_000 + day_ms }]).unwrap();
        assert_eq!((take(&mut ledger, 1_203), take(&mut ledger, 1_204)), (1, 0));
    }
}
