//! The real programs together, and beside them the real programs of others.
//!
//! Each test starts what it needs on free ports in a folder of its own. They run ten at once: most of their
//! time is waiting for ticks and commits. Those in which the store has a part run on SQLite and on PostgreSQL
//! ([`on_both_databases`](gpufleet_tests::on_both_databases)); the others on SQLite, and on PostgreSQL by
//! `make test-postgres`.

mod peers;

mod otlp;

mod whole_way;

mod attribution;

mod workstation;

mod inventory;

mod make_up;

mod tls;

mod traces;

mod kills;

mod agent_kills;

mod training;

mod prometheus;

mod made;

mod alerts;

mod dashboards;

mod engines;

mod exports;

mod remote_write;

mod questions;

mod tour;

mod hang;

mod foreign;

mod standby;

mod cli;

mod bad_input;

mod bad_disk;

mod bad_node;

mod bundle;

mod handoff;

mod incidents;

mod cloud_monitoring;

mod commands;

mod settings;

mod live;

mod notify;

mod digest;

mod cost;

mod ledger_dashboard;

mod tables;
