//! What agents of this version and of the two before it send is read as it was meant.
//!
//! `MAJOR.MINOR/` beside it holds requests as that version wrote them, and beside each the list of what is
//! in them, one line a point, event or block. A server that reads any line otherwise has broken with
//! agents that are still out there. `GPUFLEET_BLESS=1` writes those of this version alone: for an older
//! one there is nobody left who could.
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::*;
use crate::otlp::{Encoding, parse};

/// This version, as its folder is named.
const THIS: &str = concat!(
    env!("CARGO_PKG_VERSION_MAJOR"),
    ".",
    env!("CARGO_PKG_VERSION_MINOR")
);

/// How many minor versions back agents are taken.
const BACK: u32 = 2;

fn folder(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("otlp/tests/versions")
        .join(version)
}

/// One line a point: resource, metric, part, value.
fn listed_metrics(bytes: &[u8]) -> String {
    let request = parse(Encoding::Protobuf, bytes).expect("a request is read");
    let decoded = decode_metrics(request, &Limits::default());
    let mut lines = vec![format!("rejected: {}", decoded.rejected)];
    for resource in &decoded.resources {
        let (kind, id) = (resource.resource.kind.name(), &resource.resource.id);
        for (name, value) in &resource.resource.attributes {
            lines.push(format!("{kind} {id}: {name} = {value}"));
        }
        for point in &resource.points {
            let (name, part) = (point.metric.name, &point.part);
            let (from, to) = (point.start.0, point.at.0);
            lines.push(format!(
                "{kind} {name} {part:?} {:?} {from}..{to}",
                point.value
            ));
        }
    }
    lines.sort();
    lines.join("\n")
}

/// One line an event or block of steps.
fn listed_logs(bytes: &[u8]) -> String {
    let request = parse(Encoding::Protobuf, bytes).expect("a request is read");
    let decoded = decode_events(request, &Limits::default());
    let mut list = format!("rejected: {}\n", decoded.rejected);
    for event in &decoded.events {
        let _infallible = writeln!(list, "{:?}", event.event);
    }
    for steps in &decoded.steps {
        let _infallible = writeln!(list, "{} {:?}", steps.rank, steps.blocks);
    }
    list
}

type Sends = fn() -> Vec<u8>;
type List = fn(&[u8]) -> String;

/// What is kept of a version: the name of its file, what this version sends, and how it is read.
const KEPT: [(&str, Sends, List); 3] = [
    ("metrics", this_metrics, listed_metrics),
    ("events", this_events, listed_logs),
    ("steps", this_steps, listed_logs),
];

fn this_metrics() -> Vec<u8> {
    let of = |kind: ResourceKind| {
        let metrics = catalog::all().filter(move |metric| metric.resource == kind);
        let points = metrics.flat_map(|metric| points_of(metric, f64::from(metric.id.0)));
        tick(resource(kind), points.collect())
    };
    let ticks: Vec<_> = ResourceKind::ALL.into_iter().map(of).collect();
    encode_metrics(&ticks).encode_to_vec()
}

fn this_events() -> Vec<u8> {
    encode_events(&every_event(), &resource(ResourceKind::Node)).encode_to_vec()
}

fn this_steps() -> Vec<u8> {
    let (blocks, node) = ([block()], resource(ResourceKind::Node));
    encode_steps([("team/llama/u/0/3", blocks.as_slice())], &node).encode_to_vec()
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path)
        .unwrap_or_else(|error| panic!("{}: {error}; run with GPUFLEET_BLESS=1", path.display()))
}

#[test]
fn what_this_version_sends_is_kept_for_those_to_come() {
    if std::env::var_os("GPUFLEET_BLESS").is_some_and(|it| it == "1") {
        let folder = folder(THIS);
        std::fs::create_dir_all(&folder).expect("the repository can be written");
        for (name, made, list) in KEPT {
            let (bytes, path) = (made(), folder.join(name));
            std::fs::write(path.with_extension("txt"), list(&bytes)).expect("it can be written");
            std::fs::write(path.with_extension("bin"), bytes).expect("it can be written");
        }
    }
    for (name, made, _) in KEPT {
        let kept = read(&folder(THIS).join(name).with_extension("bin"));
        assert!(
            kept == made(),
            "{name} of {THIS} is stale: run with GPUFLEET_BLESS=1"
        );
    }
}

#[test]
fn agents_of_this_version_and_two_back_are_read_as_they_meant_it() {
    let (major, minor) = THIS.split_once('.').expect("two numbers");
    let minor: u32 = minor.parse().expect("a number");
    for version in minor.saturating_sub(BACK)..=minor {
        let folder = folder(&format!("{major}.{version}"));
        // 0.1 is the first there was.
        if version == 0 && major == "0" {
            continue;
        }
        for (name, _, list) in KEPT {
            let path = folder.join(name);
            let meant = read(&path.with_extension("txt"));
            let found = list(&read(&path.with_extension("bin")));
            let lines = String::from_utf8_lossy(&meant);
            let differs = lines.lines().zip(found.lines()).find(|(a, b)| a != b);
            assert_eq!(differs, None, "{name} of {major}.{version}");
            assert_eq!(meant, found.as_bytes(), "{name} of {major}.{version}");
        }
    }
}
