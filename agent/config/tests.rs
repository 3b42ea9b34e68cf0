//! What a config may be, who wins, and that the documented default file tells the truth.

use super::*;

fn load(file: &str, environment: &[(&str, &str)], set: &[&str]) -> anyhow::Result<Config> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("agent.toml");
    std::fs::write(&path, file).expect("a file");
    let environment = environment
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    let set = set.iter().map(|it| (*it).to_owned()).collect();
    Sources::new(Some(path), environment, set).load()
}

#[test]
fn a_flag_beats_the_environment_which_beats_the_file() {
    let file = "[node]\ncluster = \"file\"\nname = \"file\"\n[sample]\nperiod_ms = 500\n";
    let environment = [
        ("GPUFLEET_NODE__NAME", "environment"),
        ("GPUFLEET_SAMPLE__PERIOD_MS", "250"),
        ("GPUFLEET_LOG", "debug"),
    ];
    let config = load(file, &environment, &["sample.period_ms=125"]).expect("it can be used");
    assert_eq!(config.node.cluster, "file");
    assert_eq!(config.node.name, "environment");
    assert_eq!(config.sample.period_ms, 125);
}

#[test]
fn a_name_that_looks_like_a_number_is_still_a_name() {
    let config = load("", &[("GPUFLEET_NODE__NAME", "17")], &[]).expect("it can be used");
    assert_eq!(config.node.name, "17");
}

#[test]
fn what_cannot_be_used_is_refused_with_its_name_and_the_way_out() {
    let check = |file: &str, environment: &[(&str, &str)], set: &[&str], words: &[&str]| {
        let error = load(file, environment, set).expect_err("refused");
        let message = format!("{error:#}");
        for word in words {
            assert!(message.contains(word), "`{word}` is not in: {message}");
        }
    };
    check(
        "[sample]\nperiod = 1\n",
        &[],
        &[],
        &["agent.toml", "period"],
    );
    check("[smaple]\n", &[], &[], &["smaple"]);
    check("[node\n", &[], &[], &["agent.toml"]);
    check(
        "",
        &[("GPUFLEET_SHIP__ENDPIONT", "x")],
        &[],
        &["GPUFLEET_SHIP__ENDPIONT", "endpiont"],
    );
    check(
        "",
        &[("GPUFLEET_SAMPLE__PERIOD_MS", "fast")],
        &[],
        &["sample.period_ms", "fast"],
    );
    check("", &[], &["period"], &["--set period", "section.key=value"]);
    check(
        "",
        &[],
        &["sample.period_ms=700"],
        &["sample.period_ms", "divide"],
    );
    check("", &[], &["sample.ship_interval_seconds=61"], &["1 to 60"]);
    check("", &[], &["spool.limit_mib=1"], &["spool.limit_mib", "16"]);
    check(
        "",
        &[],
        &["listen.address=0.0.0.0:9410"],
        &["listen.address", "allow_insecure"],
    );
}

/// Where each section's struct is, to take its documentation from.
const SECTIONS: [(&str, &str, &str); 11] = [
    ("node", "NodeConfig", include_str!("../config.rs")),
    ("sample", "SampleConfig", include_str!("../sample.rs")),
    ("ship", "ShipConfig", include_str!("../ship.rs")),
    ("spool", "SpoolConfig", include_str!("../spool.rs")),
    ("listen", "ListenConfig", include_str!("../admin.rs")),
    (
        "prometheus",
        "PrometheusConfig",
        include_str!("../prometheus.rs"),
    ),
    ("nvml", "NvmlConfig", include_str!("../read/nvml.rs")),
    (
        "exporter",
        "ExporterConfig",
        include_str!("../read/exporter.rs"),
    ),
    ("host", "HostConfig", include_str!("../read/host.rs")),
    (
        "recorded",
        "RecordedConfig",
        include_str!("../read/recorded.rs"),
    ),
    ("trace", "TraceConfig", include_str!("../log.rs")),
];

/// The doc comment that ends right before line `end`.
fn comment(lines: &[&str], end: usize) -> Vec<String> {
    let above = lines[..end].iter().rev().map(|line| line.trim());
    let mut comment: Vec<String> = above
        .skip_while(|line| line.starts_with("#[") || line.ends_with(")]"))
        .map_while(|line| line.strip_prefix("///"))
        .map(|line| format!("#{line}\n"))
        .collect();
    comment.reverse();
    comment
}

fn documented(section: &str, name: &str, source: &str, defaults: &Table) -> String {
    let lines: Vec<&str> = source.lines().collect();
    let start = lines
        .iter()
        .position(|line| *line == format!("pub struct {name} {{"))
        .unwrap_or_else(|| panic!("struct {name} is in the file of its section"));
    let mut text = format!("{}[{section}]\n", comment(&lines, start).concat());
    for (offset, line) in lines[start + 1..].iter().enumerate() {
        if *line == "}" {
            break;
        }
        let Some((field, _)) = line
            .trim()
            .strip_prefix("pub ")
            .and_then(|field| field.split_once(':'))
        else {
            continue;
        };
        let value = &defaults[field];
        let comment = comment(&lines, start + 1 + offset).concat();
        assert!(
            !comment.is_empty(),
            "{section}.{field} has no documentation"
        );
        text.push_str(&format!("\n{comment}{field} = {value}\n"));
    }
    text
}

#[test]
fn the_default_file_is_what_the_structs_say() {
    let defaults = Table::try_from(Config::default()).expect("the defaults are TOML");
    let names: Vec<&str> = SECTIONS.iter().map(|(section, ..)| *section).collect();
    let known: Vec<&str> = defaults.keys().map(String::as_str).collect();
    assert!(
        known.iter().all(|section| names.contains(section)),
        "every section is in SECTIONS: {known:?}"
    );
    let mut text = "# The agent's config: every key with its default. Generated from the code; see\n\
                    # `gpufleet-agent --print-default-config`. A flag (--set section.key=value) beats\n\
                    # the environment (GPUFLEET_<SECTION>__<KEY>), which beats this file.\n"
        .to_owned();
    for (section, name, source) in SECTIONS {
        let keys = defaults[section].as_table().expect("a section is a table");
        text.push('\n');
        text.push_str(&documented(section, name, source, keys));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/agent.toml");
    if std::env::var_os("GPUFLEET_BLESS").is_some() {
        std::fs::write(&path, &text).expect("it can be written");
        return;
    }
    let message =
        "docs/agent.toml is stale: run GPUFLEET_BLESS=1 cargo test -p gpufleet-agent config";
    assert_eq!(DEFAULT_FILE, text, "{message}");
    let config: Config = toml::from_str(DEFAULT_FILE).expect("the default file can be used");
    assert_eq!(config, Config::default());
}
