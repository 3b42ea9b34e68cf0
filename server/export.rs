//! Where the record goes beside our own pages: pushed to a Prometheus-compatible engine
//! ([`remote_write`]) and to Google Cloud Monitoring ([`cloud_monitoring`]).
//!
//! What is pushed are minutes of the record, not what is live: they are durable, so a target that is slow
//! or gone costs no memory and no sample, and nothing here stands in the way of data that comes in.

pub mod samples;

pub mod message;

mod backlog;

pub mod push;

pub mod late;

pub mod remote_write;

pub mod cloud_monitoring;

pub use cloud_monitoring::CloudMonitoringConfig;
pub use push::Pushed;
pub use remote_write::RemoteWriteConfig;
