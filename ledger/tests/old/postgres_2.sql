-- What version 2 added; never to be changed.
CREATE TABLE withdrawals (
    user_id bigint NOT NULL,
    asset bigint NOT NULL REFERENCES names (id),
    amount bigint NOT NULL CHECK (amount > 0),
    created_ms bigint NOT NULL,
    decided_ms bigint,
    status smallint NOT NULL,
    reason text NOT NULL,
    payer text NOT NULL,
    id text COLLATE "C" NOT NULL PRIMARY KEY
) WITH (fillfactor = 60);
CREATE INDEX withdrawals_held ON withdrawals (id) WHERE status = 0;
CREATE TABLE withdrawal_moves (
    id bigint PRIMARY KEY,
    user_id bigint NOT NULL,
    asset bigint NOT NULL,
    amount bigint NOT NULL CHECK (amount > 0),
    prev bigint NOT NULL,
    time_ms bigint NOT NULL,
    kind smallint NOT NULL,
    withdrawal text COLLATE "C" NOT NULL
);
CREATE UNIQUE INDEX withdrawal_moves_once ON withdrawal_moves (withdrawal, (kind > 0));
ALTER TABLE accounts ADD CONSTRAINT accounts_not_below_0 CHECK (kind <> 0 OR balance >= 0);
