//! Reports over the ledger: which month, of what, grouped how, in which form.

use std::collections::BTreeMap;
use std::ops::Range;

use gpufleet_analysis::chargeback::view::By;
use gpufleet_analysis::chargeback::{Detail, MILLIS_PER_DAY, Seller};
use gpufleet_analysis::price_book::export::Invoice;
use gpufleet_analysis::report::{self, Report, efficiency, focus, reconcile};
use gpufleet_analysis::table;
use gpufleet_telemetry::gpu_specs::Specs;
use gpufleet_telemetry::time::Timestamp;

use super::month::{self, Days};
use super::{Terms, advice, tables};
use crate::store::{Store, StoreError};

pub mod against;
pub mod bill;
mod form;
mod rows;
pub mod told;

pub use form::{Basis, Form, What};

/// Hours of a day.
const HOURS: i64 = 24;

/// Months in words.
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// What.
    pub what: What,
    /// In which form.
    pub form: Form,
    /// The month in words.
    pub title: String,
    /// Its days, since the Unix epoch; the end of the day that runs where it runs.
    pub days: Range<i64>,
    /// Those of them that are over.
    pub whole: Range<i64>,
    /// The first day of the month after it.
    pub end_day: i64,
    /// The first day of the month before it.
    pub before_day: i64,
    /// What lines are grouped by.
    pub by: Vec<By>,
    /// Of one cluster; else of all live ones.
    pub cluster: Option<String>,
    /// When.
    pub now: Timestamp,
    /// At which price.
    pub basis: Basis,
    /// In which version, of a FOCUS file.
    pub focus: focus::Version,
}

/// A question that cannot be answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAsked {
    /// Not a month.
    #[error("`{0}` is no month: 2026-10 is one")]
    Month(String),
    /// A month that has not begun.
    #[error("{0} has not begun")]
    Future(String),
    /// Not something to group by.
    #[error(
        "`{0}` is nothing to group by: team, cluster, namespace, job, model, project, pool and gpu are, with commas between"
    )]
    By(String),
    /// Not a form of this report.
    #[error("efficiency and the reconciliation are there as csv, json and html, not as focus")]
    NoFocus,
    /// Not a version of FOCUS that is written.
    #[error("`{0}` is no version of FOCUS that is written: 1.2 and 1.3 are")]
    Version(String),
    /// A version of FOCUS of what is none.
    #[error("a version of FOCUS is of the chargeback as focus, and of no other form")]
    NoVersion,
    /// Not a price for this report.
    #[error(
        "the price of GPUs alone is there for the chargeback as csv, json and html: FOCUS files, invoices and efficiency are of whole machines"
    )]
    NoBasis,
}

impl Asked {
    /// A report of a month such as `2026-10`, grouped by words with commas between.
    ///
    /// # Errors
    /// When it cannot be answered.
    pub fn new(
        what: What,
        form: Form,
        month: &str,
        by: &str,
        cluster: Option<String>,
        now: Timestamp,
    ) -> Result<Self, NotAsked> {
        if !what.forms().any(|it| it == form) {
            return Err(NotAsked::NoFocus);
        }
        let no_month = || NotAsked::Month(month.chars().take(20).collect());
        // Before the epoch there are no days of a ledger, and long before it no moments.
        let hours = table::month_hours(month).filter(|it| it.start >= 0);
        let hours = hours.ok_or_else(no_month)?;
        let today = now.millis().div_euclid(MILLIS_PER_DAY);
        let (first, end) = (hours.start / HOURS, hours.end / HOURS);
        if first > today {
            return Err(NotAsked::Future(title(month)));
        }
        let parse = |word: &str| {
            By::parse(word).ok_or_else(|| NotAsked::By(word.chars().take(40).collect()))
        };
        let by = by.split(',').map(str::trim).map(parse);
        Ok(Self {
            what,
            form,
            title: title(month),
            days: first..end.min(today + 1),
            whole: first..end.min(today),
            end_day: end,
            before_day: month_before(first),
            by: by.collect::<Result<_, _>>()?,
            cluster,
            now,
            basis: Basis::FullyLoaded,
            focus: focus::Version::default(),
        })
    }

    /// The same in this version of FOCUS, such as `1.3`; without one in 1.2.
    ///
    /// # Errors
    /// When that is not written, or the report is no FOCUS file.
    pub fn version(self, version: Option<&str>) -> Result<Self, NotAsked> {
        let Some(version) = version else {
            return Ok(self);
        };
        let unknown = || NotAsked::Version(version.chars().take(20).collect());
        let focus = focus::Version::parse(version).ok_or_else(unknown)?;
        match self.form {
            Form::Focus => Ok(Self { focus, ..self }),
            _ => Err(NotAsked::NoVersion),
        }
    }

    /// The same at this price.
    ///
    /// # Errors
    /// When the report is not there at it.
    pub fn at(self, basis: Basis) -> Result<Self, NotAsked> {
        let is_there = self.what.bases().contains(&basis) && self.form != Form::Focus;
        match basis {
            Basis::GpuOnly if !is_there => Err(NotAsked::NoBasis),
            basis => Ok(Self { basis, ..self }),
        }
    }

    /// Whether it shows what changed since the month before.
    fn compares(&self) -> bool {
        let shows =
            self.form == Form::Html || self.what == What::Chargeback && self.form == Form::Json;
        shows && self.basis == Basis::FullyLoaded
    }

    /// The days of the month before with which it is compared: of a month that runs as many as of it are over, because
    /// half a month is no cheaper than a whole one.
    fn days_before(&self) -> Range<i64> {
        let (first, end) = (self.before_day, self.days.start);
        match self.whole == self.days {
            true => first..end,
            false => first..end.min(first + (self.whole.end - self.whole.start)),
        }
    }

    /// Whether it shows what training came to.
    fn shows_training(&self) -> bool {
        let shows = self.form == Form::Html || self.what == What::Efficiency;
        shows && self.basis == Basis::FullyLoaded
    }

    /// How far the lines of it are told apart.
    fn detail(&self) -> Detail {
        match self.form {
            Form::Focus => Detail::Gpus,
            _ => By::detail(&self.by),
        }
    }

    /// What each team may spend in it: in the cluster that it is of, else in all live ones together.
    pub fn budgets(&self, terms: &Terms) -> BTreeMap<String, i128> {
        let cluster = self.cluster.as_deref();
        tables::budgets_at(&terms.budgets, cluster, self.days.start * MILLIS_PER_DAY)
    }

    /// How many GPUs each team may hold in it, in the same clusters.
    pub fn quotas(&self, terms: &Terms) -> BTreeMap<String, i64> {
        let cluster = self.cluster.as_deref();
        tables::quotas_at(&terms.quotas, cluster, self.days.start * MILLIS_PER_DAY)
    }

    /// The name of a file with it.
    pub fn file_name(&self) -> String {
        let what = match self.what {
            What::Chargeback => "chargeback",
            What::Efficiency => "efficiency",
            What::Reconcile => "reconciliation",
        };
        let month = table::moment_text(self.days.start * MILLIS_PER_DAY);
        let month: String = month.chars().take(7).collect();
        format!("{what}-{month}.{}", self.form.ending())
    }
}

/// The month that a moment is in, as `2026-10`.
pub fn month_of(now: Timestamp) -> String {
    table::moment_text(now.millis()).chars().take(7).collect()
}

/// The first day of the month before the one that begins on this day.
fn month_before(first_day: i64) -> i64 {
    month_around(first_day - 1).map_or(first_day, |it| it.start)
}

/// The days of the month that a day is in, all since the Unix epoch.
pub(super) fn month_around(day: i64) -> Option<Range<i64>> {
    let month = month_of(Timestamp::from_millis(day * MILLIS_PER_DAY));
    let hours = table::month_hours(&month)?;
    Some(hours.start / HOURS..hours.end / HOURS)
}

/// `October 2026`.
fn title(month: &str) -> String {
    let (year, number) = month.split_once('-').unwrap_or((month, ""));
    let number = number.parse::<usize>().ok();
    let name = number.and_then(|it| MONTHS.get(it.checked_sub(1)?));
    name.map_or_else(|| month.to_owned(), |name| format!("{name} {year}"))
}

/// Reads the days of the month and, where both are compared, of the one before it; and where training is
/// shown its runs, whose cards' peaks are these.
///
/// # Errors
/// When the store does not answer.
pub async fn read(store: &Store, specs: &Specs, asked: &Asked) -> Result<[Days; 2], StoreError> {
    let cluster = asked.cluster.as_deref();
    let month = month::read(store, asked.days.clone(), cluster);
    let (mut month, earlier) = tokio::try_join!(month, against::read_before(store, asked))?;
    month.at = Some(asked.now);
    if asked.shows_training() {
        let hours = asked.days.start * HOURS..asked.days.end * HOURS;
        month.demand = store.demand(hours, cluster).await?;
        let time = month::time_of(&asked.days);
        month.advised = advice::read(store, time, cluster).await?;
        month::serve(&mut month, store, &asked.days, cluster).await?;
        month::train(&mut month, store, &asked.days, cluster, specs).await?;
    }
    Ok([month, earlier])
}

/// What a report of GPUs alone leaves out.
const ALONE: &str = "each GPU is at its own price here, without its machine: budgets, Spot, commitments and the month before are of whole machines and not in it, and time of which a GPU's own price is not known is unpriced";

/// A report as a text.
#[derive(Debug)]
pub struct Rendered {
    /// All of it.
    pub text: String,
    /// What is missing in it, or doubtful, one sentence each, where its form is rows alone and has no place for that: first
    /// days that are in no figure.
    pub told: Vec<String>,
}

/// The report as one text. Takes seconds of CPU for a month of 10,000 GPUs: not for a thread that serves.
pub fn render(
    asked: &Asked,
    days: &[Days; 2],
    terms: &Terms,
    invoice: Option<&Invoice>,
    now: Timestamp,
) -> Rendered {
    let mut text = String::new();
    let mut take = |part: &str| text.push_str(part);
    let told = write(asked, days, terms, invoice, now, &mut take);
    Rendered { text, told }
}

/// The same part by part, as it is made: a FOCUS file of a month of 10,000 GPUs is hundreds of MB. Gives what is missing
/// in it, or doubtful, as [`Rendered::told`].
pub fn write(
    asked: &Asked,
    [days, before]: &[Days; 2],
    terms: &Terms,
    invoice: Option<&Invoice>,
    now: Timestamp,
    take: &mut dyn FnMut(&str),
) -> Vec<String> {
    let (month, compared) = std::thread::scope(|scope| {
        let compared = scope.spawn(|| against::charged(asked, [days, before], terms));
        let month = month::charge(days, asked.days.clone(), terms, asked.detail());
        let compared = compared.join();
        let compared = compared.unwrap_or_else(|why| std::panic::resume_unwind(why));
        (month, compared)
    });
    let before_it = compared.as_ref().map(against::Compared::before);
    let change = || against::change(asked, [days, before], &month, before_it);
    let change = asked.compares().then(change);
    let budgets = asked.budgets(terms);
    let end_ms = asked.end_day * MILLIS_PER_DAY;
    let mut findings = month.findings;
    let not_recorded = month.recorded.missing(&asked.days, now);
    findings.extend(not_recorded.iter().cloned());
    findings.extend(against::findings(asked, before, compared.as_ref(), now));
    if asked.cluster.is_some() && terms.budgets.iter().any(|it| it.cluster.is_empty()) {
        let why = "budgets that name no cluster are of all live clusters together: a report of one cluster shows those that name it";
        findings.push(why.to_owned());
    }
    findings.extend(invoice.into_iter().flat_map(bill::findings));
    let is_whole = asked.basis == Basis::FullyLoaded;
    let alone = (!is_whole).then(|| month.made.of_gpus_alone(&month.fleet));
    if alone.is_some() {
        findings.push(ALONE.to_owned());
    }
    let made = alone.as_ref().unwrap_or(&month.made);
    let title = match &asked.cluster {
        Some(cluster) => format!("{} of {cluster}", asked.title),
        None => asked.title.clone(),
    };
    let report = Report {
        title: match is_whole {
            true => title,
            false => format!("{title}, GPUs alone"),
        },
        chargeback: made,
        fleet: &month.fleet,
        by: asked.by.clone(),
        borne: made.borne(&terms.owners),
        reconciled: invoice.map(|it| made.reconciled(it)),
        variance: compared.as_ref().map(|it| it.variance(made)),
        change,
        compared: match compared.is_some() || asked.compares() && asked.whole.is_empty() {
            true => against::words(asked),
            false => String::new(),
        },
        budgets: match is_whole {
            true => made.budgets(&budgets, now.millis(), end_ms),
            false => Vec::new(),
        },
        quotas: made.quotas(&asked.quotas(terms), now.millis(), end_ms),
        spot: match is_whole {
            true => month.spot,
            false => Default::default(),
        },
        runs: month.runs,
        serving: month.serving,
        demand: days.demand.clone(),
        advised: days.advised.clone(),
        passed_ms: now.millis().clamp(made.begun_ms(), made.until_ms) - made.begun_ms(),
        findings,
    };
    let text = match (asked.what, asked.form) {
        (_, Form::Html) => report::html(&report),
        (What::Chargeback, Form::Csv) => report::csv(&report),
        (What::Chargeback, Form::Json) => report::json(&report),
        (What::Efficiency, Form::Csv) => efficiency::csv(&report),
        (What::Efficiency, Form::Json) => efficiency::json(&report),
        (What::Reconcile, Form::Csv) => reconcile::csv(&report),
        (What::Reconcile, Form::Json) => reconcile::json(&report),
        (_, Form::Focus) => {
            let account = account(terms);
            rows::write(&focus::Rows::new(&report, &account, asked.focus), take);
            String::new()
        }
    };
    take(&text);
    let mut told = Vec::new();
    if asked.form.is_rows() {
        told = not_recorded;
        told.extend(days.not_read(&asked.days));
        let others = report.findings.iter().filter(|it| !told.contains(it));
        let others: Vec<String> = others.cloned().collect();
        told.extend(others);
        told.extend(report.notes());
    }
    told
}

fn account(terms: &Terms) -> focus::Account {
    let cost = &terms.sources.cost;
    let commitments = terms.book.commitments().iter();
    let commitments = commitments.filter_map(|it| {
        let seller = month::seller::of_type(&it.machine_type)?;
        Some((it.id.clone(), seller))
    });
    focus::Account {
        billing_account_id: cost.billing_account.clone(),
        billing_account_name: String::new(),
        seller: Seller {
            provider: cost.provider.clone(),
            service: cost.service.clone(),
        },
        commitments: commitments.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(month: &str, by: &str) -> Result<Asked, NotAsked> {
        let now = table::moment("2026-11-21T20:00:00Z").expect("a moment");
        let now = Timestamp::from_millis(now);
        Asked::new(What::Chargeback, Form::Csv, month, by, None, now)
    }

    #[test]
    fn a_month_ends_where_the_next_begins_or_with_the_day_that_runs() {
        let october = asked("2026-10", "team,gpu").expect("a month");
        assert_eq!(
            (
                october.days.end - october.days.start,
                october.title.as_str()
            ),
            (31, "October 2026")
        );
        assert_eq!(october.days.start - october.before_day, 30);
        assert_eq!(october.by, [By::Team, By::Gpu]);
        assert_eq!(october.file_name(), "chargeback-2026-10.csv");
        let november = asked("2026-11", "team").expect("a month");
        assert_eq!(november.days.end - november.days.start, 21);
        assert_eq!(november.end_day - november.days.start, 30);
        assert_eq!(november.before_day, october.days.start);
    }

    #[test]
    fn what_cannot_be_answered_is_refused_with_the_way_out() {
        for (month, by, why) in [
            ("2026-13", "team", "2026-10 is one"),
            ("2027-01", "team", "January 2027 has not begun"),
            ("2026-10", "team,shoe", "`shoe`"),
            ("2026-10", "", "`` is nothing"),
        ] {
            let error = asked(month, by).expect_err(month).to_string();
            assert!(error.contains(why), "{error}");
        }
        let told = NotAsked::By("shoe".to_owned()).to_string();
        for by in By::ALL {
            let name = by.name();
            assert!(told.contains(name), "{told} lacks {name}");
            assert_eq!(asked("2026-10", name).expect(name).by, [by]);
        }
    }

    #[test]
    fn the_price_of_gpus_alone_is_there_where_a_report_can_be_of_it() {
        let now = Timestamp::from_millis(table::moment("2026-11-21T20:00:00Z").expect("a moment"));
        let asked = |what, form| {
            let asked = Asked::new(what, form, "2026-11", "team", None, now);
            asked.expect("it may be asked").at(Basis::GpuOnly)
        };
        for form in [Form::Csv, Form::Json, Form::Html] {
            let asked = asked(What::Chargeback, form).expect("it is there");
            assert!(!asked.compares() && !asked.shows_training());
        }
        assert_eq!(asked(What::Chargeback, Form::Focus), Err(NotAsked::NoBasis));
        assert_eq!(asked(What::Efficiency, Form::Csv), Err(NotAsked::NoBasis));
        assert_eq!(asked(What::Reconcile, Form::Csv), Err(NotAsked::NoBasis));
    }
}
