//! POSTs to receivers, which are not trusted: they may hang, send for ever, lie, or echo secrets.
//!
//! Limits: [`WITHIN`] for one POST and its answer, [`MAX_ANSWER_BYTES`] of the answer are read, the rest is
//! not waited for. A redirect is not followed: it could lead a secret anywhere.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gpufleet_program::connect::{Connector, Protocol};
use gpufleet_program::reloaded::words;
use gpufleet_program::tls::{ClientFiles, Setting};
use gpufleet_telemetry::time::Clock;
use http::header::RETRY_AFTER;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use super::channel::{Answer, Channel, Post, Speaks as _, retry_after};
use super::lane::Outcome;
use super::message::Message;

/// How long one POST may take, connection, TLS and answer together.
pub const WITHIN: Duration = Duration::from_secs(10);
/// How much of an answer is read: a sentence that says why.
pub const MAX_ANSWER_BYTES: usize = 4 * 1024;

/// The way to a receiver.
pub struct Wire {
    plain: Client<Connector, Full<Bytes>>,
    /// What speaks TLS, or why nothing here can: a machine without certificates of the system has plain HTTP.
    secure: Result<Secure, String>,
    clock: Arc<dyn Clock>,
}

struct Secure {
    client: Client<Connector, Full<Bytes>>,
    connector: Connector,
}

impl Wire {
    /// A way that trusts the certificates in this file, or the system's. Where the system has none it is good for
    /// plain HTTP ([`Self::can_speak_tls`]).
    ///
    /// # Errors
    /// When the file cannot be used.
    pub fn new(ca_file: &Path, clock: Arc<dyn Clock>) -> Result<Self, String> {
        let files = ClientFiles {
            authorities: Setting::new("ca_file of notify", ca_file),
            ..ClientFiles::default()
        };
        let tls = Connector::secure("a receiver of notify.channels", files, Protocol::Http1)
            .map_err(|error| error.to_string());
        if let (Err(why), false) = (&tls, ca_file.as_os_str().is_empty()) {
            return Err(why.clone());
        }
        let client = |connector: Connector| {
            Client::builder(TokioExecutor::new())
                .pool_max_idle_per_host(1)
                .build(connector)
        };
        Ok(Self {
            plain: client(Connector::plain()),
            secure: tls.map(|connector| Secure {
                client: client(connector.clone()),
                connector,
            }),
            clock,
        })
    }

    /// Whether it can reach an https address.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn can_speak_tls(&self) -> Result<(), String> {
        self.secure.as_ref().map(|_| ()).map_err(Clone::clone)
    }

    /// Sends all of a message; the first POST that fails says what became of it.
    pub async fn send(&self, channel: &Channel, message: &Message) -> Outcome {
        let posts = match channel.posts(message) {
            Ok(posts) => posts,
            Err(why) => return Outcome::Later { why, after: None },
        };
        for post in posts {
            let outcome = match self.post(Method::POST, post).await {
                Ok(answer) => channel.judge(&answer),
                Err(why) => Outcome::Later {
                    why: channel.hidden(&why),
                    after: None,
                },
            };
            if outcome != Outcome::Delivered {
                return outcome;
            }
        }
        Outcome::Delivered
    }

    /// One request and its answer.
    ///
    /// # Errors
    /// Says why there is none. Addresses are not shown.
    pub async fn post(&self, method: Method, post: Post) -> Result<Answer, String> {
        let late = |_| format!("no answer within {} s", WITHIN.as_secs());
        let asked = tokio::time::timeout(WITHIN, self.exchange(method, post));
        asked.await.map_err(late)?
    }

    async fn exchange(&self, method: Method, post: Post) -> Result<Answer, String> {
        let is_tls = post.to.scheme_str() == Some("https");
        let mut request = Request::new(Full::new(post.body));
        *request.method_mut() = method;
        *request.uri_mut() = post.to;
        request.headers_mut().extend(post.headers);
        let (client, tls) = match (is_tls, &self.secure) {
            (false, _) => (&self.plain, None),
            (true, Ok(secure)) => (&secure.client, Some(&secure.connector)),
            (true, Err(why)) => return Err(why.clone()),
        };
        let response = match client.request(request).await {
            Ok(response) => response,
            Err(error) => {
                let tls = tls.and_then(Connector::failure);
                return Err(tls.unwrap_or_else(|| words(&error)));
            }
        };
        let asked = response.headers().get(RETRY_AFTER);
        let asked = asked.and_then(|it| it.to_str().ok());
        let now = self.clock.now();
        let mut answer = Answer {
            status: response.status(),
            retry_after: asked.and_then(|it| retry_after(it, now)),
            body: String::new(),
        };
        let mut read = Vec::new();
        let mut body = response.into_body();
        while read.len() < MAX_ANSWER_BYTES {
            match body.frame().await {
                Some(Ok(frame)) => read.extend(frame.data_ref().into_iter().flatten()),
                // What came is enough to know what it means.
                Some(Err(_)) | None => break,
            }
        }
        read.truncate(MAX_ANSWER_BYTES);
        answer.body = String::from_utf8_lossy(&read).into_owned();
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use gpufleet_program::clock::SystemClock;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::notify::example;
    use crate::notify::secret::Secret;
    use crate::notify::settings::{ChannelConfig, Kind};

    /// What becomes of a message to this address.
    async fn sent(url: &str) -> Outcome {
        sent_by(&wire(), url).await
    }

    fn wire() -> Wire {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        Wire::new(Path::new(""), clock).expect("no file of certificates is asked for")
    }

    async fn sent_by(wire: &Wire, url: &str) -> Outcome {
        let mut config = ChannelConfig::new("hook", Kind::Webhook);
        config.urls = vec![url.to_owned()];
        let channels = Channel::all(&config, &Secret::default());
        let channel = channels.expect("it can be made").remove(0);
        wire.send(&channel, &example::messages().remove(0)).await
    }

    /// Where a receiver without TLS is that says this to whatever it is sent.
    async fn answering(said: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let at = listener.local_addr().expect("it is bound");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                // What is not read when it is closed breaks the connection off before the answer.
                let _ = stream.read(&mut [0; 65_536]).await;
                let _ = stream.write_all(said).await;
            }
        });
        at
    }

    #[tokio::test]
    async fn a_name_of_nobody_a_closed_port_and_a_receiver_without_tls_are_tried_again_and_told() {
        let closed = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let closed_at = closed.local_addr().expect("it is bound");
        drop(closed);
        let plain_at = answering(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        for (url, words) in [
            // No name ends so, says RFC 6761.
            ("http://receiver.invalid/x".to_owned(), "dns error"),
            (format!("http://{closed_at}/x"), "refused"),
            (format!("https://{plain_at}/x"), "does it speak TLS"),
        ] {
            let outcome = sent(&url).await;
            let Outcome::Later { why, after: None } = outcome else {
                panic!("{url}: {outcome:?}");
            };
            assert!(why.contains(words), "{url}: {why}");
        }
    }

    #[tokio::test]
    async fn without_certificates_of_the_system_plain_http_gets_through_and_https_says_why_not() {
        let at = answering(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").await;
        let wire = Wire {
            secure: Err("no certificates".to_owned()),
            ..wire()
        };
        let plain = sent_by(&wire, &format!("http://{at}/x")).await;
        assert_eq!(plain, Outcome::Delivered);
        let secure = sent_by(&wire, &format!("https://{at}/x")).await;
        let (why, after) = ("no certificates".to_owned(), None);
        assert_eq!(secure, Outcome::Later { why, after });
        assert!(wire.can_speak_tls().is_err());
    }

    #[test]
    fn a_file_of_certificates_that_is_not_there_is_refused_at_once() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        let why = Wire::new(Path::new("/nowhere/ca.pem"), clock).err();
        let why = why.expect("it cannot be read");
        assert!(why.contains("/nowhere/ca.pem"), "{why}");
    }
}
