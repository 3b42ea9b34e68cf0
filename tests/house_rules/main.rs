//! The house rules that no compiler checks, run over the source tree.
//!
//! Each rule is one test that names every place where it is broken. A rule that cannot find what it
//! is about (no file of that kind) fails too: a check over nothing would always pass.

mod alerts;
mod cloud_monitoring;
mod dashboards;
mod deploy;
mod documents;
mod layers;
mod licences;
mod not_run;
mod readers;
mod source;
mod sources;
mod tree;
