//! Requests to Cloud Monitoring, some at once, by Google's client, and what its answers mean.
//!
//! The client's own retries are off: the loop of [`crate::export::push`] tries again, with its pauses and from
//! its cursor. Cloud Monitoring writes what it can of a request and says of the rest how many points fell
//! under which code, and in its words which points they are ([`judge`]). What breaks a rule is dropped; what failed
//! for a reason that passes is sent again ([`super::again`]).
//!
//! Limits: [`WITHIN`] for one request with everything that belongs to it; [`MAX_CREDENTIALS_BYTES`] of a file.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use futures::future::join_all;
use google_cloud_api::model::MetricDescriptor;
use google_cloud_auth::credentials::{
    Builder as DefaultChain, Credentials, anonymous, external_account, impersonated,
    service_account, user_account,
};
use google_cloud_gax::error::rpc::Code;
use google_cloud_gax::retry_policy::NeverRetry;
use google_cloud_monitoring_v3::Error;
use google_cloud_monitoring_v3::client::MetricService;
use google_cloud_monitoring_v3::model::TimeSeries;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::CloudMonitoringConfig;
use crate::notify::channel::address;

mod judge;

use judge::{judge, later, told, unanswered};

/// Longest time requests at once may take: to find credentials, to connect, to send and to hear all of the answer.
pub const WITHIN: Duration = Duration::from_secs(10);

/// The largest file of credentials; they have a few kB.
const MAX_CREDENTIALS_BYTES: u64 = 1 << 20;

/// What credentials are asked for: to write series and descriptors.
const SCOPE: &str = "https://www.googleapis.com/auth/monitoring.write";

/// Why a point was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It breaks a rule of Cloud Monitoring.
    Refused,
    /// The series may not be written.
    Denied,
    /// Cloud Monitoring failed with it.
    Failed,
    /// It may have been taken before, when no answer came.
    SentAgain,
    /// Its metric's descriptor was refused.
    Descriptor,
    /// Its metric is not one of such a resource.
    Kind,
    /// More counters than are followed.
    TooMany,
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All of it was taken.
    Taken,
    /// Some or all of it will not be taken; the rest was.
    Refused {
        /// How many points, by reason.
        by: Vec<(Reason, u64)>,
        /// Why, of the first.
        why: String,
    },
    /// Some of it failed for now; of the rest some was taken, or will not be.
    Partly(Partly),
    /// Not now.
    Later {
        /// Why, and what people can do.
        why: String,
        /// How long it asks to be left alone.
        after: Option<Duration>,
        /// Whether it may have taken some or all of it.
        is_in_doubt: bool,
    },
}

/// A request of which some points failed for now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partly {
    /// How many points were taken.
    pub taken: u64,
    /// How many will not be, by reason.
    pub by: Vec<(Reason, u64)>,
    /// Which points were not taken, failed for now or refused, by their place in the request; none where it does not
    /// say.
    pub places: Option<BTreeSet<usize>>,
    /// Why.
    pub why: String,
    /// How long it asks to be left alone.
    pub after: Option<Duration>,
}

/// Where requests go.
#[derive(Debug)]
pub struct Target {
    project: String,
    endpoint: Option<String>,
    credentials: From,
    /// Made with the first request, and anew after credentials failed or may not write: then their file is read again.
    client: Option<MetricService>,
}

/// Where credentials come from.
#[derive(Debug)]
enum From {
    DefaultChain,
    File(PathBuf),
    Nowhere,
}

impl Reason {
    /// Every reason, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Refused,
        Self::Denied,
        Self::Failed,
        Self::SentAgain,
        Self::Descriptor,
        Self::Kind,
        Self::TooMany,
    ];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Denied => "denied",
            Self::Failed => "failed",
            Self::SentAgain => "sent_again",
            Self::Descriptor => "descriptor",
            Self::Kind => "kind",
            Self::TooMany => "too_many",
        }
    }

    /// What it means for a point.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Refused => {
                "they break a rule of Cloud Monitoring; the server's log has its words"
            }
            Self::Denied => "their series may not be written",
            Self::Failed => "Cloud Monitoring failed with them, also when they were sent again",
            Self::SentAgain => "they were sent again and may have been there",
            Self::Descriptor => "it does not take what their metric is",
            Self::Kind => "their metric is not one of such a resource",
            Self::TooMany => "more counters are chosen than are followed",
        }
    }

    pub(super) fn of(code: Code) -> Self {
        match code {
            Code::PermissionDenied | Code::Unauthenticated | Code::NotFound => Self::Denied,
            Code::InvalidArgument
            | Code::OutOfRange
            | Code::AlreadyExists
            | Code::FailedPrecondition => Self::Refused,
            _ => Self::Failed,
        }
    }
}

impl Target {
    /// Where the configuration says. Nothing is asked of anyone.
    ///
    /// # Errors
    /// Names the key and what is wrong with it.
    pub fn new(config: &CloudMonitoringConfig) -> Result<Self, String> {
        let key = |key: &str, why: String| format!("cloud_monitoring.{key}: {why}");
        let is_name = |it: char| it.is_ascii_alphanumeric() || matches!(it, '-' | '.' | ':');
        if !config.project.chars().all(is_name) || config.project.len() > 63 {
            let why = "a project's id has letters, digits and - only, and at most 63 of them";
            return Err(key("project", why.to_owned()));
        }
        let file = &config.credentials_file;
        let credentials = match (config.anonymous, file.as_os_str().is_empty()) {
            (true, true) => From::Nowhere,
            (true, false) => {
                let why = "set, though anonymous says that there are none: leave one out";
                return Err(key("credentials_file", why.to_owned()));
            }
            (false, true) => From::DefaultChain,
            (false, false) => {
                read(file).map_err(|why| key("credentials_file", why))?;
                From::File(file.clone())
            }
        };
        let endpoint = match config.endpoint.is_empty() {
            true => None,
            false => {
                let to = address(&config.endpoint).map_err(|why| key("endpoint", why))?;
                let has_user = to.authority().is_some_and(|it| it.as_str().contains('@'));
                if has_user || to.query().is_some() {
                    let why = "has a user, a password or a query: credentials_file is the place for a secret";
                    return Err(key("endpoint", why.to_owned()));
                }
                let is_here = matches!(to.host(), Some("127.0.0.1" | "[::1]" | "localhost"));
                if to.scheme_str() == Some("http") && !config.anonymous && !is_here {
                    let why = "http would show the credentials to everyone: https, or anonymous";
                    return Err(key("endpoint", why.to_owned()));
                }
                Some(config.endpoint.clone())
            }
        };
        Ok(Self {
            project: config.project.clone(),
            endpoint,
            credentials,
            client: None,
        })
    }

    /// Writes requests at once, each with points of series that no other has, one of each.
    pub async fn write(&mut self, requests: Vec<Vec<TimeSeries>>) -> Vec<Verdict> {
        let name = format!("projects/{}", self.project);
        let requests = requests.into_iter().map(|series| {
            let (count, name) = (series.len() as u64, name.clone());
            let request = async move |client: MetricService| {
                let request = client.create_time_series().set_name(name);
                request.set_time_series(series).send().await
            };
            (count, request)
        });
        self.ask(requests.collect()).await
    }

    /// Makes a metric's descriptor, or finds that it is there.
    pub async fn describe(&mut self, descriptor: MetricDescriptor) -> Verdict {
        let name = format!("projects/{}", self.project);
        let request = async |client: MetricService| {
            let request = client.create_metric_descriptor().set_name(name);
            let request = request.set_metric_descriptor(descriptor);
            request.send().await.map(|_| ())
        };
        let verdict = self.ask(vec![(1, request)]).await.pop();
        verdict.expect("each request has a verdict")
    }

    /// What becomes of requests of so many points each.
    async fn ask<F>(&mut self, requests: Vec<(u64, F)>) -> Vec<Verdict>
    where
        F: AsyncFnOnce(MetricService) -> Result<(), Error>,
    {
        let until = Instant::now() + WITHIN;
        let client = match timeout_at(until, self.client()).await {
            Ok(Ok(client)) => client,
            Ok(Err(why)) => return vec![later(why); requests.len()],
            Err(_) => return vec![unanswered(false); requests.len()],
        };
        let asked = requests.into_iter().map(|(count, request)| {
            let client = client.clone();
            async move { (count, timeout_at(until, request(client)).await) }
        });
        let answers = join_all(asked).await;
        let mut verdicts = Vec::with_capacity(answers.len());
        for (count, answer) in answers {
            verdicts.push(match answer {
                Ok(Ok(())) => Verdict::Taken,
                Ok(Err(error)) => {
                    let reason = error.status().map(|it| Reason::of(it.code));
                    if error.is_authentication() || reason == Some(Reason::Denied) {
                        // The next attempt reads the file again: it may be another account's by then.
                        self.client = None;
                    }
                    judge(&error, count, &self.project)
                }
                Err(_) => unanswered(true),
            });
        }
        verdicts
    }

    async fn client(&mut self) -> Result<MetricService, String> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let made = self.connect().await?;
        Ok(self.client.insert(made).clone())
    }

    async fn connect(&self) -> Result<MetricService, String> {
        let mut builder = MetricService::builder().with_retry_policy(NeverRetry);
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        let builder = builder.with_credentials(self.credentials()?);
        let made = builder.build().await;
        made.map_err(|error| format!("cannot begin to speak to it: {}", told(&error)))
    }

    fn credentials(&self) -> Result<Credentials, String> {
        let made = match &self.credentials {
            From::Nowhere => return Ok(anonymous::Builder::new().build()),
            From::DefaultChain => DefaultChain::default().with_scopes([SCOPE]).build(),
            From::File(file) => {
                let (kind, json) = read(file)
                    .map_err(|why| format!("cloud_monitoring.credentials_file: {why}"))?;
                match kind {
                    Held::ServiceAccount => service_account::Builder::new(json)
                        .with_access_specifier(service_account::AccessSpecifier::from_scopes([
                            SCOPE,
                        ]))
                        .build(),
                    Held::User => user_account::Builder::new(json)
                        .with_scopes([SCOPE])
                        .build(),
                    Held::External => external_account::Builder::new(json)
                        .with_scopes([SCOPE])
                        .build(),
                    Held::Impersonated => impersonated::Builder::new(json)
                        .with_scopes([SCOPE])
                        .build(),
                }
            }
        };
        // What the builder says may show a part of the file.
        made.map_err(|error| match self.credentials {
            From::File(_) => {
                "cloud_monitoring.credentials_file lacks what its type has, or has it in a form that is none"
                    .to_owned()
            }
            _ => format!("no credentials are found: {}", told(&error)),
        })
    }
}

/// What a file of credentials holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    ServiceAccount,
    User,
    External,
    Impersonated,
}

/// A file of credentials. What is in it is never told.
fn read(file: &PathBuf) -> Result<(Held, Value), String> {
    let shown = file.display();
    let size = std::fs::metadata(file).map_err(|error| format!("{shown}: {error}"))?;
    if !size.is_file() || size.len() > MAX_CREDENTIALS_BYTES {
        return Err(format!("{shown} is no file of credentials"));
    }
    let text = std::fs::read_to_string(file).map_err(|error| format!("{shown}: {error}"))?;
    let json: Value = serde_json::from_str(&text)
        .map_err(|error| format!("{shown} is not JSON, line {}", error.line()))?;
    let held = match json["type"].as_str() {
        Some("service_account") => Held::ServiceAccount,
        Some("authorized_user") => Held::User,
        Some("external_account") => Held::External,
        Some("impersonated_service_account") => Held::Impersonated,
        _ => {
            return Err(format!(
                "{shown} has no \"type\" that is understood: service_account, external_account, impersonated_service_account or authorized_user"
            ));
        }
    };
    Ok((held, json))
}

#[cfg(test)]
mod tests;
