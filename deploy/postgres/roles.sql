-- The users of a ledger in PostgreSQL, each with the rights of its work. A superuser (or a user with CREATEROLE that owns the
-- database) runs it, before the first process or on a ledger that is there; it may be run again. Then:
--
--   windfall ledger prepare --config windfall.toml       with a user of the group windfall_owner: makes the tables, and the
--                                                         rights on each; again with each new release, before its processes
--
-- These are groups; nobody signs in by them. Make a user a process, or a person, with a password of its own:
--
--   CREATE ROLE windfall_migrate LOGIN PASSWORD '…' IN ROLE windfall_owner;      windfall ledger prepare and migrate, no process
--   ALTER ROLE windfall_migrate SET role = 'windfall_owner';                     what it makes is the group's
--   CREATE ROLE windfall_consumer LOGIN PASSWORD '…' IN ROLE windfall_granter;   the role consumer
--   CREATE ROLE windfall_rewards LOGIN PASSWORD '…' IN ROLE windfall_rewarder;   the role reward-service
--   CREATE ROLE windfall_wallet LOGIN PASSWORD '…' IN ROLE windfall_payer;       the role wallet
--   CREATE ROLE windfall_serve LOGIN PASSWORD '…' IN ROLE windfall_writer;       the role serve, which does the work of these three
--   CREATE ROLE windfall_seal LOGIN PASSWORD '…' IN ROLE windfall_sealer;        windfall ledger seal
--   CREATE ROLE windfall_audit LOGIN PASSWORD '…' IN ROLE windfall_auditor;      the role auditor
--   CREATE ROLE windfall_look LOGIN PASSWORD '…' IN ROLE windfall_reader;        windfall ledger verify
--
-- windfall_writer has all the rights of windfall_granter, windfall_payer and windfall_rewarder. The user of one process that is in it from
-- before goes on, and is given less, while its process runs, when `windfall ledger prepare` has run:
--
--   GRANT windfall_granter TO windfall_consumer;  REVOKE windfall_writer FROM windfall_consumer;
--
-- The roles sdk-gateway, token-service, scheduler, task-queue and console use no database, and have no user.
DO $$
DECLARE
    place text := 'windfall';   -- the option ledger.postgres.schema
    one record;
BEGIN
    IF to_regrole('windfall_owner') IS NULL THEN CREATE ROLE windfall_owner NOLOGIN; END IF;
    IF to_regrole('windfall_reader') IS NULL THEN CREATE ROLE windfall_reader NOLOGIN; END IF;
    IF to_regrole('windfall_writer') IS NULL THEN CREATE ROLE windfall_writer NOLOGIN; END IF;
    IF to_regrole('windfall_granter') IS NULL THEN CREATE ROLE windfall_granter NOLOGIN; END IF;
    IF to_regrole('windfall_payer') IS NULL THEN CREATE ROLE windfall_payer NOLOGIN; END IF;
    IF to_regrole('windfall_rewarder') IS NULL THEN CREATE ROLE windfall_rewarder NOLOGIN; END IF;
    IF to_regrole('windfall_sealer') IS NULL THEN CREATE ROLE windfall_sealer NOLOGIN; END IF;
    IF to_regrole('windfall_auditor') IS NULL THEN CREATE ROLE windfall_auditor NOLOGIN; END IF;
    GRANT windfall_reader TO windfall_writer, windfall_granter, windfall_payer, windfall_rewarder, windfall_sealer, windfall_auditor;
    -- Beside rights of its own, which it has of older releases: so it is never less than all of them.
    GRANT windfall_granter, windfall_payer, windfall_rewarder TO windfall_writer;

    EXECUTE format('CREATE SCHEMA IF NOT EXISTS %I AUTHORIZATION windfall_owner', place);
    -- A ledger that is there: its owner so far becomes a member of the new one, so that processes with that user go on until
    -- each has a user of its own. Then: REVOKE windfall_owner FROM that user.
    FOR one IN SELECT nspowner::regrole AS owner FROM pg_namespace
        WHERE nspname = place AND nspowner <> 'windfall_owner'::regrole
    LOOP
        EXECUTE format('GRANT windfall_owner TO %s', one.owner);
        EXECUTE format('ALTER SCHEMA %I OWNER TO windfall_owner', place);
        RAISE NOTICE '% owned this ledger, and is a member of windfall_owner now; revoke that when no process uses it', one.owner;
    END LOOP;
    -- Sequences of columns go with their tables.
    FOR one IN SELECT c.oid::regclass AS what, c.relowner::regrole AS owner
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = place AND c.relkind IN ('r', 'p', 'S', 'v', 'm') AND c.relowner <> 'windfall_owner'::regrole
            AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
                AND d.deptype IN ('a', 'i') AND d.refclassid = 'pg_class'::regclass)
    LOOP
        EXECUTE format('GRANT windfall_owner TO %s', one.owner);
        EXECUTE format('ALTER TABLE %s OWNER TO windfall_owner', one.what);
    END LOOP;
    FOR one IN SELECT p.oid::regprocedure AS what FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname = place AND p.proowner <> 'windfall_owner'::regrole
    LOOP
        EXECUTE format('ALTER FUNCTION %s OWNER TO windfall_owner', one.what);
    END LOOP;

    EXECUTE format('REVOKE ALL ON SCHEMA %I FROM PUBLIC', place);
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO windfall_reader', place);
    -- Tables that are made later: whoever writes may write them at once. `windfall ledger prepare` takes away what is too
    -- much, such as changes of what is only appended to.
    EXECUTE format('ALTER DEFAULT PRIVILEGES FOR ROLE windfall_owner IN SCHEMA %I '
        'GRANT SELECT ON TABLES TO windfall_reader', place);
    EXECUTE format('ALTER DEFAULT PRIVILEGES FOR ROLE windfall_owner IN SCHEMA %I '
        'GRANT INSERT, UPDATE, DELETE ON TABLES TO windfall_writer, windfall_granter, windfall_payer, windfall_rewarder', place);
    EXECUTE format('ALTER DEFAULT PRIVILEGES FOR ROLE windfall_owner IN SCHEMA %I '
        'GRANT USAGE ON SEQUENCES TO windfall_writer, windfall_granter, windfall_payer, windfall_rewarder', place);
END $$;
