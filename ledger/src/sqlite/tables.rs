//! The tables of a ledger in a file, version by version.

/// The migrations from each version to the next, in order. Never change one that was released.
pub(super) const MIGRATIONS: [&str; 6] = [V1, V2, V3, V4, V5, V6];
/// The text that replaces `BUDGET_CHECK` in the tables.
pub(super) const BUDGET_CHECK: &str = ", CHECK (used + reserved <= total)";

/// `orders.transfer`, later `paid_by`, is the number of the transfer that paid it, 0 for none. `transfers.prev` is the
/// transfer before it on the user's account, `accounts.last` the newest: a user's flow is a walk along these, so the
/// hottest insert needs no second index.
const V1: &str = "
CREATE TABLE names (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;
CREATE TABLE programs (
    id INTEGER PRIMARY KEY,
    activity INTEGER NOT NULL REFERENCES names (id),
    scene INTEGER NOT NULL REFERENCES names (id),
    asset INTEGER NOT NULL REFERENCES names (id),
    budgeted INTEGER NOT NULL,
    UNIQUE (activity, scene, asset)
) STRICT;
CREATE TABLE budget_shards (
    program INTEGER NOT NULL REFERENCES programs (id),
    shard INTEGER NOT NULL,
    total INTEGER NOT NULL,
    used INTEGER NOT NULL CHECK (used >= 0),
    reserved INTEGER NOT NULL CHECK (reserved >= 0),
    PRIMARY KEY (program, shard)
    BUDGET_CHECK
) STRICT, WITHOUT ROWID;
CREATE TABLE orders (
    trade_no TEXT NOT NULL PRIMARY KEY,
    user_id INTEGER NOT NULL,
    program INTEGER NOT NULL,
    amount INTEGER NOT NULL CHECK (amount > 0),
    status INTEGER NOT NULL,
    reason INTEGER NOT NULL,
    transfer INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    took_ms INTEGER
) STRICT, WITHOUT ROWID;
CREATE TABLE transfers (
    id INTEGER PRIMARY KEY,
    trade_no TEXT NOT NULL,
    user_id INTEGER NOT NULL,
    program INTEGER NOT NULL,
    amount INTEGER NOT NULL,
    prev INTEGER NOT NULL,
    time_ms INTEGER NOT NULL
) STRICT;
CREATE TABLE accounts (
    kind INTEGER NOT NULL,
    asset INTEGER NOT NULL,
    holder INTEGER NOT NULL,
    balance INTEGER NOT NULL,
    last INTEGER NOT NULL,
    PRIMARY KEY (kind, asset, holder)
) STRICT, WITHOUT ROWID;
CREATE TABLE archive (
    id INTEGER PRIMARY KEY,
    hash BLOB NOT NULL,
    reason TEXT NOT NULL,
    trade_no TEXT,
    payload BLOB NOT NULL,
    detail TEXT NOT NULL,
    time_ms INTEGER NOT NULL,
    replayed_ms INTEGER,
    actor TEXT,
    outcome TEXT,
    UNIQUE (hash, reason)
) STRICT;
CREATE TABLE replays (
    id INTEGER PRIMARY KEY,
    archive_id INTEGER NOT NULL REFERENCES archive (id),
    actor TEXT NOT NULL,
    time_ms INTEGER NOT NULL,
    outcome TEXT NOT NULL
) STRICT;
";

/// Withdrawals. The database itself ensures that a withdrawal is held once and ends once, and that no user's account
/// goes below 0, whatever the code above it does. A movement's number is drawn from the row of the transfers' numbers:
/// it stands in the account's chain like a transfer.
const V2: &str = "
CREATE TABLE withdrawals (
    id TEXT NOT NULL PRIMARY KEY,
    user_id INTEGER NOT NULL,
    asset INTEGER NOT NULL REFERENCES names (id),
    amount INTEGER NOT NULL CHECK (amount > 0),
    status INTEGER NOT NULL,
    reason TEXT NOT NULL,
    payer TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    decided_ms INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX withdrawals_held ON withdrawals (id) WHERE status = 0;
CREATE TABLE withdrawal_moves (
    id INTEGER PRIMARY KEY,
    withdrawal TEXT NOT NULL,
    kind INTEGER NOT NULL,
    user_id INTEGER NOT NULL,
    asset INTEGER NOT NULL,
    amount INTEGER NOT NULL CHECK (amount > 0),
    prev INTEGER NOT NULL,
    time_ms INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX withdrawal_moves_once ON withdrawal_moves (withdrawal, kind > 0);
CREATE TABLE accounts_2 (
    kind INTEGER NOT NULL,
    asset INTEGER NOT NULL,
    holder INTEGER NOT NULL,
    balance INTEGER NOT NULL,
    last INTEGER NOT NULL,
    PRIMARY KEY (kind, asset, holder),
    CHECK (kind <> 0 OR balance >= 0)
) STRICT, WITHOUT ROWID;
INSERT INTO accounts_2 SELECT kind, asset, holder, balance, last FROM accounts ORDER BY kind, asset, holder;
DROP TABLE accounts;
ALTER TABLE accounts_2 RENAME TO accounts;
";

/// Strict budgets, and combined ones: a program whose scene or bonus type has the empty name. Also the payer of an
/// order, and the version of the rules whose budgets are set: one row, or none yet.
const V3: &str = "
ALTER TABLE programs ADD COLUMN strict INTEGER NOT NULL DEFAULT 0;
ALTER TABLE orders ADD COLUMN payer TEXT NOT NULL DEFAULT '';
CREATE INDEX orders_reserved ON orders (trade_no) WHERE status = 0;
CREATE TABLE rules_version (
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    version INTEGER NOT NULL
) STRICT;
";

/// The journal: transfers name both accounts, and are only ever appended. `docs/ledger.md` says what each row means, and
/// what becomes of older rows. Old credits move from the user to the payer that paid them, as far as the money is still
/// there; what a downstream had refused, and is archived for that, the ledger itself may have paid.
const V4: &str = "
INSERT INTO names (name) SELECT DISTINCT payer FROM orders WHERE payer <> '' ON CONFLICT (name) DO NOTHING;
ALTER TABLE orders RENAME COLUMN transfer TO paid_by;
ALTER TABLE transfers RENAME TO transfers_3;
CREATE TABLE transfers (
    id INTEGER PRIMARY KEY,
    kind INTEGER NOT NULL CHECK (kind BETWEEN 0 AND 4),
    asset INTEGER NOT NULL,
    debit INTEGER NOT NULL,
    debit_holder INTEGER NOT NULL,
    credit INTEGER NOT NULL,
    credit_holder INTEGER NOT NULL,
    amount INTEGER NOT NULL CHECK (amount > 0),
    prev INTEGER NOT NULL,
    time_ms INTEGER NOT NULL,
    reference TEXT NOT NULL,
    CHECK (debit <> credit OR debit_holder <> credit_holder)
) STRICT;
CREATE TABLE transfers_settled AS
SELECT paid.id, paid.payer, paid.user_id, paid.asset, paid.amount, paid.trade_no,
    max(0, min(paid.amount, paid.balance - paid.before)) AS part
FROM (
    SELECT t.id, n.id AS payer, t.user_id, p.asset, t.amount, t.trade_no, a.balance,
        sum(t.amount) OVER (PARTITION BY p.asset, t.user_id ORDER BY t.id) - t.amount AS before
    FROM transfers_3 t JOIN orders o ON o.trade_no = t.trade_no AND o.paid_by = t.id
    JOIN names n ON n.name = o.payer JOIN programs p ON p.id = t.program
    JOIN accounts a ON a.kind = 0 AND a.asset = p.asset AND a.holder = t.user_id
    WHERE o.payer <> '' AND o.status = 1
        AND NOT EXISTS (SELECT 1 FROM archive r WHERE r.trade_no = o.trade_no AND r.reason = 'downstream_refused')
) AS paid;
CREATE INDEX transfers_settled_id ON transfers_settled (id);
CREATE TABLE held_of_settled (
    withdrawals INTEGER CONSTRAINT
        \"withdrawals are held of money that a payer has paid already: let the older version end them first, paid or refused\"
        CHECK (withdrawals = 0)
);
INSERT INTO held_of_settled SELECT count(*) FROM withdrawals w JOIN (
    SELECT asset, user_id FROM transfers_settled GROUP BY asset, user_id HAVING sum(part) < sum(amount)
) AS spent ON spent.asset = w.asset AND spent.user_id = w.user_id WHERE w.status = 0;
DROP TABLE held_of_settled;
INSERT INTO transfers
SELECT t.id, 0, (SELECT asset FROM programs WHERE id = t.program), 2, t.program,
    CASE WHEN s.id IS NULL THEN 0 ELSE -3 END, coalesce(s.payer, t.user_id), t.amount, t.prev, t.time_ms, t.trade_no
FROM transfers_3 t LEFT JOIN transfers_settled s ON s.id = t.id AND s.part = s.amount ORDER BY t.id;
UPDATE accounts SET balance = balance - moved.amount FROM (
    SELECT asset, user_id, sum(part) AS amount FROM transfers_settled GROUP BY asset, user_id
) AS moved WHERE accounts.kind = 0 AND accounts.asset = moved.asset AND accounts.holder = moved.user_id;
INSERT INTO accounts (kind, asset, holder, balance, last)
SELECT -3, asset, payer, sum(part), 0 FROM transfers_settled WHERE part > 0 GROUP BY asset, payer;
INSERT INTO transfers
SELECT id, 0, asset, CASE kind WHEN 0 THEN 0 ELSE -1 END, CASE kind WHEN 0 THEN user_id ELSE 0 END,
    CASE kind WHEN 0 THEN -1 WHEN 1 THEN -2 ELSE 0 END, CASE kind WHEN 2 THEN user_id ELSE 0 END,
    amount, prev, time_ms, withdrawal
FROM withdrawal_moves ORDER BY id;
INSERT INTO transfers
SELECT (SELECT coalesce(max(id), 0) FROM transfers) + row_number() OVER (ORDER BY s.id), 0, s.asset, 0, s.user_id, -3,
    s.payer, s.part, a.last, CAST(strftime('%s', 'now') AS INTEGER) * 1000, s.trade_no
FROM transfers_settled s JOIN accounts a ON a.kind = 0 AND a.asset = s.asset AND a.holder = s.user_id
WHERE s.part > 0 AND s.part < s.amount;
UPDATE accounts SET last = t.id FROM transfers t
WHERE t.debit = 0 AND t.credit = -3 AND accounts.kind = 0 AND accounts.asset = t.asset
    AND accounts.holder = t.debit_holder;
INSERT INTO transfers
SELECT (SELECT coalesce(max(id), 0) FROM transfers) + row_number() OVER (ORDER BY o.trade_no), 1, p.asset, 2,
    o.program, CASE o.reason WHEN 1 THEN 0 ELSE -3 END,
    CASE o.reason WHEN 1 THEN o.user_id ELSE coalesce((SELECT id FROM names WHERE name = o.payer AND o.payer <> ''), 0) END,
    o.amount, 0, o.created_ms, o.trade_no
FROM orders o JOIN programs p ON p.id = o.program WHERE o.status = 0;
INSERT INTO transfers
SELECT (SELECT coalesce(max(id), 0) FROM transfers) + row_number() OVER (ORDER BY p.id), 0, p.asset, 1, p.activity, 2,
    p.id, h.total, 0, CAST(strftime('%s', 'now') AS INTEGER) * 1000, ''
FROM programs p JOIN (SELECT program, sum(total) AS total FROM budget_shards GROUP BY program) h ON h.program = p.id
WHERE p.budgeted AND h.total > 0;
DELETE FROM accounts WHERE kind > 0;
DROP TABLE transfers_3;
DROP TABLE transfers_settled;
DROP TABLE withdrawal_moves;
CREATE UNIQUE INDEX transfers_withdrawal_once ON transfers (reference, debit = -1) WHERE debit = -1 OR credit = -1;
CREATE TRIGGER transfers_no_update BEFORE UPDATE ON transfers
BEGIN SELECT RAISE(ABORT, 'transfers are only ever appended'); END;
CREATE TRIGGER transfers_no_delete BEFORE DELETE ON transfers
BEGIN SELECT RAISE(ABORT, 'transfers are only ever appended'); END;
-- REPLACE takes a row away without its trigger.
CREATE TRIGGER transfers_no_replace BEFORE INSERT ON transfers
WHEN EXISTS (SELECT 1 FROM transfers WHERE id = NEW.id)
    OR ((NEW.debit = -1 OR NEW.credit = -1) AND EXISTS (SELECT 1 FROM transfers
        WHERE reference = NEW.reference AND (debit = -1) = (NEW.debit = -1) AND (debit = -1 OR credit = -1)))
BEGIN SELECT RAISE(ABORT, 'transfers are only ever appended'); END;
";

/// The chain of sealed ranges. A page holds the commitments of many transfers side by side.
const V5: &str = "
CREATE TABLE seals (
    id INTEGER PRIMARY KEY,
    from_at INTEGER NOT NULL UNIQUE,
    to_at INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    sealed_ms INTEGER NOT NULL,
    previous BLOB NOT NULL,
    content BLOB NOT NULL,
    names BLOB NOT NULL,
    hash BLOB NOT NULL
) STRICT;
CREATE TABLE seal_pages (
    seal INTEGER NOT NULL REFERENCES seals (id),
    page INTEGER NOT NULL,
    ids BLOB NOT NULL,
    guards BLOB NOT NULL,
    hashes BLOB NOT NULL,
    PRIMARY KEY (seal, page)
) STRICT;
CREATE TRIGGER seals_no_update BEFORE UPDATE ON seals
BEGIN SELECT RAISE(ABORT, 'seals are only ever appended'); END;
CREATE TRIGGER seals_no_delete BEFORE DELETE ON seals
BEGIN SELECT RAISE(ABORT, 'seals are only ever appended'); END;
CREATE TRIGGER seals_no_replace BEFORE INSERT ON seals
WHEN EXISTS (SELECT 1 FROM seals WHERE id = NEW.id OR from_at = NEW.from_at)
BEGIN SELECT RAISE(ABORT, 'seals are only ever appended'); END;
CREATE TRIGGER seal_pages_no_replace BEFORE INSERT ON seal_pages
WHEN EXISTS (SELECT 1 FROM seal_pages WHERE seal = NEW.seal AND page = NEW.page)
BEGIN SELECT RAISE(ABORT, 'commitments are only ever appended'); END;
CREATE TRIGGER seal_pages_no_update BEFORE UPDATE ON seal_pages
BEGIN SELECT RAISE(ABORT, 'commitments are only ever appended'); END;
CREATE TRIGGER seal_pages_no_delete BEFORE DELETE ON seal_pages
BEGIN SELECT RAISE(ABORT, 'commitments are only ever appended'); END;
";

/// Orders count within their activities, and withdrawals belong to their users ([`key`](crate::key)). What was made before
/// keeps its number, or its id, as its key; a row of `bare_orders` says that there may be such orders or withdrawals. A
/// ledger may have withdrawals and no order: an adjustment credits a user without one.
const V6: &str = "
ALTER TABLE orders RENAME COLUMN trade_no TO order_key;
ALTER TABLE withdrawals RENAME COLUMN id TO withdrawal_key;
ALTER TABLE withdrawals ADD COLUMN payer_key TEXT NOT NULL DEFAULT '';
CREATE INDEX withdrawals_asked ON withdrawals (withdrawal_key) WHERE status = 0 AND payer <> 'front end';
CREATE INDEX withdrawals_to_pay_out ON withdrawals (withdrawal_key) WHERE status = 0 AND payer = 'front end';
CREATE TABLE bare_orders (one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1)) STRICT;
INSERT INTO bare_orders SELECT 1 WHERE EXISTS (SELECT 1 FROM orders) OR EXISTS (SELECT 1 FROM withdrawals);
";
