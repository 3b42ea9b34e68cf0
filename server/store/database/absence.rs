//! Whether a PostgreSQL is there at all, so that not every question waits for as long as the pool has patience.
//!
//! The pool waits as long for a database that is gone as for one that is busy, and says of both that it timed out. A
//! page asks several questions, one after the other. So after a time-out a connection of its own finds out which
//! of the two it is; from then on whoever asks is refused at once, and one in [`AGAIN_AFTER`] looks again.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sqlx::{Connection as _, PgConnection, PgPool};
use tokio::time::{Instant, timeout};

/// How long it is not asked again: a database that is back is used again within it.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// How long a database that is there may take to say so.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// PostgreSQL's code for "too many connections": it is there.
const TOO_MANY: &str = "53300";

/// What is known of a database's absence.
#[derive(Debug, Default)]
pub(in crate::store) struct Absence {
    /// When it was last found to be gone, or somebody last began to look, and what it said; none while it is there.
    last: Mutex<Option<(Instant, String)>>,
}

impl Absence {
    /// What it is asked for, unless it is gone.
    ///
    /// # Errors
    /// When it is gone, or refuses.
    pub(super) async fn around<T>(
        &self,
        pool: &PgPool,
        asked: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, sqlx::Error> {
        self.before(pool).await?;
        match asked.await {
            Ok(done) => Ok(done),
            Err(error) => Err(self.after(pool, error).await),
        }
    }

    async fn before(&self, pool: &PgPool) -> Result<(), sqlx::Error> {
        {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            let Some((at, why)) = &mut *last else {
                return Ok(());
            };
            if at.elapsed() < AGAIN_AFTER {
                return Err(gone(why));
            }
            // This one looks; whoever comes meanwhile does not wait for it.
            *at = Instant::now();
        }
        self.look(pool).await
    }

    /// What is to be said of an error.
    async fn after(&self, pool: &PgPool, error: sqlx::Error) -> sqlx::Error {
        match error {
            sqlx::Error::PoolTimedOut | sqlx::Error::Io(_) => {
                self.look(pool).await.err().unwrap_or(error)
            }
            other => other,
        }
    }

    async fn look(&self, pool: &PgPool) -> Result<(), sqlx::Error> {
        let options = pool.connect_options();
        let why = match timeout(ANSWERS_WITHIN, PgConnection::connect_with(&options)).await {
            Ok(Ok(connection)) => {
                // It is there whatever becomes of the farewell.
                _ = timeout(ANSWERS_WITHIN, connection.close()).await;
                None
            }
            Ok(Err(sqlx::Error::Database(said))) if said.code().as_deref() == Some(TOO_MANY) => {
                None
            }
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {} s", ANSWERS_WITHIN.as_secs())),
        };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let refusal = why.as_deref().map(gone);
        *last = why.map(|it| (Instant::now(), it));
        refusal.map_or(Ok(()), Err)
    }
}

fn gone(why: &str) -> sqlx::Error {
    let words = format!("the database is gone ({why}); it is asked again within seconds");
    sqlx::Error::Io(io::Error::new(io::ErrorKind::NotConnected, words))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

    use super::*;

    #[tokio::test]
    async fn a_database_that_is_gone_is_asked_by_one_and_then_by_nobody_for_a_while() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        drop(listener);
        let options = PgConnectOptions::new_without_pgpass()
            .host("127.0.0.1")
            .port(at.port())
            .username("nobody");
        let pool = PgPoolOptions::new()
            .acquire_timeout(Duration::from_millis(50))
            .connect_lazy_with(options);
        let absence = Absence::default();
        absence.before(&pool).await.expect("nothing is known yet");
        let said = absence.after(&pool, sqlx::Error::PoolTimedOut).await;
        assert!(said.to_string().contains("refused"), "{said}");

        // Whoever comes now is refused, and knocks nowhere.
        let listener = TcpListener::bind(at).unwrap();
        listener.set_nonblocking(true).unwrap();
        let said = absence.before(&pool).await.expect_err("it was gone");
        assert!(said.to_string().contains("asked again within"), "{said}");
        assert!(listener.accept().is_err(), "nobody asked");

        // After a while one asks again: this one takes connections and says nothing.
        let past = Instant::now()
            .checked_sub(AGAIN_AFTER)
            .expect("it is up for longer");
        absence.last.lock().unwrap().as_mut().unwrap().0 = past;
        let said = absence.before(&pool).await.expect_err("it is silent");
        assert!(said.to_string().contains("no answer within 2 s"), "{said}");
        assert!(listener.accept().is_ok(), "one asked");
    }

    #[tokio::test]
    async fn what_says_nothing_of_absence_stays_what_it_is() {
        let pool = PgPoolOptions::new().connect_lazy_with(PgConnectOptions::new_without_pgpass());
        let absence = Absence::default();
        let said = absence.after(&pool, sqlx::Error::RowNotFound).await;
        assert!(matches!(said, sqlx::Error::RowNotFound));
        absence.before(&pool).await.expect("nothing is known of it");
    }
}
