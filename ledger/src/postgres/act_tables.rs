//! The tables of operators' acts. They are no part of the schema's version, so processes that do not know them work beside: they
//! are made by the first act that is proposed, where this user may make them.

use super::budget_keys::cell;
use super::session::Session;
use crate::error::LedgerError;

/// Made in the transaction that proposes the first act. Whoever appends to `withdrawals` may do so here, too.
pub(super) const TABLES: &str = r#"
SELECT pg_advisory_xact_lock(hashtextextended('windfall acts ' || current_schema(), 0));
DO $$ DECLARE allowed record; grantee text; BEGIN
    -- Another process may have made them, as another user, while this one waited.
    IF to_regclass('act_ends') IS NOT NULL THEN
        RETURN;
    END IF;
    CREATE TABLE acts (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        key text COLLATE "C" NOT NULL,
        nth bigint NOT NULL,
        kind text COLLATE "C" NOT NULL,
        subject text COLLATE "C" NOT NULL,
        deed text NOT NULL,
        reason text NOT NULL,
        evidence text NOT NULL,
        operator text NOT NULL,
        actor text NOT NULL,
        proposed_ms bigint NOT NULL,
        expires_ms bigint NOT NULL,
        parent bigint NOT NULL DEFAULT 0,
        UNIQUE (key, nth)
    );
    CREATE INDEX acts_subject ON acts (subject);
    CREATE INDEX acts_parent ON acts (parent, id);
    CREATE TABLE act_ends (
        act bigint NOT NULL PRIMARY KEY REFERENCES acts (id),
        outcome smallint NOT NULL,
        amount bigint NOT NULL,
        detail text NOT NULL,
        operator text NOT NULL,
        actor text NOT NULL,
        time_ms bigint NOT NULL
    );
    CREATE TABLE correction_pages (
        act bigint NOT NULL REFERENCES acts (id),
        nth bigint NOT NULL,
        orders bigint NOT NULL,
        taken bigint NOT NULL,
        short_orders bigint NOT NULL,
        short_amount bigint NOT NULL,
        operator text NOT NULL,
        actor text NOT NULL,
        time_ms bigint NOT NULL,
        PRIMARY KEY (act, nth)
    );
    CREATE TABLE frozen_users (
        user_id bigint NOT NULL PRIMARY KEY,
        act bigint NOT NULL,
        since_ms bigint NOT NULL
    );
    CREATE TRIGGER acts_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON acts
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
    CREATE TRIGGER act_ends_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON act_ends
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
    CREATE TRIGGER correction_pages_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON correction_pages
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
    FOR allowed IN SELECT a.grantee, a.privilege_type AS what FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.oid = 'withdrawals'::regclass AND a.grantee <> c.relowner AND a.privilege_type IN ('SELECT', 'INSERT')
    LOOP
        grantee := CASE allowed.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(allowed.grantee)) END;
        EXECUTE format('GRANT %s ON acts, act_ends, correction_pages, frozen_users TO %s', allowed.what, grantee);
        IF allowed.what = 'INSERT' THEN
            EXECUTE format('GRANT DELETE ON frozen_users TO %s', grantee);
        END IF;
    END LOOP;
END $$;
"#;

pub(super) const ARE_THERE: &str = "SELECT to_regclass('act_ends') IS NOT NULL AND to_regclass('frozen_users') IS NOT NULL, \
    coalesce(has_schema_privilege(current_schema(), 'CREATE'), false), current_schema()::text";
const FROZEN: &str = "SELECT user_id, act, since_ms FROM frozen_users WHERE user_id = ANY($1)";

/// Whether the tables are there. Once they are, they stay, and a connection asks no more until a transaction is rolled back,
/// which may have made them.
pub(super) fn are_there(session: &Session) -> Result<bool, LedgerError> {
    if session.has_acts() {
        return Ok(true);
    }
    let rows = session.query(ARE_THERE, &[])?;
    let found = rows.first().map_or(Ok(false), |row| cell(row, 0))?;
    session.set_acts(found);
    Ok(found)
}

/// Those of these users who are frozen, each with the act and its time. Asked under the locks of their accounts.
pub(super) fn frozen(session: &Session, users: &[i64]) -> Result<Vec<(i64, i64, i64)>, LedgerError> {
    if users.is_empty() || !are_there(session)? {
        return Ok(Vec::new());
    }
    let rows = session.query(FROZEN, &[&users])?;
    rows.iter().map(|row| Ok((cell(row, 0)?, cell(row, 1)?, cell(row, 2)?))).collect()
}
