//! What pages, documents and code say must be there: metrics in the catalog, linked files on disk. And what stands on
//! a page that is kept fresh is.

use gpufleet_program::config::{ProgramConfig, Sources};
use gpufleet_telemetry::catalog;

use super::tree::{File, files, none, root};

/// Subjects that begin a metric's name after `gpufleet_`.
const SUBJECTS: [&str; 6] = ["gpu", "node", "serving", "agent", "server", "training"];

/// Suffixes that an encoder adds to a catalog name: the maximum of a tick, a histogram's series,
/// an info metric.
const SUFFIXES: [&str; 5] = ["_max", "_bucket", "_count", "_sum", "_info"];

/// Words that look like a metric's name.
fn metric_names(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'))
        .filter(|word| {
            let subject = word
                .strip_prefix("gpufleet_")
                .and_then(|rest| rest.split_once('_'));
            subject.is_some_and(|(it, rest)| SUBJECTS.contains(&it) && !rest.is_empty())
        })
}

fn is_known(name: &str) -> bool {
    let plain = || SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix));
    catalog::by_name(name).is_some() || plain().is_some_and(|it| catalog::by_name(it).is_some())
}

fn unknown_metrics(files: &[File]) -> Vec<String> {
    let mut broken = Vec::new();
    for file in files {
        // A test of ours may make names up.
        let is_rust = file.path.ends_with(".rs");
        let text = if is_rust { file.shipped() } else { &file.text };
        for (number, line) in (1..).zip(text.lines()) {
            for name in metric_names(line).filter(|name| !is_known(name)) {
                broken.push(format!("{}:{number}: {name}", file.path));
            }
        }
    }
    broken
}

#[test]
fn every_metric_named_anywhere_is_in_the_catalog() {
    let mut all = files(&[".md", ".html", ".json", ".yaml", ".yml", ".txt", ".js"]);
    all.extend(files(&[".rs", ".toml"]));
    none(
        "a metric is in the catalog before anything names it",
        &unknown_metrics(&all),
    );
}

#[test]
fn a_made_up_metric_would_be_found() {
    let file = File {
        path: "page.html".to_owned(),
        text: "gpufleet_gpu_power_watts gpufleet_gpu_power_watts_max gpufleet_gpu_made_up_ratio"
            .to_owned(),
    };
    assert_eq!(
        unknown_metrics(&[file]),
        ["page.html:1: gpufleet_gpu_made_up_ratio"]
    );
}

#[test]
fn every_link_between_documents_leads_somewhere() {
    let mut broken = Vec::new();
    for file in files(&[".md"]) {
        let folder = root().join(&file.path);
        let folder = folder.parent().expect("a file lies in a folder");
        for target in links(&file.text) {
            let path = target.split('#').next().unwrap_or_default();
            if !path.is_empty() && !path.contains("://") && !folder.join(path).exists() {
                broken.push(format!("{}: {target}", file.path));
            }
        }
    }
    none("a link leads to a file that is there", &broken);
}

/// The targets of `[text](target)`.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .filter(|target| !target.contains([' ', '\n']))
}

/// Holds a documented default file against the code it is made from.
fn documented_by<C: ProgramConfig + PartialEq + std::fmt::Debug>() {
    let path = root().join(format!("docs/{}.toml", C::PROGRAM));
    if std::env::var_os("GPUFLEET_BLESS").is_some_and(|it| it == "1") {
        std::fs::write(&path, C::default_file()).expect("it can be written");
        return;
    }
    let text = std::fs::read_to_string(&path).expect("the documented file is there");
    assert_eq!(
        text,
        C::default_file(),
        "stale: GPUFLEET_BLESS=1 cargo test -p gpufleet-tests --test house_rules default_file"
    );
    let sources = Sources {
        file: Some(path),
        ..Sources::default()
    };
    let config: C = sources.load().expect("the default file can be used");
    assert_eq!(config, C::default());
}

#[test]
fn every_documented_default_file_is_what_the_code_says() {
    documented_by::<gpufleet_agent::config::Config>();
    documented_by::<gpufleet_server::config::Config>();
}

/// Notes of a page that is kept fresh piece by piece, which stand beside its pieces and are none themselves.
fn notes_that_stay(page: &File) -> Vec<String> {
    let count = |line: &str, word: &str| line.matches(word).count();
    let (mut broken, mut open) = (Vec::new(), 0_usize);
    for (number, line) in page.lines() {
        if open == 0 && line.contains("<p class=\"note") && !line.contains("data-live") {
            broken.push(format!("{}:{number}: {line}", page.path));
        }
        open += count(line, "<section") + count(line, "<article");
        open -= count(line, "</section") + count(line, "</article");
    }
    broken
}

#[test]
fn a_note_beside_the_pieces_of_a_page_comes_and_goes_with_them() {
    let mut pages = files(&[".html"]);
    pages.retain(|it| it.text.contains("data-live"));
    assert!(pages.len() > 10, "pages are kept fresh");
    let broken: Vec<String> = pages.iter().flat_map(notes_that_stay).collect();
    none("what comes and goes on an open page has data-live", &broken);
    let stays = File {
        path: "page.html".to_owned(),
        text: "<section data-live=\"a\">\n<p class=\"note\">in it</p>\n</section>\n<p class=\"note bad\">beside</p>"
            .to_owned(),
    };
    let line = "page.html:4: <p class=\"note bad\">beside</p>";
    assert_eq!(notes_that_stay(&stays), [line]);
}
