//! The other side of the check: what the ledger, the archive and the downstream's book say.

use super::{Book, Figures, Verdict};
use crate::data::place;
use anyhow::{Context, Result};
use std::path::Path;
use windfall_reward_service::fake::FakeBook;
use windfall_reward_service::ledger::{ArchiveFilter, LedgerReader};

/// The types that the badge downstream pays.
pub const BOOKED_TYPES: [&str; 1] = ["badge"];

/// Checks a data directory whose pipeline has closed.
pub fn check(data: &Path) -> Result<Verdict> {
    let mut book = Book::read(data)?;
    let ledger = LedgerReader::open(place::ledger(data)).context("the ledger cannot be read")?;
    for line in ledger.orders()? {
        let line = line.context("the ledger cannot be read")?;
        book.ledger_row(&line.trade_no, line.user_id, &line.bonus_type, line.amount, line.credits);
    }
    read_archive(&mut book, &ledger)?;
    let payments = place::badge_book(data);
    if payments.exists() {
        for payment in FakeBook::read(&payments).context("the downstream's book cannot be read")? {
            book.paid(&payment.trade_no, payment.user_id, payment.amount);
        }
    }
    check_sums(&mut book, &ledger)?;
    Ok(book.verdict(&BOOKED_TYPES))
}

fn read_archive(book: &mut Book, ledger: &LedgerReader) -> Result<()> {
    let mut filter = ArchiveFilter { open: true, limit: 1_000, ..ArchiveFilter::default() };
    loop {
        let page = ledger.archive_list(&filter)?;
        let Some(last) = page.last() else { return Ok(()) };
        filter.after = last.id;
        for entry in &page {
            // A conflict is another event under a number that is taken: the number's own order is judged by itself.
            if let Some(trade_no) = entry.trade_no.as_deref().filter(|_| entry.reason != "conflict") {
                book.archived(trade_no);
            }
        }
    }
}

/// What no single order shows: double entry, and budgets.
fn check_sums(book: &mut Book, ledger: &LedgerReader) -> Result<()> {
    let sums = ledger.reconcile()?;
    let wrong = [
        ("credited orders without a transfer", sums.orders_without_transfer),
        ("transfers without a credited order", sums.transfers_without_order),
        ("transfers that differ from their order", sums.mismatched_transfers),
        ("accounts whose balance is not the sum of their transfers", sums.wrong_balances),
        ("assets that do not sum to zero", sums.unbalanced_assets),
        ("budgets whose used part is not the sum of their orders", sums.wrong_used),
        ("budgets whose reserved part is not the sum of their orders", sums.wrong_reserved),
    ];
    for (what, count) in wrong {
        if count > 0 {
            let finding = format!("the ledger has {count} {what}");
            book.wrong("(ledger)", count, |figures: &mut Figures| &mut figures.mismatched, finding);
        }
    }
    for budget in ledger.budgets()? {
        let Some(total) = budget.total else { continue };
        if budget.used.saturating_add(budget.reserved) > total {
            let finding = format!(
                "budget {}/{}/{}: {} used and {} reserved of {total}",
                budget.activity, budget.scene, budget.bonus_type, budget.used, budget.reserved
            );
            book.wrong(&budget.bonus_type, 1, |figures: &mut Figures| &mut figures.budget_over, finding);
        }
    }
    Ok(())
}
