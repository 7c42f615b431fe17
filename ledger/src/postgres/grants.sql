-- The rights of the groups that deploy/postgres/roles.sql makes, on the tables of a ledger as they are now. The owner runs
-- it by `windfall ledger prepare` and `windfall ledger migrate`; it changes nothing where these groups are not there. All of it
-- is one transaction, so that nobody is without rights in between.
DO $$
DECLARE
    place text := quote_ident(current_schema());
    one text;
    who text;
    rights text;
BEGIN
    IF to_regrole('windfall_reader') IS NULL OR to_regrole('windfall_writer') IS NULL
        OR to_regrole('windfall_sealer') IS NULL OR to_regrole('windfall_auditor') IS NULL THEN
        RETURN;
    END IF;
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %s FROM windfall_reader, windfall_writer, windfall_sealer, '
        'windfall_auditor', place);
    EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA %s TO windfall_reader', place);
    EXECUTE format('GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA %s TO windfall_writer', place);
    EXECUTE format('GRANT USAGE ON ALL SEQUENCES IN SCHEMA %s TO windfall_writer', place);
    -- What is only ever appended to: all that has the trigger which says so, and notes of what persons and servers did.
    FOR one IN
        SELECT DISTINCT quote_ident(c.relname) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
        JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_proc p ON p.oid = t.tgfoid
        WHERE n.nspname = current_schema() AND p.proname = 'refuse_change'
        UNION
        SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = current_schema()
            AND tablename IN ('names', 'replays', 'withdrawal_moves', 'ledger_lineages', 'ledger_acceptances')
    LOOP
        EXECUTE format('REVOKE UPDATE, DELETE ON %s.%s FROM windfall_writer', place, one);
    END LOOP;
    -- What changes and never goes.
    FOR one IN
        SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = current_schema() AND tablename IN
            ('orders', 'accounts', 'archive', 'programs', 'rules_version', 'ledger_position')
    LOOP
        EXECUTE format('REVOKE DELETE ON %s.%s FROM windfall_writer', place, one);
    END LOOP;
    -- The shape of the tables is their owner's, which keys orders may have, and which activities are closed.
    FOR one IN
        SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = current_schema()
            AND tablename IN ('schema_version', 'bare_orders', 'closed_activities', 'detached_budgets')
    LOOP
        EXECUTE format('REVOKE INSERT, UPDATE, DELETE ON %s.%s FROM windfall_writer', place, one);
    END LOOP;
    -- Who writes transfers does not seal them: the chain is there to prove what writers have done.
    FOR one IN
        SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = current_schema()
            AND tablename IN ('seals', 'seal_pages')
    LOOP
        EXECUTE format('REVOKE INSERT ON %s.%s FROM windfall_writer', place, one);
        EXECUTE format('GRANT INSERT ON %s.%s TO windfall_sealer', place, one);
    END LOOP;
    -- Nor does he audit them.
    FOR one IN
        SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = current_schema()
            AND tablename IN ('audit_position', 'audit_sums', 'audit_packed', 'audit_pending', 'audit_differences', 'audit_statements',
                'audit_statement_lines', 'audit_statement_sums', 'audit_statement_differences', 'audit_times')
    LOOP
        EXECUTE format('REVOKE INSERT, UPDATE, DELETE ON %s.%s FROM windfall_writer', place, one);
        EXECUTE format('GRANT INSERT, UPDATE ON %s.%s TO windfall_auditor', place, one);
        -- Differences are never deleted, nor what payers have said.
        IF one IN ('audit_sums', 'audit_packed', 'audit_pending', 'audit_times') THEN
            EXECUTE format('GRANT DELETE ON %s.%s TO windfall_auditor', place, one);
        END IF;
    END LOOP;

    -- The groups of single processes, which an older roles.sql has not made. windfall_writer has all that they have.
    IF to_regrole('windfall_granter') IS NULL OR to_regrole('windfall_payer') IS NULL
        OR to_regrole('windfall_rewarder') IS NULL THEN
        RETURN;
    END IF;
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %s FROM windfall_granter, windfall_payer, windfall_rewarder', place);
    EXECUTE format('GRANT USAGE ON ALL SEQUENCES IN SCHEMA %s TO windfall_granter, windfall_payer, windfall_rewarder', place);
    -- What is not named here they only read, as every group does: a table that is added for a process belongs into this list.
    FOR who, rights, one IN
        SELECT r.who, r.rights, quote_ident(t.tablename) FROM (VALUES
            -- All three grant: the wallet forces credits, and each of them sets the budgets of the rules and counts beats. Each ends
            -- withdrawals, too, where a connector pays them: whichever process asks the payer notes what it says.
            ('windfall_granter, windfall_payer, windfall_rewarder', 'INSERT',
                ARRAY['names', 'transfers', 'withdrawal_moves', 'archive', 'ledger_lineages']),
            ('windfall_granter, windfall_payer, windfall_rewarder', 'INSERT, UPDATE',
                ARRAY['programs', 'orders', 'accounts', 'rules_version']),
            ('windfall_granter, windfall_payer, windfall_rewarder', 'INSERT, UPDATE, DELETE', ARRAY['budget_shards']),
            ('windfall_granter, windfall_payer, windfall_rewarder', 'UPDATE (status, reason, decided_ms)', ARRAY['withdrawals']),
            -- The generation is what a person raises who accepts a ledger that went back in time.
            ('windfall_granter, windfall_payer', 'UPDATE (lineage, beat, system, timeline, wal, started, missed)',
                ARRAY['ledger_position']),
            -- A withdrawal that turns out to be too large goes again in the transaction that has inserted it.
            ('windfall_payer', 'INSERT, DELETE', ARRAY['withdrawals']),
            -- What operators decide, by the process that serves their calls: acts and their ends, freezes, corrections, replays,
            -- acceptances; and the lost events of orders that it reserves.
            ('windfall_rewarder', 'INSERT',
                ARRAY['acts', 'act_ends', 'correction_pages', 'replays', 'ledger_acceptances']),
            ('windfall_rewarder', 'INSERT, DELETE', ARRAY['frozen_users']),
            ('windfall_rewarder', 'UPDATE', ARRAY['archive', 'ledger_position']),
            ('windfall_rewarder', 'INSERT, UPDATE, DELETE', ARRAY['order_copies', 'order_copies_listing'])
        ) AS r(who, rights, tables)
        JOIN pg_tables t ON t.schemaname = current_schema() AND t.tablename::text = ANY (r.tables)
    LOOP
        EXECUTE format('GRANT %s ON %s.%s TO %s', rights, place, one, who);
    END LOOP;
END $$;
