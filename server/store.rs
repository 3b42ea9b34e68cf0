//! The store: the only place with SQL. SQLite without set-up, PostgreSQL in production.

pub mod model;
