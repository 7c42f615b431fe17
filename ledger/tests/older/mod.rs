//! A process of version 3, by the statements that it sends: those of the commit that `tools/soak/earlier-commit` names. It
//! decides one order at a time, and its budget is never short.

use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, NoTls, Statement, Transaction};

const VERSION: &str = "SELECT version FROM rules_version";
const INSERT: &str = "INSERT INTO orders \
    (trade_no, user_id, program, amount, transfer, created_ms, payer, status, reason, took_ms) \
    SELECT w.*, $8::smallint, $9::smallint, $10::bigint FROM unnest($1::text[], $2::bigint[], $3::bigint[], \
    $4::bigint[], $5::bigint[], $6::bigint[], $7::text[]) AS w \
    ON CONFLICT (trade_no) DO NOTHING RETURNING trade_no";
const LOCK: &str = "SELECT o.user_id, o.amount, o.status FROM orders o WHERE o.trade_no = ANY($1) ORDER BY o.trade_no \
    FOR NO KEY UPDATE OF o";
const CHANGE: &str = "UPDATE orders o SET status = w.status, reason = w.reason, transfer = w.transfer, \
    took_ms = w.took_ms, payer = coalesce(w.payer, o.payer) \
    FROM unnest($1::text[], $2::smallint[], $3::smallint[], $4::bigint[], $5::bigint[], $6::text[]) \
    AS w(trade_no, status, reason, transfer, took_ms, payer) WHERE o.trade_no = w.trade_no";
const TAKE: &str = "UPDATE budget_shards h SET used = h.used + w.used, reserved = h.reserved + w.reserved \
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) AS w(program, shard, used, reserved) \
    WHERE h.program = w.program AND h.shard = w.shard AND NOT h.careful \
    AND h.used + h.reserved + w.used + w.reserved <= h.total RETURNING h.program";
const LOCK_SHARDS: &str = "SELECT shard FROM budget_shards WHERE program = $1 ORDER BY shard FOR UPDATE";
const SETTLE: &str = "UPDATE budget_shards h SET reserved = h.reserved - $2, used = h.used + $3 \
    WHERE h.program = $1 AND NOT h.careful AND h.shard = \
    (SELECT shard FROM budget_shards WHERE program = $1 AND reserved >= $2 ORDER BY shard LIMIT 1)";
const ADD: &str = "INSERT INTO accounts (kind, asset, holder, balance, last, before) \
    SELECT w.*, 0 FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) AS w \
    ON CONFLICT (kind, asset, holder) DO UPDATE SET balance = accounts.balance + excluded.balance, \
    before = accounts.last, last = excluded.last RETURNING asset, holder, before";
const TRANSFER: &str = "INSERT INTO transfers (id, trade_no, user_id, program, amount, prev, time_ms) \
    SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], \
    $7::bigint[])";
const HOLD: &str = "INSERT INTO withdrawals (id, user_id, asset, amount, created_ms, payer, status, reason) \
    SELECT w.*, $7::smallint, '' \
    FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[]) AS w \
    ON CONFLICT (id) DO NOTHING RETURNING id";
const ACCOUNT: &str =
    "SELECT balance, last FROM accounts WHERE kind = 0 AND asset = $1 AND holder = $2 FOR NO KEY UPDATE";
const MOVE: &str = "UPDATE accounts a SET balance = w.balance, before = a.last, last = w.last \
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) AS w(asset, holder, balance, last) \
    WHERE a.kind = 0 AND a.asset = w.asset AND a.holder = w.holder";
const RECORD: &str = "INSERT INTO withdrawal_moves (id, withdrawal, kind, user_id, asset, amount, prev, time_ms) \
    SELECT * FROM unnest($1::bigint[], $2::text[], $3::smallint[], $4::bigint[], $5::bigint[], $6::bigint[], \
    $7::bigint[], $8::bigint[])";
const WITHDRAWAL: &str = "SELECT w.user_id, w.amount, w.status FROM withdrawals w WHERE w.id = ANY($1) ORDER BY w.id FOR NO KEY UPDATE OF w";
const END: &str = "UPDATE withdrawals w SET status = v.status, reason = v.reason, decided_ms = $4::bigint \
    FROM unnest($1::text[], $2::smallint[], $3::text[]) AS v(id, status, reason) WHERE w.id = v.id";

/// What came of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// It is committed.
    Yes,
    /// It was there before, or there is nothing to end.
    Before,
    /// A name of its statements is unknown: another version has changed the tables. Nothing is stored.
    Refused,
}

/// A budget key, as numbers.
#[derive(Debug, Clone, Copy)]
struct Key {
    budget_key: i64,
    activity: i64,
    bonus_type: i64,
}

/// A connection of such a process.
pub struct OlderProcess {
    runtime: Runtime,
    client: Client,
    io: JoinHandle<Result<(), Error>>,
    key: Key,
    row: i64,
}

impl OlderProcess {
    /// Connects to a ledger that has the one budget key `spring`, `rain`, `cash`. `row` tells its rows from others'.
    pub fn connect(url: &str, schema: &str, row: i64) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (client, io, key) = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
            let io = tokio::spawn(connection);
            client.batch_execute(&format!("SET search_path = {schema}; SET lock_timeout = '20s'")).await.unwrap();
            let key = "SELECT p.id, p.activity, p.asset FROM programs p JOIN names n ON n.id = p.asset WHERE n.name = 'cash'";
            let key = client.query_one(key, &[]).await.unwrap();
            let key = Key { budget_key: key.get(0), activity: key.get(1), bonus_type: key.get(2) };
            (client, io, key)
        });
        Self { runtime, client, io, key, row }
    }

    /// Credits an order.
    pub fn credit(&mut self, trade_no: &str, user: i64, amount: i64) -> Done {
        let (key, row) = (self.key, self.row);
        self.transact(async |tx| {
            let id = number(tx).await?;
            if !insert(tx, key, trade_no, user, amount, id, "").await? {
                return Ok(false);
            }
            assert_eq!(take(tx, key, row, amount, 0).await?, 1, "the budget is not short");
            pay(tx, key, row, id, trade_no, user, amount).await?;
            Ok(true)
        })
    }

    /// Reserves an order for a payer.
    pub fn reserve(&mut self, trade_no: &str, user: i64, amount: i64, payer: &str) -> Done {
        let (key, row) = (self.key, self.row);
        self.transact(async |tx| {
            if !insert(tx, key, trade_no, user, amount, 0, payer).await? {
                return Ok(false);
            }
            assert_eq!(take(tx, key, row, 0, amount).await?, 1, "the budget is not short");
            Ok(true)
        })
    }

    /// Posts or releases a reserved order.
    pub fn finish(&mut self, trade_no: &str, credited: bool) -> Done {
        let (key, row) = (self.key, self.row);
        self.transact(async |tx| {
            let found = tx.query_opt(LOCK, &[&vec![trade_no]]).await?;
            let Some(found) = found.filter(|row| row.get::<_, i16>(2) == 0) else { return Ok(false) };
            let (user, amount): (i64, i64) = (found.get(0), found.get(1));
            let id = if credited { number(tx).await? } else { 0 };
            let (status, reason): (i16, i16) = if credited { (1, 0) } else { (2, 2) };
            let params: [&(dyn ToSql + Sync); 6] =
                [&vec![trade_no], &vec![status], &vec![reason], &vec![id], &vec![9_i64], &vec![None::<&str>]];
            tx.execute(CHANGE, &params).await?;
            let used = if credited { amount } else { 0 };
            tx.query(LOCK_SHARDS, &[&key.budget_key]).await?;
            assert_eq!(tx.execute(SETTLE, &[&key.budget_key, &amount, &used]).await?, 1, "it is reserved");
            if credited {
                pay(tx, key, row, id, trade_no, user, amount).await?;
            }
            Ok(true)
        })
    }

    /// Holds a withdrawal, if the balance suffices.
    pub fn hold(&mut self, withdrawal: &str, user: i64, amount: i64) -> Done {
        let (key, row) = (self.key, self.row);
        self.transact(async |tx| {
            let params: [&(dyn ToSql + Sync); 7] = [
                &vec![withdrawal],
                &vec![user],
                &vec![key.bonus_type],
                &vec![amount],
                &vec![1_000_i64],
                &vec![""],
                &0_i16,
            ];
            if tx.query(HOLD, &params).await?.is_empty() {
                return Ok(false);
            }
            let Some(account) = tx.query_opt(ACCOUNT, &[&key.bonus_type, &user]).await? else {
                return Ok(false);
            };
            let (balance, last): (i64, i64) = (account.get(0), account.get(1));
            if balance < amount {
                return Ok(false);
            }
            let id = number(tx).await?;
            moved(tx, key, user, balance - amount, id).await?;
            record(tx, key, withdrawal, 0, user, amount, (last, id)).await?;
            add(tx, key, &[(-1, row + 1, amount, 0)]).await?;
            Ok(true)
        })
    }

    /// Ends a held withdrawal: paid, or given back.
    pub fn end(&mut self, withdrawal: &str, paid: bool) -> Done {
        let (key, row) = (self.key, self.row);
        self.transact(async |tx| {
            let found = tx.query_opt(WITHDRAWAL, &[&vec![withdrawal]]).await?;
            let Some(found) = found.filter(|row| row.get::<_, i16>(2) == 0) else { return Ok(false) };
            let (user, amount): (i64, i64) = (found.get(0), found.get(1));
            let id = number(tx).await?;
            let status: i16 = if paid { 1 } else { 2 };
            tx.execute(END, &[&vec![withdrawal], &vec![status], &vec!["no"], &2_000_i64]).await?;
            let mut last = 0;
            if !paid {
                let account = tx.query_one(ACCOUNT, &[&key.bonus_type, &user]).await?;
                last = account.get(1);
                moved(tx, key, user, account.get::<_, i64>(0) + amount, id).await?;
            }
            record(tx, key, withdrawal, status, user, amount, (last, id)).await?;
            let paid_out = paid.then_some((-2, row + 1, amount, 0));
            let others: Vec<_> = paid_out.into_iter().chain([(-1, row + 1, -amount, 0)]).collect();
            add(tx, key, &others).await?;
            Ok(true)
        })
    }

    /// Its statements that write what the journal replaces, prepared and planned as a process that has run for long has them.
    pub fn planned(&self) -> Vec<(&'static str, Statement)> {
        self.planned_of(&[INSERT, CHANGE, TAKE, SETTLE, TRANSFER, RECORD])
    }

    /// These statements likewise.
    pub fn planned_of(&self, statements: &[&'static str]) -> Vec<(&'static str, Statement)> {
        statements
            .iter()
            .map(|sql| {
                let statement = self.runtime.block_on(self.client.prepare(sql)).unwrap();
                for _ in 0..9 {
                    assert!(!self.refuses(&statement), "{sql}");
                }
                (*sql, statement)
            })
            .collect()
    }

    /// Whether a statement names what is not there any more. It writes nothing: it has no rows.
    pub fn refuses(&self, statement: &Statement) -> bool {
        let empty = |of: &Type| -> Box<dyn ToSql + Sync> {
            match *of {
                Type::TEXT_ARRAY => Box::new(Vec::<&str>::new()),
                Type::INT8_ARRAY => Box::new(Vec::<i64>::new()),
                Type::INT2_ARRAY => Box::new(Vec::<i16>::new()),
                Type::INT8 => Box::new(0_i64),
                Type::INT2 => Box::new(0_i16),
                Type::TEXT => Box::new(""),
                _ => panic!("{of}"),
            }
        };
        let values: Vec<_> = statement.params().iter().map(empty).collect();
        let params: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| &**value).collect();
        match self.runtime.block_on(self.client.execute(statement, &params)) {
            Ok(rows) => {
                assert_eq!(rows, 0, "it reads nothing either");
                false
            }
            Err(error) => {
                let code = error.code().map(|code| code.code().to_owned());
                assert!(matches!(code.as_deref(), Some("42703" | "42P01")), "{error:?}");
                true
            }
        }
    }

    /// Runs one transaction, again where another one was in the way.
    fn transact(&mut self, steps: impl AsyncFn(&Transaction<'_>) -> Result<bool, Error>) -> Done {
        let (runtime, client) = (&self.runtime, &mut self.client);
        loop {
            let done = runtime.block_on(async {
                let tx = client.transaction().await?;
                tx.query(VERSION, &[]).await?;
                let done = steps(&tx).await?;
                if done {
                    tx.commit().await?;
                } else {
                    tx.rollback().await?;
                }
                Ok::<_, Error>(done)
            });
            match done {
                Ok(true) => return Done::Yes,
                Ok(false) => return Done::Before,
                Err(error) => match error.code().map(|code| code.code().to_owned()).as_deref() {
                    Some("40P01" | "55P03") => {}
                    Some("42703" | "42P01") => return Done::Refused,
                    _ => panic!("{error:?}"),
                },
            }
        }
    }
}

impl Drop for OlderProcess {
    fn drop(&mut self) {
        self.io.abort();
    }
}

async fn number(tx: &Transaction<'_>) -> Result<i64, Error> {
    Ok(tx.query_one("SELECT nextval('transfer_blocks') * 4096", &[]).await?.get(0))
}

async fn insert(
    tx: &Transaction<'_>,
    key: Key,
    trade_no: &str,
    user: i64,
    amount: i64,
    transfer: i64,
    payer: &str,
) -> Result<bool, Error> {
    let status: i16 = if transfer == 0 { 0 } else { 1 };
    let took_ms = (transfer != 0).then_some(0_i64);
    let params: [&(dyn ToSql + Sync); 10] = [
        &vec![trade_no],
        &vec![user],
        &vec![key.budget_key],
        &vec![amount],
        &vec![transfer],
        &vec![1_000_i64],
        &vec![payer],
        &status,
        &0_i16,
        &took_ms,
    ];
    Ok(!tx.query(INSERT, &params).await?.is_empty())
}

async fn take(tx: &Transaction<'_>, key: Key, row: i64, used: i64, reserved: i64) -> Result<usize, Error> {
    let params: [&(dyn ToSql + Sync); 4] =
        [&vec![key.budget_key], &vec![row % 4], &vec![used], &vec![reserved]];
    Ok(tx.query(TAKE, &params).await?.len())
}

/// Moves accounts: each with its kind, its holder, the change and its last transfer. Returns the first one's former last.
async fn add(tx: &Transaction<'_>, key: Key, accounts: &[(i16, i64, i64, i64)]) -> Result<i64, Error> {
    let column = |of: fn(&(i16, i64, i64, i64)) -> i64| accounts.iter().map(of).collect::<Vec<i64>>();
    let kinds: Vec<i16> = accounts.iter().map(|one| one.0).collect();
    let bonus_types = vec![key.bonus_type; accounts.len()];
    let params: [&(dyn ToSql + Sync); 5] =
        [&kinds, &bonus_types, &column(|one| one.1), &column(|one| one.2), &column(|one| one.3)];
    Ok(tx.query(ADD, &params).await?[0].get(2))
}

async fn pay(
    tx: &Transaction<'_>,
    key: Key,
    row: i64,
    id: i64,
    trade_no: &str,
    user: i64,
    amount: i64,
) -> Result<(), Error> {
    let funding = i16::try_from(1 + row).unwrap();
    let prev = add(tx, key, &[(0, user, amount, id), (funding, key.activity, -amount, 0)]).await?;
    let params: [&(dyn ToSql + Sync); 7] = [
        &vec![id],
        &vec![trade_no],
        &vec![user],
        &vec![key.budget_key],
        &vec![amount],
        &vec![prev],
        &vec![1_000_i64],
    ];
    tx.execute(TRANSFER, &params).await.map(drop)
}

async fn moved(tx: &Transaction<'_>, key: Key, user: i64, balance: i64, last: i64) -> Result<(), Error> {
    let params: [&(dyn ToSql + Sync); 4] = [&vec![key.bonus_type], &vec![user], &vec![balance], &vec![last]];
    tx.execute(MOVE, &params).await.map(drop)
}

async fn record(
    tx: &Transaction<'_>,
    key: Key,
    withdrawal: &str,
    kind: i16,
    user: i64,
    amount: i64,
    (prev, id): (i64, i64),
) -> Result<(), Error> {
    let params: [&(dyn ToSql + Sync); 8] = [
        &vec![id],
        &vec![withdrawal],
        &vec![kind],
        &vec![user],
        &vec![key.bonus_type],
        &vec![amount],
        &vec![prev],
        &vec![1_000_i64],
    ];
    tx.execute(RECORD, &params).await.map(drop)
}
