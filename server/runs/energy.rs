//! What the GPUs of a run drew while its job held them, from the ledger.
//!
//! Limits: whole hours, so that of the first and the last one an earlier or later attempt of the same job is in it; of
//! more than [`MAX_DRAWN`] GPU-hours nothing is added up. A sum is made again at most once in [`FRESH_FOR`]; who asks is
//! given the last one meanwhile where that is younger than [`STANDS_FOR`], else waits [`WAITS`] for the next, and
//! [`MAX_WAITING`] at most are made or wait for it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use gpufleet_analysis::ledger::Energy;
use gpufleet_telemetry::time::{Clock, Timestamp};

use super::{Run, RunKey};
use crate::answers::Answers;
use crate::money::advice::{is_of, name};
use crate::store::{MAX_DRAWN, Store, StoreError};
use crate::words::Said;

/// For how long a sum stands: the ledger is minutes behind anyway, and who polls a run asks every few seconds.
const FRESH_FOR: Duration = Duration::from_secs(300);

/// How old a sum may be that is given while the next one is made.
const STANDS_FOR: Duration = Duration::from_secs(900);

/// Most sums that are kept, some hundred bytes each: of more runs nobody asks within minutes, an exporter of all either.
const KEPT: usize = 10_000;

/// Sums that are made at once: each reads up to [`MAX_DRAWN`] GPU-hours.
const AT_ONCE: usize = 2;

/// Sums that are made or wait for it, which takes seconds: who asks for more runs than that asks again.
const MAX_WAITING: usize = 32;

/// How long one is waited for: all else of a run is there by then.
const WAITS: Duration = Duration::from_secs(1);

/// Why there is none where the store does not answer.
const UNREAD: &str =
    "not known at the moment: the ledger cannot be read; the server's log says why";

/// Why there is none while the first one is made, or others are.
const ADDED_UP: &str =
    "not known yet: it is being added up, or waits for that; look again in some seconds";

/// What the GPUs of a run drew, as far as that is told.
#[derive(Debug, Clone, Copy)]
pub struct Drawn {
    /// For how long its job held them, milliseconds.
    pub held_millis: i64,
    /// Of how much of that it is told.
    pub metered_millis: i64,
    /// What they drew in that, millijoules.
    pub millijoules: i64,
}

impl Drawn {
    /// What is told of that time; else a sentence that says why nothing is.
    pub fn told(held_millis: i64, energy: Energy) -> Result<Self, Said> {
        const WHY: &str = "not told: its cards have no counter of it";
        let millijoules = energy.told();
        let millijoules = millijoules.ok_or_else(|| Said::open("readings", WHY))?;
        Ok(Self {
            held_millis,
            metered_millis: energy.metered_millis,
            millijoules,
        })
    }
}

/// Sums as they were last made, by run, and why there is none; not that the store did not answer.
pub struct Energies {
    sums: Answers<RunKey, Result<Drawn, Said>, NotMade>,
    waits: Duration,
}

/// Why a sum was not made.
#[derive(Debug, Clone, Copy)]
enum NotMade {
    /// The store does not answer.
    Unread,
    /// Too many others are.
    Refused,
}

impl Default for Energies {
    fn default() -> Self {
        Self::waiting(WAITS)
    }
}

impl Energies {
    /// None yet; who asks waits for so long.
    pub fn waiting(waits: Duration) -> Self {
        let refuses = (MAX_WAITING, NotMade::Refused);
        Self {
            sums: Answers::refusing(FRESH_FOR, KEPT, AT_ONCE, refuses),
            waits,
        }
    }

    /// What the GPUs of a run drew while its job held them.
    ///
    /// # Errors
    /// A sentence that says why it is not known, also where the ledger cannot be read, and while the first sum is made.
    pub async fn get(
        &self,
        (store, clock): (&Store, &Arc<dyn Clock>),
        (key, run): (&RunKey, &Run),
        now: Timestamp,
    ) -> Result<Drawn, Said> {
        let held = Held::of(run, now)?;
        let (store, of) = (store.clone(), key.clone());
        let making = async move {
            read(&store, &of, &held).await.map_err(|error| {
                tracing::error!(%error, "what a run drew cannot be read");
                NotMade::Unread
            })
        };
        self.told((key, clock), making).await
    }

    /// The last sum of the run where that stands, else the one that is being made where it is there in time.
    async fn told<F>(
        &self,
        (key, clock): (&RunKey, &Arc<dyn Clock>),
        making: F,
    ) -> Result<Drawn, Said>
    where
        F: Future<Output = Result<Result<Drawn, Said>, NotMade>> + Send + 'static,
    {
        let sums = &self.sums;
        let made = sums.get_standing(key.clone(), clock, STANDS_FOR, making);
        match tokio::time::timeout(self.waits, made.boxed()).await {
            Ok(Ok(made)) => Result::clone(&made),
            Ok(Err(NotMade::Unread)) => Err(Said::open("database", UNREAD)),
            Ok(Err(NotMade::Refused)) | Err(_) => Err(Said::open("database", ADDED_UP)),
        }
    }
}

/// Which GPUs a run has, and in which hours.
struct Held {
    gpus: Vec<String>,
    hours: Range<i64>,
}

impl Held {
    fn of(run: &Run, now: Timestamp) -> Result<Self, Said> {
        let unknown = |why: &str| Said::open("hooks", format!("not known: {why}"));
        let started = run.facts.started;
        let started = started.ok_or_else(|| unknown("nobody said when it began"))?;
        let gpus: Vec<String> = run.gpus().into_iter().map(str::to_owned).collect();
        if gpus.is_empty() {
            return Err(unknown("no rank says on which GPU it computes"));
        }
        let until = run.state(now).until(now);
        let hours = started.minute().hour()..until.minute().hour() + 1;
        Ok(Self { gpus, hours })
    }
}

/// What is in the ledger of it.
async fn read(store: &Store, key: &RunKey, held: &Held) -> Result<Result<Drawn, Said>, StoreError> {
    let gpus: Vec<&str> = held.gpus.iter().map(String::as_str).collect();
    let drawn = store.drawn(&key.cluster, &gpus, held.hours.clone());
    let Some(drawn) = drawn.await? else {
        let why = format!(
            "not added up: it held its GPUs for more than {MAX_DRAWN} GPU-hours; the month's report has it"
        );
        return Ok(Err(Said::open("money_months", why)));
    };
    let numbers: BTreeSet<i64> = drawn.keys().copied().collect();
    let holders = store.holders(&numbers).await?;
    let all: i64 = drawn.values().map(|it| it.0).sum();
    let name = name(&key.run.job);
    // A job that calls itself otherwise than its holder is called is the one that had them most of the time.
    let is_its = |number: &i64, millis: i64| {
        let job = holders.get(number).map_or("", |it| it.job.as_str());
        is_of(job, &name) || millis > all / 2
    };
    let (mut millis, mut energy) = (0, Energy::default());
    for (number, (held, of)) in drawn {
        if is_its(&number, held) {
            millis += held;
            energy.add(of);
        }
    }
    Ok(match millis {
        0 => Err(Said::open(
            "holders",
            "not in the ledger yet: nobody knows that its job held its GPUs",
        )),
        _ => Drawn::told(millis, energy),
    })
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use gpufleet_telemetry::training::{JobId, RunId};

    use super::*;
    use crate::hand::Hand;

    const DRAWN: Drawn = Drawn {
        held_millis: 3,
        metered_millis: 2,
        millijoules: 1,
    };

    #[tokio::test]
    async fn who_asks_first_waits_for_a_while_and_is_told_that_it_is_made_or_why_not() {
        let clock: Arc<dyn Clock> = Arc::new(Hand::default());
        for (made, says) in [
            (pending().boxed(), ADDED_UP),
            (ready(Err(NotMade::Refused)).boxed(), ADDED_UP),
            (ready(Err(NotMade::Unread)).boxed(), UNREAD),
        ] {
            let energies = Energies::waiting(Duration::from_millis(1));
            let why = energies.told((&key(), &clock), made).await;
            assert_eq!(why.expect_err("there is none").to_string(), says);
        }
        let energies = Energies::waiting(Duration::from_secs(3_600));
        let told = energies.told((&key(), &clock), ready(Ok(Ok(DRAWN)))).await;
        assert_eq!(told.expect("it is waited for").millijoules, 1);
    }

    #[tokio::test]
    async fn nobody_waits_while_the_last_sum_stands_also_where_there_is_no_next_one() {
        for made in [
            pending().boxed(),
            ready(Err(NotMade::Refused)).boxed(),
            ready(Err(NotMade::Unread)).boxed(),
        ] {
            let energies = Energies::waiting(Duration::from_millis(1));
            let (key, hand) = (key(), Arc::new(Hand::default()));
            let clock: Arc<dyn Clock> = Arc::clone(&hand) as _;
            let first = energies.told((&key, &clock), ready(Ok(Ok(DRAWN)))).await;
            assert!(first.is_ok());
            hand.put_monotonic(FRESH_FOR);
            let told = energies.told((&key, &clock), made).now_or_never();
            let told = told.expect("nobody waits").expect("it was made before");
            assert_eq!(told.millijoules, 1);
            hand.put_monotonic(STANDS_FOR - Duration::from_secs(1));
            let told = energies.told((&key, &clock), pending()).await;
            assert!(told.is_ok());
            hand.put_monotonic(STANDS_FOR);
            let told = energies.told((&key, &clock), pending()).await;
            assert!(told.is_err(), "the last one is too old");
        }
    }

    fn key() -> RunKey {
        RunKey {
            cluster: "live".into(),
            run: RunId {
                job: JobId::parse("team/llama/u1").expect("an id"),
                attempt: 0,
            },
        }
    }
}
