//! The statements of the ledger's position. Each stands here twice: for servers that tell their timeline and their position
//! in the write-ahead log, and for servers that keep these to themselves, as some that speak PostgreSQL's protocol do. Beats,
//! lineages and starts of the server suffice there; a position in the log says more only where no beat is missing.

/// The statements for one kind of server.
pub(super) struct Sql {
    /// Makes the tables and their first rows where they are missing.
    pub tables: &'static str,
    /// The last beat, whether this very start of the server has committed it, where the server is now, and the mark that
    /// somebody has missed. A standby has no position to write at.
    pub read: &'static str,
    /// Where the server is, for a database in which the tables are missing.
    pub read_server: &'static str,
    /// Counts a beat, unless another process is at it, or the server is another one than that of the lineage.
    pub beat: &'static str,
    /// Begins a lineage on another server, unless another process has done so.
    pub begin_lineage: &'static str,
    /// Begins a generation, in a lineage of its own, with the note of who accepts it: all in one statement.
    pub accept: &'static str,
}

/// The columns of the server, as an update sets them.
macro_rules! set_server {
    ($system:literal, $timeline:literal, $wal:literal) => {
        concat!(
            "system = ",
            $system,
            ", timeline = ",
            $timeline,
            ", wal = ",
            $wal,
            ", started = pg_postmaster_start_time()"
        )
    };
}

/// `ledger_position` has one row, which every beat updates in place; `wal` was read before the commit that wrote it.
/// `missed` is the mark that a process knew and the ledger lacked.
macro_rules! sql {
    ($system:literal, $timeline:literal, $wal:literal) => {
        Sql {
            tables: concat!(
                r#"
CREATE TABLE IF NOT EXISTS ledger_position (
    one boolean NOT NULL PRIMARY KEY CHECK (one),
    generation bigint NOT NULL,
    lineage text COLLATE "C" NOT NULL,
    beat bigint NOT NULL,
    system bigint NOT NULL,
    timeline bigint NOT NULL,
    wal bigint NOT NULL,
    started timestamptz NOT NULL,
    missed text
) WITH (fillfactor = 10);
CREATE TABLE IF NOT EXISTS ledger_lineages (
    id text COLLATE "C" NOT NULL PRIMARY KEY,
    first_beat bigint NOT NULL UNIQUE,
    system bigint NOT NULL,
    timeline bigint NOT NULL,
    wal bigint NOT NULL,
    started timestamptz NOT NULL,
    began timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE IF NOT EXISTS ledger_acceptances (
    generation bigint NOT NULL PRIMARY KEY,
    accepted bigint NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    lost text NOT NULL,
    time_ms bigint NOT NULL
);
WITH first AS (
    INSERT INTO ledger_position (one, generation, lineage, beat, system, timeline, wal, started)
    SELECT true, 1, gen_random_uuid()::text, 1, "#,
                $system,
                ", ",
                $timeline,
                ", ",
                $wal,
                r#", pg_postmaster_start_time() ON CONFLICT (one) DO NOTHING RETURNING *)
INSERT INTO ledger_lineages (id, first_beat, system, timeline, wal, started)
    SELECT lineage, beat, system, timeline, wal, started FROM first;
"#
            ),
            read: concat!(
                "SELECT p.generation, p.lineage, p.beat, p.system, p.timeline, p.wal, \
                 p.started = pg_postmaster_start_time(), ",
                $system,
                ", CASE WHEN r.is_standby THEN NULL ELSE ",
                $timeline,
                " END, CASE WHEN r.is_standby THEN NULL ELSE ",
                $wal,
                " END, p.missed FROM ledger_position p, pg_is_in_recovery() AS r(is_standby) WHERE p.one"
            ),
            read_server: concat!(
                "SELECT ",
                $system,
                ", CASE WHEN r.is_standby THEN NULL ELSE ",
                $timeline,
                " END, CASE WHEN r.is_standby THEN NULL ELSE ",
                $wal,
                " END FROM pg_is_in_recovery() AS r(is_standby)"
            ),
            beat: concat!(
                "WITH own AS (SELECT one FROM ledger_position WHERE one AND lineage = $1 \
                 AND started = pg_postmaster_start_time() AND timeline = ",
                $timeline,
                " FOR UPDATE SKIP LOCKED) UPDATE ledger_position p SET beat = p.beat + 1, ",
                set_server!($system, $timeline, $wal),
                " FROM own WHERE p.one = own.one \
                 RETURNING p.generation, p.lineage, p.beat, p.system, p.timeline, p.wal"
            ),
            begin_lineage: concat!(
                "WITH moved AS (UPDATE ledger_position SET lineage = gen_random_uuid()::text, beat = beat + 1, ",
                set_server!($system, $timeline, $wal),
                " WHERE one AND lineage = $1 RETURNING *) \
                 INSERT INTO ledger_lineages (id, first_beat, system, timeline, wal, started) \
                 SELECT lineage, beat, system, timeline, wal, started FROM moved"
            ),
            accept: concat!(
                "WITH moved AS (UPDATE ledger_position SET generation = $6::bigint, missed = NULL, \
                 lineage = gen_random_uuid()::text, beat = beat + 1, ",
                set_server!($system, $timeline, $wal),
                " WHERE one AND generation = $1::bigint RETURNING *), \
                 line AS (INSERT INTO ledger_lineages (id, first_beat, system, timeline, wal, started) \
                 SELECT lineage, beat, system, timeline, wal, started FROM moved), \
                 note AS (INSERT INTO ledger_acceptances (generation, accepted, actor, reason, lost, time_ms) \
                 SELECT generation, $1::bigint, $2, $3, $4, $5::bigint FROM moved) \
                 SELECT generation, lineage, beat, system, timeline, wal FROM moved"
            ),
        }
    };
}

/// The timeline is the one that the server writes: that of its last checkpoint stays the old one for a while after a
/// promotion.
pub(super) const WITH_LOG: Sql = sql!(
    "(SELECT system_identifier FROM pg_control_system())",
    "('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::bigint",
    "pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"
);
pub(super) const WITHOUT_LOG: Sql = sql!("0::bigint", "0::bigint", "0::bigint");

/// Whether the tables are there, and whether this user may make them.
pub(super) const IS_THERE: &str = "SELECT to_regclass('ledger_acceptances') IS NOT NULL, \
     coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)";
pub(super) const LINEAGES: &str = "SELECT id, first_beat FROM ledger_lineages";
pub(super) const ACCEPTED: &str = "SELECT actor, reason, time_ms FROM ledger_acceptances WHERE accepted = $1 \
     ORDER BY generation DESC LIMIT 1";

/// Notes the mark that the ledger lacks. It waits for no standby and for nobody who has the row: nothing is answered by
/// it, and whoever knows the mark notes it again.
pub(super) const MISS: &str = "WITH own AS (SELECT one FROM ledger_position WHERE one AND generation = $2::bigint \
     FOR UPDATE SKIP LOCKED) UPDATE ledger_position p SET missed = $1 \
     FROM own, set_config('synchronous_commit', 'local', true) WHERE p.one = own.one";
