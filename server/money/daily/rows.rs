//! A chargeback as rows of tables: each day by what tells its lines apart, each month by who pays.

use std::collections::BTreeMap;

use gpufleet_analysis::chargeback::budget::Standing;
use gpufleet_analysis::chargeback::view::By;
use gpufleet_analysis::chargeback::{Chargeback, Fleet, MILLIS_PER_DAY, Sum};
use gpufleet_analysis::ledger::{Reason, State};
use gpufleet_analysis::owner::Payer;
use gpufleet_analysis::report::efficiency::{Mean, Training, training};
use gpufleet_telemetry::identity::Origin;

use super::Asked;
use crate::money::month::Month;
use crate::store::{MoneyMonth, MoneyRow};

/// Most rows of a day of a scope, the dearest; the others are one row a payer, state and reason. A fleet of 10,000 GPUs has
/// about 5,000.
pub const MAX_ROWS: usize = 10_000;

/// The job of what is beyond [`MAX_ROWS`].
pub const OTHERS: &str = "(others)";

/// What a row says of money that no column holds.
pub(super) const TOO_LARGE: &str =
    "some of its money is more than a column holds, which is 9,223,372,036: the reports have it";

/// What of a sum has a price; none where nothing of it has.
fn priced(sum: &Sum) -> Option<i128> {
    let is_unpriced = sum.unpriced_millis > 0 && sum.unpriced_millis >= sum.gpu_millis;
    (!is_unpriced).then_some(sum.cost)
}

/// Amounts as columns hold them, and whether all of them do: more than that is none, and never less than it was.
fn columns<const N: usize>(nano: [Option<i128>; N]) -> ([Option<i64>; N], bool) {
    let held = nano.map(|it| it.and_then(|it| i64::try_from(it).ok()));
    let are_held =
        std::iter::zip(&nano, &held).all(|(nano, held)| nano.is_some() == held.is_some());
    (held, are_held)
}

/// What rows of a day are told apart by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Words<'a> {
    cluster: &'a str,
    payer: &'a Payer,
    namespace: &'a str,
    job: &'a str,
    project: &'a str,
    state: State,
    reason: Reason,
}

/// What is not told, in one text; empty where all is.
pub(super) fn untold<'a>(all: impl IntoIterator<Item = Option<&'a str>>) -> String {
    let all: Vec<&str> = all.into_iter().flatten().collect();
    all.join("; ")
}

/// A day's lines by what tables tell apart, and what of it could not be read.
pub(super) fn rows(made: &Chargeback, fleet: &Fleet, not_read: Option<&str>) -> Vec<MoneyRow> {
    let mut found: BTreeMap<Words<'_>, Sum> = BTreeMap::new();
    for (key, sum) in &made.lines {
        let words = Words {
            cluster: key.node.map_or("", |it| &fleet.nodes[it].cluster),
            payer: &made.payers[key.payer],
            namespace: By::Namespace.word(made, fleet, key),
            job: By::Job.word(made, fleet, key),
            project: By::Project.word(made, fleet, key),
            state: key.state,
            reason: key.reason,
        };
        found.entry(words).or_default().add(sum);
    }
    let row = |(words, sum): (Words<'_>, Sum)| {
        let ([cost], is_told) = columns([priced(&sum)]);
        MoneyRow {
            cluster: words.cluster.to_owned(),
            payer: words.payer.clone(),
            namespace: words.namespace.to_owned(),
            job: words.job.to_owned(),
            project: words.project.to_owned(),
            state: words.state,
            reason: words.reason,
            gpu_millis: sum.gpu_millis,
            cost,
            unpriced_millis: sum.unpriced_millis,
            untold: untold([not_read, (!is_told).then_some(TOO_LARGE)]),
        }
    };
    dearest(found, MAX_ROWS).into_iter().map(row).collect()
}

/// The dearest of them, and what is beyond as one for each cluster, payer, state and reason.
fn dearest(found: BTreeMap<Words<'_>, Sum>, most: usize) -> BTreeMap<Words<'_>, Sum> {
    if found.len() <= most {
        return found;
    }
    let mut ranked: Vec<_> = found.into_iter().collect();
    ranked.sort_by_key(|it| std::cmp::Reverse((it.1.cost, it.1.gpu_millis)));
    let beyond = ranked.split_off(most);
    let mut kept: BTreeMap<Words<'_>, Sum> = ranked.into_iter().collect();
    for (words, sum) in beyond {
        let words = Words {
            namespace: "",
            job: OTHERS,
            project: "",
            ..words
        };
        kept.entry(words).or_default().add(&sum);
    }
    kept
}

/// Everybody together and each payer, those among them that have a budget and spent nothing; and what of the month is
/// not in it, which may be empty.
pub(super) fn standing(
    month: &Month,
    budgets: &BTreeMap<String, i128>,
    asked: &Asked,
    not_told: &str,
) -> Vec<MoneyMonth> {
    let made = &month.made;
    let (now_ms, end_ms) = (asked.now.millis(), asked.end_day * MILLIS_PER_DAY);
    let trained = training(made, &month.runs);
    let mut all = Training::default();
    trained.values().for_each(|it| all.join(it));
    let mut sums: BTreeMap<Payer, Sum> = BTreeMap::new();
    for (key, sum) in &made.lines {
        let payer = made.payers[key.payer].clone();
        sums.entry(payer).or_default().add(sum);
    }
    for team in budgets.keys() {
        sums.entry(Payer::Team(team.clone())).or_default();
    }
    let standings = made.budgets(budgets, now_ms, end_ms);
    let row = |payer: Option<Payer>, sum: &Sum, forecast: Option<i128>| {
        let is_of = |it: &&Standing| matches!(&payer, Some(Payer::Team(team)) if *team == it.team);
        let standing = standings.iter().find(is_of);
        let trained = match &payer {
            Some(payer) => trained.get(payer.name()),
            None => Some(&all),
        };
        let goodput = trained.map_or_else(Mean::default, |it| it.goodput);
        let spent = priced(sum);
        let amounts = [spent, spent.and(forecast), standing.map(|it| it.budget)];
        let ([spent, forecast, budget], are_told) = columns(amounts);
        let not_told = Some(not_told).filter(|it| !it.is_empty());
        MoneyMonth {
            scope: String::new(),
            origin: Origin::Live,
            cluster: String::new(),
            currency: made.currency.clone(),
            gpu_millis: sum.gpu_millis,
            spent,
            unpriced_millis: sum.unpriced_millis,
            forecast,
            budget,
            gone_on_day: standing.and_then(|it| it.gone_on_day),
            goodput: goodput.millionths().and_then(|it| i64::try_from(it).ok()),
            goodput_gpu_millis: goodput.gpu_millis,
            untold: untold([not_told, (!are_told).then_some(TOO_LARGE)]),
            payer,
        }
    };
    let everybody = row(None, &made.total(), made.forecast(now_ms, end_ms));
    let each = sums.iter().map(|(payer, sum)| {
        let forecast = made.forecast_of(payer, now_ms, end_ms);
        row(Some(payer.clone()), sum, forecast)
    });
    [everybody].into_iter().chain(each).collect()
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::chargeback::Detail;
    use gpufleet_analysis::report::efficiency::RunTime;
    use gpufleet_telemetry::time::Timestamp;

    use super::*;
    use crate::money::month::{self, Days};
    use crate::money::terms::Sources;
    use crate::money::{CostConfig, Terms};

    fn words(job: &'static str, state: State) -> Words<'static> {
        Words {
            cluster: "prod",
            payer: &Payer::Unowned,
            namespace: "a",
            job,
            project: "p",
            state,
            reason: Reason::Unknown,
        }
    }

    fn sum(gpu_millis: i64, cost: i128, unpriced_millis: i64) -> Sum {
        Sum {
            gpu_millis,
            cost,
            unpriced_millis,
            ..Sum::default()
        }
    }

    #[test]
    fn what_has_no_price_is_no_nothing() {
        assert_eq!(priced(&sum(10, 0, 10)), None);
        assert_eq!(priced(&sum(10, 7, 9)), Some(7));
        assert_eq!(priced(&sum(10, 0, 0)), Some(0));
        // A commitment that nobody used, of a machine whose GPUs are not known.
        assert_eq!(priced(&sum(0, 7, 0)), Some(7));
    }

    #[test]
    fn what_no_column_holds_is_none_and_said_and_never_less() {
        let most = i128::from(i64::MAX);
        let held = |nano| columns([Some(1), nano]);
        assert_eq!(held(Some(most)), ([Some(1), Some(i64::MAX)], true));
        assert_eq!(held(Some(most + 1)), ([Some(1), None], false));
        assert_eq!(held(Some(-most - 2)), ([Some(1), None], false));
        assert_eq!(held(None), ([Some(1), None], true));
    }

    #[test]
    fn goodput_of_everybody_is_that_of_all_runs_by_the_time_they_held() {
        let terms = Terms::of(Sources {
            cost: CostConfig::default(),
            gpu_hour_usd: BTreeMap::new(),
            files: Vec::new(),
            stored: Vec::new(),
        });
        let run = |payer: &str, goodput, gpu_millis| RunTime {
            payer: payer.to_owned(),
            gpu_millis,
            goodput,
            mfu: None,
        };
        let month = Month {
            runs: vec![
                run("science", Some(900_000), 300),
                run("robots", Some(500_000), 100),
                run("unowned", None, 700),
            ],
            ..month::charge(&Days::default(), 0..1, &terms, Detail::Nodes)
        };
        let asked = Asked {
            days: 0..1,
            first_ms: 0,
            end_day: 31,
            month: "1970-01".to_owned(),
            now: Timestamp(0),
            lost: None,
        };
        let all = standing(&month, &BTreeMap::new(), &asked, "");
        let everybody = all.iter().find(|it| it.payer.is_none());
        let everybody = everybody.map(|it| (it.goodput, it.goodput_gpu_millis));
        assert_eq!(everybody, Some((Some(800_000), 400)));
    }

    #[test]
    fn beyond_the_most_rows_the_cheapest_are_one_a_state_and_no_money_is_lost() {
        let all = BTreeMap::from([
            (words("a", State::Gap), sum(5, 50, 0)),
            (words("b", State::Gap), sum(1, 1, 0)),
            (words("c", State::Gap), sum(2, 2, 0)),
            (words("d", State::Parked), sum(3, 3, 0)),
        ]);
        let kept = dearest(all.clone(), 4);
        assert_eq!(kept, all);
        let kept = dearest(all.clone(), 1);
        let of = |job, state| {
            let found = kept
                .iter()
                .find(|it| it.0.job == job && it.0.state == state);
            found.map(|it| it.1.cost)
        };
        assert_eq!(of("a", State::Gap), Some(50));
        assert_eq!(of(OTHERS, State::Gap), Some(3));
        assert_eq!(of(OTHERS, State::Parked), Some(3));
        let total = |of: &BTreeMap<Words<'_>, Sum>| of.values().map(|it| it.cost).sum::<i128>();
        assert_eq!((kept.len(), total(&kept)), (3, total(&all)));
    }
}
