-- What version 3 added; never to be changed.
ALTER TABLE programs ADD COLUMN strict INTEGER NOT NULL DEFAULT 0;
ALTER TABLE orders ADD COLUMN payer TEXT NOT NULL DEFAULT '';
CREATE INDEX orders_reserved ON orders (trade_no) WHERE status = 0;
CREATE TABLE rules_version (
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    version INTEGER NOT NULL
) STRICT;
