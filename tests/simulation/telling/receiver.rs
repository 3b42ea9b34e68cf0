//! The receivers of a day: the real channels before the strict stand-ins, and what each believes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpufleet_server::notify::channel::{Answer, Channel, Speaks as _};
use gpufleet_server::notify::lane::{Fault, Outcome};
use gpufleet_server::notify::message::{self, Message};
use gpufleet_server::notify::outbox::Sending;
use gpufleet_server::notify::secret::Secret;
use gpufleet_server::notify::settings::{ChannelConfig, Kind, NotifyConfig};
use gpufleet_telemetry::time::Timestamp;
use http::{HeaderMap, StatusCode};
use uuid::Uuid;

use crate::people::{Service, alertmanager, pagerduty, slack, webhook};

const ROUTING_KEY: &str = "0123456789abcdef0123456789abcdef";
const SIGNING_KEY: &str = "signing-key";

/// What a receiver has taken, by our own count.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// Whether it believes that an incident is so.
    pub(super) believes: BTreeMap<Uuid, bool>,
    pub(super) times: Vec<Timestamp>,
    /// Messages by key: a receiver with keys listens to the first of each only.
    pub(super) keys: BTreeSet<String>,
}

/// One receiver with the network to it.
pub(super) struct Receiver {
    pub(super) channel: Channel,
    pub(super) service: Service,
    pub(super) heard: Heard,
    /// Until when it fails.
    pub(super) ill_until: Timestamp,
    /// What it refuses while it fails, if it does not only fail: then it is mended by a person.
    pub(super) refuses: Option<Fault>,
}

/// Every so many days there is an Alertmanager too: it is told of everything each minute, which takes as long as all
/// other receivers of a day together.
const WITH_ALERTMANAGER: u64 = 10;

/// A channel of each kind, with a short interval so that a day has many messages.
pub(super) fn config(seed: u64) -> NotifyConfig {
    let mut config = NotifyConfig::default();
    let is_with = seed.is_multiple_of(WITH_ALERTMANAGER);
    let alertmanager = is_with.then_some(("am", Kind::Alertmanager));
    let others = [
        ("pager", Kind::Pagerduty),
        ("chat", Kind::Slack),
        ("hook", Kind::Webhook),
    ];
    for (name, kind) in others.into_iter().chain(alertmanager) {
        let mut channel = ChannelConfig::new(name, kind);
        if matches!(kind, Kind::Webhook | Kind::Alertmanager) {
            channel.urls = vec!["http://hook.example.org".to_owned()];
        }
        channel.interval_s = Some(30);
        config.channels.push(channel);
    }
    config
}

/// The receivers of these channels.
pub(super) fn receivers(config: &NotifyConfig) -> BTreeMap<Arc<str>, Receiver> {
    let made = config.channels.iter().map(|channel| {
        let (secret, service) = match channel.kind {
            Kind::Pagerduty => (
                ROUTING_KEY,
                Service::Pagerduty(pagerduty::Pagerduty::new(ROUTING_KEY)),
            ),
            Kind::Slack => (
                "https://hooks.slack.example.org/services/T0/B0/x",
                Service::Slack(slack::Slack::default()),
            ),
            Kind::Webhook => (
                SIGNING_KEY,
                Service::Webhook(webhook::Webhook::new(SIGNING_KEY)),
            ),
            Kind::Alertmanager => (
                "a-token",
                Service::Alertmanager(alertmanager::Alertmanager::default()),
            ),
        };
        let channels = Channel::all(channel, &Secret::given(secret));
        let channel_of = channels.expect("it can be made").remove(0);
        let receiver = Receiver {
            channel: channel_of,
            service,
            heard: Heard::default(),
            ill_until: Timestamp(0),
            refuses: None,
        };
        (Arc::from(channel.name.as_str()), receiver)
    });
    made.collect()
}

impl Receiver {
    /// The receiver gets a message; why it refuses it, if it does.
    pub(super) fn take(
        &mut self,
        message: &Message,
        sending: &Sending,
        now: Timestamp,
    ) -> Result<(), String> {
        for post in self.channel.posts(message)? {
            let headers: HeaderMap = post.headers.into_iter().collect();
            let (status, body) =
                self.service
                    .take(post.to.path(), &headers, &post.body, now.seconds());
            let status = StatusCode::from_u16(status).map_err(|error| error.to_string())?;
            let answer = Answer {
                status,
                retry_after: None,
                body,
            };
            if self.channel.judge(&answer) != Outcome::Delivered {
                return Err(answer.body);
            }
        }
        if let Service::Alertmanager(it) = &self.service {
            let mut active = BTreeSet::new();
            for labels in it.active_at(now) {
                let id = &labels["incident_id"];
                if !active.insert(id) {
                    return Err(format!("two alerts of {id} are active"));
                }
            }
        }
        self.heard.times.push(now);
        let is_new = self.heard.keys.insert(message.message_key.clone());
        let takes_keys_once = matches!(self.service, Service::Webhook(_));
        if !is_new && takes_keys_once {
            // It has had this one, and listens to it no more.
            return Ok(());
        }
        for id in message::told(sending) {
            let member = &sending.group.members[&id];
            self.heard.believes.insert(id, member.resolved_at.is_none());
        }
        Ok(())
    }

    /// Whether it takes an incident for open in the end; none where it never heard of it.
    pub(super) fn believes(&self, id: Uuid, now: Timestamp) -> Option<bool> {
        let heard = self.heard.believes.get(&id).copied();
        match &self.service {
            Service::Alertmanager(it) => {
                heard.map(|_| it.active_of(&id.to_string(), now.seconds()) > 0)
            }
            _ => heard,
        }
    }
}
