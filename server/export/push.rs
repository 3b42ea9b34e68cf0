//! Pushes minutes of the record one way, from where its durable cursor stands.
//!
//! A minute is read in pages of resources, made into points, and sent in pieces, so many at once as the way
//! takes; no two of a minute have a series in common. A piece keeps its points, and what its way knows of them,
//! until it is through. When all of a minute is taken the cursor moves, so a crash sends at most one minute again.
//! A way that fails is tried again with pauses that grow; what it refuses is counted and not sent again. What comes
//! later than its delay after a minute is not pushed, and counted (`late`); after an outage of the server minutes wait for
//! what agents have of it (`backlog`).
//!
//! Limits: points of [`PAGE`] resources and of the pieces that are sent at once in memory, minutes older than
//! the way takes are skipped and counted, a pause is at most [`MAX_PAUSE`].

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use gpufleet_telemetry::time::{Minute, SECONDS_PER_MINUTE, Timestamp};
use tokio_util::sync::CancellationToken;

use super::backlog;
use super::samples::{Sample, Selection, labels, samples};
use crate::App;
use crate::store::StoreError;
use crate::store::model::{KnownResource, MinuteDelta};

/// Resources read at a time: a few MB.
const PAGE: usize = 500;

/// Minutes of one round: then it says that it goes well, and goes on.
const MINUTES_A_ROUND: usize = 60;

/// No minute is begun later in a round: a target may take seconds for each, and a round has minutes in all.
const BEGUN_WITHIN: Duration = Duration::from_secs(60);

/// The first pause after a failure.
pub(super) const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The longest pause, whatever is asked for: a target that is back is used again within it.
pub(super) const MAX_PAUSE: Duration = Duration::from_secs(60);

/// How often it is looked whether a minute is due.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// How pushing one way goes, for the server's own metrics.
#[derive(Debug, Default)]
pub struct Pushed {
    /// Points that were taken.
    pub taken: AtomicU64,
    /// Points that were refused.
    pub refused: AtomicU64,
    /// Resources that were left out because a name of theirs is too long for a label.
    pub long_names: AtomicU64,
    /// Minutes that were skipped because the target was away for too long.
    pub skipped: AtomicU64,
    /// Pieces that failed and are sent again.
    pub failed: AtomicU64,
    /// The newest minute that was pushed whole, by this server or the one before it; the one before the first that is to
    /// be pushed where none was. Unix minutes; 0 while that is not known.
    pub newest: AtomicI64,
    /// Whether minutes that are due wait for what agents still have of an outage of the server.
    pub waits: AtomicBool,
    /// Times something came of a resource's minute that was pushed already. What comes while its minute is sent may be
    /// missed.
    pub late: AtomicU64,
    begun: OnceLock<Begun>,
}

/// What this server pushes, and the first minute of it.
#[derive(Debug)]
struct Begun {
    plan: Plan,
    first: i64,
}

/// When and what a way is given.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Which metrics.
    pub selection: Selection,
    /// How long after its end a minute is pushed, seconds.
    pub delay_s: i64,
    /// How old a minute may be, minutes.
    pub max_age_minutes: i64,
    /// Only minutes that end at a multiple of so many are pushed; 0 is every minute, as 1 is.
    pub every_minutes: i64,
}

impl Pushed {
    /// Hears what came into the record.
    pub fn came(&self, minutes: &[MinuteDelta]) {
        let Some(Begun { plan, first }) = self.begun.get() else {
            return;
        };
        let pushed = *first..=self.newest.load(Ordering::Relaxed);
        let late = minutes.iter().filter(|it| {
            pushed.contains(&it.minute.0)
                && plan.sends(it.minute)
                && !samples(&it.row, &plan.selection).is_empty()
        });
        self.late.fetch_add(late.count() as u64, Ordering::Relaxed);
    }
}

impl Plan {
    /// Whether this minute is pushed.
    fn sends(&self, minute: Minute) -> bool {
        (minute.0 + 1).rem_euclid(self.every_minutes.max(1)) == 0
    }
}

/// What became of a piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sent {
    /// All of it was taken or refused.
    Done {
        /// How many points were taken.
        taken: u64,
        /// How many points were refused.
        refused: u64,
        /// Why, of the first.
        why: String,
    },
    /// Not now.
    Later {
        /// Why.
        why: String,
        /// How long the target asks to be left alone.
        after: Option<Duration>,
    },
}

/// Points that are sent together until all of them are through.
pub struct Piece<W: Way> {
    /// Those that are still to be sent; the way takes out what is through before the others are.
    pub points: Vec<W::Point>,
    /// What the way knows of them.
    pub state: W::State,
}

/// A resource with the labels that all its points share.
#[derive(Debug)]
pub struct Labelled<'a> {
    /// The resource.
    pub known: &'a KnownResource,
    /// Its labels, sorted by name.
    pub labels: Vec<(&'static str, String)>,
    /// The number of who held it for most of the minute; none where nobody is known to have.
    pub holder: Option<i64>,
}

/// A way to push.
pub trait Way: Send + Sized {
    /// What it is called: its cursor and its job.
    const NAME: &'static str;
    /// Most points of one piece.
    const MOST: usize;
    /// Pieces that are sent at once.
    const AT_ONCE: usize = 1;
    /// Least time from the end of one minute's sending to the beginning of the next one's: for a target that takes points
    /// of one series only so often.
    const LEAST_BETWEEN: Duration = Duration::ZERO;
    /// What is sent of one sample.
    type Point: Send + Sync;
    /// What is known of a piece that is not through.
    type State: Default + Send + Sync;

    /// When and what it is given.
    fn plan(&self) -> &Plan;

    /// The points of a resource in the minute that ends at `end`.
    fn points(&mut self, of: &Labelled<'_>, samples: &[Sample], end: Timestamp)
    -> Vec<Self::Point>;

    /// What is sent behind the points of all resources of the minute that ends at `end`.
    fn rest(&mut self, _end: Timestamp) -> Vec<Self::Point> {
        Vec::new()
    }

    /// Sends at most [`Self::AT_ONCE`] pieces, at least one; what became of each, of the first ones where it gave
    /// up before it had tried all.
    fn send(&mut self, pieces: &mut [Piece<Self>]) -> impl Future<Output = Vec<Sent>> + Send;

    /// Hears that all pieces of the minute that ends at `end` are sent.
    fn went_whole(&mut self, _end: Timestamp) {}
}

/// How far a way is.
pub(super) struct Progress<W: Way> {
    minute: Minute,
    /// The last resource that is read; none when all are.
    after: Option<i64>,
    /// What is read and not sent; the last of them is not sent before all is read.
    waiting: Vec<Piece<W>>,
    pub(super) pause: Duration,
}

/// Why a round did not come to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum RoundError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{0} does not get through: {1}")]
    Target(&'static str, String),
}

/// Pushes from when this server leads until it is told to stop.
pub(super) async fn run<W: Way>(app: App, pushed: &Pushed, mut way: W, stop: CancellationToken) {
    if !app.lead.wait(&stop).await {
        return;
    }
    let (job, clock) = (app.jobs.of(W::NAME), app.clock.as_ref());
    let (began, mut progress) = (clock.monotonic(), None);
    while !stop.is_cancelled() {
        let led = clock.monotonic().saturating_sub(began);
        let round = round(&app, pushed, &mut way, &mut progress, led);
        let pause = tokio::select! {
            () = stop.cancelled() => return,
            done = job.round(clock, round) => match done {
                Some(()) => LOOK_EVERY.max(W::LEAST_BETWEEN),
                None => progress.as_ref().map_or(MAX_PAUSE, |it| it.pause),
            },
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Pushes what is due, of a way that wants a time between minutes one of them. What was read and not sent stays in `kept`
/// for the next round. This server leads for as long as `led` says.
pub(super) async fn round<W: Way>(
    app: &App,
    pushed: &Pushed,
    way: &mut W,
    kept: &mut Option<Progress<W>>,
    led: Duration,
) -> Result<(), RoundError> {
    let now = app.clock.now();
    let due = (now.seconds() - way.plan().delay_s).div_euclid(i64::from(SECONDS_PER_MINUTE));
    let oldest = due.saturating_sub(way.plan().max_age_minutes);
    if kept.is_none() {
        let cursor = app.store.export_cursor(W::NAME).await?;
        // Without a cursor nothing was ever pushed: it begins now, not with the whole past.
        let minute = cursor.map_or(due, |it| it.0 + 1);
        // A target that takes nothing since this server began is behind as well.
        pushed.newest.store(minute - 1, Ordering::Relaxed);
        pushed.begun.get_or_init(|| Begun {
            plan: way.plan().clone(),
            first: minute,
        });
        *kept = Some(Progress::at(minute));
    }
    let progress = kept.as_mut().expect("it was just made");
    if progress.minute.0 > due + 1 {
        // This server's clock was ahead once: nothing would be pushed until it has caught up.
        let ahead = progress.minute.0.abs_diff(due);
        tracing::warn!(
            ahead,
            "minutes that are still to come were pushed ({})",
            W::NAME
        );
        pushed.newest.store(due - 1, Ordering::Relaxed);
        *progress = Progress::at(due);
    }
    if progress.minute.0 < oldest {
        let skipped = oldest.abs_diff(progress.minute.0);
        pushed.skipped.fetch_add(skipped, Ordering::Relaxed);
        tracing::warn!(skipped, "minutes are too old to be pushed ({})", W::NAME);
        *progress = Progress::at(oldest);
    }
    let until = backlog::first(app, led).map_or(due, |it| it.0.min(due));
    let waits = until < due && progress.minute.0 >= until;
    pushed.waits.store(waits, Ordering::Relaxed);
    let begun = app.clock.monotonic();
    for _ in 0..MINUTES_A_ROUND {
        let took = app.clock.monotonic().saturating_sub(begun);
        if progress.minute.0 >= until || took > BEGUN_WITHIN {
            break;
        }
        let done = progress.minute;
        let is_sent = way.plan().sends(done);
        if is_sent {
            whole_minute(app, pushed, way, progress).await?;
            way.went_whole(Minute(done.0 + 1).start());
        }
        app.store.keep_export_cursor(W::NAME, done).await?;
        pushed.newest.store(done.0, Ordering::Relaxed);
        *progress = Progress::at(done.0 + 1);
        if is_sent && !W::LEAST_BETWEEN.is_zero() {
            // So long is waited before the next round.
            break;
        }
    }
    Ok(())
}

async fn whole_minute<W: Way>(
    app: &App,
    pushed: &Pushed,
    way: &mut W,
    progress: &mut Progress<W>,
) -> Result<(), RoundError> {
    let end = Minute(progress.minute.0 + 1).start();
    loop {
        // The last piece may still grow.
        let least = match progress.after {
            Some(_) => W::AT_ONCE + 1,
            None => 1,
        };
        while progress.waiting.len() >= least {
            send(pushed, way, progress).await?;
        }
        let Some(after) = progress.after else {
            return Ok(());
        };
        let page = app.store.minute_page(progress.minute, after, PAGE).await?;
        for (known, row) in &page.rows {
            let found = samples(row, &way.plan().selection);
            if found.is_empty() {
                continue;
            }
            match labels(known) {
                Some(labels) => {
                    let of = Labelled {
                        known,
                        labels,
                        holder: row.held_most_by(),
                    };
                    progress.add(way.points(&of, &found, end));
                }
                None => _ = pushed.long_names.fetch_add(1, Ordering::Relaxed),
            }
        }
        progress.after = page.next;
        if page.next.is_none() {
            progress.add(way.rest(end));
        }
    }
}

/// Sends the first pieces of what waits; what did not get through waits on, in its order.
async fn send<W: Way>(
    pushed: &Pushed,
    way: &mut W,
    progress: &mut Progress<W>,
) -> Result<(), RoundError> {
    let count = progress.waiting.len().min(W::AT_ONCE);
    let outcomes = way.send(&mut progress.waiting[..count]).await;
    let mut failed = None;
    for outcome in &outcomes {
        match outcome {
            Sent::Done {
                taken,
                refused,
                why,
            } => {
                pushed.taken.fetch_add(*taken, Ordering::Relaxed);
                pushed.refused.fetch_add(*refused, Ordering::Relaxed);
                if *refused > 0 {
                    let (name, minute) = (W::NAME, progress.minute.0);
                    tracing::warn!(
                        name,
                        minute,
                        refused,
                        why,
                        "points that are pushed are refused"
                    );
                }
            }
            Sent::Later { why, after } => {
                pushed.failed.fetch_add(1, Ordering::Relaxed);
                let (_, longest) = failed.get_or_insert((why.clone(), None));
                *longest = (*longest).max(*after);
            }
        }
    }
    let mut outcomes = outcomes.into_iter();
    progress
        .waiting
        .retain(|_| !matches!(outcomes.next(), Some(Sent::Done { .. })));
    match failed {
        None => {
            progress.pause = FIRST_PAUSE;
            Ok(())
        }
        Some((why, after)) => {
            let pause = after.unwrap_or(progress.pause * 2);
            progress.pause = pause.clamp(FIRST_PAUSE, MAX_PAUSE);
            Err(RoundError::Target(W::NAME, why))
        }
    }
}

impl<W: Way> Progress<W> {
    fn at(minute: i64) -> Self {
        Self {
            minute: Minute(minute),
            after: Some(0),
            waiting: Vec::new(),
            pause: FIRST_PAUSE,
        }
    }

    /// Puts points into pieces, each of them full but the last.
    fn add(&mut self, points: Vec<W::Point>) {
        for point in points {
            let open = self.waiting.last_mut();
            match open.filter(|it| it.points.len() < W::MOST) {
                Some(piece) => piece.points.push(point),
                None => self.waiting.push(Piece {
                    points: vec![point],
                    state: W::State::default(),
                }),
            }
        }
    }
}
