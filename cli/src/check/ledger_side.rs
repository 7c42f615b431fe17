//! The other side of the check: what the ledger, the archive and the downstream's book say.

use super::{Book, Content, Figures, Verdict};
use crate::place;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::Path;
use windfall_config::ChangeRules;
use windfall_connectors::fake::FakeBook;
use windfall_ledger::{ArchiveFilter, LedgerReader};
use windfall_proto::event::EventRef;

/// The types that the badge downstream pays.
pub const BOOKED_TYPES: [&str; 1] = ["badge"];

/// Checks a data directory whose pipeline has closed.
pub fn check(data: &Path, rules: &dyn ChangeRules, ledger: &LedgerReader) -> Result<Verdict> {
    let mut book = Book::read(data)?;
    ledger.check().context("the ledger is damaged")?;
    for line in ledger.orders()? {
        let line = line.context("the ledger cannot be read")?;
        let content = Content { user_id: line.user_id, bonus_type: &line.bonus_type, amount: line.amount };
        book.ledger_row(&line.trade_no, content, line.credits);
    }
    read_archive(&mut book, ledger)?;
    let payments = place::badge_book(data);
    if payments.exists() {
        for payment in FakeBook::read(&payments).with_context(|| {
            format!("the downstream's book {} is damaged; restore it from a backup", payments.display())
        })? {
            let content =
                Content { user_id: payment.user_id, bonus_type: &payment.bonus_type, amount: payment.amount };
            // What it was given is the order's key, whose last word is its number.
            let trade_no = payment.trade_no.rsplit(' ').next().unwrap_or(&payment.trade_no);
            book.paid(trade_no, content);
        }
    }
    check_sums(&mut book, ledger, rules)?;
    Ok(book.verdict(&BOOKED_TYPES))
}

fn read_archive(book: &mut Book, ledger: &LedgerReader) -> Result<()> {
    let mut filter = ArchiveFilter { open: true, limit: 1_000, ..ArchiveFilter::default() };
    loop {
        let page = ledger.archive_list(&filter)?;
        let Some(last) = page.last() else { return Ok(()) };
        filter.after = last.id;
        for entry in &page {
            let Some(trade_no) = entry.trade_no.as_deref() else { continue };
            let event = EventRef::parse(&entry.payload).ok();
            let content = event.as_ref().map(|event| Content {
                user_id: event.user_id,
                bonus_type: event.bonus_type,
                amount: event.amount,
            });
            match content {
                // The number's own order is judged by itself.
                Some(content) if entry.reason == "conflict" => book.conflict(trade_no, content),
                content => {
                    let given_up = matches!(entry.reason.as_str(), "max_failures" | "unknown_type");
                    book.archived(trade_no, content, !given_up && entry.replay.is_none());
                }
            }
        }
    }
}

/// Checks what no single order shows: double entry, and budgets.
fn check_sums(book: &mut Book, ledger: &LedgerReader, rules: &dyn ChangeRules) -> Result<()> {
    let sums = ledger.reconcile()?;
    let wrong = [
        ("credited orders without a transfer", sums.orders_without_transfer),
        ("transfers without a credited order", sums.transfers_without_order),
        ("transfers that differ from their order", sums.mismatched_transfers),
        ("accounts whose balance is not the sum of their transfers", sums.wrong_balances),
        ("assets that do not sum to zero", sums.unbalanced_bonus_types),
        ("orders whose pending transfers are not what their status says", sums.wrong_pending),
        ("withdrawals whose movements are not those that their status says", sums.wrong_withdrawals),
        ("movements of withdrawals that do not exist", sums.moves_without_withdrawal),
        ("users' accounts below 0", sums.overdrawn),
        ("budgets whose total is not what funded them", sums.wrong_totals),
        ("budgets whose used part is not the sum of their orders", sums.wrong_used),
        ("reversals and adjustments that are not those of operators' acts", sums.wrong_acts),
        ("budgets beyond their total", sums.budgets_over),
        ("budgets whose reserved part is not the sum of their orders", sums.wrong_reserved),
        ("budgets whose transfers do not pay what their detached orders were credited", sums.wrong_detached),
    ];
    for (what, count) in wrong {
        if count > 0 {
            let finding = format!("the ledger has {count} {what}");
            book.wrong("(ledger)", count, |figures: &mut Figures| &mut figures.mismatched, finding);
        }
    }
    let allowed = budgets_ever(rules)?;
    for budget in ledger.budgets()? {
        let key = (budget.activity.clone(), budget.scene.clone(), budget.bonus_type.clone());
        // The rules' own figure, not the ledger's copy of it.
        let Some(total) = allowed.get(&key).copied() else { continue };
        if budget.used.saturating_add(budget.reserved) > total {
            let finding = format!(
                "budget {}/{}/{}: {} used and {} reserved; the rules never allowed more than {total}",
                budget.activity, budget.scene, budget.bonus_type, budget.used, budget.reserved
            );
            book.wrong(&budget.bonus_type, 1, |figures: &mut Figures| &mut figures.budget_over, finding);
        }
    }
    Ok(())
}

type BudgetKey = (String, String, String);

/// The largest total that any version of the rules allowed, by activity, scene and type.
fn budgets_ever(store: &dyn ChangeRules) -> Result<BTreeMap<BudgetKey, i64>> {
    let documents = store.history()?.changes.into_iter().map(|change| change.after).chain([store.show()?]);
    let mut allowed = BTreeMap::new();
    for document in documents {
        // A document that does not validate was never in force.
        let Ok(rules) = windfall_config::parse_rules(&document, None) else { continue };
        for budget in rules.budgets {
            let total = allowed.entry((budget.activity, budget.scene, budget.bonus_type)).or_insert(0);
            *total = budget.total.max(*total);
        }
    }
    Ok(allowed)
}
