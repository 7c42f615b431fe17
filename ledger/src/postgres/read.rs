//! Reads what is stored.

use super::budget_keys::{cell, text};
use super::link::Link;
use super::respelled::{FLOW, LINES};
use super::session::Session;
use super::shape::Shape;
use super::stored_orders::{order, orders_of_number, orders_or_namesakes, status};
use super::{act_tables, archive, chain, closed, withdrawals};
use crate::archive::{ArchiveFilter, Archived, Replay};
use crate::chain::{Names, Page, Row as Sealed, Seal, Unsealed};
use crate::contract::{Lines, Read};
use crate::error::LedgerError;
use crate::held::HeldByTime;
use crate::journal::{BUDGET, USER, flow_kind};
use crate::key::{OrderId, WithdrawalId, number_of};
use crate::model::{Awaits, BudgetState, OrderLine, ReservedOrder, Settlement, WhichBudgets};
use crate::reconcile::{self, Reconciliation, SETTLEMENTS};
use crate::withdrawal::{HeldFor, StoredWithdrawal};
use std::cell::RefMut;
use std::collections::{HashMap, VecDeque};
use windfall_contract::accounts::{FlowLine, StoredOrder};

/// Reserved orders, by key.
fn reserved(
    session: &Session,
    awaits: Option<Awaits>,
    before_ms: i64,
    after: &str,
    limit: u32,
) -> Result<Vec<ReservedOrder>, LedgerError> {
    let rows = session.query(
        "SELECT o.order_key, o.user_id, a.name, s.name, b.name, o.amount, o.status, o.reason, o.created_ms, \
         o.took_ms, o.payer FROM orders o JOIN programs p ON p.id = o.program JOIN names a ON a.id = p.activity \
         JOIN names s ON s.id = p.scene JOIN names b ON b.id = p.asset \
         WHERE o.status = 0 AND o.created_ms < $1 AND o.order_key > $2 AND ($4::smallint IS NULL OR o.reason = $4) \
         ORDER BY o.order_key LIMIT $3",
        &[&before_ms, &after, &i64::from(limit), &awaits.map(|awaits| i16::try_from(awaits.code()).unwrap_or(0))],
    )?;
    rows.iter()
        .map(|row| {
            let awaits = Awaits::of_code(i64::from(cell::<i16>(row, 7)?));
            Ok(ReservedOrder { order: order(row)?, awaits })
        })
        .collect()
}

fn balances(session: &Session, user_id: i64) -> Result<Vec<(String, i64)>, LedgerError> {
    let kind = i16::try_from(USER).unwrap_or(0);
    // The key starts with kind and bonus type: one look-up per bonus type, of which there are few.
    let rows = session.query(
        "SELECT n.name, a.balance FROM (SELECT DISTINCT asset FROM programs) p \
         JOIN accounts a ON a.kind = $1 AND a.asset = p.asset AND a.holder = $2 \
         JOIN names n ON n.id = a.asset ORDER BY n.name",
        &[&kind, &user_id],
    )?;
    rows.iter().map(|row| Ok((cell(row, 0)?, cell(row, 1)?))).collect()
}

/// Walks the chain of each of a user's accounts, at most `limit` steps, and merges them from the newest on, by time
/// and then by number.
fn flow(session: &Session, user_id: i64, limit: usize) -> Result<Vec<FlowLine>, LedgerError> {
    let small = |kind: i64| i16::try_from(kind).unwrap_or(0);
    let steps = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = session.query(FLOW, &[&small(USER), &user_id, &steps, &small(BUDGET)])?;
    let mut chains: Vec<VecDeque<FlowLine>> = Vec::new();
    for row in &rows {
        let transfer: i64 = cell(row, 1)?;
        let reference: Option<String> = cell(row, 2)?;
        let Some(trade_no) = reference.as_deref().map(|key| number_of(key).to_owned()) else {
            return Err(LedgerError::Damaged(format!("transfer {transfer} of user {user_id} is missing")));
        };
        let (bonus_type, activity) = (cell(row, 0)?, cell(row, 3)?);
        let (amount, time_ms) = (cell(row, 4)?, cell(row, 5)?);
        let (debit, credit): (i16, i16) = (cell(row, 6)?, cell(row, 7)?);
        let kind = flow_kind(i64::from(debit), i64::from(credit));
        let line = FlowLine { transfer, kind, trade_no, bonus_type, activity, amount, time_ms };
        let own = chains
            .last_mut()
            .filter(|chain| chain.back().is_some_and(|last| last.bonus_type == line.bonus_type));
        match own {
            Some(chain) => chain.push_back(line),
            None => chains.push(VecDeque::from([line])),
        }
    }
    let mut lines = Vec::new();
    while lines.len() < limit {
        // Within an account the chain's order holds. Of several accounts numbers do not tell which was moved last: writers
        // draw theirs in blocks.
        let newest =
            chains.iter_mut().max_by_key(|chain| chain.front().map(|line| (line.time_ms, line.transfer)));
        let Some(line) = newest.and_then(VecDeque::pop_front) else { break };
        lines.push(line);
    }
    Ok(lines)
}

/// Reads budgets; the condition says which.
macro_rules! budgets_where {
    ($condition:literal) => {
        concat!(
            "SELECT CASE a.name WHEN '' THEN '*' ELSE a.name END, CASE s.name WHEN '' THEN '*' ELSE s.name END, \
             CASE b.name WHEN '' THEN '*' ELSE b.name END, \
             p.budgeted, sum(h.total)::bigint, sum(h.used)::bigint, sum(h.reserved)::bigint, \
             CASE WHEN p.strict THEN 0 ELSE count(*) END \
             FROM programs p JOIN budget_shards h ON h.program = p.id JOIN names a ON a.id = p.activity \
             JOIN names s ON s.id = p.scene JOIN names b ON b.id = p.asset WHERE ",
            $condition,
            " GROUP BY p.id, a.name, s.name, b.name, p.budgeted, p.strict ORDER BY a.name, s.name, b.name"
        )
    };
}

fn budgets(session: &Session, which: WhichBudgets) -> Result<Vec<BudgetState>, LedgerError> {
    let sql = match which {
        WhichBudgets::All => budgets_where!("a.name <> '' OR p.budgeted"),
        WhichBudgets::Set => budgets_where!("p.budgeted"),
    };
    let rows = session.query(sql, &[])?;
    rows.iter()
        .map(|row| {
            let budgeted: bool = cell(row, 3)?;
            let total: i64 = cell(row, 4)?;
            Ok(BudgetState {
                activity: cell(row, 0)?,
                scene: cell(row, 1)?,
                bonus_type: cell(row, 2)?,
                total: budgeted.then_some(total),
                used: cell(row, 5)?,
                reserved: cell(row, 6)?,
                shards: u32::try_from(cell::<i64>(row, 7)?).unwrap_or(u32::MAX),
            })
        })
        .collect()
}

/// Every table, for reading each row of it.
const TABLES: [&str; 13] = [
    "names",
    "programs",
    "budget_shards",
    "orders",
    "transfers",
    "accounts",
    "archive",
    "replays",
    "withdrawals",
    "seals",
    "seal_pages",
    "rules_version",
    "bare_orders",
];
/// Those that older versions do not have, and those of version 3's own.
const NOT_OF_5: [&str; 1] = ["bare_orders"];
const NOT_OF_3: [&str; 2] = ["seals", "seal_pages"];
const OF_3: [&str; 1] = ["withdrawal_moves"];

impl Link {
    /// The connection, for what only a journal can answer.
    pub(super) fn journal(&self) -> Result<RefMut<'_, Session>, LedgerError> {
        let session = self.session()?;
        session.need_journal()?;
        Ok(session)
    }

    /// Runs reads that must see one moment and may take long.
    fn at_one_moment<T>(
        &self,
        reads: impl FnOnce(&Session) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        let session = self.session()?;
        if self.is_snapshot() {
            return reads(&session);
        }
        let options = &self.address.options;
        session.batch(&format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = {}",
            options.read_timeout_ms
        ))?;
        session.set_timeout(options.read_timeout());
        let done = reads(&session);
        session.set_timeout(options.answer_timeout());
        if let Err(error) = session.batch("ROLLBACK") {
            session.give_up();
            tracing::debug!(%error, "a reading transaction could not be ended; its connection is closed");
        }
        done
    }
}

impl Read for Link {
    fn lines(&self) -> Result<Lines<'_>, LedgerError> {
        let mut extra = HashMap::new();
        let closed = closed::place(&*self.session()?)?;
        for row in &self.session()?.query_once(&reconcile::extra_transfers(closed))? {
            extra.insert(text(row, 0)?.to_owned(), u32::try_from(cell::<i64>(row, 1)?).unwrap_or(u32::MAX));
        }
        Ok(Box::new(OrderLines {
            link: self,
            extra,
            page: VecDeque::new(),
            last: String::new(),
            done: false,
        }))
    }

    fn balance(&self, user_id: i64, bonus_type: &str) -> Result<i64, LedgerError> {
        let all = balances(&*self.session()?, user_id)?;
        Ok(all.into_iter().find(|(name, _)| name == bonus_type).map_or(0, |(_, balance)| balance))
    }

    fn balances(&self, user_id: i64) -> Result<Vec<(String, i64)>, LedgerError> {
        balances(&*self.session()?, user_id)
    }

    fn flow(&self, user_id: i64, limit: usize) -> Result<Vec<FlowLine>, LedgerError> {
        flow(&*self.session()?, user_id, limit)
    }

    fn orders(&self, ids: &[OrderId<'_>]) -> Result<Vec<Option<StoredOrder>>, LedgerError> {
        orders_or_namesakes(&*self.session()?, ids)
    }

    fn orders_of_number(&self, trade_no: &str) -> Result<Vec<StoredOrder>, LedgerError> {
        orders_of_number(&*self.session()?, trade_no)
    }

    fn reserved(
        &self,
        awaits: Option<Awaits>,
        before_ms: i64,
        after: &str,
        limit: u32,
    ) -> Result<Vec<ReservedOrder>, LedgerError> {
        reserved(&*self.session()?, awaits, before_ms, after, limit)
    }

    fn withdrawal(&self, id: WithdrawalId<'_>) -> Result<Option<StoredWithdrawal>, LedgerError> {
        withdrawals::one(&*self.session()?, id)
    }

    fn held_withdrawals(
        &self,
        which: HeldFor,
        before_ms: i64,
        after: &str,
        limit: u32,
    ) -> Result<Vec<StoredWithdrawal>, LedgerError> {
        withdrawals::held(&*self.session()?, which, before_ms, after, limit)
    }

    fn held_by_time(&self, which: &HeldByTime) -> Result<Vec<StoredWithdrawal>, LedgerError> {
        withdrawals::by_time(&*self.session()?, which)
    }

    fn budgets(&self, which: WhichBudgets) -> Result<Vec<BudgetState>, LedgerError> {
        budgets(&*self.session()?, which)
    }

    fn settlements(&self) -> Result<Vec<Settlement>, LedgerError> {
        let rows = self.session()?.query_once(&format!(
            "SELECT s.payer, s.bonus_type, s.amount::bigint FROM ({SETTLEMENTS}) AS s(payer, bonus_type, amount) \
             ORDER BY 1, 2"
        ))?;
        rows.iter()
            .map(|row| {
                Ok(Settlement { payer: cell(row, 0)?, bonus_type: cell(row, 1)?, amount: cell(row, 2)? })
            })
            .collect()
    }

    fn archive_list(&self, filter: &ArchiveFilter) -> Result<Vec<Archived>, LedgerError> {
        archive::list(&*self.session()?, filter)
    }

    fn archived(&self, id: i64) -> Result<Option<Archived>, LedgerError> {
        archive::one(&*self.session()?, id)
    }

    fn replays(&self, archive_id: i64) -> Result<Vec<Replay>, LedgerError> {
        archive::replays(&*self.session()?, archive_id)
    }

    fn seals(&self, after: i64, limit: u32) -> Result<Vec<Seal>, LedgerError> {
        chain::seals(&*self.journal()?, after, limit)
    }

    fn last_seal(&self) -> Result<Option<Seal>, LedgerError> {
        chain::last_seal(&*self.journal()?)
    }

    fn seal_pages(&self, seal: i64) -> Result<Vec<Page>, LedgerError> {
        chain::pages(&*self.journal()?, seal)
    }

    fn sealed_rows(&self, from_at: i64, to_at: i64) -> Result<Vec<Sealed>, LedgerError> {
        chain::rows(&*self.journal()?, from_at, to_at, i64::MAX)
    }

    fn unsealed(&self, from_at: i64) -> Result<Unsealed, LedgerError> {
        chain::unsealed(&*self.journal()?, from_at)
    }

    fn names_of(&self, rows: &[Sealed]) -> Result<Names, LedgerError> {
        chain::names(&*self.journal()?, rows)
    }

    fn row(&self, id: i64) -> Result<Option<Sealed>, LedgerError> {
        chain::by_id(&*self.journal()?, id)
    }

    fn reconcile(&self) -> Result<Reconciliation, LedgerError> {
        self.at_one_moment(|session| {
            let has_acts = act_tables::are_there(session)?;
            let closed = closed::place(session)?;
            reconcile::reconcile(has_acts, closed, |sql, columns| {
                let rows = session.query_once(sql)?;
                let row = rows.first().ok_or_else(|| LedgerError::Sql("a count is missing".into()))?;
                (0..columns).map(|at| Ok(cell::<i64>(row, at)?.unsigned_abs())).collect()
            })
        })
    }

    fn check(&self) -> Result<(), LedgerError> {
        self.at_one_moment(|session| {
            let (three, keyed) = (session.shape() == Shape::Three, session.shape() == Shape::Keyed);
            let own = TABLES.into_iter().filter(|table| {
                (!three || !NOT_OF_3.contains(table)) && (keyed || !NOT_OF_5.contains(table))
            });
            for table in own.chain(OF_3.into_iter().filter(|_| three)) {
                // As text, so that every value of every row is looked at.
                session.query_stored(&format!("SELECT sum(length(t::text)) FROM {table} t")).map_err(
                    |error| match error {
                        LedgerError::Sql(what) => LedgerError::Damaged(format!("{table}: {what}")),
                        other => other,
                    },
                )?;
            }
            Ok(())
        })
    }
}

/// Iterates over orders, a page at a time. Ends after the first error.
struct OrderLines<'r> {
    link: &'r Link,
    extra: HashMap<String, u32>,
    page: VecDeque<OrderLine>,
    last: String,
    done: bool,
}

const PAGE: i64 = 2_048;

impl OrderLines<'_> {
    fn fill(&mut self) -> Result<(), LedgerError> {
        let rows = self.link.session()?.query(LINES, &[&self.last, &PAGE])?;
        for row in &rows {
            let key = text(row, 0)?;
            let status = status(row, 4, key)?;
            let own = u32::from(cell::<bool>(row, 6)?);
            let credits = own.saturating_add(self.extra.get(key).copied().unwrap_or(0));
            let (user_id, bonus_type, amount) = (cell(row, 1)?, cell(row, 2)?, cell(row, 3)?);
            let (activity, trade_no) = (cell(row, 7)?, number_of(key).to_owned());
            self.page.push_back(OrderLine {
                activity,
                trade_no,
                user_id,
                bonus_type,
                amount,
                status,
                credits,
            });
            key.clone_into(&mut self.last);
        }
        self.done = rows.len() < usize::try_from(PAGE).unwrap_or(usize::MAX);
        Ok(())
    }
}

impl Iterator for OrderLines<'_> {
    type Item = Result<OrderLine, LedgerError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.page.is_empty()
            && !self.done
            && let Err(error) = self.fill()
        {
            self.done = true;
            self.page.clear();
            return Some(Err(error));
        }
        self.page.pop_front().map(Ok)
    }
}
