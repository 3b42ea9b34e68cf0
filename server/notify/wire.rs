//! POSTs to receivers, which are not trusted: they may hang, send for ever, lie, or echo secrets.
//!
//! Limits: [`WITHIN`] for one POST and its answer, [`MAX_ANSWER_BYTES`] of the answer are read, the rest is
//! not waited for. A redirect is not followed: it could lead a secret anywhere.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gpufleet_program::connect::{ConnectError, Connector, Protocol};
use gpufleet_program::reloaded::words;
use gpufleet_program::tls::{ClientFiles, Setting};
use gpufleet_telemetry::time::Clock;
use http::header::RETRY_AFTER;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use rustls::ClientConfig;

use super::channel::{Answer, Channel, Post, Speaks as _, retry_after};
use super::lane::{Fault, Outcome};
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

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Unanswered {
    /// Why; addresses are not shown.
    pub why: String,
    /// Whether TLS refuses, here: the receiver's certificate cannot be accepted. Another attempt ends so as well,
    /// until somebody mends the certificate or `ca_file`.
    pub is_refused: bool,
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

    /// The certificates and who is trusted, as they are in use; others once the files have changed.
    pub fn tls(&self) -> Option<Arc<ClientConfig>> {
        self.secure.as_ref().ok()?.connector.tls()
    }

    /// Sends all of a message; the first POST that fails says what became of it.
    pub async fn send(&self, channel: &Channel, message: &Message) -> Outcome {
        let posts = match channel.posts(message) {
            Ok(posts) => posts,
            // A secret that cannot be used: nothing goes out before there is another.
            Err(why) => {
                let fault = Fault::Way;
                return Outcome::Refused { why, fault };
            }
        };
        for post in posts {
            let outcome = match self.post(Method::POST, post).await {
                Ok(answer) => channel.judge(&answer),
                Err(Unanswered { why, is_refused }) => {
                    let (why, fault) = (channel.hidden(&why), Fault::Way);
                    match is_refused {
                        true => Outcome::Refused { why, fault },
                        false => Outcome::Later { why, after: None },
                    }
                }
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
    /// Says why there is none.
    pub async fn post(&self, method: Method, post: Post) -> Result<Answer, Unanswered> {
        let late = |_| Unanswered::later(format!("no answer within {} s", WITHIN.as_secs()));
        let asked = tokio::time::timeout(WITHIN, self.exchange(method, post));
        asked.await.map_err(late)?
    }

    async fn exchange(&self, method: Method, post: Post) -> Result<Answer, Unanswered> {
        let is_tls = post.to.scheme_str() == Some("https");
        let mut request = Request::new(Full::new(post.body));
        *request.method_mut() = method;
        *request.uri_mut() = post.to;
        request.headers_mut().extend(post.headers);
        let (client, tls) = match (is_tls, &self.secure) {
            (false, _) => (&self.plain, None),
            (true, Ok(secure)) => (&secure.client, Some(&secure.connector)),
            (true, Err(why)) => {
                return Err(Unanswered {
                    why: why.clone(),
                    is_refused: true,
                });
            }
        };
        let response = match client.request(request).await {
            Ok(response) => response,
            Err(error) => {
                return Err(match connecting(&error) {
                    Some(ConnectError::Certificate(why)) => Unanswered {
                        why: why.clone(),
                        is_refused: true,
                    },
                    Some(ConnectError::Tls(why)) => Unanswered::later(why.clone()),
                    // What the other side says of TLS after the handshake is lost on the way to here.
                    None => {
                        let tls = tls.and_then(Connector::failure);
                        Unanswered::later(tls.unwrap_or_else(|| words(&error)))
                    }
                    Some(ConnectError::Unreachable(_)) => Unanswered::later(words(&error)),
                });
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

impl Unanswered {
    fn later(why: String) -> Self {
        let is_refused = false;
        Self { why, is_refused }
    }
}

/// Why there is no connection, somewhere among the causes of an error.
fn connecting<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a ConnectError> {
    let mut cause = Some(error);
    while let Some(one) = cause {
        if let Some(found) = one.downcast_ref() {
            return Some(found);
        }
        cause = one.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::process::Command;

    use gpufleet_program::clock::SystemClock;
    use gpufleet_program::tls::ServerFiles;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

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

    /// A certificate of 127.0.0.1 that nobody else has signed, that began so long ago and is good for two days.
    fn certificate(folder: &Path, name: &str, began: &str, of: &str) -> ServerFiles {
        let file = |end: &str| folder.join(format!("{name}-{end}.pem"));
        let (certificate, key) = (file("certificate"), file("key"));
        let mut command = Command::new("faketime");
        command
            .args([began, "openssl", "req", "-x509", "-nodes", "-days", "2"])
            .args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
            .args(["-addext", "basicConstraints=critical,CA:FALSE", "-addext"])
            .arg(format!("subjectAltName={of}"))
            .args(["-subj", &format!("/CN={name}")])
            .arg("-keyout")
            .arg(&key)
            .arg("-out")
            .arg(&certificate);
        let made = command.output().expect("faketime and openssl are there");
        let said = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "{said}");
        ServerFiles {
            certificate: Setting::new("certificate", certificate),
            key: Setting::new("key", key),
            ..ServerFiles::default()
        }
    }

    /// Where a receiver with this certificate is, which takes everything.
    async fn sealed(files: &ServerFiles) -> SocketAddr {
        let config = files.read().expect("they fit").expect("they are set");
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let at = listener.local_addr().expect("it is bound");
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream).await else {
                    continue;
                };
                let _ = stream.read(&mut [0; 65_536]).await;
                let said = b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
                let _ = stream.write_all(said).await;
                let _ = stream.shutdown().await;
            }
        });
        at
    }

    #[tokio::test]
    async fn a_certificate_that_cannot_be_accepted_is_refused_by_name_until_its_file_is_mended() {
        let folder = tempfile::tempdir().expect("a folder");
        let of_it = "IP:127.0.0.1";
        let good = certificate(folder.path(), "good", "+0 days", of_it);
        let other = certificate(folder.path(), "other", "+0 days", of_it);
        let elsewhere = certificate(folder.path(), "elsewhere", "+0 days", "IP:127.0.0.9");
        let authority = folder.path().join("ca.pem");
        let trust = |files: &ServerFiles| {
            std::fs::copy(&files.certificate.path, &authority).expect("it can be copied");
        };
        for (files, trusted, words) in [
            (&good, &other, "not signed by anyone in ca_file"),
            (&elsewhere, &elsewhere, "cannot be accepted"),
        ] {
            trust(trusted);
            let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
            let wire = Wire::new(&authority, clock).expect("the file can be used");
            let at = sealed(files).await;
            let (url, before) = (format!("https://{at}/x"), wire.tls());
            for _ in 0..2 {
                let outcome = sent_by(&wire, &url).await;
                let Outcome::Refused { why, fault } = outcome else {
                    panic!("{words}: {outcome:?}");
                };
                let named = format!("the certificate of {at}");
                assert!(why.contains(&named) && why.contains(words), "{why}");
                assert_eq!(fault, Fault::Way);
            }
            let is_same = |one: &Option<Arc<ClientConfig>>, other: &Option<Arc<ClientConfig>>| {
                let both = one.as_ref().zip(other.as_ref());
                both.is_some_and(|(one, other)| Arc::ptr_eq(one, other))
            };
            assert!(is_same(&before, &wire.tls()));
            if words.contains("not signed") {
                trust(files);
                assert!(!is_same(&before, &wire.tls()), "the file was read again");
                assert_eq!(sent_by(&wire, &url).await, Outcome::Delivered);
            }
        }
    }

    #[tokio::test]
    async fn a_certificate_that_is_too_old_is_its_owners_to_renew_and_is_tried_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let old = certificate(folder.path(), "old", "-9 days", "IP:127.0.0.1");
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        let wire = Wire::new(&old.certificate.path, clock).expect("the file can be used");
        let at = sealed(&old).await;
        let outcome = sent_by(&wire, &format!("https://{at}/x")).await;
        let Outcome::Later { why, after: None } = outcome else {
            panic!("{outcome:?}");
        };
        assert!(why.contains(&format!("the certificate of {at}")), "{why}");
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
        let (why, fault) = ("no certificates".to_owned(), Fault::Way);
        assert_eq!(secure, Outcome::Refused { why, fault });
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
