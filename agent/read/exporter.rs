//! Any Prometheus endpoint, by mapping tables that are data: dcgm-exporter, GKE's managed one,
//! nvidia_gpu_exporter, AMD's, the TPU device plugin, vLLM, Triton, and what users add.
//!
//! An endpoint that answers without a series is a failure with its reason, never a row of zeros.
//! Limits stand where they are kept: [`scrape`] (bytes), [`text`] (series, labels), [`map`]
//! (resources), [`holder`] (pods), [`table`] (tables, rows), [`MAX_TARGETS`]. Tables: docs/exporter-tables.md.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gpufleet_program::tls::{ClientFiles, Setting};
use gpufleet_program::{section, token};
use gpufleet_telemetry::catalog::own;
use gpufleet_telemetry::identity::{Origin, Part, PartKind, ResourceKind, attribute};
use gpufleet_telemetry::sample::{Readings, ResourceSamples, Sample};
use serde::{Deserialize, Serialize};

use super::{NodeFacts, Read, ReadError, ReadFuture, Readers, Turn, Wiring, boxed};
use crate::attribute::exported::{Device, Exported};
use crate::config::Config;
use scrape::{Endpoint, ScrapeError};

pub mod text;

pub mod holder;

pub mod table;

pub mod quantile;

pub mod map;

pub mod scrape;

/// Most endpoints of one agent: a node runs one exporter and a model server per GPU, at most.
pub const MAX_TARGETS: usize = 64;

/// Where dcgm-exporter listens on a node.
pub const DCGM_URL: &str = "http://127.0.0.1:9400/metrics";

/// The name of the table that dcgm-exporter is read by.
const DCGM_TABLE: &str = "dcgm";

section! {
    /// Which endpoints are scraped.
    pub struct ExporterConfig {
        /// Whether a dcgm-exporter on 127.0.0.1:9400 is looked for and read where it is found.
        pub auto: bool = true,
        /// Endpoints to scrape, at most 64.
        pub targets: Vec<Target> = Vec::new(),
        /// A folder with mapping tables of your own (`*.toml`), beside the shipped ones. Empty: none.
        pub tables_folder: PathBuf = PathBuf::new(),
    }
}

/// One endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Its address, `http://127.0.0.1:9400/metrics` or `https://…`.
    pub url: String,
    /// Its name in `exporter:<name>`; empty means host and port.
    #[serde(default)]
    pub name: String,
    /// The tables that read it (`dcgm`, `nvidia_gpu_exporter`, `vllm`, …); empty means all.
    #[serde(default)]
    pub tables: Vec<String>,
    /// Of a model server: whose GPUs serve it, as reports name it, such as `deployment:ml/chat`. Empty: who alone
    /// holds GPUs of its node.
    #[serde(default)]
    pub workload: String,
    /// Seconds between two scrapes, 1 to 300.
    #[serde(default = "default_period_seconds")]
    pub period_seconds: u32,
    /// Milliseconds after which a scrape is given up, at most the period.
    #[serde(default = "default_timeout_ms")]
    pub timeout_ms: u64,
    /// A file whose content is sent as bearer token, read again when it changes. Empty: none.
    #[serde(default)]
    pub token_file: PathBuf,
    /// For https: the certificates (PEM) that the endpoint's must come from. Empty: the system's.
    #[serde(default)]
    pub ca_file: PathBuf,
    /// For https: the agent's own certificate (PEM), where the endpoint wants one. Empty: none.
    #[serde(default)]
    pub certificate_file: PathBuf,
    /// The key of that certificate (PEM).
    #[serde(default)]
    pub key_file: PathBuf,
}

fn default_period_seconds() -> u32 {
    10
}

fn default_timeout_ms() -> u64 {
    5_000
}

impl Target {
    /// A target with everything but the address at its default.
    pub fn at(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            name: String::new(),
            tables: Vec::new(),
            workload: String::new(),
            period_seconds: default_period_seconds(),
            timeout_ms: default_timeout_ms(),
            token_file: PathBuf::new(),
            ca_file: PathBuf::new(),
            certificate_file: PathBuf::new(),
            key_file: PathBuf::new(),
        }
    }

    fn tls_files(&self) -> ClientFiles {
        ClientFiles {
            authorities: Setting::new("ca_file", &self.ca_file),
            certificate: Setting::new("certificate_file", &self.certificate_file),
            key: Setting::new("key_file", &self.key_file),
        }
    }
}

/// The reader of one endpoint.
#[derive(Debug)]
pub struct Exporter {
    name: String,
    endpoint: Endpoint,
    mapper: map::Mapper,
    /// Where what its labels say of holders is noted.
    exported: Arc<Exported>,
    /// Whose GPUs serve what it tells of; empty where nobody says.
    workload: String,
    period: Duration,
    deadline: Duration,
    /// Looked for, not asked for: while nobody listens there is nothing to complain about.
    auto: bool,
    found: bool,
    /// How many lines of the last scrape were refused; told when it changes.
    refused: usize,
}

/// A reader per target that the config asks for.
///
/// # Errors
/// When a target or a table cannot be used; says which and why.
pub(super) fn readers(config: &Config, wiring: &mut Wiring) -> anyhow::Result<Readers> {
    let exporters = exporters(&config.exporter, &wiring.node)?.into_iter();
    Ok(boxed(exporters.map(|it| Exporter {
        exported: Arc::clone(&wiring.exported),
        ..it
    })))
}

fn exporters(config: &ExporterConfig, node: &NodeFacts) -> anyhow::Result<Vec<Exporter>> {
    if config.targets.len() > MAX_TARGETS {
        let count = config.targets.len();
        anyhow::bail!("exporter.targets: {count} targets, at most {MAX_TARGETS}");
    }
    let folder = Some(config.tables_folder.as_path()).filter(|it| !it.as_os_str().is_empty());
    let (tables, errors) = table::load(folder);
    if let Some(first) = errors.first() {
        let others = errors.len() - 1;
        anyhow::bail!("exporter.tables_folder: {first} (and {others} more)");
    }
    let mut readers = Vec::new();
    let asked_for = config.targets.iter().any(|it| it.url == DCGM_URL);
    if config.auto && !asked_for {
        let mut target = Target::at(DCGM_URL);
        target.name = DCGM_TABLE.to_owned();
        target.tables = vec![DCGM_TABLE.to_owned()];
        readers.push(Exporter::new(&target, &tables, node, true)?);
    }
    for target in &config.targets {
        readers.push(Exporter::new(target, &tables, node, false)?);
    }
    Ok(readers)
}

impl Exporter {
    fn new(
        target: &Target,
        tables: &[table::Table],
        node: &NodeFacts,
        auto: bool,
    ) -> anyhow::Result<Self> {
        let wrong = |why: String| anyhow::anyhow!("exporter.targets, {}: {why}", target.url);
        let token = token::file("token_file", &target.token_file);
        let token = token.map_err(|error| wrong(error.to_string()))?;
        let endpoint = Endpoint::new(&target.url, token, target.tls_files()).map_err(wrong)?;
        for name in &target.tables {
            if !tables.iter().any(|table| table.name == *name) {
                let known: Vec<&str> = tables.iter().map(|table| table.name.as_str()).collect();
                let known = known.join(", ");
                return Err(wrong(format!(
                    "tables: no table `{name}`; there are {known}"
                )));
            }
        }
        if !(1..=300).contains(&target.period_seconds) {
            return Err(wrong("period_seconds: must lie in 1..=300".to_owned()));
        }
        let period = Duration::from_secs(u64::from(target.period_seconds));
        let deadline = Duration::from_millis(target.timeout_ms);
        if deadline.is_zero() || deadline > period {
            return Err(wrong(
                "timeout_ms: must be above 0 and at most the period".to_owned(),
            ));
        }
        let wanted = tables
            .iter()
            .filter(|table| target.tables.is_empty() || target.tables.contains(&table.name));
        let name = match target.name.as_str() {
            "" => endpoint.authority(),
            name => name,
        };
        Ok(Self {
            name: format!("exporter:{name}"),
            mapper: map::Mapper::new(wanted.cloned().collect(), &node.node, endpoint.authority()),
            exported: Arc::default(),
            workload: target.workload.clone(),
            endpoint,
            period,
            deadline,
            auto,
            found: false,
            refused: 0,
        })
    }

    async fn round(&mut self, turn: Turn) -> Result<Readings, ReadError> {
        let mut readings = Readings {
            at: turn.at,
            ..Readings::default()
        };
        let text = match self.endpoint.get().await {
            Ok(text) => text,
            // Not asked for and never seen: no exporter runs here.
            Err(ScrapeError::Unreachable { .. }) if self.auto && !self.found => {
                return Ok(readings);
            }
            Err(error) => return Err(self.failure(&error)),
        };
        let body = text::parse(&text);
        if body.refused != self.refused {
            let first = body.refusals.first().map(ToString::to_string);
            tracing::warn!(
                reader = self.name,
                refused = body.refused,
                first,
                "lines refused"
            );
            self.refused = body.refused;
        }
        let malformed = |why: String| ReadError::Malformed {
            what: self.name.clone(),
            why,
        };
        if body.series.is_empty() {
            let refused = body.refused;
            return Err(malformed(format!(
                "a healthy endpoint with zero series ({refused} lines refused): the exporter has lost its GPUs or was only just started; look into its log"
            )));
        }
        if body
            .series
            .iter()
            .any(|it| it.name.starts_with("gpufleet_"))
        {
            return Err(malformed(
                "it is a gpufleet agent; its GPUs would count twice: take the target out"
                    .to_owned(),
            ));
        }
        let mapped = self.mapper.map(&body.series);
        if mapped.resources.is_empty() {
            let (unknown, unplaced) = (mapped.unknown, mapped.unplaced);
            return Err(malformed(format!(
                "no table reads it: {unknown} series unknown, {unplaced} that do not say whose they are; see docs/exporter-tables.md for a table of your own"
            )));
        }
        self.found = true;
        self.note_holders(&mapped);
        let foreign_dcgm = mapped.resources.iter().any(|it| it.table == DCGM_TABLE);
        readings.resources = self.place(mapped, &turn.node);
        readings.resources.push(self.own(&turn.node, foreign_dcgm));
        Ok(readings)
    }

    fn failure(&self, error: &ScrapeError) -> ReadError {
        match error {
            ScrapeError::Unreachable { .. } => ReadError::Unavailable {
                why: format!("{error}; is the exporter running, and is its address right?"),
            },
            ScrapeError::Status { status, .. } if matches!(status.as_u16(), 401 | 403) => {
                ReadError::NotPermitted {
                    what: error.to_string(),
                    fix: "set token_file of this target".to_owned(),
                }
            }
            ScrapeError::Status { .. } | ScrapeError::Tls { .. } => ReadError::Unavailable {
                why: error.to_string(),
            },
            ScrapeError::TooLarge { .. } | ScrapeError::Body { .. } => ReadError::Malformed {
                what: self.name.clone(),
                why: error.to_string(),
            },
        }
    }

    /// Notes what the labels say of who holds what.
    fn note_holders(&self, mapped: &map::Mapped) {
        let devices = mapped.resources.iter().filter_map(|it| {
            let said = it.said.clone()?;
            let resource = Arc::new(it.resource.clone());
            Some(Device { resource, said })
        });
        self.exported
            .note(&self.name, self.period, devices.collect());
    }

    /// Adds to each resource where it is and who read it.
    fn place(&self, mapped: map::Mapped, node: &NodeFacts) -> Vec<ResourceSamples> {
        let resources = mapped.resources.into_iter();
        let placed = resources.map(|mapped| {
            let source = format!("exporter:{}", mapped.table);
            let (kind, id) = (mapped.resource.kind, mapped.resource.id);
            let mut resource = node.resource(kind, id, Origin::Live, &source);
            resource.attributes.extend(mapped.resource.attributes);
            if kind == ResourceKind::Endpoint {
                resource = resource.with(attribute::WORKLOAD, self.workload.as_str());
            }
            ResourceSamples {
                resource: Arc::new(resource),
                samples: mapped.samples,
            }
        });
        placed.collect()
    }

    /// What this reader says of itself: whether dcgm-exporter's names are already served here.
    fn own(&self, node: &NodeFacts, foreign_dcgm: bool) -> ResourceSamples {
        let id = node.node.as_str();
        let resource = node.resource(ResourceKind::Node, id, Origin::Live, "agent");
        ResourceSamples {
            resource: Arc::new(resource),
            samples: vec![Sample {
                metric: own::FOREIGN_DCGM.id,
                part: Some(Part::new(PartKind::Reader, self.name.as_str())),
                reading: Ok(f64::from(u8::from(foreign_dcgm))),
            }],
        }
    }
}

impl Read for Exporter {
    fn name(&self) -> &str {
        &self.name
    }

    fn deadline(&self) -> Duration {
        self.deadline
    }

    fn period(&self) -> Duration {
        self.period
    }

    fn read<'a>(&'a mut self, turn: Turn) -> ReadFuture<'a> {
        Box::pin(self.round(turn))
    }
}

#[cfg(test)]
#[path = "exporter/tests.rs"]
mod tests;
