//! Tells people: what is wrong becomes messages to PagerDuty, Slack, Alertmanager and webhooks.
//!
//! Read in the order of the data: [`settings`] (what is configured), [`route`] (who is told), [`silence`] (who is not, for a while), [`group`] and
//! [`outbox`] (what is still to be said; stored with the incidents), [`lane`] (how often, and pauses),
//! [`message`] and [`template`] (the words), [`channel`] (one file a protocol), [`wire`] (HTTP). The
//! outbox itself is held beside the book of incidents ([`crate::incidents`]), so that both change
//! together. [`own`] and [`heartbeat`] are about gpufleet's own blindness, [`digest`] is about nothing that is wrong.
//!
//! A message is sent at least once. Where the receiver knows keys, once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpufleet_analysis::incident::Place;
use gpufleet_telemetry::time::{Clock, Timestamp};
use http::Uri;
use rustls::ClientConfig;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::App;
use crate::threads::apart;
use crate::view;
use crate::words::incident::place_words;

pub mod settings;

pub mod route;

pub mod silence;

pub mod group;

pub mod lane;

pub mod outbox;

pub mod own;

pub mod runbook;

pub mod message;

pub mod template;

pub mod example;

pub mod secret;

pub mod channel;

pub mod wire;

pub mod digest;

pub mod heartbeat;

#[cfg(test)]
pub(crate) mod fixture;

use channel::{Channel, Speaks as _};
use group::Group;
use lane::{Fault, Outcome};
use message::{Addresses, Message};
use outbox::Sending;
use secret::Secret;
use settings::{NotifyConfig, Settings};
use template::Templates;
use wire::Wire;

/// How often is looked whether a pause or a silence is over; what is new wakes the task at once.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long messages that are on their way when the server is told to stop may take.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// Everything that is needed to tell people, ready to be used.
pub struct Channels {
    /// By the receiver's name.
    receivers: BTreeMap<Arc<str>, Receiver>,
    addresses: Addresses,
    settings: Arc<Settings>,
}

struct Receiver {
    channel: Channel,
    templates: Arc<Templates>,
    wire: Arc<Wire>,
    /// What the last message was sent with, where it was refused: once that is another, somebody has mended it.
    refused_with: Mutex<Option<SentWith>>,
}

/// What people change when a receiver refuses what comes by a way.
struct SentWith {
    secret: Option<String>,
    tls: Option<Arc<ClientConfig>>,
}

impl Channels {
    /// Makes all of it of the config: files are read, templates compiled.
    ///
    /// # Errors
    /// Names the key, the channel and the way out.
    pub fn new(config: &NotifyConfig, clock: &Arc<dyn Clock>) -> Result<Self, String> {
        let settings = Arc::new(Settings::read(config)?);
        let mut receivers = BTreeMap::new();
        for one in &config.channels {
            let channels = Channel::all(one, &Secret::of(one)?)?;
            let templates = Arc::new(Templates::read(one)?);
            let wire = Wire::new(&one.ca_file, Arc::clone(clock));
            let wire = wire.map_err(|why| format!("notify.channels, {:?}: {why}", one.name))?;
            let is_https = |to: Uri| to.scheme_str() == Some("https");
            if channels.iter().any(|it| it.to().is_ok_and(is_https)) {
                let can = wire.can_speak_tls();
                can.map_err(|why| format!("notify.channels, {:?}: {why}", one.name))?;
            }
            let wire = Arc::new(wire);
            let ways = settings.ways.iter().filter(|it| *it.channel == *one.name);
            for (way, channel) in ways.zip(channels) {
                let receiver = Receiver {
                    channel,
                    templates: Arc::clone(&templates),
                    wire: Arc::clone(&wire),
                    refused_with: Mutex::default(),
                };
                receivers.insert(Arc::clone(&way.name), receiver);
            }
        }
        Ok(Self {
            receivers,
            addresses: Addresses::of(config),
            settings,
        })
    }

    /// Who is told of what.
    pub fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    /// The receivers of a channel.
    fn of(&self, channel: &str) -> impl Iterator<Item = (&Arc<str>, &Receiver)> {
        let names = self
            .settings
            .ways
            .iter()
            .filter(move |it| *it.channel == *channel);
        names.filter_map(|way| Some((&way.name, self.receivers.get(&way.name)?)))
    }

    /// Sends a message that says that it is a test to each receiver of a channel, with a price in this currency.
    ///
    /// # Errors
    /// When there is no such channel.
    pub async fn test(
        &self,
        channel: &str,
        currency: &str,
        now: Timestamp,
    ) -> Result<Vec<(Arc<str>, Outcome)>, String> {
        let mut outcomes = Vec::new();
        for (name, receiver) in self.of(channel) {
            let message = example::test(name, currency, now);
            let message = receiver.worded(message);
            let outcome = receiver.wire.send(&receiver.channel, &message).await;
            outcomes.push((Arc::clone(name), outcome));
        }
        if outcomes.is_empty() {
            let known: Vec<&str> = self.receivers.keys().map(|it| &**it).collect();
            return Err(format!(
                "there is no channel {channel:?} in notify.channels: {known:?}"
            ));
        }
        Ok(outcomes)
    }

    /// Sends a notice to a receiver at once, beside the outbox: somebody asked for it.
    ///
    /// # Errors
    /// When there is no such receiver.
    pub async fn say(&self, group: &Group, now: Timestamp) -> Result<Outcome, String> {
        let unknown = || format!("there is no channel {:?}", group.way);
        let receiver = self.receivers.get(&group.way).ok_or_else(unknown)?;
        let notice = group.notice.as_deref().ok_or("it is no notice")?;
        let message = message::of_notice(group, notice, now);
        Ok(receiver.wire.send(&receiver.channel, &message).await)
    }

    /// Sends one message.
    async fn send(&self, app: &App, sending: &Sending) -> Outcome {
        let Some(receiver) = self.receivers.get(&sending.way.name) else {
            let why = "this channel is no longer configured".to_owned();
            let fault = Fault::Way;
            return Outcome::Refused { why, fault };
        };
        if let Some(notice) = &sending.group.notice {
            let message = message::of_notice(&sending.group, notice, app.clock.now());
            return receiver.send(&message).await;
        }
        let mut incidents = Vec::new();
        for id in message::told(sending) {
            // The book knows the newest; what it has forgotten stands in the store.
            let found = match app.incidents.get(id) {
                Some(found) => Some(found),
                None => match app.store.incident(id).await {
                    Ok(found) => found,
                    Err(error) => {
                        tracing::warn!(%error, %id, "a message goes out without an incident that cannot be read");
                        None
                    }
                },
            };
            incidents.extend(found);
        }
        let has_gpu = incidents.iter().any(|it| it.place.gpu.is_some());
        let picture = match has_gpu {
            true => Some(picture(app).await),
            false => None,
        };
        let place = |place: &Place| match &picture {
            Some(picture) => place_words(place, picture),
            None => place_words(place, &view::FleetView::default()),
        };
        let now = app.clock.now();
        let written = message::write(
            sending,
            &incidents,
            &self.settings,
            &self.addresses,
            &place,
            app.currency(),
            now,
        );
        let message = receiver.worded(written);
        receiver.send(&message).await
    }

    /// The receivers whose secret or certificates have changed since they refused a message.
    fn mended(&self) -> impl Iterator<Item = &Arc<str>> {
        let receivers = self.receivers.iter();
        receivers.filter_map(|(name, it)| it.take_mended().then_some(name))
    }
}

/// The fleet as it is, which tells a GPU's place in its node. A walk over all GPUs keeps nobody waiting.
async fn picture(app: &App) -> view::FleetView {
    let app = app.clone();
    apart(move || view::gather::gather(&app)).await
}

impl Receiver {
    fn sends_with(&self) -> SentWith {
        SentWith {
            secret: self.channel.secret().get(),
            tls: self.wire.tls(),
        }
    }

    /// Sends a message, and remembers what with when it is refused: once that changes, all that was refused goes again.
    async fn send(&self, message: &Message) -> Outcome {
        // Before it goes out: what changes meanwhile is another.
        let with = self.sends_with();
        let outcome = self.wire.send(&self.channel, message).await;
        // Another message that got through or failed says nothing of one that was refused.
        if matches!(outcome, Outcome::Refused { .. }) {
            *self.refused_with() = Some(with);
        }
        outcome
    }

    /// Whether something has changed since a message was refused; it is said once for each change.
    fn take_mended(&self) -> bool {
        let mut refused_with = self.refused_with();
        let Some(before) = refused_with.as_ref() else {
            return false;
        };
        let now = self.sends_with();
        let is_same_tls = match (&before.tls, &now.tls) {
            (Some(before), Some(now)) => Arc::ptr_eq(before, now),
            (before, now) => before.is_none() && now.is_none(),
        };
        let is_mended = before.secret != now.secret || !is_same_tls;
        if is_mended {
            *refused_with = None;
        }
        is_mended
    }

    fn refused_with(&self) -> std::sync::MutexGuard<'_, Option<SentWith>> {
        self.refused_with
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A message with title and text. Templates of people's own that fail say so and leave the rest to
    /// ours: a message that is not sent helps nobody.
    fn worded(&self, mut message: Message) -> Message {
        match self.templates.write(&message) {
            Ok((title, text)) => (message.title, message.text) = (title, text),
            Err(why) => {
                tracing::error!(why, way = &*message.way, "a template fails; ours is used");
                let (title, text) = Templates::ours()
                    .write(&message)
                    .unwrap_or_else(|why| ("Something is wrong; see our page".to_owned(), why));
                message.title = title;
                message.text = format!("{text}\n\nThis channel's {why}");
            }
        }
        message
    }
}

/// Sends what there is to say from when this server leads until it is told to stop.
pub async fn run(app: App, channels: Arc<Channels>, stop: CancellationToken) {
    if !app.lead.wait(&stop).await {
        return;
    }
    let (job, clock) = (app.jobs.of("notifications"), app.clock.as_ref());
    let mut sending = JoinSet::new();
    while !stop.is_cancelled() {
        for way in channels.mended() {
            tracing::info!(
                way = &**way,
                "its secret or certificates have changed: what was refused is sent again"
            );
            app.incidents.try_again(way);
        }
        for next in app.incidents.next_messages(clock.now()) {
            let (app, channels) = (app.clone(), Arc::clone(&channels));
            sending.spawn(async move {
                let outcome = channels.send(&app, &next).await;
                note(&app, &next, outcome);
            });
        }
        if app.incidents.has_unwritten_messages() {
            job.round(clock, app.incidents.write(&app.store)).await;
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = app.incidents.something_to_say() => {}
            Some(sent) = sending.join_next() => {
                // A channel whose message nobody ends would be busy, and silent, for ever.
                if let Err(error) = sent {
                    std::panic::resume_unwind(error.into_panic());
                }
            }
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
    // What is on its way is waited for, so that it need not be said again by the next server.
    let ended = async { while sending.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(LAST_ANSWERS, ended).await;
    job.round(clock, app.incidents.write(&app.store)).await;
}

/// What became of a message, for the outbox and the log.
fn note(app: &App, sending: &Sending, outcome: Outcome) {
    let (way, says) = (&*sending.way.name, sending.says.name());
    let key = sending.group.message_key();
    match &outcome {
        Outcome::Delivered => tracing::info!(way, says, key, "a message was delivered"),
        Outcome::Later { why, .. } => {
            tracing::warn!(
                way,
                says,
                key,
                why,
                "a message did not get through, it is tried again"
            );
        }
        Outcome::Refused { why, .. } => {
            tracing::error!(
                way,
                says,
                key,
                why,
                "a message is refused; it is sent again when its channel is mended"
            );
        }
    }
    let dice = rand::random::<f64>();
    app.incidents.sent(sending, outcome, app.clock.now(), dice);
}

#[cfg(test)]
mod tests {
    use gpufleet_program::clock::SystemClock;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::settings::{ChannelConfig, Kind};
    use super::*;

    #[tokio::test]
    async fn a_secret_that_changes_mends_what_was_refused_whatever_became_of_others_since() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let at = listener.local_addr().expect("it is bound");
        tokio::spawn(async move {
            for status in ["400 Bad Request", "503 Busy", "204 No Content"] {
                let (mut stream, _) = listener.accept().await.expect("somebody asks");
                let _ = stream.read(&mut [0; 65_536]).await;
                let said =
                    format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
                let _ = stream.write_all(said.as_bytes()).await;
            }
        });
        let folder = tempfile::tempdir().expect("a folder");
        let key = folder.path().join("key");
        std::fs::write(&key, "first-key").expect("written");
        let mut channel = ChannelConfig::new("hook", Kind::Webhook);
        channel.urls = vec![format!("http://{at}/x")];
        channel.secret_file.clone_from(&key);
        let mut config = NotifyConfig::default();
        config.channels.push(channel);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        let channels = Channels::new(&config, &clock).expect("it can be used");
        let receiver = &channels.receivers["hook"];
        let message = example::messages().remove(0);
        let mut outcomes = Vec::new();
        for _ in 0..3 {
            outcomes.push(receiver.send(&message).await);
        }
        assert!(
            matches!(
                outcomes.as_slice(),
                [
                    Outcome::Refused { .. },
                    Outcome::Later { .. },
                    Outcome::Delivered
                ]
            ),
            "{outcomes:?}"
        );
        assert_eq!(channels.mended().count(), 0, "nothing has changed");
        std::fs::write(&key, "second-key").expect("written");
        assert_eq!(channels.mended().count(), 1);
        assert_eq!(channels.mended().count(), 0, "once for each change");
    }
}
