-- What version 2 added; never to be changed.
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
