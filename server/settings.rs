//! The configuration that holds: every key with its value, its default, and where the value comes from.
//!
//! A secret is never here, only whether it is set and from where: of a file or a variable the name, of an
//! address neither password nor what stands behind `?`, of a channel's address the host alone. The rules
//! are in [`clean`], by the name of the key, so that they hold for a key that is added, too.

use gpufleet_program::config::{Origin, Origins, Sections as _};
use gpufleet_telemetry::time::Timestamp;
use toml::{Table, Value};

use crate::App;
use crate::config::Config;
use crate::detect::thresholds::keys;

/// What stands where nothing is set.
const NOT_SET: &str = "not set";

/// What stands behind the part of an address that is shown.
const HIDDEN: &str = "…";

/// Parts of the names of keys whose text is a secret, unless it names where one is.
const SECRET_WORDS: [&str; 5] = ["secret", "password", "token", "credential", "key"];

/// Keys that name files with nothing secret in them.
const PLAIN_FILES: [&str; 6] = [
    "ca_file",
    "heartbeat_ca_file",
    "tls_certificate_file",
    "tls_client_ca_file",
    "title_file",
    "text_file",
];

/// Everything.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Each section in the order of the documented file.
    pub sections: Vec<Section>,
    /// How the thresholds were last read; none where no file is read again.
    pub thresholds: Option<Thresholds>,
}

/// One section.
#[derive(Debug, Clone, PartialEq)]
pub struct Section {
    /// Its name.
    pub name: &'static str,
    /// What it is for.
    pub about: String,
    /// Its keys in the order of the documented file.
    pub keys: Vec<Key>,
}

/// One key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub about: String,
    /// What holds, as TOML has it.
    pub value: String,
    /// What held if nobody set it.
    pub default: String,
    /// Where the value comes from; none when that is not known.
    pub from: Option<Origin>,
}

/// How the thresholds were last read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thresholds {
    /// From which file.
    pub file: String,
    /// When it was last looked at.
    pub looked_at: Timestamp,
    /// When one last changed since the start.
    pub changed_at: Option<Timestamp>,
    /// Whether the file as it is cannot be used.
    pub is_refused: bool,
}

impl Key {
    /// Whether it is as it would be if nobody had set it.
    pub fn is_default(&self) -> bool {
        self.value == self.default
    }
}

/// The settings of a server.
pub fn of(app: &App) -> Settings {
    let told = app.thresholds.get();
    let newest = told.as_ref().map(|it| &*it.now);
    Settings {
        sections: sections(&app.config, newest, app.origins.as_deref()),
        thresholds: told.map(|it| Thresholds {
            file: it.file.display().to_string(),
            looked_at: it.looked_at,
            changed_at: it.changed_at,
            is_refused: it.is_refused,
        }),
    }
}

/// Every section as the server was started; of the thresholds what the `newest` file says holds.
fn sections(config: &Config, newest: Option<&Config>, origins: Option<&Origins>) -> Vec<Section> {
    let table = |config: &Config| Table::try_from(config).expect("a config is plain TOML");
    let (mut now, default) = (table(config), table(&Config::default()));
    if let Some(newest) = newest.map(table) {
        for (section, key) in keys() {
            let value = newest.get(section).and_then(|it| it.get(key));
            if let (Some(Value::Table(of)), Some(value)) = (now.get_mut(section), value) {
                of.insert(key.to_owned(), value.clone());
            }
        }
    }
    let shown = |table: &Table, section: &str, key: &'static str| {
        let value = table.get(section).and_then(|it| it.get(key)).cloned();
        value.map_or_else(|| NOT_SET.to_owned(), |it| text(clean(key, it)))
    };
    let section = |it: &gpufleet_program::config::Documented| Section {
        name: it.name,
        about: words(it.about),
        keys: it
            .fields
            .iter()
            .map(|(key, about)| Key {
                name: key,
                about: words(about),
                value: shown(&now, it.name, key),
                default: shown(&default, it.name, key),
                from: origins.map(|origins| origins.of(it.name, key)),
            })
            .collect(),
    };
    Config::SECTIONS.iter().map(section).collect()
}

/// Lines of documentation as one text.
fn words(lines: &[&str]) -> String {
    let lines: Vec<&str> = lines.iter().map(|it| it.trim()).collect();
    lines.join(" ")
}

/// A value as a file would have it; a text that is alone without its quotes.
fn text(value: Value) -> String {
    match value {
        Value::String(text) if text.is_empty() => "\"\"".to_owned(),
        Value::String(text) => text,
        other => other.to_string(),
    }
}

/// A value without its secrets, by the name of its key.
fn clean(key: &str, value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(clean_text(key, &text)),
        Value::Array(items) => Value::Array(items.into_iter().map(|it| clean(key, it)).collect()),
        Value::Table(table) => {
            let cleaned = table.into_iter().map(|(key, value)| {
                let value = clean(&key, value);
                (key, value)
            });
            Value::Table(cleaned.collect())
        }
        plain => plain,
    }
}

fn clean_text(key: &str, text: &str) -> String {
    let names_secret = SECRET_WORDS.iter().any(|it| key.contains(it));
    let is_file = (key.ends_with("_file") || key == "file") && !PLAIN_FILES.contains(&key);
    match text {
        "" if names_secret || is_file || key.ends_with("_env") => NOT_SET.to_owned(),
        // The names of a file or variable; what is in them is never read here.
        name if is_file => format!("set, from the file {name}"),
        name if key.ends_with("_env") => format!("set, from the variable {name}"),
        _ if names_secret => "set".to_owned(),
        address if address.contains("://") => without_secrets(address, key == "urls"),
        plain => plain.to_owned(),
    }
}

/// An address without user's password, settings and fragment; of a channel also without its path, which
/// may be the secret itself.
fn without_secrets(address: &str, host_alone: bool) -> String {
    let Some((scheme, rest)) = address.split_once("://") else {
        return HIDDEN.to_owned();
    };
    let (rest, behind) = match rest.split_once(['?', '#']) {
        // A password may hold either: nobody knows where it ends.
        Some((_, behind)) if behind.contains('@') => return format!("{scheme}://{HIDDEN}"),
        Some((rest, _)) => (rest, HIDDEN),
        None => (rest, ""),
    };
    // A password may hold a slash: what stands before the last @ is the user.
    let (user, place) = match rest.rsplit_once('@') {
        // A user without a password is a token, most likely.
        Some((user, place)) => (user.split_once(':').map_or(HIDDEN, |it| it.0), place),
        None => ("", rest),
    };
    let user = match user {
        "" => String::new(),
        _ if host_alone => format!("{HIDDEN}@"),
        user => format!("{user}@"),
    };
    match place.split_once('/') {
        Some((host, path)) if host_alone && !path.is_empty() => {
            format!("{scheme}://{user}{host}/{HIDDEN}")
        }
        _ => format!("{scheme}://{user}{place}{behind}"),
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_program::config::Sources;

    use super::*;

    #[test]
    fn of_an_address_nothing_is_shown_that_could_be_a_secret() {
        for (address, host_alone, shown) in [
            ("http://u:p?w@h", false, "http://…"),
            ("https://token@h/x", false, "https://…@h/x"),
            (
                "postgres://gpu:pw@db:5432/fleet?password=pw2",
                false,
                "postgres://gpu@db:5432/fleet…",
            ),
            (
                "postgres://gpu:p/w@db/fleet",
                false,
                "postgres://gpu@db/fleet",
            ),
            (
                "sqlite:///var/lib/gpufleet.db",
                false,
                "sqlite:///var/lib/gpufleet.db",
            ),
            (
                "https://hooks.example.com/T0/B0/s3cr3t",
                true,
                "https://hooks.example.com/…",
            ),
            (
                "https://u:p@hooks.example.com",
                true,
                "https://…@hooks.example.com",
            ),
            ("https://host/path#token", false, "https://host/path…"),
        ] {
            assert_eq!(without_secrets(address, host_alone), shown, "{address}");
        }
    }

    #[test]
    fn a_key_that_names_a_secret_shows_only_that_it_is_set_and_where() {
        for (key, text, shown) in [
            ("token_file", "/etc/token", "set, from the file /etc/token"),
            ("token_file", "", "not set"),
            ("secret_env", "HOOK_KEY", "set, from the variable HOOK_KEY"),
            ("some_password", "hunter2", "set"),
            ("api_key", "hunter2", "set"),
            ("ca_file", "/etc/ca.pem", "/etc/ca.pem"),
            ("listen", "127.0.0.1:8080", "127.0.0.1:8080"),
        ] {
            assert_eq!(clean_text(key, text), shown, "{key}");
        }
    }

    /// Puts a secret into every text of the config, wherever one can be, and looks for it.
    #[test]
    fn a_secret_in_the_password_or_the_settings_of_any_text_is_shown_nowhere() {
        const SECRET: &str = "s3cr3t-in-the-text";
        fn spoil(value: &mut Value) {
            match value {
                Value::String(text) => {
                    *text = format!("https://user:{SECRET}@host/path?token={SECRET}#{SECRET}");
                }
                Value::Array(items) => items.iter_mut().for_each(spoil),
                Value::Table(table) => table.iter_mut().for_each(|(_, it)| spoil(it)),
                _ => {}
            }
        }
        let mut texts = 0;
        let table = Table::try_from(Config::default()).expect("it is plain TOML");
        for (_, section) in table {
            for (key, mut value) in section.as_table().expect("a section").clone() {
                spoil(&mut value);
                // A file's name is shown: nobody's secret is one.
                let is_file = key.ends_with("_file") || key.ends_with("_env");
                texts += usize::from(value.to_string().contains(SECRET));
                let shown = text(clean(&key, value));
                assert!(is_file || !shown.contains(SECRET), "{key}: {shown}");
            }
        }
        assert!(texts > 15, "{texts}");
    }

    #[test]
    fn each_value_says_where_it_comes_from_and_a_default_is_one() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("server.toml");
        std::fs::write(
            &file,
            "[detect]\nidle_after_s = 600\n[web]\nlisten = \"127.0.0.1:1\"\n",
        )
        .expect("written");
        let sources = Sources {
            file: Some(file.clone()),
            environment: vec![("GPUFLEET_WEB__LISTEN".to_owned(), "127.0.0.1:2".to_owned())],
            set: vec!["cost.currency=EUR".to_owned()],
        };
        let config: Config = sources.load().expect("it can be used");
        let origins = sources.origins::<Config>().expect("it can be used");
        let sections = sections(&config, None, Some(&origins));
        let key = |section: &str, name: &str| {
            let section = sections.iter().find(|it| it.name == section);
            let mut keys = section.expect("a section").keys.iter();
            keys.find(|it| it.name == name).expect("a key").clone()
        };
        let of = |section, name| key(section, name).from;
        assert_eq!(of("detect", "idle_after_s"), Some(Origin::File(file)));
        let variable = Origin::Environment("GPUFLEET_WEB__LISTEN".to_owned());
        assert_eq!(of("web", "listen"), Some(variable));
        assert_eq!(key("web", "listen").value, "127.0.0.1:2");
        assert_eq!(of("cost", "currency"), Some(Origin::CommandLine));
        let untouched = key("ingest", "max_concurrent_requests");
        assert!(untouched.is_default() && untouched.from == Some(Origin::Default));
        assert_eq!(untouched.value, "64");
        assert!(
            untouched.about.starts_with("Requests worked on"),
            "{}",
            untouched.about
        );
        assert!(!key("detect", "idle_after_s").is_default());
    }
}
