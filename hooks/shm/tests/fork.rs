//! A forked child that inherits a writer: whatever it writes, nobody reads, and nothing breaks.
#![expect(unsafe_code, reason = "fork(2) itself is under test")]

use gpufleet_hooks_shm::process::unix_ns;
use gpufleet_hooks_shm::reader::Reader;
use gpufleet_hooks_shm::records::{Exception, Identity, Step};
use gpufleet_hooks_shm::words::{Phase, WriterKind};
use gpufleet_hooks_shm::writer::Writer;

/// Runs `child` in a forked child and returns its wait status.
fn forked(child: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child calls only the writer, which allocates nothing there, and leaves by _exit.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork");
    if pid == 0 {
        let is_well = child();
        // SAFETY: ends the child without running what belongs to the parent.
        unsafe { libc::_exit(i32::from(!is_well)) };
    }
    let mut status = -1;
    // SAFETY: `pid` is our child and `status` is ours.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(waited, pid);
    status
}

#[test]
fn a_forked_worker_writes_nothing_and_comes_to_no_harm() {
    let writer = Writer::create(WriterKind::Python).expect("a region");
    let second = Writer::create(WriterKind::Nccl).expect("a region");
    let mut reader = Reader::new(writer.file().expect("its file")).expect("a region");
    let mut of_second = Reader::new(second.file().expect("its file")).expect("a region");
    let now = unix_ns();
    let step = Step {
        step: 1,
        ended_at: now,
        wall_ns: 1,
        tokens: 5,
        ..Step::default()
    };
    writer.step(&step);
    let (identity, exception) = (Identity::default(), Exception::default());
    let status = forked(|| {
        for writer in [writer, second] {
            for _ in 0..10_000 {
                writer.step(&step);
            }
            writer.enter(Phase::Forward, now);
            writer.identity(&identity);
            writer.exception(&exception);
        }
        // The child's copy of the file is closed, too.
        writer.file().is_none()
    });
    assert_eq!(status, 0, "the child was killed or still has the file");
    writer.step(&step);
    let snapshot = reader.snapshot(now).expect("a region");
    assert_eq!(snapshot.totals.steps, 2);
    assert_eq!(snapshot.totals.tokens, 10);
    assert_eq!(snapshot.steps.len(), 2);
    assert_eq!((snapshot.identity, snapshot.now), (None, None));
    let untouched = of_second.snapshot(now).expect("a region");
    assert_eq!((untouched.totals.steps, untouched.now), (0, None));
}

#[test]
fn a_forked_worker_may_have_a_region_of_its_own() {
    let before = Writer::create(WriterKind::Python).expect("a region");
    let status = forked(|| {
        let own = Writer::create(WriterKind::Python).expect("a region");
        let step = Step {
            ended_at: unix_ns(),
            ..Step::default()
        };
        own.step(&step);
        before.step(&step);
        let mut reader = Reader::new(own.file().expect("its file")).expect("a region");
        reader
            .snapshot(unix_ns())
            .is_ok_and(|it| it.totals.steps == 1)
    });
    assert_eq!(status, 0);
}
