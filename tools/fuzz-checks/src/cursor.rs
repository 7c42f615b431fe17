//! Places in lists of timers and in users' statements, which clients hand back as text.

use crate::edits::edited;
use tempfile::TempDir;
use windfall_contract::accounts::Withdrawal;
use windfall_ledger::{
    BudgetSet, Ledger, LedgerOptions, LedgerReader, Order, StatementCursor, StatementFrom, StatementLine,
};
use windfall_scheduler_service::ListCursor;

const USERS: [i64; 2] = [42, 43];
const PAGE: u32 = 3;

struct Known {
    reader: LedgerReader,
    /// The lines of each user.
    lines: [Vec<StatementLine>; 2],
    /// The cursor behind the first page of the first user.
    honest: String,
    _folder: TempDir,
}

thread_local! {
    static KNOWN: Option<Known> = make();
}

/// `None` where the machine has no room for a file.
fn make() -> Option<Known> {
    let folder = tempfile::tempdir().ok()?;
    let mut ledger = Ledger::open(folder.path().join("ledger.db"), &LedgerOptions::default()).ok()?;
    let kinds = ["cash", "coin"];
    let budgets = kinds.map(|bonus_type| BudgetSet {
        activity: "spring",
        scene: "rain",
        bonus_type,
        total: 100_000,
        shards: 1,
    });
    drop(ledger.set_budgets(&budgets).ok()?);
    let credits = USERS.iter().flat_map(|user| kinds.iter().cycle().take(8).map(move |kind| (*user, *kind)));
    for (amount, (user_id, bonus_type)) in (1_i64..).zip(credits) {
        let trade_no = format!("rain-{amount}");
        let order = Order {
            trade_no: &trade_no,
            user_id,
            activity: "spring",
            scene: "rain",
            bonus_type,
            amount,
            time_ms: 1_800_000_000_000 + amount,
        };
        drop(ledger.apply(&[order]).ok()?);
    }
    for user_id in USERS {
        let asked = Withdrawal { id: "out".into(), user_id, bonus_type: "cash".into(), amount: 1 };
        ledger.transact(|tx| tx.hold(&[(&asked, "bank")], 1_800_000_001_000)).ok()?;
    }
    let reader = ledger.reader().ok()?;
    let of_user = |user: i64| Some(reader.statement(user, StatementFrom::Newest, 100).ok()?.lines);
    let lines = [of_user(USERS[0])?, of_user(USERS[1])?];
    let honest = reader.statement(USERS[0], StatementFrom::Newest, PAGE).ok()?.next?.to_string();
    Some(Known { reader, lines, honest, _folder: folder })
}

/// A place is written as it was read. Whatever the numbers of a cursor are, it opens for the user alone whom it names, and
/// shows nobody's lines but theirs; the one that a page has returned leads to the next page.
pub fn cursor(data: &[u8]) {
    let Some((mode, rest)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(rest);
    if mode % 3 == 0 {
        if let Ok(cursor) = text.parse::<ListCursor>() {
            assert_eq!(cursor.to_string().parse(), Ok(cursor), "{text}");
        }
        return;
    }
    KNOWN.with(|known| {
        let Some(known) = known else { return };
        match mode % 3 {
            1 => known.check(&text),
            _ => known.check(&String::from_utf8_lossy(&edited(known.honest.as_bytes(), rest))),
        }
    });
}

impl Known {
    fn check(&self, text: &str) {
        let Ok(cursor) = text.parse::<StatementCursor>() else {
            assert!(text != self.honest);
            return;
        };
        assert_eq!(cursor.to_string().parse().ok().as_ref(), Some(&cursor), "{text}");
        let named = text.split('/').next().and_then(|user| user.parse::<i64>().ok());
        for (user, own) in USERS.iter().zip(&self.lines) {
            let withdrawals = self.reader.withdrawals_of(*user, None, Some(&cursor), PAGE);
            if let Ok(page) = withdrawals {
                assert_eq!(named, Some(*user), "{text}");
                assert!(page.withdrawals.iter().all(|one| one.withdrawal.user_id == *user), "{text}");
            }
            let Ok(page) = self.reader.statement(*user, StatementFrom::After(&cursor), PAGE) else {
                assert!(text != self.honest || named != Some(*user));
                continue;
            };
            assert_eq!(named, Some(*user), "{text}");
            // Balances are told to whoever had told them to us, and to nobody else.
            let mut at = own.iter();
            let is_own = |line: &StatementLine| at.any(|own| own.line == line.line);
            assert!(page.lines.iter().all(is_own), "{text}: {:?}", page.lines);
            if text == self.honest {
                assert_eq!(page.lines, own[PAGE as usize..2 * PAGE as usize]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_check_compares_with_is_there() {
        assert!(KNOWN.with(|known| {
            known.as_ref().is_some_and(|known| known.lines.iter().all(|lines| lines.len() == 9))
        }));
    }
}
