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
