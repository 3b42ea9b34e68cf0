//! A secret of a channel: from a file, read again when it changes, or from the environment. It never is
//! printed, and is taken out of whatever a receiver echoes.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use gpufleet_program::token;

use super::settings::ChannelConfig;

/// What stands where a secret was.
const HIDDEN: &str = "•••";

/// A shorter secret is none, and would be found in any word.
const LEAST: usize = 4;
/// Pieces of an address that are shorter are words like `services`, and what nobody guesses is longer.
const LEAST_PIECE: usize = 9;

/// A secret, or none where the channel needs none.
#[derive(Clone, Default)]
pub struct Secret(Option<From>);

#[derive(Clone)]
enum From {
    File(Arc<gpufleet_program::reloaded::Reloaded<String>>),
    Environment(String),
}

impl Secret {
    /// The secret of a channel.
    ///
    /// # Errors
    /// Names the channel, the key and what is wrong.
    pub fn of(channel: &ChannelConfig) -> Result<Self, String> {
        let key = format!("notify.channels, {:?}", channel.name);
        Self::read(&channel.secret_file, &channel.secret_env).map_err(|why| format!("{key}: {why}"))
    }

    /// A secret in a file, or in the environment variable of this name.
    ///
    /// # Errors
    /// When it is neither there nor usable, or both are named.
    pub fn read(file: &Path, variable: &str) -> Result<Self, String> {
        if !variable.is_empty() && !file.as_os_str().is_empty() {
            return Err("a file and an environment variable are named: leave one out".to_owned());
        }
        if variable.is_empty() {
            let file = token::file("its secret file", file).map_err(|error| error.to_string())?;
            return Ok(Self(file.map(From::File)));
        }
        match std::env::var(variable) {
            Ok(text) if !text.trim().is_empty() => {
                Ok(Self(Some(From::Environment(text.trim().to_owned()))))
            }
            _ => Err(format!("the environment variable {variable} is not set")),
        }
    }

    /// One that is given, for tests and simulations.
    pub fn given(text: &str) -> Self {
        Self(Some(From::Environment(text.to_owned())))
    }

    /// What it is now; none where there is none.
    pub fn get(&self) -> Option<String> {
        match self.0.as_ref()? {
            From::File(file) => Some(file.get().as_ref().clone()),
            From::Environment(text) => Some(text.clone()),
        }
    }

    /// A text without it. Of an address everything behind the host is secret, also in pieces: who stands in
    /// between says which path it does not find.
    pub fn hidden(&self, text: &str) -> String {
        let Some(secret) = self.get() else {
            return text.to_owned();
        };
        let path = secret.split_once("://").and_then(|(_, rest)| {
            let begin = rest.find(['/', '?'])?;
            Some(&rest[begin..])
        });
        let path = path.unwrap_or_default();
        let pieces = path.split(['/', '?', '&', '=', '#']);
        let whole = [&*secret, path, path.trim_matches('/')].into_iter();
        let mut parts: Vec<&str> = whole.filter(|it| it.len() >= LEAST).collect();
        parts.extend(pieces.filter(|it| it.len() >= LEAST_PIECE));
        // A part of another comes after it.
        parts.sort_by_key(|it| std::cmp::Reverse(it.len()));
        let hide = |text: String, part: &str| text.replace(part, HIDDEN);
        parts.into_iter().fold(text.to_owned(), hide)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is = if self.0.is_some() { HIDDEN } else { "none" };
        formatter.write_str(is)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_again_when_its_file_changes_and_shows_nowhere() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        std::fs::write(&path, "first-key\n").expect("written");
        let secret = Secret::read(&path, "").expect("usable");
        assert_eq!(secret.get().as_deref(), Some("first-key"));
        std::fs::write(&path, "second-key\n").expect("written");
        assert_eq!(secret.get().as_deref(), Some("second-key"));
        assert!(!format!("{secret:?}").contains("key"));
        let said = secret.hidden("invalid routing key second-key");
        assert_eq!(said, "invalid routing key •••");
    }

    #[test]
    fn of_an_address_that_is_secret_no_piece_is_shown() {
        let secret = Secret::given("https://hooks.slack.com/services/T00000000/B00/s3cr3tp4th");
        for text in [
            "/services/T00000000/B00/s3cr3tp4th not found",
            "services/T00000000/B00/s3cr3tp4th not found",
            "no s3cr3tp4th in B00",
            "https://hooks.slack.com/services/T00000000/B00/s3cr3tp4th?",
        ] {
            let shown = secret.hidden(text);
            assert!(
                !shown.contains("s3cr3t") && shown.contains(HIDDEN),
                "{shown}"
            );
        }
        assert_eq!(secret.hidden("no services today"), "no services today");
        let root = Secret::given("http://hook.example.org/");
        assert_eq!(root.hidden("a/b of nobody"), "a/b of nobody");
    }

    #[test]
    fn a_secret_that_is_not_there_is_refused_and_none_is_none() {
        assert!(
            Secret::read(Path::new("/nowhere/key"), "")
                .expect_err("refused")
                .contains("/nowhere/key")
        );
        let said = Secret::read(Path::new(""), "GPUFLEET_NO_SUCH_VARIABLE").expect_err("refused");
        assert!(said.contains("GPUFLEET_NO_SUCH_VARIABLE"), "{said}");
        Secret::read(Path::new("/a"), "B").expect_err("two are none");
        assert_eq!(Secret::read(Path::new(""), "").expect("none").get(), None);
    }
}
