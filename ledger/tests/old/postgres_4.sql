ALTER TABLE budget_shards RENAME COLUMN careful TO guarded;
ALTER TABLE budget_shards ALTER COLUMN guarded DROP DEFAULT;
ALTER TABLE orders RENAME COLUMN transfer TO paid_by;
-- Compared with names from now on.
ALTER TABLE orders ALTER COLUMN payer TYPE text COLLATE "C";
INSERT INTO names (name) SELECT DISTINCT payer FROM orders WHERE payer <> '' ORDER BY payer
ON CONFLICT (name) DO NOTHING;
ALTER TABLE transfers RENAME TO transfers_3;
ALTER INDEX transfers_pkey RENAME TO transfers_3_pkey;
CREATE TABLE transfers (
    id bigint PRIMARY KEY,
    asset bigint NOT NULL,
    debit_holder bigint NOT NULL,
    credit_holder bigint NOT NULL,
    amount bigint NOT NULL CHECK (amount > 0),
    prev bigint NOT NULL,
    time_ms bigint NOT NULL,
    tx bigint NOT NULL DEFAULT (pg_current_xact_id()::text::bigint),
    kind smallint NOT NULL CHECK (kind BETWEEN 0 AND 4),
    debit smallint NOT NULL,
    credit smallint NOT NULL,
    reference text COLLATE "C" NOT NULL,
    CHECK (debit <> credit OR debit_holder <> credit_holder)
);
-- What payers have paid, and how much of it is still in the user's balance: all of the first ones, a part of one.
CREATE TABLE transfers_settled AS
SELECT paid.id, paid.payer, paid.user_id, paid.asset, paid.amount, paid.trade_no,
    greatest(0, least(paid.amount, paid.balance - paid.before))::bigint AS part
FROM (
    SELECT t.id, n.id AS payer, t.user_id, p.asset, t.amount, t.trade_no, a.balance,
        sum(t.amount) OVER (PARTITION BY p.asset, t.user_id ORDER BY t.id) - t.amount AS before
    FROM transfers_3 t JOIN orders o ON o.trade_no = t.trade_no AND o.paid_by = t.id
    JOIN names n ON n.name = o.payer JOIN programs p ON p.id = t.program
    JOIN accounts a ON a.kind = 0 AND a.asset = p.asset AND a.holder = t.user_id
    WHERE o.payer <> '' AND o.status = 1
        AND NOT EXISTS (SELECT 1 FROM archive r WHERE r.trade_no = o.trade_no AND r.reason = 'downstream_refused')
) AS paid;
DO $$ BEGIN
    IF EXISTS (SELECT 1 FROM withdrawals w JOIN (
        SELECT asset, user_id FROM transfers_settled GROUP BY asset, user_id HAVING sum(part) < sum(amount)
    ) AS spent ON spent.asset = w.asset AND spent.user_id = w.user_id WHERE w.status = 0) THEN
        RAISE EXCEPTION 'withdrawals are held of money that a payer has paid already: let the older version end them first, paid or refused';
    END IF;
END $$;
INSERT INTO transfers
    (id, kind, asset, debit, debit_holder, credit, credit_holder, amount, prev, time_ms, reference, tx)
SELECT t.id, 0, p.asset, 2, t.program, CASE WHEN s.id IS NULL THEN 0 ELSE -3 END, coalesce(s.payer, t.user_id),
    t.amount, t.prev, t.time_ms, t.trade_no, t.id - 4611686018427387904
FROM transfers_3 t LEFT JOIN programs p ON p.id = t.program
LEFT JOIN transfers_settled s ON s.id = t.id AND s.part = s.amount;
UPDATE accounts a SET balance = a.balance - moved.amount FROM (
    SELECT asset, user_id, sum(part)::bigint AS amount FROM transfers_settled GROUP BY asset, user_id
) AS moved WHERE a.kind = 0 AND a.asset = moved.asset AND a.holder = moved.user_id;
INSERT INTO accounts (kind, asset, holder, balance, last, before)
SELECT -3, asset, payer, sum(part)::bigint, 0, 0 FROM transfers_settled WHERE part > 0 GROUP BY asset, payer;
INSERT INTO transfers
    (id, kind, asset, debit, debit_holder, credit, credit_holder, amount, prev, time_ms, reference, tx)
SELECT id, 0, asset, CASE kind WHEN 0 THEN 0 ELSE -1 END, CASE kind WHEN 0 THEN user_id ELSE 0 END,
    CASE kind WHEN 0 THEN -1 WHEN 1 THEN -2 ELSE 0 END, CASE kind WHEN 2 THEN user_id ELSE 0 END,
    amount, prev, time_ms, withdrawal, id - 4611686018427387904
FROM withdrawal_moves;
-- The part goes from the user's account, at the end of the user's statement.
INSERT INTO transfers
    (id, kind, asset, debit, debit_holder, credit, credit_holder, amount, prev, time_ms, reference, tx)
SELECT m.id, 0, m.asset, 0, m.user_id, -3, m.payer, m.part, m.last, (extract(epoch FROM now()) * 1000)::bigint,
    m.trade_no, m.id - 4611686018427387904
FROM (
    SELECT nextval('transfer_blocks') * 4096 AS id, s.asset, s.user_id, s.payer, s.part, s.trade_no, a.last
    FROM transfers_settled s JOIN accounts a ON a.kind = 0 AND a.asset = s.asset AND a.holder = s.user_id
    WHERE s.part > 0 AND s.part < s.amount
) AS m;
UPDATE accounts a SET before = a.last, last = t.id FROM transfers t
WHERE t.debit = 0 AND t.credit = -3 AND a.kind = 0 AND a.asset = t.asset AND a.holder = t.debit_holder;
INSERT INTO transfers
    (id, kind, asset, debit, debit_holder, credit, credit_holder, amount, prev, time_ms, reference, tx)
SELECT m.id, 1, m.asset, 2, m.program, m.credit, m.credit_holder, m.amount, 0, m.created_ms, m.trade_no,
    m.id - 4611686018427387904
FROM (
    SELECT nextval('transfer_blocks') * 4096 AS id, p.asset, o.program, o.amount, o.created_ms, o.trade_no,
        CASE o.reason WHEN 1 THEN 0 ELSE -3 END AS credit,
        CASE o.reason WHEN 1 THEN o.user_id ELSE coalesce(n.id, 0) END AS credit_holder
    FROM orders o JOIN programs p ON p.id = o.program LEFT JOIN names n ON n.name = o.payer AND o.payer <> ''
    WHERE o.status = 0
) AS m;
INSERT INTO transfers
    (id, kind, asset, debit, debit_holder, credit, credit_holder, amount, prev, time_ms, reference, tx)
SELECT m.id, 0, m.asset, 1, m.activity, 2, m.program, m.total, 0, (extract(epoch FROM now()) * 1000)::bigint, '',
    m.id - 4611686018427387904
FROM (
    SELECT nextval('transfer_blocks') * 4096 AS id, p.asset, p.activity, p.id AS program, h.total
    FROM programs p JOIN (
        SELECT program, sum(total)::bigint AS total FROM budget_shards GROUP BY program
    ) AS h ON h.program = p.id WHERE p.budgeted AND h.total > 0
) AS m;
DELETE FROM accounts WHERE kind > 0;
-- Who could write the old transfers may append to the new ones.
DO $$ DECLARE allowed record; BEGIN
    FOR allowed IN SELECT a.grantee, a.privilege_type AS what FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.oid = 'transfers_3'::regclass AND a.grantee <> c.relowner AND a.privilege_type IN ('SELECT', 'INSERT')
    LOOP
        EXECUTE format('GRANT %s ON transfers TO %s', allowed.what,
            CASE allowed.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(allowed.grantee)) END);
    END LOOP;
END $$;
DROP TABLE transfers_3;
DROP TABLE transfers_settled;
DROP TABLE withdrawal_moves;
CREATE UNIQUE INDEX transfers_withdrawal_once ON transfers (reference, (debit = -1)) WHERE debit = -1 OR credit = -1;
CREATE INDEX transfers_tx ON transfers (tx);
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION '% is only ever appended to; % is refused', TG_TABLE_NAME, TG_OP; END $$;
CREATE TRIGGER transfers_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON transfers
FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
