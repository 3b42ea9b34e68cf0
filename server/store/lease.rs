//! The right to write: a row with a token that grows with every owner.
//!
//! Correctness rests on the token alone, which every commit checks in its own transaction. The
//! expiry only decides when a standby may take over; it is in the callers' wall clocks, so clocks of
//! server and standby that differ by more than the lease make the takeover early or late, never
//! wrong.

use std::time::Duration;

use gpufleet_telemetry::time::Timestamp;

use super::Store;
use super::database::{Transaction, Value};
use super::error::{CommitError, Doing, LeaseError, StoreError};
use super::model::{FencingToken, Lease};

const ACQUIRE: &str = "\
    INSERT INTO lease (name, token, holder, expires_ms) VALUES ($1, 1, $2, $3)
    ON CONFLICT (name) DO UPDATE
    SET token = lease.token + 1, holder = excluded.holder, expires_ms = excluded.expires_ms
    WHERE lease.expires_ms <= $4 OR lease.holder = excluded.holder
    RETURNING token";

impl Store {
    /// Takes the right to write for `length`, if nobody has it, it has run out, or `holder` had it
    /// before (a server that was restarted under the same name). Everyone who had it is fenced.
    ///
    /// # Errors
    /// [`LeaseError::Held`] when another holder has it.
    pub async fn acquire_lease(
        &self,
        holder: &str,
        now: Timestamp,
        length: Duration,
    ) -> Result<Lease, LeaseError> {
        let expires = after(now, length);
        let values = [
            Value::Text(&self.0.lease),
            Value::Text(holder),
            Value::Int(expires.millis()),
            Value::Int(now.millis()),
        ];
        let mut transaction = self.write().await?;
        let token = transaction.fetch_int(ACQUIRE, &values).await;
        if let Some(token) = token.doing("taking the lease")? {
            transaction.commit().await.doing("taking the lease")?;
            let token = FencingToken(token);
            return Ok(Lease { token, expires });
        }
        let sql = "SELECT holder, expires_ms FROM lease WHERE name = $1";
        let rows = transaction.fetch(sql, &[Value::Text(&self.0.lease)]).await;
        let rows = rows.doing("reading the lease")?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound);
        let row = row.doing("reading the lease")?;
        Err(LeaseError::Held {
            lease: self.0.lease.clone(),
            holder: row.text(0).doing("reading the lease")?.to_owned(),
            expires: Timestamp::from_millis(row.int(1).doing("reading the lease")?),
        })
    }

    /// Keeps the right to write for `length` from now.
    ///
    /// # Errors
    /// [`CommitError::Fenced`] when another holder has it now.
    pub async fn renew_lease(
        &self,
        token: FencingToken,
        now: Timestamp,
        length: Duration,
    ) -> Result<Lease, CommitError> {
        let mut transaction = self.write().await.map_err(CommitError::Unknown)?;
        fence(&mut transaction, &self.0.lease, token).await?;
        let extended = extend(&mut transaction, &self.0.lease, token, now, length).await;
        let expires = extended.map_err(CommitError::Unknown)?;
        let renewed = transaction.commit().await.doing("renewing the lease");
        renewed.map_err(CommitError::Unknown)?;
        Ok(Lease { token, expires })
    }

    /// Gives the right to write back, so that a standby need not wait. Does nothing when another
    /// holder has it.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn release_lease(&self, token: FencingToken) -> Result<(), StoreError> {
        let mut transaction = self.write().await?;
        let values = [Value::Text(&self.0.lease), Value::Int(token.0)];
        let sql = "UPDATE lease SET expires_ms = 0 WHERE name = $1 AND token = $2";
        let released = transaction.execute(sql, &values).await;
        released.doing("giving the lease back")?;
        transaction.commit().await.doing("giving the lease back")
    }
}

/// Refuses whoever is not the present holder, and keeps the holder until the transaction's end.
pub(super) async fn fence(
    transaction: &mut Transaction,
    lease: &str,
    token: FencingToken,
) -> Result<(), CommitError> {
    let lock = transaction.only_postgres("FOR UPDATE");
    let sql = format!("SELECT token FROM lease WHERE name = $1 {lock}");
    let found = transaction.fetch_int(&sql, &[Value::Text(lease)]).await;
    let found = found
        .doing("checking the lease")
        .map_err(CommitError::Unknown)?;
    match found {
        Some(found) if found == token.0 => Ok(()),
        found => Err(CommitError::Fenced {
            lease: lease.to_owned(),
            found: found.unwrap_or(0),
            ours: token.0,
        }),
    }
}

/// Moves the end of the right to write to `length` from now; of who has it, see [`fence`].
pub(super) async fn extend(
    transaction: &mut Transaction,
    lease: &str,
    token: FencingToken,
    now: Timestamp,
    length: Duration,
) -> Result<Timestamp, StoreError> {
    let expires = after(now, length);
    let values = [
        Value::Text(lease),
        Value::Int(expires.millis()),
        Value::Int(token.0),
    ];
    let sql = "UPDATE lease SET expires_ms = $2 WHERE name = $1 AND token = $3";
    let extended = transaction.execute(sql, &values).await;
    extended.doing("renewing the lease").map(|_| expires)
}

fn after(now: Timestamp, length: Duration) -> Timestamp {
    now.shifted(i64::try_from(length.as_nanos()).unwrap_or(i64::MAX))
}
