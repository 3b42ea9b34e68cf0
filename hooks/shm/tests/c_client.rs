//! The C header and its example: every field lies where Rust has it, and the agent reads the example.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use gpufleet_hooks_shm::layout::{SIZE_BYTES, fields};
use gpufleet_hooks_shm::process::{monotonic_ns, unix_ns};
use gpufleet_hooks_shm::server::{Client, Event, Limits, Listener, cgroup};
use gpufleet_hooks_shm::words::{EndKind, Phase, WriterKind};

/// How long the example may take before it has failed.
const LONGEST_NS: u64 = 60_000_000_000;

/// Runs gcc as strictly as it can be; `None`, and a word about it, where there is none.
fn gcc(arguments: &[&Path]) -> Option<Output> {
    let folder = env!("CARGO_MANIFEST_DIR");
    let output = Command::new("gcc")
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"])
        .args(["-I", &format!("{folder}/include")])
        .args(arguments)
        .output();
    match output {
        Ok(output) => Some(output),
        Err(error) => {
            eprintln!("NOT RUN: the C header is not checked, gcc does not start: {error}");
            None
        }
    }
}

fn built(output: &Output) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

#[test]
fn every_field_of_the_c_header_lies_where_rust_has_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut text = String::from("#define _GNU_SOURCE\n#include \"gpufleet_hooks.h\"\n");
    let fields = fields();
    assert!(fields.len() > 150, "the table of fields is empty");
    for field in &fields {
        let (path, offset, bytes) = (&field.path, field.offset, field.bytes);
        writeln!(
            text,
            "_Static_assert(offsetof(struct gpufleet_region, {path}) == {offset}, \"{path}\");\n\
             _Static_assert(sizeof(((struct gpufleet_region *)0)->{path}) == {bytes}, \"{path}\");"
        )
        .expect("a string takes it");
    }
    let wrong = text.replacen("== 0,", "== 8,", 1);
    let compile = |text: &str| {
        let source = folder.path().join("offsets.c");
        std::fs::write(&source, text).expect("it can be written");
        gcc(&[
            Path::new("-c"),
            &source,
            Path::new("-o"),
            &folder.path().join("offsets.o"),
        ])
    };
    if let Some(output) = compile(&text) {
        built(&output);
        let wrong = compile(&wrong).expect("gcc is there");
        assert!(!wrong.status.success(), "a wrong offset goes unseen");
    }
    let last = fields.last().expect("a field");
    assert_eq!(last.offset + last.bytes, SIZE_BYTES);
}

/// Turns until the client joined and left.
fn watched(listener: &mut Listener) -> Box<Client> {
    let (mut client, end) = (None, monotonic_ns() + LONGEST_NS);
    while monotonic_ns() < end {
        for event in listener.turn(Duration::from_millis(50)).expect("a turn") {
            match event {
                Event::Joined(joined) => client = Some(joined),
                Event::Left { .. } => return client.expect("who leaves has joined"),
                Event::Refused { reason, .. } => panic!("refused: {reason:?}"),
            }
        }
    }
    panic!("the example did not come and go");
}

#[test]
fn the_agent_reads_what_the_example_in_c_writes() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("example");
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("example.c");
    let Some(output) = gcc(&[&source, Path::new("-o"), &program]) else {
        return;
    };
    built(&output);
    let socket = folder.path().join("hooks.sock");
    let mut listener = Listener::bind(&socket, Limits::default(), Box::new(cgroup)).expect("free");
    let mut example = Command::new(&program)
        .arg(&socket)
        .spawn()
        .expect("it starts");
    let mut client = watched(&mut listener);
    assert!(example.wait().expect("it ends").success());

    let snapshot = client.reader.snapshot(unix_ns()).expect("a region");
    assert_eq!(snapshot.refused, Default::default());
    assert_eq!(snapshot.header.writer, Some(WriterKind::C));
    assert_eq!(snapshot.header.pid, u64::from(example.id()));
    assert_eq!(snapshot.header.start_ticks, client.peer.start_ticks);
    let identity = snapshot.identity.expect("an identity");
    assert_eq!(
        (identity.rank, identity.world, identity.local_rank),
        (3, 8, -1)
    );
    assert_eq!(
        (identity.job_name.as_str(), identity.framework.as_str()),
        ("example", "plain C")
    );
    let numbers: Vec<_> = snapshot.steps.iter().map(|it| it.step).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
    assert_eq!(
        (snapshot.steps[0].busy_ns, snapshot.steps[0].data_wait_ns),
        (600, 400)
    );
    assert!(snapshot.totals.is_whole);
    assert_eq!(
        (snapshot.totals.tokens, snapshot.totals.model_flops),
        (5 * 8192, 5e12)
    );
    assert_eq!(
        (snapshot.phases[0].phase, snapshot.phases[0].count),
        (Phase::Forward, 5)
    );
    assert_eq!(snapshot.now.map(|it| it.phase), Some(Phase::CheckpointSave));
    assert_eq!(
        snapshot.end.map(|it| (it.kind, it.step)),
        Some((EndKind::Finished, 5))
    );
}
