//! `make up`, `make demo-fault` and `make down` as they are typed: this machine live, a capture and the
//! demo fleet side by side, each marked as what it is; and nothing left behind.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use gpufleet_tests::harness::http::{self, Answer};
use gpufleet_tests::harness::{World, built, free_port, repository, wait};

/// The simulator makes its history first, and a tick passes.
const SHOWN: Duration = Duration::from_secs(120);

/// As a real card is captured: one sample of one GPU.
const CAPTURE: &str = "# TYPE DCGM_FI_DEV_POWER_USAGE gauge\n\
    DCGM_FI_DEV_POWER_USAGE{gpu=\"0\",UUID=\"GPU-captured\",device=\"nvidia0\",\
    modelName=\"NVIDIA H200\",Hostname=\"h\"} 300\n";

/// Where one `make up` keeps what it makes; taken down with this value, whatever the test came to.
struct Up {
    world: World,
    capture: String,
}

impl Up {
    fn new(capture: impl Fn(&World) -> String) -> Self {
        let world = World::new();
        let capture = capture(&world);
        Self { world, capture }
    }

    fn run(&self, script: &str, arguments: &[&str]) -> Output {
        let programs = built("gpufleet-server");
        let programs = programs.parent().expect("it lies in a folder");
        let mut command = Command::new(repository().join("scripts").join(script));
        for name in ["WEB", "GRPC", "HTTP", "AGENT", "CONTROL"] {
            command.env(format!("GPUFLEET_{name}_PORT"), free_port().to_string());
        }
        command
            .args(arguments)
            .env("GPUFLEET_HOME", self.world.path("home"))
            .env("GPUFLEET_PROGRAMS", programs)
            .env("GPUFLEET_CAPTURE", &self.capture)
            .env("GPUFLEET_HISTORY_HOURS", "1")
            .output()
            .expect("the script is there")
    }

    /// What a script says when all is well.
    fn says(&self, script: &str, arguments: &[&str]) -> String {
        let output = self.run(script, arguments);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success(), "{script}: {said}");
        said
    }

    /// The programs that run, each with its process id.
    fn started(&self) -> Vec<(&'static str, String)> {
        let of = |name: &'static str| {
            let file = self.world.path(&format!("home/run/{name}.pid"));
            let pid = std::fs::read_to_string(file).ok()?;
            Some((name, pid.trim().to_owned()))
        };
        ["server", "agent", "simulator"]
            .into_iter()
            .filter_map(of)
            .collect()
    }

    fn address(&self) -> String {
        let file = self.world.path("home/run/address");
        let text = std::fs::read_to_string(file).expect("make up writes it");
        let text = text.trim().trim_start_matches("http://");
        text.trim_end_matches('/').to_owned()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        self.run("down.sh", &[]);
    }
}

fn has_gpu() -> bool {
    ["/dev/nvidia0", "/dev/nvidiactl"]
        .map(Path::new)
        .iter()
        .any(|it| it.exists())
}

#[test]
fn this_machine_a_capture_and_the_demo_are_shown_each_as_what_it_is_and_nothing_is_left_behind() {
    let up = Up::new(|world| world.file("capture.metrics", CAPTURE).display().to_string());
    let said = up.says("up.sh", &[]);
    assert!(said.contains("this machine, live"), "{said}");
    assert!(said.contains("(RECORDED)"), "{said}");
    assert_eq!(said.contains("(SIMULATED)"), !has_gpu(), "{said}");
    let address = up.address();
    let get = |path: &str| -> Answer { http::get(&address, path).expect("the server answers") };
    let mut wanted = vec![("local", "live"), ("recorded", "recorded")];
    if !has_gpu() {
        wanted.push(("demo", "simulated"));
    }
    wait::until("each cluster is there with its origin", SHOWN, || {
        let clusters = get("/api/v1/clusters").json();
        let clusters = clusters["items"].as_array()?.clone();
        let is_there = |(name, origin): &(&str, &str)| {
            clusters
                .iter()
                .any(|it| it["name"] == *name && it["origin"] == *origin)
        };
        wanted.iter().all(is_there).then_some(())
    });
    let demo = if has_gpu() { 0 } else { 64 };
    wait::until("each GPU is there", SHOWN, || {
        let fleet = get("/api/v1/fleet").json();
        eprintln!("{fleet}");
        (fleet["recorded"]["gpus"] == 1 && fleet["simulated"]["gpus"] == demo).then_some(())
    });
    let page = get("/clusters/recorded").text();
    assert!(page.to_lowercase().contains("recorded"), "{page}");
    if !has_gpu() {
        let page = get("/clusters/demo").text();
        assert!(page.contains("SIMULATED"), "{page}");
        let said = up.says("demo_fault.sh", &["xid79"]);
        assert!(said.contains("XID 79"), "{said}");
    }
    let started = up.started();
    assert!(started.len() >= 2, "{started:?}");
    let said = up.says("down.sh", &[]);
    assert!(said.contains("is removed"), "{said}");
    assert!(
        http::get(&address, "/healthz").is_err(),
        "nobody answers any more"
    );
    for (name, pid) in started {
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let runs = program.to_string_lossy().contains("/gpufleet-");
        assert!(!runs, "{name} still runs as {pid}");
    }
    assert!(!up.world.path("home").exists());
    let said = up.says("down.sh", &[]);
    assert!(said.contains("nothing to stop"), "{said}");
}

#[test]
fn without_a_capture_it_says_that_none_is_shown() {
    let up = Up::new(|world| world.path("no-capture.metrics.gz").display().to_string());
    let said = up.says("up.sh", &[]);
    assert!(said.contains("no capture of a real H200 is here"), "{said}");
    assert!(
        said.contains("no-capture.metrics.gz") && !said.contains("RECORDED"),
        "{said}"
    );
    up.says("down.sh", &[]);
}

#[test]
fn a_folder_with_other_things_in_it_is_neither_used_nor_removed() {
    let up = Up::new(|_| String::new());
    let precious = up.world.path("home/precious");
    std::fs::create_dir(up.world.path("home")).expect("the test's own folder");
    std::fs::write(&precious, "years of work").expect("the test's own file");
    for (script, expected) in [
        ("up.sh", "choose an empty folder"),
        ("down.sh", "is not what make up made"),
    ] {
        let output = up.run(script, &[]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && said.contains(expected),
            "{said}"
        );
        assert!(precious.exists(), "{script}");
    }
}
