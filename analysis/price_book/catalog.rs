//! Cloud Billing Catalog JSON (`services/6F81-5844-456A/skus`) as a table of rates.
//!
//! Method. The catalog sells cores, memory and GPUs apart; a machine's rate is what it has of each,
//! times its price, in one region on one basis. A machine of which a part has no price, or two, gets
//! no rate there, and a note says which part. The table goes through the same loader as any other. The API answers in
//! pages; they are read together, because the parts of a machine stand on several.
//!
//! A SKU has the prices that it had in the time that was asked for (`startTime`, `endTime`, within a month), each with the
//! moment from which it counted, or, where none was asked for, the latest one, which then counts from some time in the last 12
//! hours, however old it is. So an answer says nothing of the time before it; [`joined`] keeps what answers before it said.
//!
//! Limits. Local SSD that a machine type brings is not in it. Descriptions are the only thing that
//! tells SKUs apart; one that is not understood is left out, a GPU among them is noted.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::{Basis, Book, Machine, load};
use crate::money;
use crate::table::{self, TableError};

/// GPUs by how a SKU calls them, and their name in the table of machine types.
const GPUS: [(&str, &str); 14] = [
    ("Nvidia Tesla A100 GPU", "nvidia-tesla-a100"),
    ("Nvidia Tesla A100 80GB GPU", "nvidia-a100-80gb"),
    ("Nvidia H100 80GB GPU", "nvidia-h100-80gb"),
    ("Nvidia H100 80GB Mega GPU", "nvidia-h100-mega-80gb"),
    ("Nvidia H100 80GB Plus GPU", "nvidia-h100-mega-80gb"),
    ("H200 141GB GPU", "nvidia-h200-141gb"),
    ("Nvidia H200 141GB GPU", "nvidia-h200-141gb"),
    ("Nvidia L4 GPU", "nvidia-l4"),
    ("Nvidia Tesla T4 GPU", "nvidia-tesla-t4"),
    ("Nvidia Tesla P4 GPU", "nvidia-tesla-p4"),
    ("Nvidia Tesla P100 GPU", "nvidia-tesla-p100"),
    ("Nvidia Tesla V100 GPU", "nvidia-tesla-v100"),
    ("RTX 6000 96GB", "nvidia-rtx-pro-6000"),
    ("Nvidia B200 GPU", "nvidia-b200"),
];

/// How SKUs call the cores and memory of machine types whose family is not the word before the dash.
const FAMILIES: [(&str, &str); 3] = [
    ("a3-megagpu", "A3Plus"),
    ("a3-ultragpu", "A3Ultra"),
    ("n1", "N1 Predefined"),
];

/// The table that came out, and what could not be used.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Imported {
    /// A table of rates for [`super::Tables::rates`].
    pub table: String,
    /// What was left out and why, one sentence each.
    pub notes: Vec<String>,
}

/// Why a text is no catalog.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// It is not the JSON of `skus.list`.
    #[error("this is not the answer of the Cloud Billing Catalog's skus.list: {0}")]
    Json(#[from] serde_json::Error),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    skus: Vec<Sku>,
    #[serde(default)]
    next_page_token: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sku {
    sku_id: String,
    description: String,
    category: Category,
    #[serde(default)]
    service_regions: Vec<String>,
    #[serde(default)]
    pricing_info: Vec<PricingInfo>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Category {
    usage_type: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PricingInfo {
    effective_time: String,
    pricing_expression: Expression,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Expression {
    usage_unit: String,
    tiered_rates: Vec<Tier>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Tier {
    unit_price: UnitPrice,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct UnitPrice {
    currency_code: String,
    /// The API writes it as text.
    #[serde(default)]
    units: Option<String>,
    #[serde(default)]
    nanos: i64,
}

/// What a SKU is the price of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Core(String),
    Memory(String),
    Gpu(&'static str),
}

/// One price: nano-units an hour, since when.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Price {
    hour: i64,
    from_ms: i64,
    sku: String,
}

/// Prices by part, region and basis, in the order of time; of more than one SKU where these say different things.
type Prices = BTreeMap<(Part, String, Basis), Vec<Price>>;

/// What a machine costs from a moment on.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Composed {
    from_ms: i64,
    hour: i64,
    /// Of one of its GPUs, if it has any.
    gpu_hour: Option<i64>,
}

/// Reads the catalog and puts together the rates of the machine types that the book knows. Each text is a page, or
/// several behind one another.
///
/// # Errors
/// When it is not the JSON of `skus.list`.
pub fn import(texts: &[&str], book: &Book) -> Result<Imported, CatalogError> {
    let pages = texts
        .iter()
        .flat_map(|it| serde_json::Deserializer::from_str(it).into_iter());
    let pages: Vec<Page> = pages.collect::<Result<_, _>>()?;
    let mut imported = Imported {
        table: "machine_type,region,basis,currency,hour,gpu_hour,from,until,quality,source\n"
            .to_owned(),
        notes: Vec::new(),
    };
    // The last page alone has no token.
    if pages.iter().all(|it| !it.next_page_token.is_empty()) {
        let note = "the answer goes on: no page of it is the last one, each has a nextPageToken. Ask for the next page with \
            pageToken until it is empty, and import all pages together";
        imported.notes.push(note.to_owned());
    }
    let mut prices = Prices::new();
    for sku in pages.iter().flat_map(|it| &it.skus) {
        match read(sku, &book.currency) {
            Ok(Some((part, basis, timeline))) => {
                for region in &sku.service_regions {
                    let key = (part.clone(), region.clone(), basis);
                    let known = prices.entry(key).or_default();
                    for price in &timeline {
                        // A page may be there twice.
                        if !known.contains(price) {
                            known.push(price.clone());
                        }
                    }
                }
            }
            Ok(None) => {}
            Err(why) => {
                let note = format!(
                    "SKU {} `{}` is left out: {why}",
                    sku.sku_id, sku.description
                );
                imported.notes.push(note);
            }
        }
    }
    for timeline in prices.values_mut() {
        timeline.sort_by_key(|it| it.from_ms);
    }
    for (name, machine) in &book.machines {
        compose(name, machine, &prices, &book.currency, &mut imported);
    }
    Ok(imported)
}

/// A table of rates with what a kept one has beside it: of a rate of the same series from the same moment on the new one
/// stands. So an answer of today takes nothing from the months before it.
///
/// # Errors
/// When one of them is no table of rates.
pub fn joined(kept: &str, new: &str) -> Result<String, TableError> {
    let mut rows = BTreeMap::new();
    for text in [kept, new] {
        for row in table::read(text, &load::RATES)? {
            // Machine type, region, basis, currency and `from`.
            let key = [0, 1, 2, 3, 6].map(|at: usize| row.fields[at].clone());
            rows.insert(key, row.fields);
        }
    }
    let mut joined = String::new();
    table::write(&mut joined, &load::RATES);
    for fields in rows.values() {
        let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
        table::write(&mut joined, &fields);
    }
    Ok(joined)
}

/// What a SKU is the price of and its prices; none when it is of something that nodes are not made of.
fn read(sku: &Sku, currency: &str) -> Result<Option<(Part, Basis, Vec<Price>)>, String> {
    let basis = match sku.category.usage_type.as_str() {
        "OnDemand" => Basis::OnDemand,
        "Preemptible" => Basis::Spot,
        "Commit1Yr" => Basis::Commitment1Year,
        "Commit3Yr" => Basis::Commitment3Years,
        _ => return Ok(None),
    };
    let Some(part) = part(&sku.description, basis)? else {
        return Ok(None);
    };
    if sku.pricing_info.is_empty() {
        return Err("it has no price".to_owned());
    }
    let unit = if matches!(part, Part::Memory(_)) {
        "GiBy.h"
    } else {
        "h"
    };
    let timeline = sku.pricing_info.iter();
    let timeline = timeline.map(|it| price(&sku.sku_id, it, unit, currency));
    let timeline: Vec<Price> = timeline.collect::<Result<_, _>>()?;
    Ok(Some((part, basis, timeline)))
}

/// One of the prices of a SKU, of this unit in this currency.
fn price(sku: &str, info: &PricingInfo, unit: &str, currency: &str) -> Result<Price, String> {
    let expression = &info.pricing_expression;
    if expression.usage_unit != unit {
        return Err(format!(
            "its unit is `{}`, not `{unit}`",
            expression.usage_unit
        ));
    }
    let [tier] = expression.tiered_rates.as_slice() else {
        return Err(format!("it has {} tiers", expression.tiered_rates.len()));
    };
    let price = &tier.unit_price;
    if price.currency_code != currency {
        return Err(format!(
            "its currency is `{}`, not `{currency}`",
            price.currency_code
        ));
    }
    let units = price.units.as_deref().unwrap_or("0");
    let units: i64 = units
        .parse()
        .map_err(|_| format!("`{units}` is no number"))?;
    let hour = units
        .checked_mul(1_000_000_000)
        .and_then(|it| it.checked_add(price.nanos));
    let hour = hour.ok_or("its price does not fit")?;
    // The API leaves out what is 0, so a price that tells nothing is one of nothing: no part of a machine has that.
    if hour <= 0 {
        let hour = money::decimal(i128::from(hour));
        return Err(format!("its price is {hour}, which is none"));
    }
    let from_ms = table::moment(&info.effective_time);
    let from_ms = from_ms.ok_or_else(|| format!("`{}` is no time", info.effective_time))?;
    Ok(Price {
        hour,
        from_ms,
        sku: sku.to_owned(),
    })
}

/// The part that a description names; an error for a GPU that is not known.
fn part(description: &str, basis: Basis) -> Result<Option<Part>, String> {
    let what = description
        .strip_prefix("Commitment v1: ")
        .unwrap_or(description);
    // Spot is said before cores and memory, and behind GPUs.
    let what = what.strip_prefix("Spot Preemptible ").unwrap_or(what);
    let ends: &[&str] = match basis {
        Basis::Commitment1Year | Basis::Commitment3Years => &[" running in ", " in "],
        _ => &[
            " attached to Spot Preemptible VMs running in ",
            " running in ",
        ],
    };
    let Some(what) = ends
        .iter()
        .find_map(|end| what.split_once(end))
        .map(|it| it.0)
    else {
        return Ok(None);
    };
    for (ending, is_core) in [
        (" Instance Core", true),
        (" Cpu", true),
        (" Instance Ram", false),
        (" Ram", false),
    ] {
        if let Some(family) = what.strip_suffix(ending) {
            let family = family.to_owned();
            return Ok(Some(if is_core {
                Part::Core(family)
            } else {
                Part::Memory(family)
            }));
        }
    }
    if let Some((_, name)) = GPUS.iter().find(|(phrase, _)| *phrase == what) {
        return Ok(Some(Part::Gpu(name)));
    }
    let is_gpu = what.ends_with(" GPU") && !what.contains("Virtual Workstation");
    if is_gpu {
        return Err("this GPU is not known".to_owned());
    }
    Ok(None)
}

/// Writes the rates of one machine type wherever each of its parts has one price.
fn compose(name: &str, machine: &Machine, prices: &Prices, currency: &str, into: &mut Imported) {
    let parts = parts(name, machine);
    let places = prices
        .keys()
        .filter(|key| parts.iter().any(|it| it.0 == key.0));
    let mut places: Vec<_> = places.map(|(_, region, basis)| (region, *basis)).collect();
    places.sort();
    places.dedup();
    for (region, basis) in places {
        match rates(&parts, region, basis, prices) {
            Ok((rates, skus)) => {
                let text = |nanos: i64| money::decimal(i128::from(nanos));
                let source = format!("Cloud Billing Catalog {skus}; local SSD left out");
                for rate in rates {
                    let gpu_hour = rate.gpu_hour.map(text).unwrap_or_default();
                    let from = table::moment_text(rate.from_ms);
                    let hour = text(rate.hour);
                    let fields = [
                        name,
                        region,
                        basis.name(),
                        currency,
                        &hour,
                        &gpu_hour,
                        &from,
                        "",
                        "list",
                        &source,
                    ];
                    table::write(&mut into.table, &fields);
                }
            }
            Err(why) => into
                .notes
                .push(format!("{name} in {region}, {}: {why}", basis.name())),
        }
    }
}

/// The parts of a machine type and how many eighths of each.
fn parts(name: &str, machine: &Machine) -> Vec<(Part, u32)> {
    let gpu = GPUS.iter().find(|it| it.1 == machine.gpu_model);
    let gpu = gpu.map(|(_, model)| (Part::Gpu(model), machine.gpu_eighths));
    // One GPU of a family (`n1+nvidia-tesla-t4`) is a GPU and nothing else.
    if name.contains('+') {
        return gpu.into_iter().collect();
    }
    let known = FAMILIES.iter().find(|(prefix, _)| name.starts_with(prefix));
    let family = name.split('-').next().unwrap_or_default().to_uppercase();
    let family = known.map_or(family, |it| it.1.to_owned());
    let (Some(cores), Some(memory)) = (machine.vcpus, machine.memory_gib) else {
        return Vec::new();
    };
    let host = [
        (Part::Core(family.clone()), cores * 8),
        (Part::Memory(family), memory * 8),
    ];
    host.into_iter().chain(gpu).collect()
}

/// The sum of the parts from each moment on at which one of them changes and all have a price; and the SKUs.
fn rates(
    parts: &[(Part, u32)],
    region: &str,
    basis: Basis,
    prices: &Prices,
) -> Result<(Vec<Composed>, String), String> {
    let (mut timelines, mut skus) = (Vec::new(), Vec::new());
    for (part, eighths) in parts {
        let timeline = timeline(part, region, basis, prices)?;
        skus.extend(timeline.first().map(|it| it.sku.as_str()));
        timelines.push((part, *eighths, timeline));
    }
    let firsts = timelines.iter().filter_map(|it| it.2.first());
    let begins_ms = firsts.map(|it| it.from_ms).max().unwrap_or(i64::MIN);
    let changes = timelines.iter().flat_map(|it| it.2);
    let changes: BTreeSet<i64> = changes.map(|it| it.from_ms).collect();
    let mut rates: Vec<Composed> = Vec::new();
    for from_ms in changes.range(begins_ms..).copied() {
        let (mut sum, mut gpu_hour) = (0_i128, None);
        for (part, eighths, timeline) in &timelines {
            let held = timeline.iter().rfind(|it| it.from_ms <= from_ms);
            let price = held.expect("all have begun");
            let cost = i128::from(price.hour) * i128::from(*eighths);
            sum += money::ratio(cost, 1, 8).ok_or("it does not fit")?;
            if matches!(part, Part::Gpu(_)) {
                gpu_hour = Some(price.hour);
            }
        }
        rates.push(Composed {
            from_ms,
            hour: i64::try_from(sum).map_err(|_| "it does not fit")?,
            gpu_hour,
        });
    }
    Ok((rates, skus.join(" + ")))
}

/// The prices of a part, all of one SKU and one at a time.
fn timeline<'a>(
    part: &Part,
    region: &str,
    basis: Basis,
    prices: &'a Prices,
) -> Result<&'a [Price], String> {
    let what = match part {
        Part::Core(family) => format!("{family} cores"),
        Part::Memory(family) => format!("{family} memory"),
        Part::Gpu(model) => (*model).to_owned(),
    };
    let found = prices.get(&(part.clone(), region.to_owned(), basis));
    let found = found.map_or(&[][..], Vec::as_slice);
    if found.is_empty() {
        return Err(format!("there is no price of {what}"));
    }
    let mut skus: Vec<&str> = found.iter().map(|it| it.sku.as_str()).collect();
    skus.sort_unstable();
    skus.dedup();
    if skus.len() > 1 {
        let (count, skus) = (skus.len(), skus.join(", "));
        return Err(format!("{what} has {count} prices: {skus}"));
    }
    if let Some(pair) = found.windows(2).find(|it| it[0].from_ms == it[1].from_ms) {
        let from = table::moment_text(pair[0].from_ms);
        return Err(format!("{what} has two prices from {from} on"));
    }
    Ok(found)
}
