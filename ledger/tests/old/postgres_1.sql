-- What version 1 added; never to be changed.
CREATE TABLE names (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE
);
CREATE TABLE programs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    activity bigint NOT NULL REFERENCES names (id),
    scene bigint NOT NULL REFERENCES names (id),
    asset bigint NOT NULL REFERENCES names (id),
    budgeted boolean NOT NULL,
    UNIQUE (activity, scene, asset)
);
CREATE TABLE budget_shards (
    program bigint NOT NULL REFERENCES programs (id),
    shard bigint NOT NULL,
    total bigint NOT NULL,
    used bigint NOT NULL CHECK (used >= 0),
    reserved bigint NOT NULL CHECK (reserved >= 0),
    PRIMARY KEY (program, shard),
    CHECK (used + reserved <= total)
) WITH (fillfactor = 25);
CREATE TABLE orders (
    user_id bigint NOT NULL,
    program bigint NOT NULL,
    amount bigint NOT NULL CHECK (amount > 0),
    transfer bigint NOT NULL,
    created_ms bigint NOT NULL,
    took_ms bigint,
    status smallint NOT NULL,
    reason smallint NOT NULL,
    trade_no text COLLATE "C" NOT NULL PRIMARY KEY
);
CREATE SEQUENCE transfer_blocks;
CREATE TABLE transfers (
    id bigint PRIMARY KEY,
    user_id bigint NOT NULL,
    program bigint NOT NULL,
    amount bigint NOT NULL,
    prev bigint NOT NULL,
    time_ms bigint NOT NULL,
    trade_no text COLLATE "C" NOT NULL
);
CREATE TABLE accounts (
    kind smallint NOT NULL,
    asset bigint NOT NULL,
    holder bigint NOT NULL,
    balance bigint NOT NULL,
    last bigint NOT NULL,
    before bigint NOT NULL,
    PRIMARY KEY (kind, asset, holder)
) WITH (fillfactor = 60);
CREATE TABLE archive (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    hash bytea NOT NULL,
    reason text COLLATE "C" NOT NULL,
    trade_no text COLLATE "C",
    payload bytea NOT NULL,
    detail text NOT NULL,
    time_ms bigint NOT NULL,
    replayed_ms bigint,
    actor text,
    outcome text,
    UNIQUE (hash, reason)
);
CREATE TABLE replays (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    archive_id bigint NOT NULL REFERENCES archive (id),
    actor text NOT NULL,
    time_ms bigint NOT NULL,
    outcome text NOT NULL
);
CREATE INDEX replays_archive_id ON replays (archive_id);
