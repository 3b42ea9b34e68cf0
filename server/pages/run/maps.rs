//! The maps of ranks and time as they were last drawn, so that of all who look at a run within seconds one waits for
//! its steps to be read.
//!
//! Limits: a map is drawn at most once in [`FRESH_FOR`], and nobody waits for that while the last one is younger than
//! [`STANDS_FOR`]; the newest [`KEPT`] are kept, 64 KB each. Who reads steps of many ranks waits for a permit, as everybody
//! who does.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Duration;

use gpufleet_telemetry::steps::StepBlock;
use gpufleet_telemetry::time::Timestamp;
use tokio::sync::Semaphore;

use crate::answers::Answers;
use crate::runs::heat::{self, Row};
use crate::runs::history::{self, Cut};
use crate::runs::{Run, RunKey};
use crate::store::{Store, StoreError};
use crate::threads::apart;
use crate::web::Web;

/// How old a map may be: agents ship every 10 s, so more often would show little that is new.
const FRESH_FOR: Duration = Duration::from_secs(10);

/// How old a map may be that is given while the next one is drawn; it says where it ends.
const STANDS_FOR: Duration = Duration::from_secs(30);

/// Most maps that are kept.
const KEPT: usize = 32;

/// Maps that are drawn at once; how many of them read steps is bounded by permits.
const AT_ONCE: usize = 4;

/// By run and how far back, minutes. Of which cluster a run is, is in its key: who asks may see it.
pub struct Maps(Answers<(RunKey, i64), Map, Arc<StoreError>>);

/// A map of ranks and time.
pub(super) struct Map {
    pub(super) rows: Vec<Row>,
    /// The stretch of time that it shows.
    pub(super) range: Range<Timestamp>,
    /// Why it does not begin where it was asked to.
    pub(super) cut: Option<Cut>,
}

impl Default for Maps {
    fn default() -> Self {
        Self(Answers::new(FRESH_FOR, KEPT, AT_ONCE))
    }
}

impl Maps {
    /// The map of a run, of a range that is so many minutes long.
    ///
    /// # Errors
    /// When the database refuses.
    pub(super) async fn get(
        &self,
        web: &Web,
        (key, run): (&RunKey, &Arc<Run>),
        (minutes, range): (i64, &Range<Timestamp>),
    ) -> Result<Arc<Map>, Arc<StoreError>> {
        let (store, permits) = (web.app.store.clone(), Arc::clone(&web.step_views));
        let (of, own, range) = (key.clone(), Arc::clone(run), range.clone());
        let making = async move {
            let drawn = draw((&store, &permits), (&of, &own), range).await;
            drawn.map_err(Arc::new)
        };
        let asked = (key.clone(), minutes);
        let maps = &self.0;
        maps.get_standing(asked, &web.app.clock, STANDS_FOR, making)
            .await
    }
}

impl Map {
    /// Of a run and a range, without its rows.
    pub(super) fn empty(run: &Run, asked: Range<Timestamp>) -> Self {
        let range = mapped(run, &asked);
        let from = range.start;
        Self {
            rows: Vec::new(),
            cut: (from > asked.start).then_some(Cut::ManyRanks { from }),
            range,
        }
    }
}

/// The stretch of time that the map of ranks shows: all that is asked for, or of a run of many ranks as much of it as is
/// in memory.
fn mapped(run: &Run, range: &Range<Timestamp>) -> Range<Timestamp> {
    let from = history::in_memory_from(run).filter(|_| history::is_in_memory_alone(run));
    let from = from.filter(|it| (range.start..range.end).contains(it));
    from.unwrap_or(range.start)..range.end
}

/// Worked out beside the threads that serve requests: of a large run it takes a while.
async fn draw(
    (store, permits): (&Store, &Semaphore),
    (key, run): (&RunKey, &Run),
    asked: Range<Timestamp>,
) -> Result<Map, StoreError> {
    let permit = permits.acquire().await;
    let empty = Map::empty(run, asked);
    let mut map = heat::Map::new(empty.range.clone());
    let add = |rank, block: StepBlock| {
        map.add(rank, &block);
        ControlFlow::Continue(())
    };
    let cut = history::each(store, (key, run), None, &empty.range, add).await?;
    let stages = heat::stages(run);
    let rows = apart(move || map.rows(&stages)).await;
    drop(permit);
    Ok(Map {
        rows,
        cut: cut.or(empty.cut),
        ..empty
    })
}
