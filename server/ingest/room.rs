//! Room for requests: bytes for the bodies, slots for the work.
//!
//! A body is read before it takes a slot, so that slow senders keep no slot from the others. What a
//! body holds of the bytes is what has come of it, so that they keep little room either.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use bytes::BytesMut;
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::refuse::{Kind, Refused};
use super::{MAX_COMPRESSED_BYTES, body};

/// Most bytes of all bodies that are being read, wait or are worked on: eight of the largest, or a
/// thousand of the usual 64 KiB.
const MAX_BODIES_BYTES: usize = 64 << 20;

/// How long a body waits for room before its sender is told to come again. It is shorter than a
/// request may take, because half-read bodies that all wait would wait for each other.
const ROOM_WITHIN: Duration = Duration::from_secs(2);

/// When a sender that found no room is to come again.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Room for the requests of both doors.
pub(super) struct Room {
    bytes: Arc<Semaphore>,
    slots: Semaphore,
}

/// A body that was read, and the bytes it holds until it is dropped.
pub(super) struct Held {
    pub(super) bytes: Bytes,
    _room: OwnedSemaphorePermit,
}

impl Room {
    /// Room for `requests` at the same time.
    pub(super) fn new(requests: usize) -> Self {
        Self {
            bytes: Arc::new(Semaphore::new(MAX_BODIES_BYTES)),
            slots: Semaphore::new(requests.max(1)),
        }
    }

    /// Reads a body to its end.
    pub(super) async fn read(&self, mut sent: Body) -> Result<Held, Refused> {
        let mut room = self.take(0).await?;
        let mut bytes = BytesMut::new();
        while let Some(frame) = sent.frame().await {
            let frame = frame.map_err(|error| {
                Refused::new(Kind::Invalid, format!("the body broke off: {error}"))
            })?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            if bytes.len() + data.len() > MAX_COMPRESSED_BYTES {
                return Err(body::too_large(bytes.len() + data.len()));
            }
            room.merge(self.take(data.len()).await?);
            bytes.extend_from_slice(&data);
        }
        let bytes = bytes.freeze();
        Ok(Held { bytes, _room: room })
    }

    /// Waits for a slot, which is free again when the work is done.
    pub(super) async fn work<T>(&self, work: impl Future<Output = T>) -> T {
        let slot = self.slots.acquire().await;
        let _slot = slot.expect("the semaphore is never closed");
        work.await
    }

    async fn take(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Refused> {
        let bytes = u32::try_from(bytes).expect("a body is under its cap");
        let room = Arc::clone(&self.bytes).acquire_many_owned(bytes);
        match tokio::time::timeout(ROOM_WITHIN, room).await {
            Ok(room) => Ok(room.expect("the semaphore is never closed")),
            Err(_) => {
                let message = format!(
                    "the requests that are being read fill the {MAX_BODIES_BYTES} bytes for them: try again"
                );
                let mut refused = Refused::new(Kind::Full, message);
                refused.retry_after = Some(RETRY_AFTER);
                Err(refused)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt, stream};

    use super::*;

    /// A body of `bytes` bytes that never ends.
    fn endless(bytes: usize) -> Body {
        let first = stream::iter([Ok::<_, std::io::Error>(vec![0; bytes])]);
        Body::from_stream(first.chain(stream::pending()))
    }

    #[tokio::test]
    async fn half_read_bodies_hold_what_has_come_of_them_and_the_next_is_told_to_come_again() {
        let room = Arc::new(Room::new(1));
        let mut slow = Vec::new();
        for _ in 0..MAX_BODIES_BYTES / MAX_COMPRESSED_BYTES {
            let room = Arc::clone(&room);
            let reading = async move { room.read(endless(MAX_COMPRESSED_BYTES)).await.map(drop) };
            slow.push(tokio::spawn(reading));
        }
        while room.bytes.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let refused = room.read(Body::from("next")).await.err();
        let refused = refused.expect("there is no room");
        assert_eq!(refused.kind, Kind::Full);
        assert_eq!(refused.retry_after, Some(RETRY_AFTER));
        assert!(
            refused.message.contains("67108864 bytes"),
            "{}",
            refused.message
        );
        for reading in slow {
            reading.abort();
            let _cancelled = reading.await;
        }
        let held = room.read(Body::from("next")).await.ok();
        assert_eq!(held.expect("there is room again").bytes, "next");
        assert_eq!(room.bytes.available_permits(), MAX_BODIES_BYTES);
    }

    #[tokio::test]
    async fn a_body_over_the_cap_is_given_up_before_its_end() {
        let room = Room::new(1);
        let refused = room.read(endless(MAX_COMPRESSED_BYTES + 1)).await.err();
        assert_eq!(refused.expect("too large").kind, Kind::TooLarge);
        assert_eq!(room.bytes.available_permits(), MAX_BODIES_BYTES);
    }
}
