//! The five-minute tour of README.md: its commands are typed, and each line that it shows of what they print is held
//! against what they do print.
//!
//! A line of [`TOUR`] is what has to be there word for word, with what differs from run to run by its name in braces
//! ([`is`]). README.md has to fit it as well as the program, so that neither changes without the other. How wide
//! columns are is left out.

use std::process::Command;
use std::time::Duration;

use gpufleet_analysis::ledger::{Reason, State};
use gpufleet_tests::harness::client::typed;
use gpufleet_tests::harness::simulator::{Simulator, steady_seed};
use gpufleet_tests::harness::{World, built, repository, server, wait};
use gpufleet_tests::people::server::Running;
use gpufleet_tests::people::{Service, slack};

/// Two hours of history are accounted, a GPU and the run on it break, and people are told.
const LIMIT: Duration = Duration::from_secs(240);

/// How the tour calls the programs.
const CLIENT: &str = "target/fast/gpufleet ";
const SERVER: &str = "target/fast/gpufleet-server ";

/// The commands that print something, each with the lines that are shown of it.
const TOUR: [(&str, &[&str]); 4] = [
    (
        "make demo-fault",
        &["GPU 3 of demo-node-2 (GPU-{uuid}) fell off the bus: XID 79, no readings"],
    ),
    (
        "target/fast/gpufleet today",
        &[
            "{more}",
            "{number} of 64 GPUs at work, {states}; {money} a day of {money} goes to waste; {number} incident{s} open on {number} node{s}",
            "A DAY KIND WHERE OWNER STATUS WHAT TO DO",
            "{money} free cluster demo platform no incident 40 GPUs on 6 nodes that nobody {more} Give them to who waits for GPUs, {more}",
            "{money} broken GPU 3 of demo-node-2 foundation-models open, in nobody's hands XID 79, the GPU fell off the bus Drain the node and reboot it.",
            "{money} failed run llama-70b-pretrain foundation-models over {number} attempt{s} broke off in the last {more} Drain the failed GPU, so that the {more}",
        ],
    ),
    (
        "target/fast/gpufleet-server --config slack.toml notify test chat",
        &["chat: it has the test"],
    ),
    (
        "target/fast/gpufleet report chargeback --by team,job --cluster demo",
        &[
            "team,job,state,reason,gpu_seconds,gpu_hours,cost,list_cost,{more}",
            "foundation-models,llama-70b-pretrain,{state},{reason},{number},{number},{number},{number},{more}",
            "foundation-models,llama-70b-pretrain,{state},{reason},{number},{number},{number},{number},{more}",
            "{more}",
        ],
    ),
];

/// The commands that print nothing which is shown.
const SILENT: [&str; 1] = ["GPUFLEET_CONFIG=$PWD/slack.toml make up"];

/// The file of the tour, and how it is shown.
const FILE: &str = "cat slack.toml";

/// The job on the GPU that breaks.
const JOB: &str = "llama-70b-pretrain";

/// What the tour says that Slack is told.
const SLACK: &str =
    "🔴 ERROR: XID 79, the GPU fell off the bus: GPU 3 of demo-node-2 (demo) costs {money}/h";

/// A text with one space wherever it has several.
fn narrow(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether a text is what the name in braces stands for.
fn is(name: &str, text: &str) -> bool {
    let is_number = |text: &str| {
        let mut parts = text.split('.');
        let is_digits = |it: &str| !it.is_empty() && it.bytes().all(|it| it.is_ascii_digit());
        parts.clone().count() <= 2 && parts.all(is_digits)
    };
    let is_state = |text: &str| State::ALL.iter().any(|it| it.name() == text);
    match name {
        // Thousands stand apart.
        "money" => text
            .strip_prefix('$')
            .is_some_and(|it| is_number(&it.replace(' ', ""))),
        "number" => is_number(text),
        "state" => is_state(text),
        "reason" => Reason::ALL.iter().any(|it| it.name() == text),
        "states" => text.split(", ").all(|it| {
            let (count, does) = it.split_once(' ').unwrap_or_default();
            is_number(count) && DOES.contains(&does)
        }),
        "uuid" => uuid::Uuid::parse_str(text).is_ok(),
        "s" => matches!(text, "" | "s"),
        "more" => !text.is_empty(),
        other => panic!("nobody knows what {{{other}}} is"),
    }
}

/// What GPUs may do that are not at work.
const DOES: [&str; 7] = [
    "idle",
    "stalled",
    "lost or unhealthy",
    "starting",
    "draining",
    "not measured",
    "holder unknown",
];

/// Whether a line is what the tour has there.
fn fits(line: &str, text: &str) -> bool {
    let Some((before, rest)) = line.split_once('{') else {
        return line == text;
    };
    let (name, after) = rest.split_once('}').expect("a name ends");
    let Some(text) = text.strip_prefix(before) else {
        return false;
    };
    let mut ends = text.char_indices().map(|it| it.0).chain([text.len()]);
    ends.any(|end| is(name, &text[..end]) && fits(after, &text[end..]))
}

/// The commands of the tour in the order in which README.md has them, each with the lines that follow it there.
fn shown() -> Vec<(String, Vec<String>)> {
    let readme = std::fs::read_to_string(repository().join("README.md")).expect("it is there");
    let (_, tour) = readme
        .split_once("\n## Five minutes\n")
        .expect("it has a tour");
    let (tour, _) = tour.split_once("\n## ").expect("more follows it");
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    let mut is_inside = false;
    for line in tour.lines() {
        let bare = line.trim();
        match bare.strip_prefix("$ ") {
            _ if bare.starts_with("```") => is_inside = bare == "```console",
            _ if !is_inside => {}
            Some(command) => found.push((command.to_owned(), Vec::new())),
            None => {
                let (_, lines) = found
                    .last_mut()
                    .expect("a command is before what it prints");
                lines.push(bare.to_owned());
            }
        }
    }
    found
}

/// The commands whose lines are held, and the file.
fn held() -> (Vec<(String, Vec<String>)>, String) {
    let mut all = shown();
    let file = all.iter().position(|it| it.0 == FILE);
    let (_, file) = all.remove(file.expect("the tour shows the file"));
    all.retain(|(command, lines)| {
        let is_silent = SILENT.contains(&command.as_str());
        assert!(!is_silent || lines.is_empty(), "{command}: {lines:?}");
        !is_silent
    });
    (all, file.join("\n"))
}

/// The first line that is not among what was printed, each a line of its own; what stands before what may change.
fn missing<'a>(lines: &[&'a str], printed: &str) -> Option<&'a str> {
    let mut printed: Vec<String> = printed.lines().map(narrow).collect();
    let mut is_missing = |line: &&&str| match printed.iter().position(|it| fits(line, it)) {
        Some(place) => {
            printed.remove(place);
            false
        }
        None => true,
    };
    lines.iter().find(|it| is_missing(it)).copied()
}

#[test]
fn readme_shows_of_each_command_what_the_tour_is_held_to() {
    let (shown, _) = held();
    let commands: Vec<&str> = shown.iter().map(|it| it.0.as_str()).collect();
    assert_eq!(commands, TOUR.map(|it| it.0));
    for ((command, shown), (_, lines)) in shown.iter().zip(TOUR) {
        assert_eq!(shown.len(), lines.len(), "{command}: {shown:?}");
        for (shown, line) in shown.iter().zip(lines) {
            assert!(
                fits(line, &narrow(shown)),
                "{command}: “{shown}” is not “{line}”"
            );
        }
    }
    let readme = std::fs::read_to_string(repository().join("README.md")).expect("it is there");
    let readme = narrow(&readme);
    let mut quotes = readme
        .split('“')
        .skip(1)
        .filter_map(|it| it.split_once('”'));
    assert!(quotes.any(|(quote, _)| fits(SLACK, quote)), "{SLACK}");
}

#[test]
fn the_tour_prints_what_readme_shows() {
    let world = World::new();
    let chat = Running::start(Service::Slack(slack::Slack::default()));
    let address = format!("http://{}/services/T00/B00/s3cr3tp4th", chat.address);
    let address = world.file("slack-url", &address).display().to_string();
    let (_, file) = held();
    let keys = world.file("slack.toml", &file);
    let folder = keys.parent().expect("it lies in the world's folder");
    // What is in the file is what the server runs with, but where the address lies.
    let keys: toml::Table = file.parse().expect("it is TOML");
    let mut place = server::Place::new(&world).with("fleet.commit_interval_s=2");
    for (key, value) in keys["notify"].as_table().expect("it has a section") {
        let value = value.to_string().replace("slack-url", &address);
        place = place.with(&format!("notify.{key}={value}"));
    }
    let server = place.start();
    let endpoint = format!("http://{}", server.place.grpc);
    let more = ["--history-hours", "2", "--seed", &steady_seed()];
    let simulator = Simulator::start(&world, &endpoint, &more);
    // What is lost with a run is known of one whose steps are.
    wait::until("the job's steps are known", LIMIT, || {
        let same = ["compare", JOB, JOB, "--fail-if-slower", "0"];
        (typed(&server.place.web, same).code == Some(0)).then_some(())
    });
    let broken = simulator.fault("xid79");
    let printed = |command: &str| -> Result<String, String> {
        if let Some(typed_in) = command.strip_prefix(CLIENT) {
            return typed(&server.place.web, typed_in.split(' ')).well();
        }
        let Some(typed_in) = command.strip_prefix(SERVER) else {
            return Ok(broken.clone());
        };
        let output = Command::new(built("gpufleet-server"))
            .current_dir(folder)
            .args(typed_in.split(' '))
            .output()
            .expect("the server's command can be started");
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    };
    wait::until("each command prints what is shown of it", LIMIT, || {
        let mut is_all = true;
        for (command, lines) in TOUR {
            let said = printed(command).unwrap_or_else(|why| why);
            if let Some(line) = missing(lines, &said) {
                is_all = false;
                eprintln!("{command} does not print “{line}”: {said}");
            }
        }
        is_all.then_some(())
    });
    wait::until("Slack is told of it", LIMIT, || {
        let Service::Slack(told) = chat.service() else {
            panic!("no Slack: {:?}", chat.service())
        };
        let mut lines = told.texts.iter().flat_map(|it| it.lines()).map(narrow);
        lines.any(|it| fits(SLACK, &it)).then_some(())
    });
    simulator.stop();
    server.stop();
}
