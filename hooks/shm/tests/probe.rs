//! What a probe inside the process found: written, read whole, and refused where it cannot be.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use gpufleet_hooks_shm::layout::fields;
use gpufleet_hooks_shm::process::unix_ns;
use gpufleet_hooks_shm::reader::{Reader, Reason};
use gpufleet_hooks_shm::records::Probe;
use gpufleet_hooks_shm::words::{ProbeVerdict, WriterKind};
use gpufleet_hooks_shm::writer::Writer;

fn region() -> (Writer, Reader, File) {
    let writer = Writer::create(WriterKind::Rust).expect("a region");
    let file = File::from(writer.file().expect("its file"));
    let reader = Reader::new(&file).expect("a region");
    (writer, reader, file)
}

fn failed(at: i64) -> Probe {
    Probe {
        at,
        verdict: ProbeVerdict::Failed,
        step: 11,
        sm: Some(0),
        sms: 132,
        covered: 130,
        checked_bytes: 63 << 20,
        gpu_ns: 4_000_000,
        runs: 3,
        right: 0b111_0111,
        wrong: 0b000_1000,
        reason: "9 wrong results of bf16 on SM 0".to_owned(),
    }
}

#[test]
fn the_last_one_comes_back_as_it_was_written_and_before_the_first_there_is_none() {
    let (writer, mut reader, _file) = region();
    let now = unix_ns();
    assert_eq!(reader.snapshot(now).expect("a region").probe, None);
    writer.probe(&failed(now));
    let passed = Probe {
        verdict: ProbeVerdict::Passed,
        sm: None,
        runs: 4,
        wrong: 0,
        reason: "ö".repeat(200),
        ..failed(now)
    };
    let snapshot = reader.snapshot(now).expect("a region");
    assert_eq!(snapshot.probe, Some(failed(now)));
    writer.probe(&passed);
    let snapshot = reader.snapshot(now).expect("a region");
    let cut = Probe {
        reason: "ö".repeat(128),
        ..passed
    };
    assert_eq!(snapshot.probe, Some(cut), "the reason has 256 bytes");
    assert!(snapshot.refused.is_empty());
}

#[test]
fn one_that_cannot_be_is_refused_by_reason() {
    for (path, value, reason) in [
        ("probe.verdict", 0, Reason::Word),
        ("probe.verdict", 4, Reason::Word),
        ("probe.at", 1, Reason::Time),
        ("probe.sm", 1_025, Reason::Number),
        ("probe.sms", 1_025, Reason::Number),
        ("probe.covered", 133, Reason::Number),
        ("probe.gpu_ns", u64::MAX, Reason::Duration),
        ("probe.sequence", 3, Reason::Torn),
    ] {
        let (writer, mut reader, file) = region();
        let now = unix_ns();
        writer.probe(&failed(now));
        let field = fields().into_iter().find(|it| it.path == path);
        let offset = field.expect("a field").offset as u64;
        file.write_all_at(&u64::to_le_bytes(value), offset)
            .expect("the file takes it");
        let snapshot = reader.snapshot(now).expect("the rest is good");
        assert_eq!(snapshot.probe, None, "{path}");
        let expected = Some(&1);
        assert_eq!(snapshot.refused.get(&("probe", reason)), expected, "{path}");
    }
}
