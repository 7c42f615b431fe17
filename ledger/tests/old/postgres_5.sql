CREATE TABLE seals (
    id bigint PRIMARY KEY,
    from_at bigint NOT NULL UNIQUE,
    to_at bigint NOT NULL,
    rows bigint NOT NULL,
    sealed_ms bigint NOT NULL,
    -- The identifier of the database cluster; NULL where the server does not tell it.
    system bigint,
    previous bytea NOT NULL,
    content bytea NOT NULL,
    names bytea NOT NULL,
    hash bytea NOT NULL
);
CREATE TABLE seal_pages (
    seal bigint NOT NULL REFERENCES seals (id),
    page bigint NOT NULL,
    ids bytea NOT NULL,
    guards bytea NOT NULL,
    hashes bytea NOT NULL,
    PRIMARY KEY (seal, page)
);
ALTER TABLE seal_pages ALTER ids SET STORAGE EXTERNAL, ALTER guards SET STORAGE EXTERNAL,
    ALTER hashes SET STORAGE EXTERNAL;
CREATE TRIGGER seals_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON seals
FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER seal_pages_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON seal_pages
FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
-- A new table of the same owner: whoever reads and appends transfers reads and appends seals.
DO $$ DECLARE allowed record; BEGIN
    FOR allowed IN SELECT a.grantee, a.privilege_type AS what FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.oid = 'transfers'::regclass AND a.grantee <> c.relowner AND a.privilege_type IN ('SELECT', 'INSERT')
    LOOP
        EXECUTE format('GRANT %s ON seals, seal_pages TO %s', allowed.what,
            CASE allowed.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(allowed.grantee)) END);
    END LOOP;
END $$;
