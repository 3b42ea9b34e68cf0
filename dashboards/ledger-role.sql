-- A PostgreSQL user for Grafana that reads money and nothing else. Run it once as a superuser, in gpufleet's database and
-- with the search path of gpufleet's user, when a server that has these tables has run on it:
--
--   psql "$DATABASE_URL" -f ledger-role.sql
--   psql "$DATABASE_URL" -c '\password gpufleet_grafana'
--
-- It may be run again. Of tables, whatever is not granted here is refused: prices, holders, events, rights. Of what
-- PostgreSQL grants to PUBLIC, this takes from everybody but superusers and those named here what fills the disk or
-- holds up gpufleet: temporary tables, tables in gpufleet's schema, large objects, and advisory locks, which a server
-- that brings its schema up to date waits for. Whoever owns gpufleet's tables keeps them. It is of this database
-- alone: another application in it that needs one is to be granted it.
DO $$
DECLARE
    -- gpufleet's user.
    owner name := (SELECT tableowner FROM pg_tables WHERE schemaname = current_schema() AND tablename = 'money_day');
    made regprocedure;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'gpufleet_grafana') THEN
        CREATE ROLE gpufleet_grafana LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOINHERIT CONNECTION LIMIT 10;
    END IF;
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO gpufleet_grafana', current_database());
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO gpufleet_grafana', current_schema());
    -- Panels name tables without a schema.
    EXECUTE format('ALTER ROLE gpufleet_grafana IN DATABASE %I SET search_path = %I', current_database(), current_schema());
    EXECUTE format('GRANT TEMPORARY ON DATABASE %I TO %I', current_database(), owner);
    EXECUTE format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', current_database());
    EXECUTE format('GRANT CREATE ON SCHEMA %I TO %I', current_schema(), owner);
    EXECUTE format('REVOKE CREATE ON SCHEMA %I FROM PUBLIC', current_schema());
    FOR made IN
        SELECT p.oid::regprocedure FROM pg_proc p
        WHERE p.pronamespace = 'pg_catalog'::regnamespace
            AND (p.proname ~ '^pg_(try_)?advisory_' OR p.proname ~ '^lo_' OR p.proname IN ('lowrite', 'loread'))
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', made, owner);
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', made);
    END LOOP;
END
$$;
-- Whoever edits a panel can write any SQL. These two are defaults, which that SQL may put off with SET: they hold
-- against mistakes. What holds against intent is what is not granted, and the number of connections.
ALTER ROLE gpufleet_grafana SET default_transaction_read_only = on;
ALTER ROLE gpufleet_grafana SET statement_timeout = '30s';
GRANT SELECT ON money_day, money_month TO gpufleet_grafana;
