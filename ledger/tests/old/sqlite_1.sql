-- What version 1 added; never to be changed.
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
    , CHECK (used + reserved <= total)
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
