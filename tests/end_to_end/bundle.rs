//! The bundle for the vendor's repair form, of a node whose agent runs: tar reads it, the cards are in it with
//! their numbers, and no secret of the node.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gpufleet_tests::harness::{World, agent, wait};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);
const TOKEN: &str = "a-token-that-nobody-may-see";

fn read(folder: &Path, name: &str) -> String {
    let text = std::fs::read_to_string(folder.join(name));
    text.unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn a_bundle_has_the_cards_their_readings_and_what_the_running_agent_knows_and_no_secret() {
    let world = World::new();
    let token = world.file("token", TOKEN);
    let place = agent::Place::new(&world, "node-1", "", "[exporter]\nauto = false\n");
    let guarded = format!("token_file = \"{}\"\n[ship]", token.display());
    place.replace_in_config("[ship]", &guarded);
    place.show(&agent::gpus(0, 2));
    let agent = place.start();
    wait::until("the agent answers", LIMIT, || {
        // Its metrics want the token; whether it is well does not.
        agent.get("/healthz").filter(|it| it.status == 200)
    });
    let output = world.path("node.tar.gz");
    let mut command = place.command();
    let ran = command
        .args(["bundle", "--seconds", "3", "--output"])
        .arg(&output)
        .output();
    let ran = ran.expect("the agent was built");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    let error = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success(), "{said}{error}");
    assert!(said.contains("2 GPUs"), "{said}");
    let folder = world.path("unpacked");
    std::fs::create_dir(&folder).expect("the test's own folder");
    let tar = Command::new("tar")
        .args(["--strip-components=1", "-xzf"])
        .arg(&output)
        .arg("-C")
        .arg(&folder)
        .status();
    assert!(tar.expect("tar is there").success());
    let cards: Value = serde_json::from_str(&read(&folder, "gpus.json")).expect("it is JSON");
    let cards = cards.as_array().expect("a list of cards");
    assert_eq!(cards.len(), 2, "{cards:?}");
    for card in cards {
        let told = |name: &str| card[name].as_str().unwrap_or_default().to_owned();
        assert!(told("uuid").starts_with("GPU-"), "{card}");
        for name in ["serial_number", "vbios", "driver", "pci_address", "model"] {
            assert_ne!(told(name), "", "{name} of {card}");
        }
        let ecc = &card["readings"]["gpufleet_gpu_ecc_uncorrected_aggregate_total"];
        assert!(ecc.is_number(), "{card}");
    }
    let agent_told = read(&folder, "agent.json");
    assert!(!agent_told.contains("unknown"), "{agent_told}");
    assert!(read(&folder, "doctor.txt").contains("NVML"));
    let readings = read(&folder, "readings.jsonl");
    assert!(
        readings.starts_with("{\"gpufleet_recording\":1"),
        "{readings:.80}"
    );
    for name in [
        "README.txt",
        "gpus.json",
        "readings.jsonl",
        "xids.txt",
        "agent.json",
        "doctor.txt",
    ] {
        assert!(
            !read(&folder, name).contains(TOKEN),
            "the token is in {name}"
        );
    }
    agent.stop();
}
