//! Prometheus remote write 1.0: minutes of the record to Prometheus, VictoriaMetrics, Mimir.
//!
//! 408, 425, 429, 5xx and no answer are tried again; so are redirects, 401, 403, 404 and 407, and what VictoriaMetrics
//! says for 404 ([`NO_SUCH_PATH`]), which say nothing of the samples: a token or an address can be mended. The protocol would have samples dropped for some
//! of these. Any other 4xx is never tried again, but one that is for what is in a message goes again in [`halves`].
//!
//! A series that ends is marked as ended ([`followed`]).
//!
//! Limits: [`RemoteWrite::MOST`] samples a message, [`halves::MOST_SPLITS`], [`followed::MOST`]; what `notify::wire` says of one POST.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use gpufleet_program::section;
use gpufleet_telemetry::time::{Clock, Timestamp};
use http::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue, USER_AGENT,
};
use http::{Method, Uri};
use tokio_util::sync::CancellationToken;

use super::message::{Point, body};
use super::push::{self, Labelled, Piece, Plan, Sent, Way};
use super::samples::{Sample, Selection};
use crate::App;
use crate::notify::channel::{Post, address};
use crate::notify::secret::Secret;
use crate::notify::wire::Wire;
use crate::words::text::harmless;

pub mod followed;

pub mod halves;

use followed::Followed;
use halves::Halves;

/// The label that tells what is pushed from what is scraped of agents: metrics have the same names, and one engine may
/// have both.
const FROM: &str = "from";

/// Words with which VictoriaMetrics, its vminsert and its vmauth answer 400 to a path that they do not have.
const NO_SUCH_PATH: [&str; 3] = [
    "unsupported path requested",
    "cannot parse path",
    "missing route for",
];

/// How much of an answer is told, characters: a sentence that says why.
const SAID: usize = 300;

section! {
    /// Minutes of the record, pushed to Prometheus, VictoriaMetrics, Mimir, or what else takes remote write 1.0.
    pub struct RemoteWriteConfig {
        /// Where to, `https://metrics.example.com/api/v1/write`; empty: nowhere.
        pub url: String = String::new(),
        /// File with the bearer token that the target asks for, or the user's password; empty: none.
        pub token_file: PathBuf = PathBuf::new(),
        /// The user, where the target asks for a name and a password (Grafana Cloud: the number of the instance);
        /// empty: the token is a bearer token.
        pub user: String = String::new(),
        /// The tenant, `X-Scope-OrgID`, where the target serves several (Mimir, Cortex); empty: none.
        pub tenant: String = String::new(),
        /// File with the certificates (PEM) that the target's must come from; empty: the system's.
        pub ca_file: PathBuf = PathBuf::new(),
        /// Which metrics: names, or beginnings of names followed by `*` (docs/metrics.md).
        pub metrics: Vec<String> = vec!["gpufleet_gpu_*".to_owned()],
        /// How long after its end a minute is pushed, seconds; data that comes later is not.
        pub delay_s: u64 = 60,
        /// Minutes older than this are skipped when the target was away, hours.
        pub max_age_h: u64 = 12,
    }
}

/// What became of a message.
enum Answer {
    /// All of it was taken.
    Taken,
    /// It will not be.
    Refused {
        why: String,
        /// Whether a part of it may be taken.
        is_for_samples: bool,
    },
    /// Not now.
    Later {
        why: String,
        after: Option<Duration>,
    },
}

/// A target.
pub struct RemoteWrite {
    to: Uri,
    token: Secret,
    user: String,
    tenant: Option<HeaderValue>,
    wire: Wire,
    plan: Plan,
    followed: Followed,
}

impl RemoteWrite {
    /// The target that is configured; none where there is none.
    ///
    /// # Errors
    /// Names the key and what is wrong with it.
    pub fn new(config: &RemoteWriteConfig, clock: &Arc<dyn Clock>) -> Result<Option<Self>, String> {
        if config.url.is_empty() {
            return Ok(None);
        }
        let of = |key: &'static str| move |why: String| format!("remote_write.{key}: {why}");
        let to = address(&config.url).map_err(of("url"))?;
        if to.authority().is_some_and(|it| it.as_str().contains('@')) {
            return Err(
                "remote_write.url holds a password: remote_write.token_file is the place for a secret"
                    .to_owned(),
            );
        }
        if config.max_age_h == 0 {
            return Err(
                "remote_write.max_age_h = 0: at least 1, or no minute would be young enough"
                    .to_owned(),
            );
        }
        let tenant = match config.tenant.as_str() {
            "" => None,
            it => Some(
                HeaderValue::from_str(it)
                    .map_err(|_| "remote_write.tenant holds what no header may".to_owned())?,
            ),
        };
        if config.user.contains(':') {
            return Err(
                "remote_write.user holds a `:`: the password stands in remote_write.token_file"
                    .to_owned(),
            );
        }
        if !config.user.is_empty() && config.token_file.as_os_str().is_empty() {
            return Err(
                "remote_write.user without remote_write.token_file, where its password stands"
                    .to_owned(),
            );
        }
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX / 1_000);
        let no_variable = "";
        let wire = Wire::new(&config.ca_file, Arc::clone(clock)).map_err(of("ca_file"))?;
        if to.scheme_str() == Some("https") {
            wire.can_speak_tls().map_err(of("ca_file"))?;
        }
        Ok(Some(Self {
            to,
            token: Secret::read(&config.token_file, no_variable).map_err(of("token_file"))?,
            user: config.user.clone(),
            tenant,
            wire,
            plan: Plan {
                selection: Selection::read(&config.metrics).map_err(of("metrics"))?,
                delay_s: number(config.delay_s),
                max_age_minutes: number(config.max_age_h.saturating_mul(60)),
                every_minutes: 1,
            },
            followed: Followed::default(),
        }))
    }

    fn headers(&self) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
        const AGENT: &str = concat!("gpufleet-server/", env!("CARGO_PKG_VERSION"));
        const VERSION: HeaderName = HeaderName::from_static("x-prometheus-remote-write-version");
        let known = |name: HeaderName, value: &'static str| (name, HeaderValue::from_static(value));
        let mut headers = vec![
            known(CONTENT_TYPE, "application/x-protobuf"),
            known(CONTENT_ENCODING, "snappy"),
            known(VERSION, "0.1.0"),
            known(USER_AGENT, AGENT),
        ];
        if let Some(token) = self.token.get() {
            let value = match self.user.as_str() {
                "" => format!("Bearer {token}"),
                user => format!(
                    "Basic {}",
                    BASE64_STANDARD.encode(format!("{user}:{token}"))
                ),
            };
            let value = HeaderValue::from_str(&value);
            let mut value = value.map_err(|_| "the token holds what no header may".to_owned())?;
            value.set_sensitive(true);
            headers.push((AUTHORIZATION, value));
        }
        let tenant = self.tenant.clone();
        headers.extend(tenant.map(|it| (HeaderName::from_static("x-scope-orgid"), it)));
        Ok(headers)
    }
}

impl Way for RemoteWrite {
    const NAME: &'static str = "remote_write";
    /// What Prometheus itself sends.
    const MOST: usize = 2_000;
    type Point = Point;
    type State = Halves;

    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn points(&mut self, of: &Labelled<'_>, samples: &[Sample], end: Timestamp) -> Vec<Point> {
        let mut labels = of.labels.clone();
        labels.push((FROM, "record".to_owned()));
        labels.sort_unstable();
        let labels = Arc::new(labels);
        self.followed.saw(&labels, samples, end);
        let point = |it: &Sample| Point {
            name: it.metric.name,
            labels: Arc::clone(&labels),
            value: it.value,
            at_ms: end.millis(),
        };
        samples.iter().map(point).collect()
    }

    fn rest(&mut self, end: Timestamp) -> Vec<Point> {
        self.followed.ended(end)
    }

    async fn send(&mut self, pieces: &mut [Piece<Self>]) -> Vec<Sent> {
        // One after the other, as Prometheus wants the samples of a series.
        vec![self.send_piece(&mut pieces[0]).await]
    }

    fn went_whole(&mut self, end: Timestamp) {
        self.followed.went_whole(end);
    }
}

impl RemoteWrite {
    /// Sends what is left of a piece, in halves where some of it is refused.
    async fn send_piece(&self, piece: &mut Piece<Self>) -> Sent {
        let Piece { points, state } = piece;
        while let Some(part) = state.next(points.len()) {
            match self.send_one(&points[part]).await {
                Answer::Taken => state.taken(),
                Answer::Refused {
                    why,
                    is_for_samples,
                } => state.refused(why, is_for_samples),
                Answer::Later { why, after } => return Sent::Later { why, after },
            }
        }
        Sent::Done {
            taken: points.len() as u64 - state.refused,
            refused: state.refused,
            why: state.why.clone(),
        }
    }

    async fn send_one(&self, points: &[Point]) -> Answer {
        let later = |why| Answer::Later { why, after: None };
        let headers = match self.headers() {
            Ok(headers) => headers,
            Err(why) => return later(why),
        };
        let post = Post {
            to: self.to.clone(),
            headers,
            body: body(points),
        };
        let answer = match self.wire.post(Method::POST, post).await {
            Ok(answer) => answer,
            Err(error) => return later(error.why),
        };
        if answer.status.is_success() {
            return Answer::Taken;
        }
        let body = self.token.hidden(&answer.body);
        let why = format!(
            "it answered {}: {}",
            answer.status,
            harmless(body.trim(), SAID)
        );
        let status = match answer.status.as_u16() {
            400 if NO_SUCH_PATH.iter().any(|it| body.contains(it)) => 404,
            status => status,
        };
        match status {
            // The sample is out of order or breaks a limit, by the target's taste, or the message is too long.
            400 | 409 | 413 | 422 => Answer::Refused {
                why,
                is_for_samples: true,
            },
            ..400 | 401 | 403 | 404 | 407 | 408 | 425 | 429 | 500.. => Answer::Later {
                why,
                after: answer.retry_after,
            },
            _ => Answer::Refused {
                why,
                is_for_samples: false,
            },
        }
    }
}

/// Pushes until it is told to stop; waits for that where nothing is configured.
pub async fn run(app: App, target: Option<RemoteWrite>, stop: CancellationToken) {
    match target {
        None => stop.cancelled().await,
        Some(target) => {
            let pushed = Arc::clone(&app.pushed);
            push::run(app, &pushed, target, stop).await;
        }
    }
}

#[cfg(test)]
mod tests;
