//! Tables of prices and owners, kept and removed at the prompt, and who did so.

use std::process::Output;

use gpufleet_tests::harness::{World, server};
use gpufleet_tests::on_both_databases;

const RULES: &str = "from,until,kind,key,value,team\n2026-01-01,,namespace,,research,science\n";

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{said}");
    said
}

on_both_databases!(who_changes_a_table_is_written_down_and_told);

fn who_changes_a_table_is_written_down_and_told(world: World) {
    let place = server::Place::new(&world);
    // A database that no server has used is refused.
    place.start().stop();
    let file = world.file("owners.csv", RULES).display().to_string();
    let prices = |who: &str, arguments: &[&str]| {
        let mut command = place.command();
        command.env_remove("SUDO_USER").env("USER", who);
        command.arg("prices").args(arguments);
        command.output().expect("it can be started")
    };
    let kept = said(&prices("ada", &["import", &file]));
    assert!(kept.contains("kept owners.csv"), "{kept}");
    let list = said(&prices("ada", &["list"]));
    assert!(
        list.contains("owners.csv") && list.contains("1 rows"),
        "{list}"
    );
    let removed = said(&prices("mira", &["remove", "owners.csv"]));
    assert!(removed.contains("removed owners.csv"), "{removed}");
    let none = prices("eve", &["remove", "no-such.csv"]);
    assert!(!none.status.success());
    let log = said(&prices("ada", &["log"]));
    let lines: Vec<&str> = log.lines().filter(|it| it.contains("  prices ")).collect();
    // What changed nothing is no change.
    let [removed, kept] = lines.as_slice() else {
        panic!("{log}");
    };
    assert!(removed.contains("mira  prices remove owners.csv"), "{log}");
    assert!(
        kept.contains("ada  prices import owners.csv (") && kept.ends_with("1 rows)"),
        "{log}"
    );
}
