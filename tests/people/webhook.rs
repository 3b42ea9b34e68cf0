//! A receiver of our webhook as docs/notify.md tells people to write it: it checks the signature and its
//! age, and takes a key once.

use std::collections::BTreeMap;

use gpufleet_server::notify::channel::webhook::{IDEMPOTENCY, SIGNATURE, sign};
use http::HeaderMap;
use serde_json::Value;

use super::Reply;

/// Signatures older than this are refused: somebody has kept them.
const TOLERANCE_SECONDS: i64 = 300;

/// A receiver with its key.
#[derive(Debug, Clone)]
pub struct Webhook {
    key: String,
    /// How often each message came.
    pub messages: BTreeMap<String, u64>,
    /// The first of each key.
    pub bodies: BTreeMap<String, Value>,
}

impl Webhook {
    /// A receiver that knows this key.
    pub fn new(key: &str) -> Self {
        Self {
            key: key.to_owned(),
            messages: BTreeMap::new(),
            bodies: BTreeMap::new(),
        }
    }

    /// Takes one message.
    pub fn take(&mut self, headers: &HeaderMap, body: &[u8], now_seconds: i64) -> Reply {
        match self.check(headers, body, now_seconds) {
            Ok(()) => (204, String::new()),
            Err(refused) => refused,
        }
    }

    fn check(&mut self, headers: &HeaderMap, body: &[u8], now: i64) -> Result<(), Reply> {
        let header = |name| {
            headers
                .get(name)
                .and_then(|it: &http::HeaderValue| it.to_str().ok())
        };
        let signature = header(SIGNATURE).ok_or((401, "no signature".to_owned()))?;
        let seconds = signature
            .strip_prefix("t=")
            .and_then(|it| it.split_once(',')?.0.parse::<i64>().ok())
            .ok_or((401, format!("no time in {signature}")))?;
        if sign(self.key.as_bytes(), seconds, body) != signature {
            return Err((401, "the signature is not of this body".to_owned()));
        }
        if (now - seconds).abs() > TOLERANCE_SECONDS {
            return Err((401, "the signature is too old".to_owned()));
        }
        let key = header(IDEMPOTENCY).ok_or((400, "no key".to_owned()))?;
        let message: Value =
            serde_json::from_slice(body).map_err(|error| (400, error.to_string()))?;
        for name in [
            "key",
            "message_key",
            "says",
            "title",
            "text",
            "severity",
            "since",
            "incidents",
        ] {
            if message[name].is_null() {
                return Err((422, format!("{name} is missing")));
            }
        }
        if message["message_key"] != key {
            return Err((422, "the key is not the message's".to_owned()));
        }
        *self.messages.entry(key.to_owned()).or_default() += 1;
        self.bodies.entry(key.to_owned()).or_insert(message);
        Ok(())
    }
}
