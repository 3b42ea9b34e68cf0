//! The configuration: TOML file, then environment, then flags; the later wins.
//!
//! `GPUFLEET_<SECTION>__<KEY>` and `--set section.key=value` name the same keys as the file. An
//! unknown key is refused by name. Each module owns its section; this file only puts them together.

use std::collections::BTreeMap;
use std::path::Path;

use gpufleet_telemetry::gpu_specs::Specs;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::auth::AuthConfig;
use crate::fleet::FleetConfig;
use crate::ledger::LedgerConfig;
use crate::retention::RetentionConfig;
use crate::store::StoreConfig;

/// Prefix of environment variables that are configuration.
const ENVIRONMENT_PREFIX: &str = "GPUFLEET_";

/// Declares a section: a struct with a default per field, and its documentation as data, so that
/// the printed default file and the reference page come from the same lines.
macro_rules! section {
    (
        $(#[doc = $about:literal])+
        pub struct $name:ident {
            $( $(#[doc = $doc:literal])+ pub $field:ident: $type:ty = $default:expr, )+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name { $( $(#[doc = $doc])+ pub $field: $type, )+ }

        impl Default for $name {
            fn default() -> Self {
                Self { $( $field: $default, )+ }
            }
        }

        impl $crate::config::Section for $name {
            const ABOUT: &'static [&'static str] = &[$($about),+];
            const FIELDS: &'static [(&'static str, &'static [&'static str])] =
                &[$((stringify!($field), &[$($doc),+])),+];
        }
    };
}
pub(crate) use section;

/// A section's documentation as data.
pub trait Section: Serialize + Default {
    /// What the section is for, line by line.
    const ABOUT: &'static [&'static str];
    /// Each field with the lines of its documentation.
    const FIELDS: &'static [(&'static str, &'static [&'static str])];
}

section! {
    /// The pages, the API and the server's own /metrics.
    pub struct WebConfig {
        /// Address and port of pages, API and /metrics.
        pub listen: String = "127.0.0.1:8080".to_owned(),
    }
}

section! {
    /// What is known of the cards themselves.
    pub struct GpuConfig {
        /// Dense peak rates of cards that the table lacks, one line for each, by its name as NVML
        /// spells it: "NVIDIA X" = "bf16 989.4, fp8 1979, memory_gbs 3350, power_watts 700".
        pub peaks: BTreeMap<String, String> = BTreeMap::new(),
    }
}

/// The whole configuration.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where data comes in.
    pub ingest: IngestConfig,
    /// Live state and commits.
    pub fleet: FleetConfig,
    /// Pages and API.
    pub web: WebConfig,
    /// What is known of the cards themselves.
    pub gpu: GpuConfig,
    /// Who may do what, and TLS.
    pub auth: AuthConfig,
    /// Where the record is kept.
    pub store: StoreConfig,
    /// Where the time of every GPU went.
    pub ledger: LedgerConfig,
    /// How long what is kept.
    pub retention: RetentionConfig,
}

section! {
    /// Where data comes in: OTLP over gRPC and HTTP.
    pub struct IngestConfig {
        /// Address and port of OTLP over gRPC.
        pub grpc_listen: String = "127.0.0.1:4317".to_owned(),
        /// Address and port of OTLP over HTTP.
        pub http_listen: String = "127.0.0.1:4318".to_owned(),
        /// The cluster of data that names none and whose token is bound to none.
        pub default_cluster: String = "default".to_owned(),
        /// Folder of the server's own spool, where foreign OTLP is made durable before the reply.
        pub spool_dir: String = "/var/lib/gpufleet/server/spool".to_owned(),
        /// Requests worked on at the same time; more wait, and are refused when the wait is long.
        pub max_concurrent_requests: usize = 64,
        /// Longest time one request may take, milliseconds.
        pub request_timeout_ms: u64 = 10_000,
    }
}

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read configuration file {path}: {source}")]
    Read {
        /// Which file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{path} is not valid TOML: {source}")]
    Parse {
        /// Which file.
        path: String,
        /// Why and where.
        source: Box<toml::de::Error>,
    },
    /// A flag that is not `section.key=value`.
    #[error("--set {0}: write it as section.key=value, for example web.listen=127.0.0.1:8081")]
    Flag(String),
    /// A key that does not exist, or a value of the wrong type.
    #[error("configuration refused: {0} (--print-default-config lists every key)")]
    Refused(String),
}

impl Config {
    /// Puts file, environment and flags together.
    ///
    /// # Errors
    /// When a file cannot be read or parsed, a key is unknown or a value has the wrong type.
    pub fn load(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
        flags: &[String],
    ) -> Result<Self, ConfigError> {
        let mut table = match file {
            Some(path) => read_table(path)?,
            None => Table::new(),
        };
        let defaults = Table::try_from(Self::default()).expect("the defaults are plain TOML");
        for (name, text) in environment {
            let Some(path) = name.strip_prefix(ENVIRONMENT_PREFIX) else {
                continue;
            };
            let Some((section, key)) = path.split_once("__") else {
                continue;
            };
            let (section, key) = (section.to_lowercase(), key.to_lowercase());
            if !defaults.contains_key(&section) {
                // The agent reads variables with the same prefix: not ours is not an error.
                tracing::warn!(variable = %name, "environment variable names no section of the server's configuration, ignored");
                continue;
            }
            set(&mut table, &defaults, &section, &key, &text)?;
        }
        for flag in flags {
            let parts = flag
                .split_once('=')
                .and_then(|(path, text)| Some((path.split_once('.')?, text)));
            let Some(((section, key), text)) = parts else {
                return Err(ConfigError::Flag(flag.clone()));
            };
            set(&mut table, &defaults, section, key, text)?;
        }
        let config: Self = table
            .try_into()
            .map_err(|error: toml::de::Error| ConfigError::Refused(error.message().to_owned()))?;
        Specs::with(&config.gpu.peaks).map_err(|error| ConfigError::Refused(error.to_string()))?;
        Ok(config)
    }

    /// The default file: every key with its documentation and default.
    pub fn default_file() -> String {
        let mut text = String::from("# gpufleet-server: every key with its default.\n");
        write_section::<IngestConfig>(&mut text, "ingest");
        write_section::<FleetConfig>(&mut text, "fleet");
        write_section::<WebConfig>(&mut text, "web");
        write_section::<GpuConfig>(&mut text, "gpu");
        write_section::<AuthConfig>(&mut text, "auth");
        write_section::<StoreConfig>(&mut text, "store");
        write_section::<LedgerConfig>(&mut text, "ledger");
        write_section::<RetentionConfig>(&mut text, "retention");
        text
    }

    /// A configuration for tests: every port chosen by the system.
    pub fn for_tests() -> Self {
        let mut config = Self::default();
        for listen in [
            &mut config.ingest.grpc_listen,
            &mut config.ingest.http_listen,
            &mut config.web.listen,
        ] {
            *listen = "127.0.0.1:0".to_owned();
        }
        config
    }
}

fn read_table(path: &Path) -> Result<Table, ConfigError> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: name.clone(),
        source,
    })?;
    text.parse().map_err(|source| ConfigError::Parse {
        path: name,
        source: Box::new(source),
    })
}

/// Sets one key from text. Where the default is text the text is taken as it is, otherwise it is
/// read as a TOML value; a list may also be written with commas.
fn set(
    table: &mut Table,
    defaults: &Table,
    section: &str,
    key: &str,
    text: &str,
) -> Result<(), ConfigError> {
    let default = defaults.get(section).and_then(|it| it.get(key));
    let value = match default {
        Some(Value::String(_)) => Value::String(text.to_owned()),
        _ => parse_value(text).unwrap_or_else(|| match default {
            Some(Value::Array(_)) => {
                let items = text
                    .split(',')
                    .map(|it| Value::String(it.trim().to_owned()));
                Value::Array(items.collect())
            }
            _ => Value::String(text.to_owned()),
        }),
    };
    let entry = table
        .entry(section.to_owned())
        .or_insert_with(|| Value::Table(Table::new()));
    let Value::Table(entry) = entry else {
        return Err(ConfigError::Refused(format!("{section} is not a section")));
    };
    entry.insert(key.to_owned(), value);
    Ok(())
}

fn parse_value(text: &str) -> Option<Value> {
    format!("value = {text}")
        .parse::<Table>()
        .ok()?
        .remove("value")
}

fn write_section<S: Section>(text: &mut String, name: &str) {
    let defaults = Table::try_from(S::default()).expect("the defaults are plain TOML");
    text.push('\n');
    for line in S::ABOUT {
        text.push_str(&format!("#{line}\n"));
    }
    text.push_str(&format!("[{name}]\n"));
    for (field, lines) in S::FIELDS {
        for line in *lines {
            text.push_str(&format!("#{line}\n"));
        }
        match defaults.get(*field) {
            Some(value) => text.push_str(&format!("{field} = {value}\n")),
            None => text.push_str(&format!("# {field} = (not set)\n")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(file: &str, environment: &[(&str, &str)], flags: &[&str]) -> Result<Config, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server.toml");
        std::fs::write(&path, file).unwrap();
        let environment = environment
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let flags: Vec<String> = flags.iter().map(|it| (*it).to_owned()).collect();
        Config::load(Some(&path), environment, &flags).map_err(|error| error.to_string())
    }

    #[test]
    fn a_flag_wins_over_the_environment_and_that_over_the_file() {
        let file =
            "[web]\nlisten = \"file\"\n[ingest]\ngrpc_listen = \"file\"\nhttp_listen = \"file\"\n";
        let environment = [
            ("GPUFLEET_WEB__LISTEN", "environment"),
            ("GPUFLEET_INGEST__GRPC_LISTEN", "environment"),
            ("GPUFLEET_SHIP__ENDPOINT", "the agent's own"),
        ];
        let config = load(file, &environment, &["web.listen=flag"]).unwrap();
        assert_eq!(
            [
                config.web.listen,
                config.ingest.grpc_listen,
                config.ingest.http_listen
            ],
            ["flag", "environment", "file"]
        );
    }

    #[test]
    fn an_unknown_key_is_refused_by_name_wherever_it_stands() {
        for (file, environment, flags) in [
            ("[web]\nlisten_on = \"x\"\n", &[][..], &[][..]),
            ("", &[("GPUFLEET_WEB__LISTEN_ON", "x")], &[]),
            ("", &[], &["web.listen_on=x"]),
            ("[listen_on]\n", &[], &[]),
        ] {
            let error = load(file, environment, flags).unwrap_err();
            assert!(error.contains("listen_on"), "{error}");
        }
    }

    #[test]
    fn a_value_of_the_wrong_type_is_refused() {
        let error = load("", &[], &["ingest.request_timeout_ms=soon"]).unwrap_err();
        assert!(error.contains("soon"), "{error}");
    }

    #[test]
    fn a_card_described_wrongly_is_refused_by_name() {
        let file = "[gpu.peaks]\n\"NVIDIA X\" = \"warp 9\"\n";
        let error = load(file, &[], &[]).unwrap_err();
        assert!(
            error.contains("NVIDIA X") && error.contains("warp"),
            "{error}"
        );
    }

    #[test]
    fn the_documented_default_file_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/server.toml");
        let documented = std::fs::read_to_string(path).unwrap();
        assert_eq!(
            documented,
            Config::default_file(),
            "gpufleet-server --print-default-config > docs/server.toml"
        );
    }

    #[test]
    fn the_printed_default_file_is_the_default_configuration() {
        let config = load(&Config::default_file(), &[], &[]).unwrap();
        assert_eq!(config, Config::default());
    }
}
