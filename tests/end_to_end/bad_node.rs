//! Nodes as they are found in the wild: cloned disks, clocks hours off, no driver, no right to it,
//! recordings that were cut. Each is told in words, and the rest of the node goes on.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gpufleet_standin_nvml::Scenario;
use gpufleet_telemetry::identity::ResourceKind;
use gpufleet_telemetry::time::Timestamp;
use gpufleet_tests::harness::relay::Relay;
use gpufleet_tests::harness::{World, agent, checker, faketime, server, wait};

const EACH_SECOND: &str = "[sample]\nship_interval_seconds = 1\n[exporter]\nauto = false\n";
const LIMIT: Duration = Duration::from_secs(120);
const GPUS: u8 = 2;
/// What the driver answers when its devices are not for this user (NVML_ERROR_NO_PERMISSION).
const NO_PERMISSION: u32 = 4;

/// Waits until a page has these words.
fn page_says(server: &server::Server, path: &str, words: &[&str]) {
    wait::until(&format!("{path} says {words:?}"), LIMIT, || {
        let text = server.get(path).text();
        words.iter().all(|it| text.contains(it)).then_some(())
    });
}

/// What the clock of an agent is off by from now on; never half of it.
fn set_clock(world: &World, off: &str) -> PathBuf {
    let (file, next) = (world.path("clock"), world.file("clock.next", off));
    std::fs::rename(next, &file).expect("the test's own folder");
    file
}

/// Starts an agent whose clock is off by what this file says.
fn start_under(place: &agent::Place, clock: &Path) -> agent::Agent {
    let clock = clock.display().to_string();
    place.start_with(&faketime::running("FAKETIME_TIMESTAMP_FILE", &clock))
}

#[test]
fn a_cloned_state_folder_is_told_the_second_takes_a_new_id_and_nothing_is_doubled() {
    let world = World::new();
    let place = server::Place::new(&world).with("fleet.commit_interval_s=1");
    let server = place.start();
    let endpoint = format!("http://{}", server.place.grpc);
    let places: Vec<_> = (0..2)
        .map(|number| {
            let name = format!("node-{number}");
            let place = agent::Place::new(&world, &name, &endpoint, EACH_SECOND);
            place.show(&agent::gpus(number, GPUS));
            place
        })
        .collect();
    let began = Timestamp::from_seconds(wait::unix_seconds());
    let original = places[0].start();
    page_says(&server, "/api/v1/gpus?cluster=test", &["GPU-5eed0001"]);
    // A file that the agent is through with may go while it is copied.
    wait::until("the state folder is copied", LIMIT, || {
        let _ = std::fs::remove_dir_all(&places[1].state);
        let mut copy = Command::new("cp");
        copy.arg("-r").args([&places[0].state, &places[1].state]);
        let copied = copy.status().expect("cp is there");
        copied.success().then_some(())
    });
    let clone = places[1].start();
    page_says(
        &server,
        "/api/v1/events?cluster=test",
        &["agent_id_conflict", "a cloned disk"],
    );
    // Both are on the page, live, with ids of their own.
    let all = [
        "GPU-5eed0000",
        "GPU-5eed0001",
        "GPU-5eed0002",
        "GPU-5eed0003",
    ];
    page_says(&server, "/api/v1/gpus?cluster=test", &all);
    let id = |place: &agent::Place| {
        std::fs::read_to_string(place.state.join("identity.json"))
            .ok()
            .and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok())
            .and_then(|identity| Some(identity["agent_id"].as_str()?.to_owned()))
    };
    wait::until("the ids differ", LIMIT, || {
        (id(&places[0]) != id(&places[1])).then_some(())
    });
    for node in ["node-0", "node-1"] {
        wait::until(
            &format!("{node} is heard after the conflict"),
            LIMIT,
            || {
                let agents = server.get("/api/v1/agents").json();
                let heard = agents["items"]
                    .as_array()?
                    .iter()
                    .any(|it| it["node"] == node);
                heard.then_some(())
            },
        );
    }
    clone.stop();
    original.stop();
    server.stop();
    let ended = Timestamp::from_seconds(wait::unix_seconds() + 60);
    for uuid in (0..4).map(|slot| format!("GPU-5eed{slot:04x}-0000-4000-8000-{slot:012x}")) {
        let minutes = began.minute()..ended.minute();
        let rows = checker::rows(&place.database, "test", ResourceKind::Gpu, &uuid, minutes);
        assert!(!rows.is_empty(), "{uuid} has come");
        for (minute, row) in rows {
            // A request a second: more than 60 in a minute came twice.
            let most = row.metrics.values().map(|it| it.count).max().unwrap_or(0);
            assert!(most <= 60, "{uuid} minute {}: {most} requests", minute.0);
        }
    }
}

#[test]
fn a_clock_three_hours_off_is_told_on_the_nodes_page_and_its_data_wait_until_it_is_right() {
    let world = World::new();
    let place = server::Place::new(&world).with("fleet.commit_interval_s=1");
    let relay = Relay::start(&format!("http://{}", place.grpc));
    let server = place.start();
    let agent_place = agent::Place::new(&world, "node-1", &relay.endpoint(), EACH_SECOND);
    agent_place.show(&agent::gpus(0, GPUS));
    let clock = set_clock(&world, "+0");
    let wrong = start_under(&agent_place, &clock);
    page_says(&server, "/api/v1/gpus?cluster=test", &["GPU-5eed0001"]);
    set_clock(&world, "-3h");
    page_says(
        &server,
        "/clusters/test/nodes/node-1",
        &["The clock of node-1 is 1080", "NTP"],
    );
    wait::until("the agent says what the server said", LIMIT, || {
        wrong.output().contains("fix the clock (NTP)").then_some(())
    });
    wait::until("it reads on under the clock that is wrong", LIMIT, || {
        let spooled = wrong.values("gpufleet_agent_spool_bytes");
        (!spooled.is_empty()).then_some(())
    });
    let agent = wrong.stop().start();
    agent.catches_up();
    agent.stop();
    server.stop();
    assert_eq!(relay.wrong(), Vec::<String>::new());
    let (expected, _) = relay.expected();
    let span = expected.span(0);
    assert!(
        span.end.0 - span.start.0 > 170,
        "the data of the wrong clock are there: {span:?}"
    );
    let differ = checker::differences(&place.database, "test", &expected);
    assert_eq!(differ, Vec::<String>::new());
}

#[test]
fn a_clock_three_hours_ahead_is_told_and_nothing_of_it_stands_in_the_future() {
    let world = World::new();
    let place = server::Place::new(&world).with("fleet.commit_interval_s=1");
    let relay = Relay::start(&format!("http://{}", place.grpc));
    let server = place.start();
    let agent_place = agent::Place::new(&world, "node-1", &relay.endpoint(), EACH_SECOND);
    agent_place.show(&agent::gpus(0, GPUS));
    let began = Timestamp::from_seconds(wait::unix_seconds());
    let clock = set_clock(&world, "+0");
    let wrong = start_under(&agent_place, &clock);
    page_says(&server, "/api/v1/gpus?cluster=test", &["GPU-5eed0001"]);
    set_clock(&world, "+3h");
    page_says(
        &server,
        "/clusters/test/nodes/node-1",
        &["The clock of node-1 is ", "NTP"],
    );
    wait::until("the agent says what the server said", LIMIT, || {
        wrong.output().contains("fix the clock (NTP)").then_some(())
    });
    set_clock(&world, "+0");
    let agent = wrong.stop().start();
    agent.catches_up();
    agent.stop();
    server.stop();
    assert_eq!(relay.wrong(), Vec::<String>::new());
    let ended = Timestamp::from_seconds(wait::unix_seconds() + 60);
    let gpu = "GPU-5eed0001-0000-4000-8000-000000000001";
    let rows = |from: Timestamp, to: Timestamp| {
        let minutes = from.minute()..to.minute();
        checker::rows(&place.database, "test", ResourceKind::Gpu, gpu, minutes)
    };
    assert!(!rows(began, ended).is_empty(), "what was sampled has come");
    let four_hours_on = ended.shifted(4 * 3_600 * 1_000_000_000);
    let future = rows(ended.shifted(60_000_000_000), four_hours_on);
    assert!(future.is_empty(), "{future:?}");
}

#[test]
fn a_recording_cut_or_whole_reaches_the_server_and_is_marked_recorded_everywhere() {
    let world = World::new();
    let server = server::Place::new(&world).start();
    let endpoint = format!("http://{}", server.place.grpc);
    let cut = cut_recording(&world);
    for (name, file) in [("whole", world.path("whole.jsonl")), ("cut", cut)] {
        let more = format!(
            "{EACH_SECOND}[recorded]\ncluster = \"{name}-recorded\"\nfiles = [\"{}\"]\n",
            file.display()
        );
        let place = agent::Place::new(&world, name, &endpoint, &more);
        place.replace_in_config("[nvml]\n", "[nvml]\nenabled = false\n");
        place.replace_in_config("cluster = \"test\"", &format!("cluster = \"{name}\""));
        place.show(&agent::gpus(0, GPUS));
        let agent = place.start();
        let cluster = format!("{name}-recorded");
        let found = wait::until(&format!("{name}: its GPU is there"), LIMIT, || {
            let gpus = server
                .get(&format!("/api/v1/gpus?cluster={cluster}"))
                .json();
            gpus["items"].as_array()?.first().cloned()
        });
        assert_eq!(found["origin"], "recorded", "{name}: {found}");
        let id = found["id"].as_str().expect("an id");
        let gpu = server.get(&format!("/api/v1/gpus/{cluster}/{id}")).json();
        let power = gpu["all_readings"].as_array().and_then(|all| {
            let of = |it: &&serde_json::Value| it["metric"] == "gpufleet_gpu_power_watts";
            all.iter().find(of).cloned()
        });
        let watts = power.as_ref().and_then(|it| it["value"].as_f64());
        assert_eq!(watts, Some(300.0), "{name}: {gpu}");
        let page = server.get(&format!("/clusters/{cluster}/gpus/{id}")).text();
        assert!(page.to_lowercase().contains("recorded"), "{name}: {page}");
        let live = server.get(&format!("/api/v1/gpus?cluster={name}")).text();
        assert!(
            !live.contains(id),
            "{name}: it joins no live cluster: {live}"
        );
        agent.stop();
    }
    server.stop();
}

#[test]
fn what_an_agent_cannot_read_is_named_with_the_way_out_and_the_rest_is_read() {
    let world = World::new();
    let cut = cut_recording(&world);
    let recorded = format!("[recorded]\nfiles = [\"{}\"]\n", cut.display());
    let denied = Scenario {
        init: NO_PERMISSION,
        ..agent::gpus(0, GPUS)
    };
    let fine = agent::gpus(0, GPUS);
    for (name, more, scenario, library, words) in [
        (
            "no-library",
            "",
            &fine,
            Some("/nowhere/libnvidia-ml.so.1"),
            ["/nowhere/libnvidia-ml.so.1", "nvml.library_path"],
        ),
        (
            "no-right",
            "",
            &denied,
            None,
            ["may not talk to the NVIDIA driver", "/dev/nvidiactl"],
        ),
        (
            "cut",
            recorded.as_str(),
            &fine,
            None,
            ["cut.jsonl", "line "],
        ),
    ] {
        let place = agent::Place::new(&world, name, "", &format!("{EACH_SECOND}{more}"));
        if let Some(library) = library {
            place.replace_in_config(&agent::library(), library);
        }
        place.show(scenario);
        let agent = place.start();
        let said = wait::until(&format!("{name}: it says {words:?}"), LIMIT, || {
            let health = agent
                .get("/healthz")
                .map(|it| it.text())
                .unwrap_or_default();
            let said = format!("{health}\n{}", agent.output());
            words.iter().all(|it| said.contains(it)).then_some(said)
        });
        wait::until(
            &format!("{name}: the machine is read all the same; {said}"),
            LIMIT,
            || (!agent.values("gpufleet_node_cpu_busy_ratio").is_empty()).then_some(()),
        );
        let gpus = agent.values("gpufleet_gpu_power_watts").len();
        assert!(gpus == 0 || name == "cut", "{name} has no GPU to read");
        agent.stop();
    }
}

/// A recording whose last line was cut.
fn cut_recording(world: &World) -> PathBuf {
    let capture = world.file(
        "capture.metrics",
        "# TYPE DCGM_FI_DEV_POWER_USAGE gauge\n\
         DCGM_FI_DEV_POWER_USAGE{gpu=\"0\",UUID=\"GPU-recorded\",device=\"nvidia0\",\
         modelName=\"NVIDIA H200\",Hostname=\"h\"} 300\n",
    );
    let whole = world.path("whole.jsonl");
    let made = Command::new(gpufleet_tests::harness::built("gpufleet-agent"))
        .arg("record")
        .arg("--from")
        .arg(&capture)
        .arg("--output")
        .arg(&whole)
        .output()
        .expect("the agent was built");
    let said = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(made.status.success(), "{said}");
    let text = std::fs::read_to_string(&whole).expect("it was recorded");
    let last = text.lines().last().expect("a header and a round");
    world.file("cut.jsonl", &format!("{text}{}", &last[..last.len() / 2]))
}

#[test]
fn a_state_folder_that_cannot_be_written_ends_the_start_with_the_way_out() {
    let world = World::new();
    let mut place = agent::Place::new(&world, "node-1", "http://127.0.0.1:9", "");
    place.keep_state_in(Path::new("/proc/gpufleet"));
    place.show(&agent::gpus(0, GPUS));
    let output = place.command().output().expect("the agent was built");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    assert!(
        said.contains("/proc/gpufleet") && said.contains("node.state_folder"),
        "{said}"
    );
}
