//! A program's config: sections that its modules own, one file, and who wins.
//!
//! A flag (`--set section.key=value`) beats the environment (`GPUFLEET_<SECTION>__<KEY>`), which
//! beats the file. A key nobody knows is refused with its name. [`section!`](crate::section) keeps
//! each field's documentation as data, so that the documented default file is made from the same
//! lines as the struct; [`sections!`](crate::sections) puts a program's sections together.

use std::error::Error;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use crate::reloaded::words;

mod flags;

mod origin;

pub use flags::ConfigFlags;
pub use origin::{Origin, Origins};

/// Prefix of environment variables that are configuration, when they have `__` in them.
const ENVIRONMENT_PREFIX: &str = "GPUFLEET_";

/// Where the files of all programs are.
const FOLDER: &str = "/etc/gpufleet";

/// The documented default files of all programs. One environment may hold the keys of several
/// programs: a key of another program is none of ours, a key that is in no file is refused.
const DOCUMENTED: [&str; 2] = [
    include_str!("../docs/agent.toml"),
    include_str!("../docs/server.toml"),
];

/// Declares a section: a struct with a default per field, and its documentation as data.
#[macro_export]
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

/// Declares a program's whole config: its sections in the order of the documented file.
#[macro_export]
macro_rules! sections {
    (
        $(#[doc = $about:literal])+
        pub struct $name:ident {
            $( $(#[doc = $doc:literal])+ pub $section:ident: $type:ty, )+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name { $( $(#[doc = $doc])+ pub $section: $type, )+ }

        impl $crate::config::Sections for $name {
            const SECTIONS: &'static [$crate::config::Documented] =
                &[$($crate::config::Documented::of::<$type>(stringify!($section))),+];
        }
    };
}

/// A section's documentation as data; made by [`section!`](crate::section).
pub trait Section: Serialize + Default {
    /// What the section is for, line by line.
    const ABOUT: &'static [&'static str];
    /// Each field with the lines of its documentation.
    const FIELDS: &'static [(&'static str, &'static [&'static str])];
}

/// A section with its documentation.
#[derive(Debug, Clone, Copy)]
pub struct Documented {
    /// Its name.
    pub name: &'static str,
    /// What it is for, line by line.
    pub about: &'static [&'static str],
    /// Each field with the lines of its documentation.
    pub fields: &'static [(&'static str, &'static [&'static str])],
    /// Writes it under a name, with its documentation and defaults.
    pub write: fn(&str) -> String,
}

impl Documented {
    /// A section under this name.
    pub const fn of<S: Section>(name: &'static str) -> Self {
        Self {
            name,
            about: S::ABOUT,
            fields: S::FIELDS,
            write: documented::<S>,
        }
    }
}

/// A program's sections; made by [`sections!`](crate::sections).
pub trait Sections: Serialize + DeserializeOwned + Default {
    /// Every section.
    const SECTIONS: &'static [Documented];
}

/// The whole config of one program.
pub trait ProgramConfig: Sections {
    /// The program's name after `gpufleet-`, and its file's: `agent` has /etc/gpufleet/agent.toml.
    const PROGRAM: &'static str;

    /// Whether values that are right each for itself can work together.
    ///
    /// # Errors
    /// Names the key and says what it may be.
    fn check(&self) -> Result<(), Box<dyn Error + Send + Sync>>;

    /// Builds everything that the start would build of it, and throws it away: `--check-config` asks.
    /// What runs meanwhile is left alone.
    ///
    /// # Errors
    /// Names the key or the file and says what is wrong with it.
    fn rehearse(&self) -> Result<(), Box<dyn Error + Send + Sync>>;

    /// What can be used and is most likely not what somebody meant, a sentence each that names the key.
    fn doubts(&self) -> Vec<String> {
        Vec::new()
    }

    /// The documented default file.
    fn default_file() -> String {
        let program = Self::PROGRAM;
        let mut text = format!(
            "# gpufleet-{program}: every key with its default. Generated from the code by\n\
             # `gpufleet-{program} --print-default-config`. A flag (--set section.key=value) beats the\n\
             # environment (GPUFLEET_<SECTION>__<KEY>), which beats this file.\n"
        );
        for section in Self::SECTIONS {
            text.push('\n');
            text.push_str(&(section.write)(section.name));
        }
        text
    }
}

/// Why a config was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read the config file {path}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is no TOML, or has a key that nobody knows or a value of the wrong type. The line's value
    /// is not shown: it may hold a password, and errors go into logs.
    #[error("the config file {path} cannot be used: line {line}, column {column}: {why}")]
    File {
        /// Which file.
        path: PathBuf,
        /// Which line of it, from 1.
        line: usize,
        /// Where in the line, in characters from 1.
        column: usize,
        /// What is wrong there.
        why: String,
    },
    /// A flag that is not `section.key=value`.
    #[error(
        "--set {0}: write it as section.key=value, for example trace.endpoint=http://host:4317"
    )]
    Flag(String),
    /// A key from outside the file that does not exist, or a value that it cannot have.
    #[error(
        "{origin}: {section}.{key} cannot be `{value}`: {why} (--print-default-config lists every key)"
    )]
    Key {
        /// The flag or the variable.
        origin: String,
        /// The section's name.
        section: String,
        /// The key's name.
        key: String,
        /// What it was to be.
        value: String,
        /// Why it cannot.
        why: String,
    },
    /// Values that cannot work together.
    #[error("the config cannot be used")]
    Check(#[source] Box<dyn Error + Send + Sync>),
}

/// Where a config comes from, so that it can be read again.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The file, where there is one.
    pub file: Option<PathBuf>,
    /// The environment.
    pub environment: Vec<(String, String)>,
    /// `section.key=value`; the later wins.
    pub set: Vec<String>,
}

/// A key that is given outside the file.
struct Outside<'a> {
    origin: Origin,
    section: String,
    key: String,
    value: &'a str,
}

impl Sources {
    /// Reads the config from all of them.
    ///
    /// # Errors
    /// Names the file, variable or flag, the key, and the way out.
    pub fn load<C: ProgramConfig>(&self) -> Result<C, ConfigError> {
        let mut table = self.table::<C>()?;
        for it in self.outside::<C>()? {
            let told = match &it.origin {
                Origin::Environment(variable) => format!("the environment variable {variable}"),
                _ => format!("--set {}.{}={}", it.section, it.key, it.value),
            };
            put::<C>(&mut table, told, &it.section, &it.key, it.value)?;
        }
        let config: C = table
            .try_into()
            .expect("the file, and each key put into it, were tried");
        config.check().map_err(ConfigError::Check)?;
        Ok(config)
    }

    /// Where each value of the config comes from.
    ///
    /// # Errors
    /// As [`Self::load`], of what is written down where.
    pub fn origins<C: ProgramConfig>(&self) -> Result<Origins, ConfigError> {
        let mut origins = Origins::default();
        if let Some(file) = &self.file {
            for (section, keys) in self.table::<C>()? {
                for key in keys.as_table().into_iter().flat_map(Table::keys) {
                    origins.note(&section, key, Origin::File(file.clone()));
                }
            }
        }
        for it in self.outside::<C>()? {
            origins.note(&it.section, &it.key, it.origin);
        }
        Ok(origins)
    }

    /// Every key that is given outside the file, in the order in which the later counts.
    fn outside<C: ProgramConfig>(&self) -> Result<Vec<Outside<'_>>, ConfigError> {
        let mut given = Vec::new();
        for (variable, value) in &self.environment {
            let Some((section, key)) = variable
                .strip_prefix(ENVIRONMENT_PREFIX)
                .and_then(|rest| rest.split_once("__"))
            else {
                continue;
            };
            let (section, key) = (section.to_lowercase(), key.to_lowercase());
            if !is_of_another_program::<C>(&section) {
                given.push(Outside {
                    origin: Origin::Environment(variable.clone()),
                    section,
                    key,
                    value,
                });
            }
        }
        for setting in &self.set {
            let parts = setting
                .split_once('=')
                .and_then(|(path, value)| Some((path.split_once('.')?, value)));
            let Some(((section, key), value)) = parts else {
                return Err(ConfigError::Flag(setting.clone()));
            };
            given.push(Outside {
                origin: Origin::CommandLine,
                section: section.to_owned(),
                key: key.to_owned(),
                value,
            });
        }
        Ok(given)
    }

    /// What the file says. It is tried on its own, because its errors then name line and column.
    fn table<C: ProgramConfig>(&self) -> Result<Table, ConfigError> {
        let Some(path) = &self.file else {
            return Ok(Table::new());
        };
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.clone(),
            source,
        })?;
        toml::from_str::<C>(&text)
            .and_then(|_| toml::from_str(&text))
            .map_err(|error| file_error(path, &text, &error))
    }
}

/// What is wrong with a file, by place and key.
fn file_error(path: &Path, text: &str, error: &toml::de::Error) -> ConfigError {
    let begin = error.span().map_or(0, |it| it.start);
    let before = text.get(..begin).unwrap_or_default();
    let line = before.matches('\n').count();
    let in_line = before.rsplit('\n').next().unwrap_or_default();
    let key = text.lines().nth(line).and_then(|it| it.split_once('='));
    let is_key = |it: &str| {
        it.chars()
            .all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
    };
    let key = key.map(|it| it.0.trim()).filter(|it| is_key(it));
    let of = key.map(|it| format!("`{it}`: ")).unwrap_or_default();
    ConfigError::File {
        path: path.to_owned(),
        line: line + 1,
        column: in_line.chars().count() + 1,
        why: format!("{of}{}", error.message()),
    }
}

/// Whether this section is another program's and not ours.
fn is_of_another_program<C: ProgramConfig>(section: &str) -> bool {
    let heading = format!("[{section}]");
    C::SECTIONS.iter().all(|ours| ours.name != section)
        && DOCUMENTED
            .iter()
            .any(|file| file.lines().any(|line| line == heading))
}

/// Puts a value in its place: the first way of reading it with which the config can be used.
fn put<C: ProgramConfig>(
    table: &mut Table,
    origin: String,
    section: &str,
    key: &str,
    value: &str,
) -> Result<(), ConfigError> {
    let mut refused = None;
    for read in readings(value) {
        let mut tried = table.clone();
        let entry = tried
            .entry(section)
            .or_insert_with(|| Value::Table(Table::new()));
        let keys = entry.as_table_mut().expect("the file was tried");
        keys.insert(key.to_owned(), read);
        match C::deserialize(tried.clone()) {
            Ok(_) => {
                *table = tried;
                return Ok(());
            }
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    Err(ConfigError::Key {
        origin,
        section: section.to_owned(),
        key: key.to_owned(),
        value: value.to_owned(),
        why: refused
            .expect("the text itself was tried")
            .message()
            .to_owned(),
    })
}

/// What a value written outside a file may mean: TOML, the text itself, a list with commas.
fn readings(value: &str) -> impl Iterator<Item = Value> {
    let toml = toml::from_str::<Table>(&format!("value = {value}"))
        .ok()
        .filter(|table| table.len() == 1)
        .and_then(|mut table| table.remove("value"));
    let items = value.split(',').map(str::trim).filter(|it| !it.is_empty());
    let list = items.map(|it| Value::String(it.to_owned())).collect();
    let text = Value::String(value.to_owned());
    toml.into_iter().chain([text, Value::Array(list)])
}

/// A section as the documented default file has it.
pub fn documented<S: Section>(name: &str) -> String {
    let defaults = Table::try_from(S::default()).expect("the defaults are plain TOML");
    let mut text = String::new();
    let comment = |text: &mut String, lines: &[&str]| {
        for line in lines {
            text.push_str(&format!("#{line}\n"));
        }
    };
    comment(&mut text, S::ABOUT);
    text.push_str(&format!("[{name}]\n"));
    for (field, lines) in S::FIELDS {
        text.push('\n');
        comment(&mut text, lines);
        match defaults.get(*field) {
            Some(value) => text.push_str(&format!("{field} = {value}\n")),
            None => text.push_str(&format!("# {field} = (not set)\n")),
        }
    }
    text
}

/// Sees, for the tests of a program, that a setting is refused and that all of these words say why.
///
/// # Panics
/// When it is taken, or a word is missing.
pub fn assert_refused<C: ProgramConfig>(setting: &str, expected: &[&str]) {
    let sources = Sources {
        set: vec![setting.to_owned()],
        ..Sources::default()
    };
    let said = match sources.load::<C>() {
        Ok(_) => panic!("{setting} was taken"),
        Err(error) => words(&error),
    };
    for word in expected {
        assert!(said.contains(word), "`{word}` is not in: {said}");
    }
}

#[cfg(test)]
mod tests;
