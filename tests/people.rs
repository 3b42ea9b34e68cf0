//! Stand-ins for the services outside, those that tell people and Cloud Monitoring: they refuse what the real
//! ones refuse, and remember what they were told. [`server`] puts them on a port and lets them fail, hang
//! and lie.

use std::collections::BTreeMap;

use http::HeaderMap;

pub mod pagerduty;

pub mod slack;

pub mod webhook;

pub mod alertmanager;

pub mod cloud_monitoring;

pub mod server;

#[cfg(test)]
mod tests;

#[cfg(test)]
mod renamed;

/// What a service answers: status and body.
pub type Reply = (u16, String);

/// A service, by the protocol it speaks.
#[derive(Debug, Clone)]
pub enum Service {
    /// PagerDuty.
    Pagerduty(pagerduty::Pagerduty),
    /// Slack.
    Slack(slack::Slack),
    /// A webhook of ours.
    Webhook(webhook::Webhook),
    /// Alertmanager.
    Alertmanager(alertmanager::Alertmanager),
    /// Google Cloud Monitoring.
    CloudMonitoring(cloud_monitoring::CloudMonitoring),
}

impl Service {
    /// Takes one POST to a path.
    pub fn take(
        &mut self,
        path: &str,
        headers: &HeaderMap,
        body: &[u8],
        now_seconds: i64,
    ) -> Reply {
        if headers
            .get("content-type")
            .is_none_or(|it| it != "application/json")
        {
            return (400, "content-type must be application/json".to_owned());
        }
        if !self.is_at(path) {
            return (404, "no_service".to_owned());
        }
        match self {
            Self::Pagerduty(it) => it.take(body),
            Self::Slack(it) => it.take(body),
            Self::Webhook(it) => it.take(headers, body, now_seconds),
            Self::Alertmanager(it) => it.take(body),
            Self::CloudMonitoring(it) => it.take(path, headers, body, now_seconds),
        }
    }

    /// Whether the service is at this path. A webhook's path is its owner's to choose, and Cloud Monitoring
    /// looks at it itself.
    fn is_at(&self, path: &str) -> bool {
        match self {
            Self::Pagerduty(_) => path == "/v2/enqueue",
            Self::Slack(_) => path.starts_with("/services/") && path.split('/').count() == 5,
            Self::Alertmanager(_) => path == "/api/v2/alerts",
            Self::Webhook(_) | Self::CloudMonitoring(_) => true,
        }
    }

    /// How often it was told each message, by the message's key.
    pub fn messages(&self) -> &BTreeMap<String, u64> {
        match self {
            Self::Pagerduty(it) => &it.messages,
            Self::Slack(it) => &it.messages,
            Self::Webhook(it) => &it.messages,
            Self::Alertmanager(it) => &it.messages,
            Self::CloudMonitoring(it) => &it.messages,
        }
    }
}
