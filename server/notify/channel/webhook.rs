//! Any address that takes JSON: the message as it is, signed, with a key by which a receiver knows what
//! it has had already.
//!
//! `Gpufleet-Signature: t=<Unix seconds>,v1=<hex>` is HMAC-SHA-256 over `<Unix seconds>.<body>` with the
//! channel's secret. A receiver compares it, and refuses what is older than it tolerates.

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http::Uri;
use http::header::{HeaderName, HeaderValue};
use sha2::Sha256;

use super::{Answer, Outcome, Post, Speaks, address, failure, json_headers};
use crate::notify::message::Message;
use crate::notify::secret::Secret;

/// The header with the key of a message: the same however often it is sent.
pub const IDEMPOTENCY: HeaderName = HeaderName::from_static("idempotency-key");
/// The header with the signature.
pub const SIGNATURE: HeaderName = HeaderName::from_static("gpufleet-signature");

/// One address.
#[derive(Debug)]
pub struct Webhook {
    to: Uri,
    key: Secret,
}

impl Webhook {
    /// The one under this address.
    ///
    /// # Errors
    /// When it is none.
    pub fn new(url: &str, key: Secret) -> Result<Self, String> {
        Ok(Self {
            to: address(url)?,
            key,
        })
    }
}

/// The signature of a body.
pub fn sign(key: &[u8], seconds: i64, body: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    mac.update(format!("{seconds}.").as_bytes());
    mac.update(body);
    let code = hex::encode(mac.finalize().into_bytes());
    format!("t={seconds},v1={code}")
}

impl Speaks for Webhook {
    fn posts(&self, message: &Message) -> Result<Vec<Post>, String> {
        let body = serde_json::to_vec(message).expect("texts, numbers and lists are JSON");
        let mut headers = json_headers();
        let value = |text: &str| HeaderValue::from_str(text).expect("keys are letters and digits");
        headers.push((IDEMPOTENCY, value(&message.message_key)));
        if let Some(key) = self.key.get() {
            let signature = sign(key.as_bytes(), message.at.seconds(), &body);
            headers.push((SIGNATURE, value(&signature)));
        }
        Ok(vec![Post {
            to: self.to.clone(),
            headers,
            body: Bytes::from(body),
        }])
    }

    fn to(&self) -> Result<Uri, String> {
        Ok(self.to.clone())
    }

    fn judge(&self, answer: &Answer) -> Outcome {
        match answer.status.is_success() {
            true => Outcome::Delivered,
            false => failure(answer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_hmac_sha_256_over_time_and_body() {
        // Computed with `printf '1700000000.{}' | openssl dgst -sha256 -hmac secret`.
        let expected = "b8569b78799ff9e3cbff0fc2d63a33a2b57f3282abd07c37ae5e8e7d79a5f163";
        assert_eq!(
            sign(b"secret", 1_700_000_000, b"{}"),
            format!("t=1700000000,v1={expected}")
        );
    }
}
