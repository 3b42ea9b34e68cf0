//! An incident in words: where it is, what it costs, what shows it.

use gpufleet_analysis::cause::{Cause, Reading};
use gpufleet_analysis::health::Asks;
use gpufleet_analysis::incident::{Evidence, Family, Incident, Place, Remedy, State};
use gpufleet_analysis::lost::{Losing, Lost};
use gpufleet_analysis::price::Figure;
use gpufleet_telemetry::catalog::{self, Unit};
use gpufleet_telemetry::time::Timestamp;
use gpufleet_telemetry::training::RunId;

use super::text::{self, money};
use super::xid;
use crate::runs::RunKey;
use crate::view::FleetView;

/// Whether an incident that is over was only not seen again: an XID that nothing ends. Nobody knows that it was mended.
pub(crate) fn is_only_unseen(incident: &Incident) -> bool {
    let Some(code) = xid_of(incident) else {
        return false;
    };
    // What an older version wrote says no more than its code.
    let by_code = || Remedy::from(Asks::of(code, "", incident.severity));
    !incident.remedy.unwrap_or_else(by_code).is_owed()
}

/// The XID that an incident is of, where it is one alone.
fn xid_of(incident: &Incident) -> Option<u32> {
    incident.what.strip_prefix("XID ")?.parse().ok()
}

/// What is wrong, as people are told: of an XID with what it says, `XID 79, the GPU fell off the bus`.
pub(crate) fn what(incident: &Incident) -> String {
    let what = &incident.what;
    match xid_of(incident).and_then(xid::happened) {
        Some(happened) => format!("{what}, {happened}"),
        None => what.clone(),
    }
}

/// The cause, to go on behind "because of": where it is known, and says more than that the GPU is broken that
/// the incident is of.
pub(crate) fn cause(incident: &Incident) -> Option<&'static str> {
    let cause = incident.cause;
    let is_said = cause == Cause::GpuFault && incident.family == Family::GpuFault;
    (cause.is_known() && !is_said).then(|| cause.words())
}

/// The run that a place names.
pub(crate) fn run_of(place: &Place) -> Option<RunKey> {
    Some(RunKey {
        cluster: place.cluster.as_str().into(),
        run: RunId::parse(place.run.as_deref()?).ok()?,
    })
}

/// Where an incident is, as people say it: a run by its job's name, because its whole id is long and on its
/// own page.
pub(crate) fn place_words(place: &Place, view: &FleetView) -> String {
    let cluster = &place.cluster;
    let of_node = match (&place.node, &place.gpu) {
        (Some(node), Some(gpu)) => {
            let index = view.node(cluster, node).and_then(|(_, it)| {
                let found = it.gpus.iter().find(|it| *it.key.id == **gpu)?;
                found.index
            });
            let gpu = index.map_or_else(|| gpu.clone(), |it| it.to_string());
            format!("GPU {gpu} of {node}")
        }
        (Some(node), None) => node.clone(),
        (None, _) => format!("cluster {cluster}"),
    };
    let job = run_of(place).map(|it| it.run.job.name);
    match (job.as_ref().or(place.run.as_ref()), place.rank) {
        (Some(run), Some(rank)) => format!("rank {rank} of {run} on {of_node}"),
        (Some(run), None) => format!("{run} on {of_node}"),
        (None, _) => of_node,
    }
}

/// How an open incident stands: in whose hands it is, and until when nobody is told of it.
pub(crate) fn status(incident: &Incident, now: Timestamp) -> String {
    let silent = incident.silent_until(now);
    let silent = silent.map(|until| format!("silent until {} UTC", text::minute(until)));
    match (&incident.acknowledged_by, silent) {
        (Some(who), None) => format!("in the hands of {who}"),
        (Some(who), Some(silent)) => format!("in the hands of {who}, {silent}"),
        (None, Some(silent)) => format!("in nobody's hands, {silent}"),
        (None, None) => "open, in nobody's hands".to_owned(),
    }
}

/// What an incident costs an hour, in words that go on behind its place: `costs $3.00/h`. Without a figure it says
/// why there is none.
pub(crate) fn costs(incident: &Incident, currency: &str) -> String {
    let least = least(incident);
    if let Some(losing) = incident.losing_known() {
        return match losing.nano_usd_per_hour() {
            _ if losing.milli_gpus == 0 => "costs nothing now".to_owned(),
            Some(nano) => format!("costs {least}{}/h", money(currency, nano)),
            None => format!(
                "costs {least}{}, without a price",
                text::gpus(losing.milli_gpus)
            ),
        };
    }
    let rate = |losing: &Losing| match losing.nano_usd_per_hour() {
        Some(nano) => format!("{least}{}/h", money(currency, nano)),
        None => format!("{least}{} without a price", text::gpus(losing.milli_gpus)),
    };
    match incident.stake_known() {
        Some((_, stake)) if stake.losing.milli_gpus == 0 => "has no known cost".to_owned(),
        Some((Figure::AtStake, stake)) => format!("puts {} at stake", rate(&stake.losing)),
        Some((Figure::Repeated, stake)) => {
            format!("repeats what costs {} in a month", rate(&stake.losing))
        }
        Some((_, stake)) => format!("leaves {} unobserved", rate(&stake.losing)),
        None => format!("has no known cost: {}", incident.basis.words()),
    }
}

/// What an incident has cost, in words.
pub(crate) fn lost(incident: &Incident, currency: &str) -> String {
    let figure = |lost: &Lost| figure(lost, least(incident), currency);
    let known = incident.lost_known().map(figure);
    let Some((of, stake)) = incident.stake_known() else {
        return known.unwrap_or_else(|| "not known".to_owned());
    };
    let what = match of {
        Figure::AtStake => "at stake",
        Figure::Repeated => "in the incidents that it repeats",
        _ => "unobserved",
    };
    let known = known.unwrap_or_else(|| "nothing that is known".to_owned());
    format!("{known}; {} {what}", figure(&stake.so_far))
}

/// What an incident costs as one sentence: how much, at what pace, and what that is reckoned by; or why it is not
/// known.
pub(crate) fn price(incident: &Incident, currency: &str) -> String {
    let words = incident.basis.words();
    let pace = |losing: &Losing| {
        let gpus = text::gpus(losing.milli_gpus);
        match losing.nano_usd_per_hour() {
            Some(nano) => format!("{} an hour now, {gpus}", money(currency, nano)),
            None => format!("{gpus} now, without a price"),
        }
    };
    let stake = || incident.stake_known().map(|(_, it)| &it.losing);
    let now = incident.losing_known().or_else(stake);
    let lost = lost(incident, currency);
    match now.filter(|_| incident.state != State::Resolved) {
        Some(losing) => format!("{lost} so far; {}: {words}.", pace(losing)),
        None => format!("{lost}: {words}."),
    }
}

/// What its figures are reckoned by; nothing where there is none, of which [`costs`] says why.
pub(crate) fn reckoned(incident: &Incident) -> &'static str {
    match incident.basis.figure() {
        Figure::None => "",
        _ => incident.basis.words(),
    }
}

/// What several incidents cost an hour together, as far as that is known; none where nothing is.
pub(crate) fn all_cost<'a>(
    incidents: impl Iterator<Item = &'a Incident>,
    currency: &str,
) -> Option<String> {
    let (mut nano, mut is_all) = (0_i64, true);
    for incident in incidents {
        let known = incident.losing_known().and_then(Losing::nano_usd_per_hour);
        is_all &= known.is_some() && !incident.is_least;
        nano = nano.saturating_add(known.unwrap_or(0));
    }
    let least = if is_all { "" } else { "at least " };
    (nano > 0).then(|| format!("{least}{}/h", money(currency, nano)))
}

const fn least(incident: &Incident) -> &'static str {
    match incident.is_least {
        true => "at least ",
        false => "",
    }
}

/// GPU time and what it costs.
fn figure(lost: &Lost, least: &str, currency: &str) -> String {
    let hours = hours(lost.gpu_seconds() / 3_600.0);
    let cost = lost.nano_usd().map(|nano| money(currency, nano));
    match cost {
        Some(cost) if lost.is_priced() => format!("{least}{hours} GPU-hours, {cost}"),
        Some(cost) => format!("{least}{hours} GPU-hours, at least {cost}"),
        None => format!("{least}{hours} GPU-hours, without a price"),
    }
}

fn hours(hours: f64) -> String {
    match hours {
        // A little is not nothing.
        hours if hours > 0.0 && hours < 0.01 => "under 0.01".to_owned(),
        hours if hours >= 1_000.0 => text::grouped(hours.round()),
        hours => format!("{hours:.2}"),
    }
}

/// A piece of evidence in words.
pub(crate) fn evidence(what: &str, readings: &[Reading]) -> String {
    let what = text::harmless(what, text::SHOWN_CHARACTERS);
    match readings {
        [] => what,
        _ => format!("{what}, {}", measured(readings)),
    }
}

/// What was read, beside what is usual.
pub(crate) fn measured(readings: &[Reading]) -> String {
    beside(readings.iter(), "usual")
}

fn beside<'a>(readings: impl Iterator<Item = &'a Reading>, like: &str) -> String {
    let one = |reading: &Reading| {
        let unit = unit(&reading.unit);
        let value = text::quantity(unit, reading.value);
        let usual = reading.usual.map(|it| text::quantity(unit, it));
        let usual = usual.map_or_else(String::new, |it| format!(" ({like} {it})"));
        format!("{} {value}{usual}", reading.name)
    };
    readings.map(one).collect::<Vec<_>>().join(", ")
}

/// Why, as it is known; of a run that became slower with what changed, as it is now and as it was before.
pub(crate) fn why(incident: &Incident) -> String {
    let cause = incident.cause.words().to_owned();
    let is_slower = incident.family == Family::Slower && incident.cause.is_known();
    let shows = |it: &&Evidence| it.cause == incident.cause;
    let shown = incident.evidence.iter().find(shows).filter(|_| is_slower);
    let readings = shown.into_iter().flat_map(|it| &it.readings);
    // How long a step takes is what is to be explained.
    let is_why = |it: &&Reading| it.usual.is_some() && unit(&it.unit) != Unit::Seconds;
    let changed = beside(readings.filter(is_why), "before");
    match changed.is_empty() {
        true => cause,
        false => format!("{cause}: {changed}"),
    }
}

/// The unit with this suffix.
fn unit(suffix: &str) -> Unit {
    let known = catalog::all().find(|it| it.unit.suffix() == Some(suffix));
    known.map_or(Unit::Count, |it| it.unit)
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::price::{Basis, Stake};

    use super::*;
    use crate::notify::fixture;

    const USD: &str = "USD";

    /// What so many nano-USD are called.
    fn dollars(nano: i64) -> String {
        money(USD, nano)
    }

    /// One that says of its price that it is reckoned by this, with these figures where there are some.
    fn priced(basis: Basis) -> Incident {
        let (mut lost, losing) = (Lost::default(), Losing::gpus(8, Some(1_000_000_000)));
        lost.add(fixture::START, fixture::after(3_600), &losing);
        let mut incident = fixture::incident(1);
        (incident.basis, incident.losing) = (basis, Losing::default());
        match basis.figure() {
            Figure::Lost => (incident.losing, incident.lost) = (losing, lost),
            Figure::None => {}
            _ => {
                incident.stake = Stake {
                    losing,
                    so_far: lost,
                }
            }
        }
        incident
    }

    #[test]
    fn an_xid_that_no_reset_ends_is_only_not_seen_again() {
        for (what, remedy, is_unseen) in [
            ("XID 159", Some(Remedy::Look), true),
            ("XID 48", Some(Remedy::Look), true),
            ("XID 48", Some(Remedy::Reset), false),
            ("XID 79", Some(Remedy::Reboot), false),
            ("XID 151", Some(Remedy::RestartVm), false),
            ("XID 74", Some(Remedy::Repair), false),
            ("XID 13 in several jobs", Some(Remedy::Diagnose), false),
            ("lost", Some(Remedy::Look), false),
            ("XID 159", None, true),
            ("XID 48", None, false),
            ("XID 74", None, false),
        ] {
            let mut incident = fixture::incident(1);
            (incident.what, incident.remedy) = (what.to_owned(), remedy);
            assert_eq!(is_only_unseen(&incident), is_unseen, "{what} {remedy:?}");
        }
    }

    #[test]
    fn an_xid_is_told_with_what_it_says_and_no_cause_that_says_the_same_again() {
        let mut incident = fixture::incident(1);
        (incident.family, incident.cause) = (Family::GpuFault, Cause::GpuFault);
        for (told, expected) in [
            ("XID 79", "XID 79, the GPU fell off the bus"),
            ("XID 13", "XID 13"),
            ("XID 13 in several jobs", "XID 13 in several jobs"),
            ("lost", "lost"),
        ] {
            told.clone_into(&mut incident.what);
            assert_eq!(what(&incident), expected);
        }
        assert_eq!(cause(&incident), None);
        incident.cause = Cause::Heat;
        assert_eq!(cause(&incident), Some("heat"));
        (incident.family, incident.cause) = (Family::Straggler, Cause::GpuFault);
        assert_eq!(cause(&incident), Some("a broken GPU"));
        incident.cause = Cause::Unknown;
        assert_eq!(cause(&incident), None);
    }

    #[test]
    fn every_incident_has_figures_with_what_they_are_reckoned_by_or_says_why_it_has_none() {
        for basis in Basis::ALL {
            let incident = priced(*basis);
            let said = |currency| [costs, lost, price].map(|of| of(&incident, currency));
            let euros = said("EUR");
            let said = said(USD);
            assert!(said[2].contains(basis.words()), "{basis:?}: {}", said[2]);
            let is_figure = basis.figure() != Figure::None;
            let hour = dollars(28_800_000_000_000);
            for said in &said {
                assert_eq!(said.contains(&hour), is_figure, "{basis:?}: {said}");
                assert_eq!(said.contains('$'), is_figure, "{basis:?}: {said}");
            }
            for said in &euros {
                assert_eq!(said.contains(" EUR"), is_figure, "{basis:?}: {said}");
                assert!(!said.contains('$'), "nothing is converted: {said}");
            }
            assert_eq!(said[2].contains("8.00 GPU-hours"), is_figure, "{}", said[2]);
            assert_eq!(reckoned(&incident).is_empty(), !is_figure, "{basis:?}");
            let is_loss = basis.figure() == Figure::Lost;
            let all = |currency| all_cost(std::iter::once(&incident), currency);
            assert_eq!(all(USD).is_some(), is_loss);
            assert!(all("EUR").is_none_or(|it| it.ends_with(" EUR/h")));
        }
    }

    #[test]
    fn a_run_that_became_slower_says_why_in_one_sentence_with_what_it_was_before() {
        let mut incident = fixture::incident(1);
        incident.family = Family::Slower;
        let ratio = |name, value, usual| Reading::new(name, value, Some(usual), Unit::Ratio);
        let step = Reading::new("a step", 1.2, Some(1.0), Unit::Seconds);
        let waits = ratio("waiting for data", 0.2, 0.02);
        let readings = vec![step, ratio("waiting for I/O", 0.45, 0.03), waits];
        let told = |cause, readings| Evidence {
            at: fixture::START,
            place: Place::default(),
            what: "its steps take longer than they did".to_owned(),
            cause,
            readings,
        };
        incident.evidence = vec![
            told(Cause::Unknown, Vec::new()),
            told(Cause::Storage, readings),
        ];
        incident.cause = Cause::Storage;
        let expected =
            "storage: waiting for I/O 45 % (before 3.0 %), waiting for data 20 % (before 2.0 %)";
        assert_eq!(why(&incident), expected);
        // Who is slow has peers, and no time before.
        incident.family = Family::Straggler;
        assert_eq!(why(&incident), "storage");
        (incident.family, incident.cause) = (Family::Slower, Cause::Unknown);
        assert_eq!(why(&incident), "an unknown cause");
    }

    #[test]
    fn who_works_on_it_hides_no_silence_and_one_that_is_over_is_none() {
        let silent = format!("silent until {} UTC", text::minute(fixture::after(60)));
        for (by, now, expected) in [
            (None, 60, "open, in nobody's hands".to_owned()),
            (Some("ada"), 60, "in the hands of ada".to_owned()),
            (None, 59, format!("in nobody's hands, {silent}")),
            (Some("ada"), 59, format!("in the hands of ada, {silent}")),
        ] {
            let mut incident = fixture::incident(1);
            incident.acknowledged_by = by.map(str::to_owned);
            incident.silenced_until = Some(fixture::after(60));
            assert_eq!(status(&incident, fixture::after(now)), expected);
        }
    }

    #[test]
    fn what_is_no_loss_is_called_by_its_own_name() {
        let hour = dollars(28_800_000_000_000);
        let rows = [
            (Basis::BrokenGpu, format!("costs {hour}/h"), ""),
            (
                Basis::SinceCheckpoint,
                format!("puts {hour}/h at stake"),
                "at stake",
            ),
            (
                Basis::NotObserved,
                format!("leaves {hour}/h unobserved"),
                "unobserved",
            ),
            (
                Basis::PastIncidents,
                format!("repeats what costs {hour}/h in a month"),
                "in the incidents that it repeats",
            ),
        ];
        for (basis, now, beside) in rows {
            let incident = priced(basis);
            let figure = format!("8.00 GPU-hours, {hour}");
            let so_far = match beside {
                "" => figure,
                beside => format!("nothing that is known; {figure} {beside}"),
            };
            assert_eq!((costs(&incident, USD), lost(&incident, USD)), (now, so_far));
        }
        assert_eq!(lost(&priced(Basis::GoesOn), USD), "not known");
    }

    #[test]
    fn a_sum_of_which_something_is_not_known_is_the_least() {
        let (known, unknown) = (priced(Basis::BrokenGpu), priced(Basis::NoRunWaits));
        let whole = all_cost([&known, &known].into_iter(), USD).expect("it costs");
        assert_eq!(whole, format!("{}/h", dollars(57_600_000_000_000)));
        let part = all_cost([&known, &unknown].into_iter(), USD).expect("it costs");
        assert_eq!(part, format!("at least {}/h", dollars(28_800_000_000_000)));
        let mut least = priced(Basis::LowerClock);
        least.is_least = true;
        let (costs, lost) = (costs(&least, USD), lost(&least, USD));
        assert!(costs.starts_with("costs at least "), "{costs}");
        assert!(lost.starts_with("at least "), "{lost}");
    }
}
