//! The oracle's own eyes on PostgreSQL: plain queries over the tables of the ledger.

use crate::ground::PREFIX;
use anyhow::{Context, Result};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls, Row};

/// How long an answer may take. A frozen server must not hang the soak.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection that is made when it is needed.
pub struct Sql {
    url: String,
    runtime: Runtime,
    client: Option<Client>,
}

/// An order as the ledger has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderRow {
    /// The order number.
    pub trade_no: String,
    /// The user's id.
    pub user_id: i64,
    /// The activity that pays.
    pub activity: String,
    /// The bonus type.
    pub bonus_type: String,
    /// The amount.
    pub amount: i64,
    /// 0: its budget is held, 1: credited, 2: rejected.
    pub status: i16,
    /// Why it was rejected: 1: no budget, 2: the downstream refused, 3: released.
    pub reason: i16,
}

/// A transfer as the ledger has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferRow {
    /// The order number.
    pub trade_no: String,
    /// The user's id.
    pub user_id: i64,
    /// The bonus type.
    pub bonus_type: String,
    /// The amount.
    pub amount: i64,
    /// When it was committed, by the clock of PostgreSQL, Unix milliseconds.
    pub committed_ms: u64,
}

/// A withdrawal as the ledger has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WithdrawalRow {
    /// Its id, which the callers of the soak take from the order.
    pub id: String,
    /// The user's id.
    pub user_id: i64,
    /// The bonus type.
    pub bonus_type: String,
    /// The amount.
    pub amount: i64,
    /// 0: held, 1: paid, 2: given back.
    pub status: i16,
    /// Who pays it out.
    pub payer: String,
}

/// A budget, its rows summed up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetRow {
    /// The bonus type.
    pub bonus_type: String,
    /// The total that may be given out.
    pub total: i64,
    /// The amount that was given out.
    pub used: i64,
    /// The amount that is held.
    pub reserved: i64,
}

const ORDERS: &str = "SELECT split_part(o.order_key, ' ', 1), o.user_id, a.name, t.name, o.amount, o.status, o.reason FROM orders o \
    JOIN programs p ON p.id = o.program JOIN names a ON a.id = p.activity JOIN names t ON t.id = p.asset";
/// Transfers that paid orders: what a budget gave, at once or after it was held. One to a payer is of its order's user.
const TRANSFERS: &str = "SELECT split_part(x.reference, ' ', 1), coalesce(o.user_id, x.credit_holder), t.name, x.amount, \
    (extract(epoch FROM pg_xact_commit_timestamp(x.xmin)) * 1000)::bigint FROM transfers x \
    JOIN names t ON t.id = x.asset LEFT JOIN orders o ON x.credit <> 0 AND o.order_key = x.reference \
    WHERE x.debit = 2 AND x.credit <> 1 AND x.kind IN (0, 2)";
/// The same in tables of version 3, which stay what they are until the journal is made.
const TRANSFERS_3: &str = "SELECT x.trade_no, x.user_id, t.name, x.amount, \
    (extract(epoch FROM pg_xact_commit_timestamp(x.xmin)) * 1000)::bigint FROM transfers x \
    JOIN programs p ON p.id = x.program JOIN names t ON t.id = p.asset";
const VERSION: &str = "SELECT max(version) FROM schema_version";
const BUDGETS: &str = "SELECT t.name, sum(b.total)::bigint, sum(b.used)::bigint, sum(b.reserved)::bigint \
    FROM budget_shards b JOIN programs p ON p.id = b.program JOIN names t ON t.id = p.asset \
    WHERE p.budgeted GROUP BY t.name";
const ARCHIVE: &str = "SELECT reason, coalesce(trade_no, ''), detail FROM archive";
const BALANCES: &str = "SELECT x.holder, t.name, x.balance FROM accounts x JOIN names t ON t.id = x.asset \
    WHERE x.kind = 0";
const WITHDRAWALS: &str = "SELECT split_part(w.withdrawal_key, ' ', 1), w.user_id, t.name, w.amount, w.status, w.payer FROM withdrawals w \
    JOIN names t ON t.id = w.asset";
const DECIDED: &str = "SELECT count(*) FROM orders WHERE status <> 0";

/// A statement as tables of this version take it: before version 6 the number or the id alone is the key.
fn spelled(sql: &str, version: i64) -> String {
    if version < 6 {
        sql.replace("order_key", "trade_no").replace("withdrawal_key", "id")
    } else {
        sql.to_owned()
    }
}

impl Sql {
    /// Eyes on the database at this address.
    pub fn new(url: String) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { url, runtime, client: None })
    }

    /// The version of the tables, which stays what it is until they are migrated.
    fn version(&mut self) -> Result<i64> {
        Ok(self.rows(VERSION, PATIENCE)?.first().context("no row")?.try_get(0)?)
    }

    /// Every order.
    pub fn orders(&mut self) -> Result<Vec<OrderRow>> {
        let of_row = |row: &Row| {
            Ok(OrderRow {
                trade_no: row.try_get(0)?,
                user_id: row.try_get(1)?,
                activity: row.try_get(2)?,
                bonus_type: row.try_get(3)?,
                amount: row.try_get(4)?,
                status: row.try_get(5)?,
                reason: row.try_get(6)?,
            })
        };
        let orders = spelled(ORDERS, self.version()?);
        self.rows(&orders, PATIENCE)?.iter().map(of_row).collect()
    }

    /// Every transfer.
    pub fn transfers(&mut self) -> Result<Vec<TransferRow>> {
        let of_row = |row: &Row| {
            Ok(TransferRow {
                trade_no: row.try_get(0)?,
                user_id: row.try_get(1)?,
                bonus_type: row.try_get(2)?,
                amount: row.try_get(3)?,
                committed_ms: row.try_get::<_, i64>(4)?.try_into()?,
            })
        };
        let version = self.version()?;
        let transfers = spelled(if version > 3 { TRANSFERS } else { TRANSFERS_3 }, version);
        self.rows(&transfers, PATIENCE)?.iter().map(of_row).collect()
    }

    /// Every budget that is set.
    pub fn budgets(&mut self, patience: Duration) -> Result<Vec<BudgetRow>> {
        let of_row = |row: &Row| {
            Ok(BudgetRow {
                bonus_type: row.try_get(0)?,
                total: row.try_get(1)?,
                used: row.try_get(2)?,
                reserved: row.try_get(3)?,
            })
        };
        self.rows(BUDGETS, patience)?.iter().map(of_row).collect()
    }

    /// Reason, order number and detail of every archive entry.
    pub fn archive(&mut self) -> Result<Vec<(String, String, String)>> {
        let of_row = |row: &Row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?));
        self.rows(ARCHIVE, PATIENCE)?.iter().map(of_row).collect()
    }

    /// User, bonus type and balance of every account of a user.
    pub fn balances(&mut self) -> Result<Vec<(i64, String, i64)>> {
        let of_row = |row: &Row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?));
        self.rows(BALANCES, PATIENCE)?.iter().map(of_row).collect()
    }

    /// Every withdrawal.
    pub fn withdrawals(&mut self) -> Result<Vec<WithdrawalRow>> {
        let of_row = |row: &Row| {
            Ok(WithdrawalRow {
                id: row.try_get(0)?,
                user_id: row.try_get(1)?,
                bonus_type: row.try_get(2)?,
                amount: row.try_get(3)?,
                status: row.try_get(4)?,
                payer: row.try_get(5)?,
            })
        };
        let withdrawals = spelled(WITHDRAWALS, self.version()?);
        self.rows(&withdrawals, PATIENCE)?.iter().map(of_row).collect()
    }

    /// How many orders are credited or rejected.
    pub fn decided(&mut self, patience: Duration) -> Result<u64> {
        let rows = self.rows(DECIDED, patience)?;
        Ok(rows.first().context("no row")?.try_get::<_, i64>(0)?.try_into()?)
    }

    /// Removes one archive entry: the control of an entry that is dropped.
    pub fn drop_archive_entry(&mut self) -> Result<()> {
        let one = "DELETE FROM archive WHERE id = (SELECT max(id) FROM archive) RETURNING id";
        self.rows("DELETE FROM replays", PATIENCE)?;
        let gone = self.rows(one, PATIENCE)?;
        gone.first().context("the archive is empty, so that no entry can be dropped")?;
        Ok(())
    }

    /// Asks again on a new connection where the old one has died meanwhile.
    fn rows(&mut self, query: &str, patience: Duration) -> Result<Vec<Row>> {
        let had_connection = self.client.is_some();
        match self.rows_once(query, patience) {
            Err(_) if had_connection => self.rows_once(query, patience),
            result => result,
        }
    }

    fn rows_once(&mut self, query: &str, patience: Duration) -> Result<Vec<Row>> {
        let Self { url, runtime, client } = self;
        let taken = client.take();
        let answer = runtime.block_on(async {
            let work = async {
                let client = match taken {
                    Some(client) => client,
                    None => connect(url).await?,
                };
                let rows = client.query(query, &[]).await?;
                anyhow::Ok((client, rows))
            };
            tokio::time::timeout(patience, work).await.context("PostgreSQL does not answer")?
        });
        let (kept, rows) = answer?;
        *client = Some(kept);
        Ok(rows)
    }
}

async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    // It ends with the client, and is driven while a query runs. That it breaks is seen by the next query.
    tokio::spawn(async move { connection.await.unwrap_or_default() });
    client.batch_execute(&format!("SET search_path TO \"{PREFIX}\"")).await?;
    Ok(client)
}
