//! What people configure of notifications: channels, who is told of what, where our pages are; and what
//! is made of it once it is checked.
//!
//! Limits: [`MAX_CHANNELS`], [`MAX_ROUTES`], [`MAX_URLS`]. A secret is the name of a file or of an
//! environment variable, never a value.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gpufleet_program::section;
use serde::{Deserialize, Serialize};

use super::digest::Digested;
use super::route::{Route, Team};

/// Most channels: a team each, and a few for all.
pub const MAX_CHANNELS: usize = 32;
/// Most routes and most teams: more are not read by anybody.
pub const MAX_ROUTES: usize = 128;
/// Most addresses of one channel: the peers of an Alertmanager cluster.
pub const MAX_URLS: usize = 8;
/// Longest pause that a group may make between two messages.
const MAX_INTERVAL: Duration = Duration::from_secs(24 * 3_600);

section! {
    /// Who is told of incidents, by which way. What each key does, and the templates: docs/notify.md.
    pub struct NotifyConfig {
        /// Ways to people, at most 32: [{ name = "pager", kind = "pagerduty", secret_file = "/etc/gpufleet/pagerduty-key" }].
        /// The kinds are pagerduty, slack, alertmanager and webhook.
        pub channels: Vec<ChannelConfig> = Vec::new(),
        /// Which incidents go where, at most 128: [{ channels = ["pager"], severity = "error", families = ["gpu_fault"] }].
        /// All that match count. Without any, every channel is told of warnings and errors.
        pub routes: Vec<Route> = Vec::new(),
        /// Who owns what, the first that matches: [{ name = "research", clusters = ["prod"], nodes = ["a3-*"], runs = ["research/*"] }].
        pub teams: Vec<Team> = Vec::new(),
        /// Channels that are told of gpufleet's own blindness (silent nodes, data that comes late, other
        /// channels that fail), instead of those of the routes. Empty: the routes decide.
        pub own_channels: Vec<String> = Vec::new(),
        /// Who is sent the week of which team, at most 128: [{ channels = ["chat"], teams = ["research"] }]; without
        /// teams that of each. All that match count. Slack and webhooks alone. Empty: nobody is sent any.
        pub digests: Vec<Digested> = Vec::new(),
        /// From which hour (UTC) of Monday on the week before is sent, 0 to 23.
        pub digest_hour: u32 = 8,
        /// Seconds for which a server that has just begun to lead waits with it, for what agents kept meanwhile, 0 to
        /// 86400.
        pub digest_wait_s: u64 = 900,
        /// Whether incidents of simulated GPUs are told too; recorded ones never are.
        pub simulated: bool = false,
        /// The address under which people reach this server's pages.
        pub page_url: String = "http://127.0.0.1:8080".to_owned(),
        /// The address of a Grafana dashboard of a GPU; {cluster}, {node} and {gpu} are put in. Empty: none.
        pub grafana_url: String = String::new(),
        /// The folder of the runbooks where you serve them yourself. Empty: the pages of this server, page_url/runbooks.
        pub runbook_url: String = String::new(),
        /// A file with the address that is asked every heartbeat_every_s while this server judges and
        /// keeps what comes: a service outside raises the alarm when it is not. Empty: none.
        pub heartbeat_file: PathBuf = PathBuf::new(),
        /// The same from an environment variable of this name.
        pub heartbeat_env: String = String::new(),
        /// Seconds between two heartbeats, 10 to 3600.
        pub heartbeat_every_s: u64 = 60,
        /// For an https heartbeat: the certificates (PEM) that its receiver's must come from. Empty: the system's.
        pub heartbeat_ca_file: PathBuf = PathBuf::new(),
    }
}

/// The protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// PagerDuty, Events API v2.
    Pagerduty,
    /// Slack, incoming webhook.
    Slack,
    /// Prometheus' Alertmanager, API v2.
    Alertmanager,
    /// JSON to any address, signed.
    Webhook,
}

/// What makes incidents one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// The same cluster.
    Cluster,
    /// The same kind of trouble.
    Family,
    /// The same node.
    Node,
    /// The same severity.
    Severity,
    /// The same team.
    Team,
    /// Each incident by itself.
    Incident,
}

/// One channel as it is written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelConfig {
    /// Its name in routes, on pages and in metrics.
    pub name: String,
    /// What it speaks.
    pub kind: Kind,
    /// Its addresses: PagerDuty's own where none is given, all peers of an Alertmanager, one webhook.
    #[serde(default)]
    pub urls: Vec<String>,
    /// A file with PagerDuty's routing key, Slack's webhook address, the key of the signature, or the
    /// token for Alertmanager. Read again when it changes.
    #[serde(default)]
    pub secret_file: PathBuf,
    /// The same from an environment variable of this name.
    #[serde(default)]
    pub secret_env: String,
    /// For https: the certificates (PEM) that the receiver's must come from. Empty: the system's.
    #[serde(default)]
    pub ca_file: PathBuf,
    /// What makes incidents one message; as the kind has it where it is not said.
    pub group_by: Option<Vec<By>>,
    /// Seconds between two messages of a group.
    pub interval_s: Option<u64>,
    /// Seconds after which a group that is still open is told again; 0 is never.
    pub repeat_s: Option<u64>,
    /// Files with templates of your own.
    #[serde(default)]
    pub title_file: PathBuf,
    /// See `title_file`.
    #[serde(default)]
    pub text_file: PathBuf,
}

impl ChannelConfig {
    /// A channel with everything but name and kind at its default.
    pub fn new(name: &str, kind: Kind) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            urls: Vec::new(),
            secret_file: PathBuf::new(),
            secret_env: String::new(),
            ca_file: PathBuf::new(),
            group_by: None,
            interval_s: None,
            repeat_s: None,
            title_file: PathBuf::new(),
            text_file: PathBuf::new(),
        }
    }
}

/// One receiver: a channel, or one peer of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// Its name: the channel's, with `#2` and so on for further peers.
    pub name: Arc<str>,
    /// The channel's.
    pub channel: Arc<str>,
    /// What it speaks.
    pub kind: Kind,
    /// What makes incidents one message.
    pub by: Vec<By>,
    /// Between two messages of a group.
    pub interval: Duration,
    /// After which an open group is told again.
    pub repeat: Option<Duration>,
}

/// Everything that decides who is told.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settings {
    /// Every receiver.
    pub ways: Vec<Way>,
    /// Which incidents go where.
    pub routes: Vec<Route>,
    /// Who owns what.
    pub teams: Vec<Team>,
    /// Who is told of gpufleet's own blindness.
    pub own_channels: Vec<String>,
    /// Who is sent the week of which team.
    pub digests: Vec<Digested>,
    /// From which hour of Monday on.
    pub digest_hour: u32,
    /// How long a server that has just begun to lead waits with it.
    pub digest_wait: Duration,
    /// Whether simulated GPUs are told.
    pub simulated: bool,
}

impl Kind {
    /// The name in the config, in the API and on pages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pagerduty => "pagerduty",
            Self::Slack => "slack",
            Self::Alertmanager => "alertmanager",
            Self::Webhook => "webhook",
        }
    }

    /// What makes incidents one message where nobody says otherwise. Alertmanager groups by itself.
    fn usual_groups(self) -> Vec<By> {
        match self {
            Self::Alertmanager => Vec::new(),
            Self::Pagerduty | Self::Slack | Self::Webhook => vec![By::Cluster, By::Family],
        }
    }

    fn usual_interval(self) -> Duration {
        Duration::from_secs(match self {
            Self::Alertmanager => 5,
            Self::Pagerduty | Self::Slack | Self::Webhook => 300,
        })
    }

    /// Alertmanager forgets what it is not told again.
    fn usual_repeat(self) -> Option<Duration> {
        (self == Self::Alertmanager).then_some(Duration::from_secs(60))
    }

    /// Whether it is told of every incident of a group, also of those that are over.
    pub const fn wants_each(self) -> bool {
        matches!(self, Self::Alertmanager)
    }

    /// Whether only the first message of a key surely calls people: PagerDuty adds the next ones to the same alarm, and
    /// calls nobody for them while somebody has acknowledged it.
    pub const fn calls_once(self) -> bool {
        matches!(self, Self::Pagerduty)
    }

    /// Whether it is a place for what is about no incident. An alarm that says that all is well is none.
    pub const fn takes_notices(self) -> bool {
        matches!(self, Self::Slack | Self::Webhook)
    }

    /// For how long it is told of what is over.
    pub const fn keeps_over(self) -> Duration {
        Duration::from_secs(match self {
            Self::Alertmanager => 15 * 60,
            Self::Pagerduty | Self::Slack | Self::Webhook => 0,
        })
    }

    /// The longest pause after a failure. Alertmanager believes what it is told for four minutes, so it is
    /// asked again soon enough that a short silence of it ends nothing.
    const fn longest_pause(self) -> Duration {
        match self {
            Self::Alertmanager => Duration::from_secs(30),
            Self::Pagerduty | Self::Slack | Self::Webhook => Duration::MAX,
        }
    }

    /// The least time between two messages: Slack takes about one a second.
    pub const fn spacing(self) -> Duration {
        Duration::from_millis(match self {
            Self::Slack => 1_000,
            Self::Pagerduty | Self::Alertmanager | Self::Webhook => 0,
        })
    }
}

impl Way {
    /// The longest pause after a failure, also of what the receiver asks for.
    pub const fn longest_pause(&self) -> Duration {
        self.kind.longest_pause()
    }

    /// After which the end of an incident is no longer tried to be told: whoever could not be reached for
    /// so long is told what is so, and not what was. Alertmanager has forgotten it by then.
    pub const fn gives_up(&self) -> Duration {
        match self.kind {
            Kind::Alertmanager => self.kind.keeps_over(),
            Kind::Pagerduty | Kind::Slack | Kind::Webhook => Duration::from_secs(7 * 86_400),
        }
    }
}

impl Settings {
    /// Checks what is written down.
    ///
    /// # Errors
    /// Names the key, the channel and the way out.
    pub fn read(config: &NotifyConfig) -> Result<Self, String> {
        if config.channels.len() > MAX_CHANNELS {
            return Err(format!("notify.channels: at most {MAX_CHANNELS}"));
        }
        if config.routes.len() > MAX_ROUTES || config.teams.len() > MAX_ROUTES {
            return Err(format!(
                "notify.routes, notify.teams: at most {MAX_ROUTES} each"
            ));
        }
        if !(10..=3_600).contains(&config.heartbeat_every_s) {
            let every = config.heartbeat_every_s;
            return Err(format!(
                "notify.heartbeat_every_s = {every}: it is 10 to 3600"
            ));
        }
        for (key, url) in [
            ("page_url", &config.page_url),
            ("runbook_url", &config.runbook_url),
            ("grafana_url", &config.grafana_url),
        ] {
            let is_web = url.starts_with("http://") || url.starts_with("https://");
            if !(is_web || url.is_empty() && key != "page_url") {
                return Err(format!(
                    "notify.{key} = {url:?} must begin with http:// or https://"
                ));
            }
        }
        let mut names = BTreeMap::new();
        let mut ways = Vec::new();
        for channel in &config.channels {
            if names.insert(channel.name.as_str(), channel.kind).is_some() {
                return Err(format!("notify.channels: {:?} stands twice", channel.name));
            }
            ways.extend(ways_of(channel)?);
        }
        let known: BTreeSet<&str> = names.keys().copied().collect();
        let named = |key: String, channels: &[String]| match channels
            .iter()
            .find(|it| !known.contains(it.as_str()))
        {
            Some(name) => Err(format!(
                "{key}: there is no channel {name:?} in notify.channels: {known:?}"
            )),
            None => Ok(()),
        };
        named("notify.own_channels".to_owned(), &config.own_channels)?;
        for (number, route) in (1..).zip(&config.routes) {
            let key = format!("notify.routes, number {number}");
            named(key.clone(), &route.channels)?;
            route.check().map_err(|why| format!("{key}: {why}"))?;
        }
        Digested::check_all(config)?;
        for (number, digested) in (1..).zip(&config.digests) {
            let key = format!("notify.digests, number {number}");
            named(key.clone(), &digested.channels)?;
            digested
                .check(&names)
                .map_err(|why| format!("{key}{why}"))?;
        }
        for (number, team) in (1..).zip(&config.teams) {
            if team.name.is_empty() || team.name.len() > 128 {
                return Err(format!(
                    "notify.teams, number {number}: a name of 1 to 128 bytes"
                ));
            }
        }
        Ok(Self {
            ways,
            routes: config.routes.clone(),
            teams: config.teams.clone(),
            own_channels: config.own_channels.clone(),
            digests: config.digests.clone(),
            digest_hour: config.digest_hour,
            digest_wait: Duration::from_secs(config.digest_wait_s),
            simulated: config.simulated,
        })
    }

    /// The receiver of this name.
    pub fn way(&self, name: &str) -> Option<&Way> {
        self.ways.iter().find(|it| *it.name == *name)
    }
}

fn ways_of(channel: &ChannelConfig) -> Result<Vec<Way>, String> {
    let key = format!("notify.channels, {:?}", channel.name);
    let is_name = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
    if channel.name.is_empty() || channel.name.len() > 64 || !channel.name.chars().all(is_name) {
        return Err(format!(
            "{key}: a name has 1 to 64 letters, digits, dashes, dots or underscores"
        ));
    }
    let addresses = channel.urls.len();
    match channel.kind {
        Kind::Slack if addresses > 0 => {
            return Err(format!(
                "{key}: the address of a Slack webhook is a secret: put it into secret_file or secret_env"
            ));
        }
        Kind::Alertmanager if !(1..=MAX_URLS).contains(&addresses) => {
            return Err(format!(
                "{key}: urls are 1 to {MAX_URLS} addresses of Alertmanager"
            ));
        }
        Kind::Webhook if addresses != 1 => {
            return Err(format!("{key}: urls is the one address of the webhook"));
        }
        // More groups than messages a minute would end what is not told again in time.
        Kind::Alertmanager if channel.group_by.is_some() => {
            return Err(format!(
                "{key}: Alertmanager groups by itself (group_by in its own configuration): leave group_by out"
            ));
        }
        Kind::Alertmanager if channel.repeat_s.is_some_and(|it| !(1..=60).contains(&it)) => {
            return Err(format!(
                "{key}: repeat_s is 1 to 60: what Alertmanager is not told again is over to it"
            ));
        }
        Kind::Pagerduty if addresses > 1 => {
            return Err(format!("{key}: PagerDuty has one address at most"));
        }
        _ => {}
    }
    let seconds = |name: &str, value: Option<u64>, usual: Duration| {
        let value = value.map_or(usual, Duration::from_secs);
        match value <= MAX_INTERVAL {
            true => Ok(value),
            false => Err(format!(
                "{key}: {name} is at most {} s",
                MAX_INTERVAL.as_secs()
            )),
        }
    };
    let interval = seconds(
        "interval_s",
        channel.interval_s,
        channel.kind.usual_interval(),
    )?;
    let usual = channel.kind.usual_repeat().unwrap_or_default();
    let repeat = seconds("repeat_s", channel.repeat_s, usual)?;
    let by = channel.group_by.clone();
    let by = by.unwrap_or_else(|| channel.kind.usual_groups());
    let way = |number: usize| Way {
        name: match number {
            1 => channel.name.as_str().into(),
            number => format!("{}#{number}", channel.name).into(),
        },
        channel: channel.name.as_str().into(),
        kind: channel.kind,
        by: by.clone(),
        interval,
        repeat: (!repeat.is_zero()).then_some(repeat),
    };
    Ok((1..=addresses.max(1)).map(way).collect())
}

#[cfg(test)]
mod tests;
