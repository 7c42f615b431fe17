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
        "withdrawals are held of money that a payer has paid already: let the older version end them first, paid or refused"
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
