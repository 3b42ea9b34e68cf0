//! The client, as people type it.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::built;

/// What it printed, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Typed {
    /// Its exit status; none of one that a signal ended.
    pub code: Option<i32>,
    /// What it printed.
    pub said: String,
    /// What it printed to those who wait or are wrong.
    pub complained: String,
}

/// Runs `gpufleet` against the server at this address (`127.0.0.1:1234`); nothing of this machine's environment is
/// taken in.
///
/// # Panics
/// When it cannot be started.
pub fn typed<T: AsRef<OsStr>>(address: &str, arguments: impl IntoIterator<Item = T>) -> Typed {
    typed_to(address, arguments, Stdio::piped())
}

/// The same with what it prints going somewhere else.
///
/// # Panics
/// When it cannot be started.
pub fn typed_to<T: AsRef<OsStr>>(
    address: &str,
    arguments: impl IntoIterator<Item = T>,
    out: impl Into<Stdio>,
) -> Typed {
    let output = Command::new(built("gpufleet"))
        .env_clear()
        .env("GPUFLEET_SERVER", format!("http://{address}"))
        .args(arguments)
        .stdout(out)
        .output()
        .expect("the client can be started");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Typed {
        code: output.status.code(),
        said: text(&output.stdout),
        complained: text(&output.stderr),
    }
}

impl Typed {
    /// What it printed, where all went well.
    ///
    /// # Errors
    /// What it complained of.
    pub fn well(self) -> Result<String, String> {
        match self.code {
            Some(0) => Ok(self.said),
            code => Err(format!(
                "it ends with {code:?}: {}{}",
                self.said, self.complained
            )),
        }
    }

    /// What it printed, as JSON.
    ///
    /// # Panics
    /// When it is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.said)
            .unwrap_or_else(|error| panic!("{error}: {}{}", self.said, self.complained))
    }
}
