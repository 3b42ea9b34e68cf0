-- A PostgreSQL user for Grafana that reads money and nothing else. Run it once as a superuser, in gpufleet's database and
-- with the search path of gpufleet's user, when a server that has these tables has run on it:
--
--   psql "$DATABASE_URL" -f ledger-role.sql
--   psql "$DATABASE_URL" -c '\password gpufleet_grafana'
--
-- It may be run again. Whatever is not granted here is refused: prices, holders, events, rights.
DO $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'gpufleet_grafana') THEN
        CREATE ROLE gpufleet_grafana LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOINHERIT CONNECTION LIMIT 10;
    END IF;
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO gpufleet_grafana', current_database());
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO gpufleet_grafana', current_schema());
END
$$;
-- Whoever edits a panel can write any SQL: no writing, and none that runs for long.
ALTER ROLE gpufleet_grafana SET default_transaction_read_only = on;
ALTER ROLE gpufleet_grafana SET statement_timeout = '30s';
GRANT SELECT ON money_day, money_month TO gpufleet_grafana;
