//! A real, headless Chromium, driven by Debian's chromedriver (WebDriver, plain JSON over HTTP).

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::process::Process;
use super::{World, free_port, http, wait};

const START_LIMIT: Duration = Duration::from_secs(90);

/// One window.
#[derive(Debug)]
pub struct Browser {
    driver: String,
    session: String,
    _process: Process,
}

/// What Chromium writes to its console, and what it asks the network for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Console {
    /// Errors: scripts that fail, files that are not there, what the page's own policy forbids.
    pub errors: Vec<String>,
    /// Addresses that were asked for.
    pub requests: Vec<String>,
}

impl Browser {
    /// Starts one with a window of this many pixels.
    ///
    /// # Panics
    /// When Chromium does not start: `scripts/setup.sh test` installs it.
    pub fn start(world: &World, width: u32, height: u32) -> Self {
        let port = free_port();
        let driver = format!("127.0.0.1:{port}");
        let mut command = Command::new("chromedriver");
        command.arg(format!("--port={port}"));
        let mut process = Process::start("chromedriver", command, &world.path("chromedriver.log"));
        wait::until("chromedriver answers", START_LIMIT, || {
            process.must_run();
            http::get(&driver, "/status").ok()
        });
        let profile = world.path("chromium-profile");
        let arguments = [
            "--headless".to_owned(),
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-quic".to_owned(),
            "--no-first-run".to_owned(),
            "--disable-background-networking".to_owned(),
            "--disable-component-update".to_owned(),
            "--disable-sync".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--hide-scrollbars".to_owned(),
            format!("--window-size={width},{height}"),
            format!("--user-data-dir={}", profile.display()),
        ];
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            "goog:chromeOptions": {"binary": "/usr/bin/chromium", "args": arguments},
        }}});
        let answer = post(&driver, "/session", &wanted);
        let session = answer["sessionId"]
            .as_str()
            .unwrap_or_else(|| panic!("Chromium does not start: {answer}"))
            .to_owned();
        Self {
            driver,
            session,
            _process: process,
        }
    }

    /// Opens a page and waits until it is loaded.
    pub fn open(&self, url: &str) {
        self.command("url", &json!({"url": url}));
    }

    /// What a script returns.
    pub fn run(&self, script: &str) -> Value {
        self.command("execute/sync", &json!({"script": script, "args": []}))
    }

    /// What was written to the console and asked for since this was last called.
    pub fn console(&self) -> Console {
        let lines = |kind: &str| {
            let lines = self.command("se/log", &json!({"type": kind}));
            lines.as_array().cloned().unwrap_or_default()
        };
        let errors = lines("browser")
            .iter()
            .filter(|line| line["level"] == "SEVERE" || line["level"] == "WARNING")
            .map(|line| line["message"].to_string())
            .collect();
        let requests = lines("performance")
            .iter()
            .filter_map(|line| serde_json::from_str::<Value>(line["message"].as_str()?).ok())
            .filter(|event| event["message"]["method"] == "Network.requestWillBeSent")
            .map(|event| event["message"]["params"].clone())
            // The browser's own first page asks for things while it is left for ours.
            .filter(|asked| {
                asked["documentURL"]
                    .as_str()
                    .is_none_or(|it| !it.starts_with("chrome"))
            })
            .filter_map(|asked| Some(asked["request"]["url"].as_str()?.to_owned()))
            .collect();
        Console { errors, requests }
    }

    /// Writes what the window shows, as tall as the page is, to a PNG file.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn screenshot(&self, file: &Path) {
        let height = self.run("return document.documentElement.scrollHeight");
        let width = self.run("return window.innerWidth");
        self.command(
            "goog/cdp/execute",
            &json!({"cmd": "Emulation.setDeviceMetricsOverride", "params": {
                "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false,
            }}),
        );
        let path = format!("/session/{}/screenshot", self.session);
        let picture = http::get(&self.driver, &path)
            .expect("chromedriver answers")
            .json();
        self.command(
            "goog/cdp/execute",
            &json!({"cmd": "Emulation.clearDeviceMetricsOverride", "params": {}}),
        );
        let bytes = from_base64(picture["value"].as_str().unwrap_or_default());
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder).expect("the build's folder can be written");
        }
        std::fs::write(file, bytes).expect("the build's folder can be written");
    }

    fn command(&self, name: &str, arguments: &Value) -> Value {
        post(
            &self.driver,
            &format!("/session/{}/{name}", self.session),
            arguments,
        )
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Closes Chromium; chromedriver itself goes with its process. An error here would hide the
        // one that the test is about.
        let _ = http::send(
            &self.driver,
            "DELETE",
            &format!("/session/{}", self.session),
            &[],
            b"",
        );
    }
}

fn post(driver: &str, path: &str, body: &Value) -> Value {
    let answer = http::post(
        driver,
        path,
        &[("content-type", "application/json")],
        body.to_string().as_bytes(),
    )
    .unwrap_or_else(|error| panic!("chromedriver, {path}: {error}"));
    let value = answer.json()["value"].clone();
    assert_eq!(answer.status, 200, "{path}: {value}");
    value
}

/// RFC 4648, padded.
fn from_base64(text: &str) -> Vec<u8> {
    let digit = |letter: u8| match letter {
        b'A'..=b'Z' => Some(letter - b'A'),
        b'a'..=b'z' => Some(letter - b'a' + 26),
        b'0'..=b'9' => Some(letter - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0);
    for value in text.bytes().filter_map(digit) {
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_reads_back() {
        for (text, bytes) in [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9vYmFy", "foobar"),
        ] {
            assert_eq!(from_base64(text), bytes.as_bytes());
        }
    }
}
