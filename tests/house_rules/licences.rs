//! What others' crates may come into the build: licences, banned crates and where crates come from, as
//! `deny.toml` has them.
//!
//! `make deny` asks cargo-deny the same and more, where it is installed. This runs everywhere, over the graph that
//! cargo resolves for the machine it runs on, build scripts and tests included.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde::Deserialize;
use spdx::{Expression, ParseMode};

use super::tree::{none, root};

/// Where crates.io's crates say they come from, through a mirror too.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

#[derive(Deserialize)]
struct Rules {
    licenses: Licences,
    bans: Bans,
}

#[derive(Deserialize)]
struct Licences {
    allow: Vec<String>,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Ban>,
}

#[derive(Deserialize)]
struct Ban {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
    /// The crates that may bring it all the same.
    #[serde(default)]
    wrappers: BTreeSet<String>,
}

/// What `cargo metadata` says of the build.
#[derive(Deserialize)]
struct Build {
    packages: Vec<Package>,
    resolve: Graph,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    /// `None` of our own crates.
    source: Option<String>,
}

#[derive(Deserialize)]
struct Graph {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    dependencies: Vec<String>,
}

#[test]
fn every_crate_has_a_licence_that_is_allowed() {
    let (rules, build) = (rules(), build());
    let broken: Vec<_> = foreign(&build)
        .filter_map(|package| {
            let why = not_allowed(package.license.as_deref(), &rules.licenses.allow)?;
            Some(format!("{} {}: {why}", package.name, package.version))
        })
        .collect();
    none("a crate's licence is one that deny.toml allows", &broken);
}

#[test]
fn a_licence_that_is_not_allowed_is_found() {
    let allow = ["MIT".to_owned(), "Apache-2.0".to_owned()];
    for good in ["MIT", "MIT/Apache-2.0", "GPL-3.0-only OR MIT"] {
        assert_eq!(not_allowed(Some(good), &allow), None, "{good}");
    }
    for bad in [
        "GPL-3.0-only",
        "MIT AND GPL-3.0-only",
        "Apache-2.0 WITH LLVM-exception",
        "no such licence",
    ] {
        assert!(not_allowed(Some(bad), &allow).is_some(), "{bad}");
    }
    assert!(not_allowed(None, &allow).is_some(), "none at all");
}

#[test]
fn no_banned_crate_is_brought_in() {
    let (rules, build) = (rules(), build());
    let names: BTreeMap<_, _> = build
        .packages
        .iter()
        .map(|package| (package.id.as_str(), package.name.as_str()))
        .collect();
    let mut broken = Vec::new();
    for node in &build.resolve.nodes {
        let by = names[node.id.as_str()];
        for brought in node.dependencies.iter().map(|id| names[id.as_str()]) {
            broken.extend(
                rules
                    .bans
                    .deny
                    .iter()
                    .filter(|ban| ban.name == brought && !ban.wrappers.contains(by))
                    .map(|ban| format!("{by} brings {brought}: {}", ban.reason)),
            );
        }
    }
    assert!(!rules.bans.deny.is_empty(), "deny.toml bans nothing");
    none("no crate is brought in that deny.toml bans", &broken);
}

#[test]
fn every_crate_comes_from_crates_io() {
    let build = build();
    let broken: Vec<_> = foreign(&build)
        .filter(|package| package.source.as_deref() != Some(CRATES_IO))
        .map(|package| format!("{} from {:?}", package.name, package.source))
        .collect();
    none("crates come from crates.io", &broken);
}

/// Why a crate with this licence may not be brought in; `None` when it may.
fn not_allowed(licence: Option<&str>, allow: &[String]) -> Option<String> {
    let Some(licence) = licence else {
        return Some("names no licence".to_owned());
    };
    // Lax: `MIT/Apache-2.0` is how older crates write a choice.
    let expression = match Expression::parse_mode(licence, ParseMode::LAX) {
        Ok(expression) => expression,
        Err(error) => return Some(format!("{licence}: {}", error.reason)),
    };
    let allowed = expression.evaluate(|wanted| allow.contains(&wanted.to_string()));
    (!allowed).then(|| licence.to_owned())
}

fn foreign(build: &Build) -> impl Iterator<Item = &Package> {
    build
        .packages
        .iter()
        .filter(|package| package.source.is_some())
}

fn rules() -> Rules {
    let text = std::fs::read_to_string(root().join("deny.toml")).expect("deny.toml can be read");
    let rules: Rules = toml::from_str(&text).expect("deny.toml is as cargo-deny wants it");
    for licence in &rules.licenses.allow {
        let name = licence.split(' ').next().unwrap_or_default();
        assert!(
            spdx::license_id(name).is_some(),
            "deny.toml: {licence} is no licence of SPDX"
        );
    }
    rules
}

fn build() -> Build {
    let output = Command::new(env!("CARGO"))
        .current_dir(root())
        .args([
            "metadata",
            "--format-version=1",
            "--locked",
            "--offline",
            "--filter-platform",
        ])
        .arg(format!("{}-unknown-linux-gnu", std::env::consts::ARCH))
        .output()
        .expect("cargo can be started");
    assert!(
        output.status.success(),
        "cargo metadata: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let build: Build = serde_json::from_slice(&output.stdout).expect("cargo's own format");
    assert!(
        foreign(&build).count() > 100,
        "the graph of the build is whole"
    );
    build
}
