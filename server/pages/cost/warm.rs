//! Keeps the months that run made, so that who opens Cost does not wait for them: with ten thousand GPUs one takes
//! seconds.
//!
//! Limits: months of live and of simulated clusters as a reader of all of them sees them; a token that is bound to one
//! cluster waits for its own where nobody looked within [`STANDS_FOR`](super::STANDS_FOR).

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{kept, scopes};
use crate::auth::Grant;
use crate::money::report;
use crate::web::Web;

/// When the first are made after this server leads: by then the agents are heard.
const FIRST: Duration = Duration::from_secs(60);

/// How often they are made again: twice while one may stand.
const EVERY: Duration = Duration::from_secs(420);

/// The part of the time that making them may take.
const PART: u32 = 20;

/// Goes on until told to stop.
pub async fn run(web: Arc<Web>, stop: CancellationToken) {
    if !web.app.lead.wait(&stop).await {
        return;
    }
    let mut pause = FIRST;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        let began = web.app.clock.monotonic();
        make(&web).await;
        let took = web.app.clock.monotonic().saturating_sub(began);
        pause = EVERY.max(took * PART);
    }
}

/// Makes those that are not there, or are no longer fresh.
pub(crate) async fn make(web: &Web) {
    let (grant, at) = (Grant::default(), web.app.clock.now());
    let terms = web.app.money.terms();
    let view = web.views.get(&web.app).await;
    let scopes = scopes(&web.app, &view, &grant, true).await;
    // Who asks for them is told why they cannot be made.
    for (_, cluster) in scopes.unwrap_or_default() {
        let scope = (cluster, report::month_of(at), terms.number);
        if let Err(error) = kept(web, &terms, scope, at).await {
            tracing::debug!(%error, "a month could not be made ahead");
        }
    }
}
