//! What has no price, no owner, or no peak to be compared with.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_telemetry::event::Severity;
use gpufleet_telemetry::gpu_specs;
use gpufleet_telemetry::identity::Origin;

use super::{Finding, Look, Looked, Place};
use crate::money::rule::NO_RULE;
use crate::money::strangers::{Stranger, Table};
use crate::words::address;
use crate::words::text::{self, counted};

/// GPUs without a price.
pub(super) fn prices(look: &Look<'_>) -> Looked {
    let unpriced = look.found.unpriced.iter();
    let live = unpriced.filter(|(it, _)| look.is_live(&it.cluster));
    // One finding for each model: the line is the same in every cluster.
    let mut by_model: BTreeMap<&str, (usize, &str, Vec<Place>)> = BTreeMap::new();
    for (it, cards) in live {
        let of = by_model
            .entry(&it.model)
            .or_insert((0, &it.why, Vec::new()));
        of.0 += cards.len();
        of.2.push(cluster(&it.cluster));
    }
    let finding = |(model, (gpus, why, clusters)): (&str, (usize, &str, Vec<Place>))| {
        let name = text::harmless(model, text::SHOWN_CHARACTERS);
        let (name, line) = match name.is_empty() {
            true => ("of a model that is not known".to_owned(), None),
            false => {
                let line = format!("[detect.gpu_hour_usd]\n\"{name}\" = \"DOLLARS\"");
                (format!("({name})"), Some(line))
            }
        };
        let gpus_in_words = counted(gpus, "GPU", "GPUs");
        // The line stands by itself.
        let why = why.split(". One line mends it").next().unwrap_or_default();
        let why = text::harmless(why, text::TITLE_CHARACTERS);
        let found = Finding::new(
            Severity::Warning,
            format!("prices-{model}"),
            format!("{gpus_in_words} {name} without a price"),
        )
        .missing("What they cost: they are in no sum of money")
        .fix(format!(
            "{why}. docs/cost.md says how discounts and nodes are priced."
        ))
        .at(clusters.into_iter());
        let found = Finding { gpus, ..found };
        match line {
            Some(line) => found.line(line),
            None => found,
        }
    };
    Ok(by_model.into_iter().map(finding).collect())
}

/// GPUs that are held by nobody's team.
pub(super) fn owners(look: &Look<'_>) -> Looked {
    let unowned = look.found.unowned.iter();
    let live: Vec<_> = unowned.filter(|it| look.is_live(&it.0.0)).collect();
    // Of a card that two of them share once.
    let cards = live
        .iter()
        .flat_map(|it| it.1.cards.iter().map(move |card| (&it.0.0, card)));
    let gpus = cards.collect::<BTreeSet<_>>().len();
    if live.is_empty() {
        return Ok(Vec::new());
    }
    let what = format!(
        "{} held by {} without an owner",
        counted(gpus, "GPU is", "GPUs are"),
        counted(live.len(), "job", "jobs")
    );
    let places = live.iter().map(|((cluster, job), _)| Place {
        name: format!("{job} in {cluster}"),
        address: None,
    });
    let ruled = live
        .iter()
        .filter_map(|it| Some((it.1.cards.len(), it.1.rule.as_ref()?)));
    let of_largest = ruled.max_by_key(|it| it.0).map(|it| it.1);
    let found = Finding::new(Severity::Warning, "owners", what)
        .missing("Which team pays for them; their cost stands under unowned")
        .at(places);
    let found = match of_largest {
        Some(rule) => {
            let rule = text::harmless(rule, text::TITLE_CHARACTERS);
            found.fix("A line of a table of owner rules names the team: cost.tables of the configuration, or gpufleet-server prices import owners.csv. The page Cost has the line for each.")
                .line(format!("{}\n{rule}", look.found.rule_columns()))
        }
        None => found.fix(format!("{NO_RULE}.")),
    };
    Ok(vec![Finding { gpus, ..found }])
}

/// Tables of prices and rules that cannot be used.
pub(super) fn tables(look: &Look<'_>) -> Looked {
    let terms = look.app.money.terms();
    let findings = terms.findings.iter().enumerate();
    let finding = |(number, said): (usize, &String)| {
        let what = text::harmless(said, text::TITLE_CHARACTERS);
        Finding::new(Severity::Warning, format!("money_tables-{number}"), what)
            .missing("What the line would have priced or named")
            .fix("Mend the line; the tables are read again when they change.")
    };
    let is_known = |cluster: &str| look.view.cluster(cluster).next().is_some();
    let mut all: Vec<Finding> = findings.map(finding).collect();
    let strangers = terms.strangers(is_known, look.at.millis());
    for of_table in strangers.chunk_by(|one, other| one.table == other.table) {
        all.extend(of_table.iter().enumerate().map(stranger));
    }
    Ok(all)
}

/// A team or a cluster in a row of a table that nobody is known to be, the so many of the table.
fn stranger((number, it): (usize, &Stranger)) -> Finding {
    let severity = match it.is_perhaps {
        true => Severity::Info,
        false => Severity::Warning,
    };
    let missing = match it.table {
        Table::Targets => "What that time is held to: another row, else what is shipped",
        Table::Budgets => "Whether the team that is meant spends more than it may",
        Table::Quotas => "Whether the team that is meant holds more than it may",
        Table::Idle => "Who bears what was free: another row, else the platform",
        Table::Owners => "Whose that time is: another rule says it, or none does",
    };
    let what = text::harmless(&it.said, text::TITLE_CHARACTERS);
    let id = it.table.name().replace(' ', "_");
    Finding::new(severity, format!("{id}-{number}"), what)
        .missing(missing)
        .fix("Write the cluster as its agents do and the team as the owner rules or the label have it, or take the row out.")
}

/// Months whose money in tables is not all of it.
pub(super) fn months(look: &Look<'_>) -> Looked {
    let untold = look.app.money.untold();
    let untold = untold.ok_or("no month was made as money yet")?;
    let to_make = look.app.money.months_to_make();
    if untold.is_empty() && to_make > 0 {
        let months = counted(to_make, "month is", "months are");
        return Err(format!("{months} still to be made as money"));
    }
    let finding = |(number, said): (usize, &String)| {
        Finding::new(Severity::Warning, format!("money_months-{number}"), said.clone())
            .missing("In tables money_day and money_month, and on the dashboard on cost: days that cannot be read are in no figure, and an amount that no column holds is null")
            .fix("Reports hold amounts of any size. The log names days of GPUs that cannot be read, and table ledger_day has them until they are deleted (retention.days_d).")
    };
    Ok(untold.iter().enumerate().map(finding).collect())
}

/// Cards whose peak rates nobody knows.
pub(super) fn peaks(look: &Look<'_>) -> Looked {
    let mut all = Vec::new();
    for (model, places) in &look.seen.unknown_models {
        let name = text::harmless(model, text::SHOWN_CHARACTERS);
        let what = format!(
            "The peak rates of {name} are not known: {}",
            counted(places.gpus(), "GPU", "GPUs")
        );
        let line = gpu_specs::config_line(&text::harmless(model, text::TITLE_CHARACTERS));
        let found = Finding::new(Severity::Warning, "peaks", what)
            .missing("MFU, and everything else that is compared with a peak")
            .fix("Add the datasheet's dense figures to the server's configuration.")
            .line(format!("[gpu.peaks]\n{line}"))
            .on(places);
        all.push(found);
    }
    let nameless = &look.seen.nameless;
    if !nameless.is_empty() {
        let what = format!(
            "{} do not tell the card's name",
            counted(nameless.gpus(), "GPU", "GPUs")
        );
        let found = Finding::new(Severity::Warning, "peaks", what)
            .missing("Price and peak rates")
            .fix("Have the exporter add the label modelName, or run the agent with NVML on the node.")
            .on(nameless);
        all.push(found);
    }
    Ok(all)
}

fn cluster(name: &str) -> Place {
    Place {
        name: name.to_owned(),
        address: Some(address::cluster(name)),
    }
}

impl Look<'_> {
    /// Whether a cluster is live.
    pub(super) fn is_live(&self, cluster: &str) -> bool {
        let mut parts = self.view.cluster(cluster);
        parts.any(|it| it.origin == Origin::Live)
    }
}
