//! Where what is kept of something begins: what comes of before is left out, and nobody takes what is left for all.
//!
//! It moves on as what is old goes. That of minutes is taken back where it lies ahead of now: it was moved while this
//! server's clock was ahead, and all that comes would be left out until the time is there.

use gpufleet_telemetry::time::Timestamp;

use super::Store;
use super::database::{Transaction, Value};
use super::error::{Doing, StoreError};
use super::minutes::HORIZON;

/// The newest ten minutes before $1 that were rolled up.
const ROLLED_UP: &str = "SELECT m.bucket FROM minute10_row m WHERE m.bucket < $1
    AND NOT EXISTS (SELECT 1 FROM subject o WHERE o.id = m.subject AND o.lease <> $2)
    ORDER BY m.bucket DESC LIMIT 1";

const TAKE_BACK: &str = "UPDATE horizon SET value = $1 WHERE lease = $2 AND name = $3";

/// Where what is kept of something begins; none where that was never written.
pub(super) async fn read(
    transaction: &mut Transaction,
    lease: &str,
    name: &str,
) -> Result<Option<i64>, StoreError> {
    let sql = "SELECT value FROM horizon WHERE lease = $1 AND name = $2";
    let values = [Value::Text(lease), Value::Text(name)];
    let horizon = transaction.fetch_int(sql, &values).await;
    horizon.doing("reading how far data is kept")
}

/// Moves where what is kept of something begins on to this, if it is not there yet.
pub(super) async fn move_on(
    transaction: &mut Transaction,
    lease: &str,
    (name, value): (&str, i64),
) -> Result<(), StoreError> {
    let sql = "INSERT INTO horizon (name, value, lease) VALUES ($1, $2, $3)
        ON CONFLICT (lease, name) DO UPDATE SET value = excluded.value
        WHERE excluded.value > horizon.value";
    let values = [Value::Text(name), Value::Int(value), Value::Text(lease)];
    let moved = transaction.execute(sql, &values).await;
    moved.doing("moving the horizon").map(|_| ())
}

impl Store {
    /// Takes the horizon of minutes back if it lies ahead of now, and says by how many minutes; 0 where it does not.
    ///
    /// No further than to behind the hours that were rolled up, of which the minutes may be gone: computed anew, such an
    /// hour would have what comes late and nothing else.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn take_back_horizon(&self, now: Timestamp) -> Result<i64, StoreError> {
        let doing = "taking back how far minutes are kept";
        let lease = &self.0.lease;
        let this_hour = now.minute().hour();
        let mut transaction = self.read().await?;
        let known = read(&mut transaction, lease, HORIZON).await?;
        let Some(known) = known.filter(|it| *it > this_hour * 60) else {
            return Ok(0);
        };
        let values = [Value::Int(this_hour * 6), Value::Text(lease)];
        let rolled_up = transaction
            .fetch_int(ROLLED_UP, &values)
            .await
            .doing(doing)?;
        drop(transaction);
        let first = rolled_up.map_or(0, |bucket| (bucket.div_euclid(6) + 1) * 60);
        let mut transaction = self.write().await?;
        let values = [Value::Int(first), Value::Text(lease), Value::Text(HORIZON)];
        transaction.execute(TAKE_BACK, &values).await.doing(doing)?;
        transaction.commit().await.doing(doing)?;
        Ok(known - first)
    }
}
