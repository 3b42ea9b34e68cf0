//! One scrape's series through the tables: whose each is, and which metric. No I/O, no clock.
//!
//! Limits: [`MAX_RESOURCES`]. What cannot be placed is counted by reason, never guessed.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use gpufleet_telemetry::catalog::{Metric, Unit, gpu};
use gpufleet_telemetry::identity::{Part, Resource, ResourceKind, attribute, gpu_id, is_null_uuid};
use gpufleet_telemetry::sample::{Missing, Reading, Sample};

use super::holder::Said;
use super::quantile::Buckets;
use super::table::{Combine, Conditions, Row, Table};
use super::text::Series;

/// Most resources one scrape may speak of: 16 GPUs of 7 shares are 128, a model server with many
/// adapters some hundred.
pub const MAX_RESOURCES: usize = 1024;

/// How far above 1 a ratio may lie and still be a rounding of 1 (GPM gives 1.0003 now and then).
const RATIO_SLACK: f64 = 1.05;

/// What one scrape said, in the catalog's words.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Mapped {
    /// Every resource, in the order of ids, with its samples; attributes only from labels.
    pub resources: Vec<MappedResource>,
    /// Series that no table knows.
    pub unknown: usize,
    /// Series without a label that says whose they are, or whose null UUID two GPUs share.
    pub unplaced: usize,
    /// Series of resources beyond [`MAX_RESOURCES`].
    pub over_limit: usize,
}

/// One resource of a scrape.
#[derive(Debug, Clone, PartialEq)]
pub struct MappedResource {
    /// The table that read it; of several the first.
    pub table: String,
    /// The resource with what its labels say of it.
    pub resource: Resource,
    /// Its samples, each (metric, part) once.
    pub samples: Vec<Sample>,
    /// What its series say of its holder; none where no table says by which labels.
    pub said: Option<Said>,
}

/// Maps scrapes of one target; remembers histograms from one to the next.
#[derive(Debug)]
pub struct Mapper {
    tables: Arc<[Table]>,
    /// The node's name and the target's address: what stands in for identities.
    node: String,
    target: String,
    histograms: HashMap<HistogramKey, Buckets>,
}

/// Table, histogram's name, resource id.
type HistogramKey = (usize, String, String);

/// One resource being put together.
struct Draft {
    resource: Resource,
    values: BTreeMap<(u16, Option<Part>), Value>,
    said: Option<Said>,
}

/// One value being put together.
struct Value {
    /// Number of the table, then of the row in it.
    row: (usize, usize),
    metric: &'static Metric,
    total: f64,
    count: u32,
    missing: Option<Missing>,
    buckets: Option<Buckets>,
}

/// Why a series could not be placed.
enum Nowhere {
    Unplaced,
    OverLimit,
}

impl Mapper {
    /// A mapper with these tables. `target` stands in the ids of model servers.
    pub fn new(tables: Arc<[Table]>, node: &str, target: &str) -> Self {
        Self {
            tables,
            node: node.to_owned(),
            target: target.to_owned(),
            histograms: HashMap::new(),
        }
    }

    /// Maps one scrape.
    pub fn map(&mut self, series: &[Series<'_>]) -> Mapped {
        let tables = Arc::clone(&self.tables);
        let mut mapped = Mapped::default();
        let mut drafts: BTreeMap<(ResourceKind, String), Draft> = BTreeMap::new();
        let infos: Vec<Infos<'_>> = tables
            .iter()
            .map(|table| Infos::collect(table, series))
            .collect();
        for one in series {
            let mut known = false;
            for (number, table) in tables.iter().enumerate() {
                for row_number in table.rows_for(one.name) {
                    let row = &table.rows[*row_number];
                    if !meets(one, &table.conditions) || !meets(one, &row.conditions) {
                        continue;
                    }
                    known = true;
                    let placed = self.place(&mut drafts, table, row, one, &infos[number]);
                    match placed {
                        Ok(draft) => {
                            draft.take((number, *row_number), row, one);
                            draft.hear(table, one);
                        }
                        Err(Nowhere::Unplaced) => mapped.unplaced += 1,
                        Err(Nowhere::OverLimit) => mapped.over_limit += 1,
                    }
                }
            }
            mapped.unknown += usize::from(!known);
        }
        let mut histograms = HashMap::new();
        mapped.resources = drafts
            .into_values()
            .map(|draft| self.finish(draft, &mut histograms))
            .collect();
        self.histograms = histograms;
        mapped
    }

    /// The draft of the resource that a series is about.
    fn place<'d>(
        &self,
        drafts: &'d mut BTreeMap<(ResourceKind, String), Draft>,
        table: &Table,
        row: &Row,
        series: &Series<'_>,
        infos: &Infos<'_>,
    ) -> Result<&'d mut Draft, Nowhere> {
        let info = infos.of(table, series)?;
        let label = |names: &[String]| find(series, names).or_else(|| find(info?, names));
        let (kind, id, parent) = match table.resource {
            ResourceKind::Endpoint => {
                let id = match table.identity.model.as_slice() {
                    [] => self.target.clone(),
                    labels => {
                        let model = label(labels).ok_or(Nowhere::Unplaced)?;
                        format!("{}/{model}", self.target)
                    }
                };
                (ResourceKind::Endpoint, id, None)
            }
            _ => self.gpu(table, row, &label)?,
        };
        let room = drafts.len() < MAX_RESOURCES;
        match drafts.entry((kind, id)) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(_) if !room => Err(Nowhere::OverLimit),
            Entry::Vacant(entry) => {
                let id = entry.key().1.clone();
                let mut resource = Resource::new(kind, id);
                for (name, labels) in &table.attributes {
                    resource = resource.with(name, label(labels).unwrap_or_default());
                }
                for (name, labels) in [
                    (attribute::PCI_ADDRESS, &table.identity.pci_address),
                    (attribute::GPU_INDEX, &table.identity.index),
                    (attribute::MODEL_NAME, &table.identity.model),
                ] {
                    resource = resource.with(name, label(labels).unwrap_or_default());
                }
                if let Some((gpu, instance)) = parent {
                    resource = resource
                        .with(attribute::PARENT, gpu)
                        .with(attribute::MIG_GPU_INSTANCE, instance);
                }
                Ok(entry.insert(Draft {
                    resource,
                    values: BTreeMap::new(),
                    said: None,
                }))
            }
        }
    }

    /// Kind, id and, of a share, the GPU and its instance.
    #[allow(clippy::type_complexity, reason = "used once, beside its only caller")]
    fn gpu<'s>(
        &self,
        table: &Table,
        row: &Row,
        label: &dyn Fn(&[String]) -> Option<&'s str>,
    ) -> Result<(ResourceKind, String, Option<(String, String)>), Nowhere> {
        let identity = &table.identity;
        let uuid = label(&identity.uuid).unwrap_or_default();
        let place = match label(&identity.pci_address) {
            Some(address) => Some(address.to_owned()),
            None => label(&identity.index).map(|index| format!("gpu{index}")),
        };
        if is_null_uuid(uuid) && place.is_none() {
            return Err(Nowhere::Unplaced);
        }
        let uuid = if uuid.starts_with(&identity.uuid_prefix) || is_null_uuid(uuid) {
            uuid.to_owned()
        } else {
            format!("{}{uuid}", identity.uuid_prefix)
        };
        let id = gpu_id(&uuid, &self.node, &place.unwrap_or_default());
        // Power, heat and clocks are the whole card's even where the series names an instance.
        match label(&identity.gpu_instance) {
            Some(instance) if gpu::shares_have(row.metric) => Ok((
                ResourceKind::Share,
                format!("{id}/gi{instance}"),
                Some((id, instance.to_owned())),
            )),
            _ => Ok((ResourceKind::Gpu, id, None)),
        }
    }

    fn finish(
        &self,
        draft: Draft,
        histograms: &mut HashMap<HistogramKey, Buckets>,
    ) -> MappedResource {
        let first = draft.values.values().map(|value| value.row.0).min();
        let table = &self.tables[first.unwrap_or_default()];
        let mut samples = Vec::with_capacity(draft.values.len());
        for ((_, part), value) in draft.values {
            let row = &self.tables[value.row.0].rows[value.row.1];
            let reading = match (&value.buckets, row.quantile) {
                (Some(buckets), Some(quantile)) => {
                    let id = draft.resource.id.to_string();
                    let key = (value.row.0, row.source.clone(), id);
                    let before = self.histograms.get(&key);
                    let grown = before.map(|before| buckets.growth_since(before));
                    histograms.insert(key, buckets.clone());
                    // Before its second scrape, and while no request ends, there is no quantile.
                    let found = grown.and_then(|grown| grown.quantile(quantile));
                    let found = found.map(|value| value * row.scale);
                    found.ok_or(Missing::NotReady)
                }
                _ => value.reading(row.combine),
            };
            samples.push(Sample {
                metric: value.metric.id,
                part,
                reading: reading.and_then(|value| check(row.metric, value)),
            });
        }
        MappedResource {
            table: table.name.clone(),
            resource: draft.resource,
            samples,
            said: draft.said,
        }
    }
}

impl Draft {
    /// Takes a series' value in; of two rows for one metric the first in the table wins.
    fn take(&mut self, row_number: (usize, usize), row: &Row, series: &Series<'_>) {
        let part = match &row.part {
            None => None,
            Some((kind, label)) => match series.label(label) {
                Some(id) => Some(Part::new(*kind, id)),
                None => return,
            },
        };
        let fresh = || Value {
            row: row_number,
            metric: row.metric,
            total: 0.0,
            count: 0,
            missing: None,
            buckets: None,
        };
        let value = self
            .values
            .entry((row.metric.id.0, part))
            .or_insert_with(fresh);
        if row_number > value.row {
            return;
        }
        if row_number < value.row {
            *value = fresh();
        }
        if row.quantile.is_some() {
            let bound = series.label("le").and_then(|bound| bound.parse().ok());
            let buckets = value.buckets.get_or_insert_default();
            buckets.add(bound.unwrap_or(f64::NAN), series.value);
            return;
        }
        value.add(row, series.value);
    }

    /// Takes in what a series says of the holder. One that names an instance says who holds that, not who the card,
    /// whose power it has.
    fn hear(&mut self, table: &Table, series: &Series<'_>) {
        let Some(labels) = &table.holder else { return };
        let said = self.said.get_or_insert_default();
        let names_instance = find(series, &table.identity.gpu_instance).is_some();
        if self.resource.kind == ResourceKind::Share || !names_instance {
            said.join(labels.said(series));
        }
    }
}

impl Value {
    fn add(&mut self, row: &Row, raw: f64) {
        if row.combine == Combine::First && (self.count > 0 || self.missing.is_some()) {
            return;
        }
        if !raw.is_finite() {
            self.missing = Some(Missing::Invalid);
            return;
        }
        if row.missing_above.is_some_and(|limit| raw > limit) {
            self.missing = Some(Missing::NotSupported);
            return;
        }
        let scaled = raw * row.scale;
        self.count += 1;
        match row.combine {
            Combine::Max if self.count > 1 => self.total = self.total.max(scaled),
            _ => self.total += scaled,
        }
    }

    fn reading(&self, combine: Combine) -> Reading {
        match self.missing {
            Some(missing) => Err(missing),
            None if combine == Combine::Mean => Ok(self.total / f64::from(self.count)),
            None => Ok(self.total),
        }
    }
}

/// Only values that can be values of the metric pass.
fn check(metric: &Metric, value: f64) -> Reading {
    let negative_allowed = metric.unit == Unit::Celsius;
    if !value.is_finite() || (value < 0.0 && !negative_allowed) {
        return Err(Missing::Invalid);
    }
    if metric.unit == Unit::Ratio && value > 1.0 {
        return if value <= RATIO_SLACK {
            Ok(1.0)
        } else {
            Err(Missing::Invalid)
        };
    }
    Ok(value)
}

fn meets(series: &Series<'_>, conditions: &Conditions) -> bool {
    conditions
        .iter()
        .all(|(label, values)| match series.label(label) {
            Some(found) => values.is_empty() || values.iter().any(|it| it == found),
            None => values.iter().any(String::is_empty),
        })
}

fn find<'s>(series: &'s Series<'_>, labels: &[String]) -> Option<&'s str> {
    labels.iter().find_map(|label| series.label(label))
}

/// The series whose labels describe the resources, by UUID; none twice for one UUID.
struct Infos<'a> {
    by_uuid: HashMap<&'a str, Option<&'a Series<'a>>>,
}

impl<'a> Infos<'a> {
    fn collect(table: &Table, series: &'a [Series<'a>]) -> Self {
        let mut by_uuid = HashMap::new();
        if let Some(name) = &table.info {
            for one in series.iter().filter(|one| one.name == name) {
                let uuid = find(one, &table.identity.uuid).unwrap_or_default();
                // Two GPUs with one null UUID: no series says which of them it is about.
                by_uuid
                    .entry(uuid)
                    .and_modify(|other| *other = None)
                    .or_insert(Some(one));
            }
        }
        Self { by_uuid }
    }

    /// The describing series; unplaced when two GPUs share the UUID.
    fn of(&self, table: &Table, series: &Series<'_>) -> Result<Option<&'a Series<'a>>, Nowhere> {
        if table.info.is_none() {
            return Ok(None);
        }
        let uuid = find(series, &table.identity.uuid).unwrap_or_default();
        match self.by_uuid.get(uuid) {
            None => Ok(None),
            Some(None) => Err(Nowhere::Unplaced),
            Some(Some(info)) => Ok(Some(info)),
        }
    }
}

#[cfg(test)]
#[path = "map_tests.rs"]
mod tests;
