//! Rules of every Rust file.

use super::tree::{File, files, none, rust};

/// Lines a file may have without saying why it has more.
const MAX_LINES: usize = 500;

fn header(file: &File) -> String {
    file.text
        .lines()
        .take_while(|line| line.starts_with("//!"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Places in Rust files where `is_broken` says so of a line outside comments.
fn broken_lines(is_broken: impl Fn(&str) -> bool) -> Vec<String> {
    let mut broken = Vec::new();
    for file in rust()
        .iter()
        .filter(|it| !it.path.starts_with("tests/house_rules"))
    {
        for (number, line) in file.lines() {
            if !line.trim_start().starts_with("//") && is_broken(line) {
                broken.push(format!("{}:{number}: {}", file.path, line.trim()));
            }
        }
    }
    broken
}

#[test]
fn every_file_begins_with_what_it_is_for() {
    let broken: Vec<_> = rust()
        .into_iter()
        .filter(|file| header(file).len() < "//! What.".len())
        .map(|file| file.path)
        .collect();
    none(
        "the first line is `//!` and says what the module is for",
        &broken,
    );
}

#[test]
fn a_long_file_says_why_it_is_long() {
    let broken: Vec<_> = rust()
        .into_iter()
        .filter(|file| file.text.lines().count() > MAX_LINES)
        .filter(|file| !header(file).contains("Longer than 500 lines because"))
        .map(|file| format!("{} ({} lines)", file.path, file.text.lines().count()))
        .collect();
    none(
        "over 500 lines the header says `Longer than 500 lines because …`",
        &broken,
    );
}

#[test]
fn modules_have_names_and_not_mod_rs() {
    let broken: Vec<_> = rust()
        .into_iter()
        .map(|file| file.path)
        .filter(|path| path.ends_with("/mod.rs"))
        .collect();
    none("name.rs beside name/, no mod.rs", &broken);
}

#[test]
fn errors_are_called_error() {
    let broken = broken_lines(|line| {
        ["Err(e)", "|e|", "Err(err)", "|err|", "Err(e) ="]
            .iter()
            .any(|word| line.contains(word))
    });
    none("an error is called `error`", &broken);
}

#[test]
fn no_test_is_ignored() {
    let broken = broken_lines(|line| line.trim_start().starts_with("#[ignore"));
    none("no ignored tests: mend it or remove it", &broken);
}

#[test]
fn every_unsafe_says_why_it_is_sound() {
    let mut broken = Vec::new();
    for file in rust()
        .iter()
        .filter(|it| !it.path.starts_with("tests/house_rules"))
    {
        let lines: Vec<&str> = file.text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let begins = code.contains("unsafe {") || code.contains("unsafe impl");
            let above = &lines[index.saturating_sub(6)..=index];
            if begins && !above.iter().any(|it| it.contains("SAFETY")) {
                broken.push(format!("{}:{}", file.path, index + 1));
            }
        }
    }
    none("an unsafe block has a SAFETY line right above it", &broken);
}

#[test]
fn every_crate_takes_part_in_the_lints() {
    let broken: Vec<_> = files(&["Cargo.toml"])
        .into_iter()
        .filter(|file| file.path != "Cargo.toml" && !file.text.contains("[lints"))
        .map(|file| file.path)
        .collect();
    none(
        "a crate has `[lints] workspace = true`, or lints of its own",
        &broken,
    );
}

#[test]
fn nothing_of_one_machine_is_in_the_tree() {
    let endings = [
        ".rs", ".md", ".sh", ".toml", ".yaml", ".yml", ".html", ".sql", ".js", ".css",
    ];
    // Put together here, so that this file does not break its own rule.
    let words = [["/wo", "rk/"], ["/ro", "ot/"], ["/home/", "user"]].map(|it| it.concat());
    let mut broken = Vec::new();
    for file in files(&endings).iter().chain(&files(&["Makefile", "run"])) {
        for (number, line) in file.lines() {
            if words.iter().any(|word| line.contains(word)) {
                broken.push(format!("{}:{number}: {}", file.path, line.trim()));
            }
        }
    }
    none("no path of one machine", &broken);
}
