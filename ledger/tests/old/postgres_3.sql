-- What version 3 added; never to be changed.
ALTER TABLE programs ADD COLUMN strict boolean NOT NULL DEFAULT false;
ALTER TABLE budget_shards ADD COLUMN careful boolean NOT NULL DEFAULT false;
ALTER TABLE orders ADD COLUMN payer text NOT NULL DEFAULT '';
CREATE INDEX orders_reserved ON orders (trade_no) WHERE status = 0;
CREATE TABLE rules_version (
    version bigint NOT NULL,
    one boolean NOT NULL PRIMARY KEY CHECK (one)
);
