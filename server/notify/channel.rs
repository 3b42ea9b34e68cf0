//! A channel puts a message into the words of one receiver, and says of the answer whether another
//! attempt makes sense. It neither groups nor waits nor remembers: that is the same for all of them.
//!
//! Adding one is a file in `channel/`, and a line in [`Kind`] and [`Channel`].

use std::time::Duration;

use bytes::Bytes;
use gpufleet_telemetry::time::Timestamp;
use http::header::{HeaderName, HeaderValue};
use http::{StatusCode, Uri};

use super::lane::{Fault, Outcome};
use super::message::Message;
use super::secret::Secret;
use super::settings::{ChannelConfig, Kind};
use crate::words::text::harmless;

pub mod pagerduty;

pub mod slack;

pub mod alertmanager;

pub mod webhook;

/// How much of an answer is kept, characters: a sentence that says why.
const ANSWER_CHARACTERS: usize = 300;

/// One POST.
#[derive(Debug, Clone)]
pub struct Post {
    /// Where to. May be a secret.
    pub to: Uri,
    /// Headers beside the length.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// JSON.
    pub body: Bytes,
}

/// What came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// How long the receiver asks to be left alone.
    pub retry_after: Option<Duration>,
    /// The beginning of the body.
    pub body: String,
}

/// What speaks one receiver's protocol.
pub trait Speaks: Send + Sync {
    /// The POSTs that make up a message, in their order.
    ///
    /// # Errors
    /// When it cannot be said: a secret or an address cannot be used.
    fn posts(&self, message: &Message) -> Result<Vec<Post>, String>;

    /// Where all of it goes.
    ///
    /// # Errors
    /// When the secret or the address cannot be used.
    fn to(&self) -> Result<Uri, String>;

    /// What an answer means.
    fn judge(&self, answer: &Answer) -> Outcome;
}

/// A receiver.
#[derive(Debug)]
pub struct Channel {
    speaks: Protocol,
    secret: Secret,
    /// The address of a webhook: its path may be all that keeps others from it.
    address: Secret,
}

#[derive(Debug)]
enum Protocol {
    Pagerduty(pagerduty::Pagerduty),
    Slack(slack::Slack),
    Alertmanager(alertmanager::Alertmanager),
    Webhook(webhook::Webhook),
}

impl Channel {
    /// The receivers of a channel, one for each address.
    ///
    /// # Errors
    /// When a secret is missing or an address is none.
    pub fn all(config: &ChannelConfig, secret: &Secret) -> Result<Vec<Self>, String> {
        let key = format!("notify.channels, {:?}", config.name);
        if secret.get().is_none() && matches!(config.kind, Kind::Pagerduty | Kind::Slack) {
            return Err(format!("{key}: secret_file or secret_env is needed"));
        }
        let has_user = |it: &&String| {
            let after = it.split("://").nth(1);
            let authority = after.and_then(|it| it.split(['/', '?', '#']).next());
            authority.is_some_and(|it| it.contains('@'))
        };
        if config.urls.iter().any(|it| has_user(&it)) {
            return Err(format!(
                "{key}: an address in urls has a user or a password, which is not sent: a secret belongs into secret_file or secret_env"
            ));
        }
        let first = config.urls.first().map(String::as_str);
        let address = match (config.kind, first) {
            (Kind::Webhook, Some(url)) => Secret::given(url),
            _ => Secret::default(),
        };
        let made = || -> Result<Vec<Protocol>, String> {
            Ok(match config.kind {
                Kind::Pagerduty => vec![Protocol::Pagerduty(pagerduty::Pagerduty::new(
                    first.unwrap_or(pagerduty::ADDRESS),
                    secret.clone(),
                )?)],
                Kind::Slack => vec![Protocol::Slack(slack::Slack::new(secret.clone())?)],
                Kind::Webhook => vec![Protocol::Webhook(webhook::Webhook::new(
                    first.unwrap_or_default(),
                    secret.clone(),
                )?)],
                Kind::Alertmanager => config
                    .urls
                    .iter()
                    .map(|url| {
                        let peer = alertmanager::Alertmanager::new(url, secret.clone())?;
                        Ok(Protocol::Alertmanager(peer))
                    })
                    .collect::<Result<_, String>>()?,
            })
        };
        let made = made().map_err(|why| format!("{key}: {}", secret.hidden(&why)))?;
        let channel = |speaks| Self {
            speaks,
            secret: secret.clone(),
            address: address.clone(),
        };
        Ok(made.into_iter().map(channel).collect())
    }

    fn speaks(&self) -> &dyn Speaks {
        match &self.speaks {
            Protocol::Pagerduty(it) => it,
            Protocol::Slack(it) => it,
            Protocol::Alertmanager(it) => it,
            Protocol::Webhook(it) => it,
        }
    }

    /// Its secret.
    pub const fn secret(&self) -> &Secret {
        &self.secret
    }

    /// A text without the channel's secret, and without the path of a webhook.
    pub fn hidden(&self, text: &str) -> String {
        self.address.hidden(&self.secret.hidden(text))
    }
}

impl Speaks for Channel {
    fn posts(&self, message: &Message) -> Result<Vec<Post>, String> {
        let posts = self.speaks().posts(message);
        posts.map_err(|why| self.hidden(&why))
    }

    fn to(&self) -> Result<Uri, String> {
        self.speaks().to().map_err(|why| self.hidden(&why))
    }

    fn judge(&self, answer: &Answer) -> Outcome {
        // Before anything is cut from it: half a secret is found by nobody.
        let body = self.hidden(&answer.body);
        let answer = Answer {
            body,
            ..answer.clone()
        };
        self.speaks().judge(&answer)
    }
}

/// An address that may be posted to.
///
/// # Errors
/// Says what is wrong with it, without showing it.
pub fn address(text: &str) -> Result<Uri, String> {
    let uri: Uri = text
        .trim()
        .parse()
        .map_err(|error| format!("its address is none: {error}"))?;
    match (uri.scheme_str(), uri.authority()) {
        (Some("http" | "https"), Some(_)) => Ok(uri),
        _ => Err("its address must begin with http:// or https://".to_owned()),
    }
}

/// What an answer means that is no success: the same for all that follow HTTP.
pub fn failure(answer: &Answer) -> Outcome {
    let said = harmless(answer.body.trim(), ANSWER_CHARACTERS);
    let status = answer.status;
    let why = match said.is_empty() {
        true => format!("it answered {status}"),
        false => format!("it answered {status}: {said}"),
    };
    let refused = |why, fault| Outcome::Refused { why, fault };
    match status.as_u16() {
        // What is wrong with the message will be.
        400 | 413 | 415 | 422 | 431 => refused(why, Fault::Message),
        // Busy, still at the first attempt, or on another connection: by their definition these are to be tried again.
        408 | 409 | 421 | 425 | 429 => Outcome::Later {
            why,
            after: answer.retry_after,
        },
        // The key, the rights, the address: nothing gets better by itself.
        301 | 308 | 401..500 => refused(why, Fault::Way),
        // The receiver's own trouble, or somebody's in between: a redirect for now, a page of a hotel.
        _ => Outcome::Later {
            why,
            after: answer.retry_after,
        },
    }
}

/// JSON and who sends it.
pub fn json_headers() -> Vec<(HeaderName, HeaderValue)> {
    use http::header::{CONTENT_TYPE, USER_AGENT};
    const AGENT: &str = concat!("gpufleet-server/", env!("CARGO_PKG_VERSION"));
    vec![
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (USER_AGENT, HeaderValue::from_static(AGENT)),
    ]
}

/// How long `Retry-After` asks to wait: seconds, or a date.
pub fn retry_after(text: &str, now: Timestamp) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let format = time::macros::format_description!(
        "[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT"
    );
    let at = time::PrimitiveDateTime::parse(text, &format)
        .ok()?
        .assume_utc();
    let wait = at.unix_timestamp().saturating_sub(now.seconds());
    Some(Duration::from_secs(u64::try_from(wait).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &str) -> Answer {
        Answer {
            status: StatusCode::from_u16(status).expect("a status"),
            retry_after: Some(Duration::from_secs(7)),
            body: body.to_owned(),
        }
    }

    #[test]
    fn what_may_go_well_later_is_tried_again_and_what_may_not_is_not() {
        for status in [
            200, 302, 303, 307, 408, 409, 421, 425, 429, 500, 501, 502, 503, 504,
        ] {
            let outcome = failure(&answer(status, ""));
            let after = Some(Duration::from_secs(7));
            assert!(
                matches!(&outcome, Outcome::Later { after: it, .. } if *it == after),
                "{status}"
            );
        }
        let of = |fault, statuses: &[u16]| {
            let of_it = statuses.iter().map(move |it| (*it, fault));
            of_it.collect::<Vec<_>>()
        };
        let messages = of(Fault::Message, &[400, 413, 415, 422, 431]);
        let ways = of(
            Fault::Way,
            &[301, 308, 401, 402, 403, 404, 405, 407, 410, 451, 499],
        );
        for (status, expected) in messages.into_iter().chain(ways) {
            let outcome = failure(&answer(status, "no\u{202e}"));
            let Outcome::Refused { why, fault } = outcome else {
                panic!("{status}: {outcome:?}");
            };
            assert_eq!(fault, expected, "{status}");
            assert!(
                why.contains(&status.to_string()) && why.contains("no\u{fffd}"),
                "{why}"
            );
        }
    }

    #[test]
    fn a_key_that_pagerduty_does_not_know_is_no_fault_of_the_message() {
        let secret = Secret::given("R0UT1NGKEY0000000000000000000000");
        let config = ChannelConfig::new("pager", Kind::Pagerduty);
        let channel = Channel::all(&config, &secret).expect("one").remove(0);
        for (said, expected) in [
            ("Invalid routing key", Fault::Way),
            ("'routing_key' is missing or blank", Fault::Way),
            ("'summary' is too long", Fault::Message),
        ] {
            let said = format!(r#"{{"status":"invalid event","errors":["{said}"]}}"#);
            let outcome = channel.judge(&answer(400, &said));
            assert!(
                matches!(outcome, Outcome::Refused { fault, .. } if fault == expected),
                "{outcome:?}"
            );
        }
    }

    #[test]
    fn a_pause_is_asked_for_in_seconds_or_as_a_date() {
        let now = Timestamp::from_seconds(1_445_412_480);
        assert_eq!(retry_after("120", now), Some(Duration::from_secs(120)));
        let date = "Wed, 21 Oct 2015 07:28:30 GMT";
        assert_eq!(retry_after(date, now), Some(Duration::from_secs(30)));
        let past = "Wed, 21 Oct 2015 07:00:00 GMT";
        assert_eq!(retry_after(past, now), Some(Duration::ZERO));
        assert_eq!(retry_after("soon", now), None);
        assert_eq!(retry_after("-5", now), None);
    }

    #[test]
    fn a_receiver_that_echoes_the_secret_does_not_put_it_on_our_page() {
        let secret = Secret::given("R0UT1NGKEY0000000000000000000000");
        let config = ChannelConfig::new("pager", Kind::Pagerduty);
        let channel = Channel::all(&config, &secret).expect("one").remove(0);
        let said = answer(400, "invalid key R0UT1NGKEY0000000000000000000000");
        let outcome = channel.judge(&said);
        assert!(
            matches!(&outcome, Outcome::Refused { why, .. } if why.contains("•••") && !why.contains("R0UT")),
            "{outcome:?}"
        );
        assert!(!format!("{channel:?}").contains("R0UT"));
        let cut = format!("{}R0UT1NGKEY0000000000000000000000", "x".repeat(290));
        let outcome = channel.judge(&answer(400, &cut));
        assert!(!format!("{outcome:?}").contains("R0UT"), "{outcome:?}");
        let mut config = ChannelConfig::new("hook", Kind::Webhook);
        config.urls = vec!["https://chat.example.org/webhook/0f1e2d3c4b5a".to_owned()];
        let channel = Channel::all(&config, &Secret::default())
            .expect("one")
            .remove(0);
        let outcome = channel.judge(&answer(404, "Cannot POST /webhook/0f1e2d3c4b5a"));
        assert!(!format!("{outcome:?}").contains("0f1e2d"), "{outcome:?}");
    }

    #[test]
    fn a_channel_without_its_secret_or_its_address_is_refused_by_name() {
        let refused = |config: &ChannelConfig, secret: &Secret| {
            Channel::all(config, secret).expect_err("refused")
        };
        let config = ChannelConfig::new("pager", Kind::Pagerduty);
        assert!(refused(&config, &Secret::default()).contains("\"pager\": secret_file"));
        let mut config = ChannelConfig::new("hook", Kind::Webhook);
        config.urls = vec!["ftp://x/y".to_owned()];
        assert!(refused(&config, &Secret::default()).contains("http://"));
        config.urls = vec!["https://ada:s3cr3t@hook.example.org/x".to_owned()];
        let said = refused(&config, &Secret::default());
        assert!(
            said.contains("secret_file") && !said.contains("s3cr3t"),
            "{said}"
        );
        let config = ChannelConfig::new("chat", Kind::Slack);
        let said = refused(&config, &Secret::given("no address but a secret"));
        assert!(
            said.contains("chat") && !said.contains("but a secret"),
            "{said}"
        );
    }
}
