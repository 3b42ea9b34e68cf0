//! A real, headless Chromium, driven by Debian's chromedriver (WebDriver, plain JSON over HTTP).

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::process::Process;
use super::{World, free_port, http, wait};

const START_LIMIT: Duration = Duration::from_secs(90);

/// The name under which WebDriver hands out elements.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
/// Presses of a key in one request: chromedriver answers when the last is done.
const PRESSES_AT_ONCE: usize = 50;
/// The height of a picture, pixels: Chromium draws none that is taller.
const MAX_PICTURE: u32 = 16_000;

/// How long a script may work on a page: a check of a long one, on a busy machine.
const SCRIPT_LIMIT: Duration = Duration::from_secs(120);

/// A page comes, on a busy machine.
const PAGE_LIMIT: Duration = Duration::from_secs(60);

/// One window.
#[derive(Debug)]
pub struct Browser {
    driver: String,
    session: String,
    window: Window,
    _process: Process,
}

/// What a page is shown in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
    /// A telephone's: as wide as the page asks for, which a window on a screen cannot be, for Chromium
    /// makes none below 500 pixels.
    pub is_phone: bool,
}

impl Window {
    /// A small screen on a desk.
    pub const DESK: Self = Self {
        width: 1280,
        height: 900,
        is_phone: false,
    };
    /// A screen on a wall, which nobody sits at.
    pub const WALL: Self = Self {
        width: 3840,
        height: 2160,
        is_phone: false,
    };
    /// A telephone.
    pub const PHONE: Self = Self {
        width: 390,
        height: 844,
        is_phone: true,
    };
}

/// Keys, as WebDriver names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// To the next control.
    Tab,
    /// Follow, press.
    Enter,
    /// To the next tile.
    Right,
    /// To the tile before.
    Left,
}

impl Key {
    const fn code(self) -> &'static str {
        match self {
            Self::Tab => "\u{e004}",
            Self::Enter => "\u{e007}",
            Self::Right => "\u{e014}",
            Self::Left => "\u{e012}",
        }
    }
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
    /// Starts one.
    ///
    /// # Panics
    /// When Chromium does not start: `scripts/setup.sh test` installs it.
    pub fn start(world: &World, window: Window) -> Self {
        let Window { width, height, .. } = window;
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
            "timeouts": {"script": SCRIPT_LIMIT.as_millis()},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            "goog:chromeOptions": {"binary": "/usr/bin/chromium", "args": arguments},
        }}});
        let session = post(&driver, "/session", &wanted)
            .unwrap_or_else(|error| panic!("Chromium does not start: {error}"));
        let session = session["sessionId"].as_str().expect("an id").to_owned();
        let mut browser = Self {
            driver,
            session,
            window,
            _process: process,
        };
        browser.resize(window);
        browser
    }

    /// Shows its pages in another window.
    pub fn resize(&mut self, window: Window) {
        self.window = window;
        self.show_in(window.height);
    }

    /// The window its pages are shown in.
    pub const fn window(&self) -> Window {
        self.window
    }

    fn show_in(&self, height: u32) {
        let Window {
            width, is_phone, ..
        } = self.window;
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            &json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone}),
        );
    }

    /// Whether the system that the browser runs on likes it dark.
    pub fn likes_dark(&self, is_dark: bool) {
        let value = if is_dark { "dark" } else { "light" };
        self.devtools(
            "Emulation.setEmulatedMedia",
            &json!({"features": [{"name": "prefers-color-scheme", "value": value}]}),
        );
    }

    /// Whether pages that are opened from here on run scripts of their own. What a test runs on them does run.
    pub fn runs_scripts(&self, it_does: bool) {
        self.devtools(
            "Emulation.setScriptExecutionDisabled",
            &json!({"value": !it_does}),
        );
    }

    /// Opens a page and waits until it is loaded.
    pub fn open(&self, url: &str) {
        self.command("url", &json!({"url": url}));
    }

    /// What a script returns; of a promise, what it comes to.
    pub fn run(&self, script: &str) -> Value {
        self.command("execute/sync", &json!({"script": script, "args": []}))
    }

    /// Clicks where the first element is that a selector finds, as a person does: one that is not to be
    /// seen, or behind another, cannot be clicked. Waits for the page that it leads to.
    pub fn click(&self, selector: &str) {
        let wanted = json!({"using": "css selector", "value": selector});
        let found = self.command("element", &wanted);
        let element = found[ELEMENT].as_str().expect("an element has an id");
        self.leave_by(selector, || {
            self.command(&format!("element/{element}/click"), &json!({}));
        });
    }

    /// Does what leads to another page and waits until that is loaded: chromedriver may answer before a form
    /// or a script has asked for it.
    pub fn leave_by(&self, what: &str, act: impl FnOnce()) {
        self.run("window.isLeft = true");
        act();
        let is_there = json!({
            "script": "return !window.isLeft && document.readyState === 'complete'", "args": [],
        });
        wait::until(&format!("{what} leads to a page"), PAGE_LIMIT, || {
            // Between two pages there may be none to run a script on.
            let answer = self.try_command("execute/sync", &is_there);
            (answer == Ok(Value::Bool(true))).then_some(())
        });
    }

    /// Presses a key so often.
    pub fn press(&self, key: Key, times: usize) {
        let one = ["keyDown", "keyUp"].map(|it| json!({"type": it, "value": key.code()}));
        for from in (0..times).step_by(PRESSES_AT_ONCE) {
            let count = PRESSES_AT_ONCE.min(times - from);
            let strokes: Vec<Value> = (0..count).flat_map(|_| one.clone()).collect();
            let keyboard = json!({"type": "key", "id": "keyboard", "actions": strokes});
            self.command("actions", &json!({"actions": [keyboard]}));
        }
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
        let height = height.as_u64().and_then(|it| u32::try_from(it).ok());
        self.show_in(height.unwrap_or(self.window.height).min(MAX_PICTURE));
        let path = format!("/session/{}/screenshot", self.session);
        let picture = http::get(&self.driver, &path)
            .expect("chromedriver answers")
            .json();
        self.show_in(self.window.height);
        let bytes = from_base64(picture["value"].as_str().unwrap_or_default());
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder).expect("the build's folder can be written");
        }
        std::fs::write(file, bytes).expect("the build's folder can be written");
    }

    /// A command of Chromium's own.
    pub fn devtools(&self, name: &str, parameters: &Value) -> Value {
        self.command(
            "goog/cdp/execute",
            &json!({"cmd": name, "params": parameters}),
        )
    }

    fn command(&self, name: &str, arguments: &Value) -> Value {
        self.try_command(name, arguments)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    fn try_command(&self, name: &str, arguments: &Value) -> Result<Value, String> {
        let path = format!("/session/{}/{name}", self.session);
        post(&self.driver, &path, arguments)
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

fn post(driver: &str, path: &str, body: &Value) -> Result<Value, String> {
    let answer = http::send_within(
        SCRIPT_LIMIT,
        driver,
        "POST",
        path,
        &[("content-type", "application/json")],
        body.to_string().as_bytes(),
    )
    .map_err(|error| format!("chromedriver, {path}: {error}"))?;
    let value = answer.json()["value"].clone();
    match answer.status {
        200 => Ok(value),
        status => Err(format!("chromedriver, {path}: {status} {value}")),
    }
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
