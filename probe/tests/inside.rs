//! The probe inside a process, against the stand-in for CUDA's driver: this process plays the framework that
//! lends memory. Each test is one promise of docs/probe.md.

#![expect(
    unsafe_code,
    reason = "the stand-in is loaded as a framework loads the driver"
)]

use std::ffi::CString;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gpufleet_probe::inside::{
    Cannot, Device, Found, Inside, LEAST_LENT, Lent, MOST_LENT, Polled, Room,
};
use gpufleet_probe::ptx::Work;
use gpufleet_probe::verdict::Verdict;
use gpufleet_standin_cuda::{Capture, Fault, Scenario, counted};
use libloading::Library;

/// The stream that the framework launches on.
const STREAM: u64 = 0;

/// What stands around the memory that is lent.
const GUARD: usize = 4_096;
const UNTOUCHED: u8 = 0xEE;

/// How long anything may take before it has failed.
const LONGEST: Duration = Duration::from_secs(120);

/// One test has the driver at a time: it is one a process.
static DRIVER: Mutex<()> = Mutex::new(());

struct Cuda {
    library: Library,
    _alone: MutexGuard<'static, ()>,
}

impl Cuda {
    /// The driver in this process, as a framework loads it, with this scenario.
    fn new(scenario: &Scenario) -> Self {
        let alone = DRIVER.lock().unwrap_or_else(PoisonError::into_inner);
        let program = std::env::current_exe().expect("this program");
        let path = program.with_file_name("libgpufleet_standin_cuda.so");
        // SAFETY: the stand-in has no initialisers.
        let library = unsafe { Library::new(&path) };
        let library = library.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let cuda = Self {
            library,
            _alone: alone,
        };
        cuda.now(scenario);
        cuda
    }

    /// From now on this holds.
    fn now(&self, scenario: &Scenario) {
        let text = CString::new(toml::to_string(scenario).expect("TOML")).expect("no zero");
        // SAFETY: the stand-in's function of this name takes a text.
        unsafe {
            let set = self
                .library
                .get::<extern "C" fn(*const i8)>(b"gpufleet_standin_scenario");
            set.expect("it is the stand-in")(text.as_ptr().cast());
        }
    }

    fn calls(&self, what: &str) -> u64 {
        let text = CString::new(what).expect("no zero");
        // SAFETY: the stand-in's function of this name takes a text and returns a number.
        unsafe {
            let calls = self
                .library
                .get::<extern "C" fn(*const i8) -> u64>(b"gpufleet_standin_calls");
            calls.expect("it is the stand-in")(text.as_ptr().cast())
        }
    }

    /// Waits until a call hangs: it must do so in this scenario, and not go on in the next one.
    fn hangs(&self) {
        let began = now();
        while self.calls(counted::HANGS) == 0 {
            assert!(now() - began < LONGEST, "the thread never comes to it");
            std::thread::yield_now();
        }
    }
}

/// Memory of a framework.
struct Memory(Vec<u8>);

impl Memory {
    fn of(bytes: usize) -> Self {
        Self(vec![UNTOUCHED; bytes + 2 * GUARD])
    }

    fn lent(&mut self) -> Lent {
        // The stand-in's kernels go through memory in eights.
        let address = (self.0.as_mut_ptr() as u64 + GUARD as u64).next_multiple_of(256);
        Lent {
            address,
            bytes: self.0.len() - 2 * GUARD,
        }
    }

    /// Whether nothing beside what was lent was written.
    fn is_kept(&self, lent: Lent) -> bool {
        let at = (lent.address - self.0.as_ptr() as u64) as usize;
        let (before, rest) = self.0.split_at(at);
        let after = &rest[lent.bytes..];
        before.iter().chain(after).all(|it| *it == UNTOUCHED)
    }
}

fn h100(fault: Option<Fault>) -> Scenario {
    Scenario {
        faults: fault.into_iter().collect(),
        ..Scenario::default()
    }
}

/// One that is prepared.
fn prepared(spoil: Option<Work>) -> Inside {
    let inside = Inside::spoilt(spoil);
    prepare(&inside).expect("the kernels compile");
    inside
}

/// Waits for the thread that compiles.
fn prepare(inside: &Inside) -> Result<(), Cannot> {
    let began = now();
    while !inside.prepare(Duration::ZERO)? {
        assert!(now() - began < LONGEST, "it is never prepared");
        std::thread::yield_now();
    }
    Ok(())
}

fn now() -> Duration {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: what is written is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// One run to its end.
fn run(inside: &Inside, bytes: usize) -> Result<Found, Cannot> {
    let mut memory = Memory::of(bytes);
    let lent = memory.lent();
    inside.start(lent, STREAM, Duration::ZERO)?;
    let polled = inside.poll(Duration::ZERO);
    assert!(memory.is_kept(lent), "it wrote beside what was lent");
    match polled {
        Polled::Over(found) => found.map(|it| *it),
        Polled::Lost(cannot) => Err(cannot),
        other => panic!("it is not over: {other:?}"),
    }
}

#[test]
fn a_gpu_with_nothing_wrong_passes_and_nothing_is_waited_for_or_taken() {
    let cuda = Cuda::new(&h100(None));
    let inside = prepared(None);
    assert_eq!(inside.room(STREAM), Ok(Room::Bytes(MOST_LENT)));
    let found = run(&inside, MOST_LENT).expect("it ran");
    let Found {
        judgement,
        measured,
    } = found;
    assert_eq!(judgement.verdict, Verdict::Pass, "{}", judgement.reason);
    assert!(
        judgement.reason.contains("6 of 6 SMs"),
        "{}",
        judgement.reason
    );
    let works: Vec<Work> = measured.checks.iter().map(|it| it.work).collect();
    assert_eq!(works.len(), Work::ALL.len());
    assert!(
        measured
            .checks
            .iter()
            .all(|it| it.sees_errors && it.wrong == 0)
    );
    assert!(measured.checked_bytes >= 63 << 20 && measured.gpu_seconds > 0.0);
    for forbidden in [
        "cuCtxSynchronize",
        "cuEventSynchronize",
        "cuMemAlloc_v2",
        "cuDevicePrimaryCtxRetain",
        "cuMemcpyHtoD_v2",
        "cuMemcpyDtoH_v2",
        "cuMemsetD8_v2",
        counted::ELSEWHERE,
        counted::UNORDERED,
        counted::UNLOADED,
    ] {
        assert_eq!(cuda.calls(forbidden), 0, "{forbidden}");
    }
    assert!(cuda.calls("cuLaunchKernel") >= 16);
    // And again, with what was made: nothing is compiled twice.
    run(&inside, MOST_LENT).expect("it ran");
    assert_eq!(cuda.calls("cuModuleLoadData"), 3);
    assert!(inside.finish(Duration::ZERO) && !inside.is_over());
}

#[test]
fn one_wrong_result_of_one_sm_fails_and_names_the_sm_in_whatever_kernel() {
    let cuda = Cuda::new(&h100(None));
    let inside = prepared(None);
    for work in Work::ALL {
        cuda.now(&h100(Some(Fault::Wrong(work.kernel().to_owned(), 4))));
        let judgement = run(&inside, 16 << 20).expect("it ran").judgement;
        assert_eq!(judgement.verdict, Verdict::Fail, "{work:?}");
        assert_eq!(judgement.sm, Some(4), "{}", judgement.reason);
        assert!(
            judgement.reason.contains(work.name()),
            "{}",
            judgement.reason
        );
    }
    cuda.now(&h100(None));
    let judgement = run(&inside, 16 << 20).expect("it ran").judgement;
    assert_eq!(
        judgement.verdict,
        Verdict::Pass,
        "nothing of before is left"
    );
}

#[test]
fn a_spoilt_expectation_fails_and_a_gpu_that_notices_none_does_not_pass() {
    let cuda = Cuda::new(&h100(None));
    for work in Work::ALL {
        let judgement = run(&prepared(Some(work)), 16 << 20)
            .expect("it ran")
            .judgement;
        assert_eq!(
            judgement.verdict,
            Verdict::Fail,
            "{work:?}: {}",
            judgement.reason
        );
    }
    let inside = prepared(None);
    for work in Work::ALL {
        cuda.now(&h100(Some(Fault::BlindIn(work.kernel().to_owned()))));
        let judgement = run(&inside, 16 << 20).expect("it ran").judgement;
        assert_eq!(judgement.verdict, Verdict::CouldNotMeasure, "{work:?}");
        let expected = format!("{}: a spoilt expectation", work.name());
        assert!(judgement.reason.contains(&expected), "{}", judgement.reason);
    }
}

#[test]
fn with_little_memory_the_region_is_left_out_and_with_less_nothing_is_borrowed() {
    let cuda = Cuda::new(&h100(None));
    let inside = prepared(None);
    let with_free = |free_mib| Scenario {
        free_mib,
        ..Scenario::default()
    };
    for (free_mib, expected) in [
        (320, Ok(Room::Bytes(MOST_LENT))),
        (319, Ok(Room::Bytes(LEAST_LENT))),
        (5, Ok(Room::Bytes(LEAST_LENT))),
        (4, Err(Cannot::NoMemory(4 << 20))),
    ] {
        cuda.now(&with_free(free_mib));
        assert_eq!(inside.room(STREAM), expected, "{free_mib}");
    }
    let found = run(&inside, LEAST_LENT).expect("it ran");
    assert_eq!(found.judgement.verdict, Verdict::Pass);
    assert!(found.judgement.reason.contains("left out: memory"));
    assert_eq!(found.measured.checks.len(), Work::ALL.len() - 1);
    let too_little = run(&inside, 4_096).expect_err("it is too little");
    assert_eq!(too_little, Cannot::NotLent(4_096));
    cuda.now(&h100(Some(Fault::Error(
        "cuPointerGetAttribute".to_owned(),
        1,
    ))));
    let not_its = run(&inside, LEAST_LENT).expect_err("no memory of the GPU");
    assert_eq!(not_its, Cannot::NotLent(LEAST_LENT));
    assert_eq!(cuda.calls("cuLaunchKernel"), 0);
}

#[test]
fn while_a_graph_is_captured_nothing_is_launched_and_no_capture_is_ended() {
    let captured = |capture| Scenario {
        capture,
        ..Scenario::default()
    };
    let cuda = Cuda::new(&captured(Capture::Other));
    let inside = prepared(None);
    for (capture, room) in [
        (Capture::Own, Room::Captured),
        (Capture::Implicit, Room::Captured),
        (Capture::Other, Room::Bytes(MOST_LENT)),
    ] {
        cuda.now(&captured(capture));
        assert_eq!(inside.room(STREAM), Ok(room), "{capture:?}");
        assert_eq!(cuda.calls(counted::ENDED_CAPTURES), 0);
    }
    // What another thread captures stays as it is, too, while a run is launched and asked for.
    let judgement = run(&inside, 16 << 20).expect("it ran").judgement;
    assert_eq!(judgement.verdict, Verdict::Pass);
    assert_eq!(cuda.calls(counted::ENDED_CAPTURES), 0);
}

#[test]
fn a_run_is_asked_for_until_it_is_over_and_given_up_with_its_memory_when_it_never_is() {
    let slow = Scenario {
        ready_after: 2,
        ..Scenario::default()
    };
    let cuda = Cuda::new(&slow);
    let inside = prepared(None);
    let mut memory = Memory::of(16 << 20);
    assert_eq!(inside.poll(Duration::ZERO), Polled::Idle);
    let lent = memory.lent();
    inside
        .start(lent, STREAM, Duration::ZERO)
        .expect("it starts");
    assert_eq!(
        inside.start(lent, STREAM, Duration::ZERO),
        Err(Cannot::NotReady)
    );
    assert_eq!(inside.poll(Duration::from_secs(1)), Polled::Running);
    // Whoever is in another context asks later.
    cuda.now(&Scenario {
        context: 7,
        ..slow.clone()
    });
    assert_eq!(inside.poll(Duration::from_secs(1)), Polled::Running);
    cuda.now(&slow);
    assert_eq!(inside.poll(Duration::from_secs(1)), Polled::Running);
    assert!(matches!(
        inside.poll(Duration::from_secs(1)),
        Polled::Over(Ok(_))
    ));
    cuda.now(&h100(Some(Fault::NeverEnds(
        "gpufleet_arithmetic".to_owned(),
    ))));
    inside
        .start(lent, STREAM, Duration::ZERO)
        .expect("it starts");
    assert_eq!(inside.poll(Duration::from_secs(600)), Polled::Running);
    let late = Cannot::Late(601);
    assert_eq!(
        inside.poll(Duration::from_secs(601)),
        Polled::Lost(late.clone())
    );
    cuda.now(&h100(None));
    assert_eq!(
        inside.prepare(Duration::from_secs(700)),
        Err(late),
        "no other comes"
    );
}

#[test]
fn whatever_the_driver_refuses_is_a_reason() {
    let cuda = Cuda::new(&h100(None));
    let refuses = |function: &str, code| h100(Some(Fault::Error(function.to_owned(), code)));
    // What is not there.
    let none = Scenario {
        context: 0,
        ..Scenario::default()
    };
    cuda.now(&none);
    let inside = Inside::default();
    assert_eq!(inside.prepare(Duration::ZERO), Err(Cannot::NoContext));
    cuda.now(&h100(None));
    prepare(&inside).expect("a context came");
    cuda.now(&none);
    assert_eq!(inside.room(STREAM), Err(Cannot::NoContext));
    cuda.now(&Scenario {
        context: 7,
        ..Scenario::default()
    });
    assert_eq!(inside.room(STREAM), Err(Cannot::OtherContext));
    // Drivers and cards that are too old, and a compiler that fails.
    for (scenario, words) in [
        (
            Scenario {
                cuda: 10_020,
                ..Scenario::default()
            },
            "CUDA 10.2",
        ),
        (
            Scenario {
                capability: [7, 0],
                ..Scenario::default()
            },
            "7.0",
        ),
        (
            refuses("cuModuleLoadData", 218),
            "218 while having the driver compile",
        ),
        (refuses("cuFuncGetAttribute", 1), "1 while loading a kernel"),
        (
            refuses("cuMemHostAlloc", 2),
            "2 while getting pinned memory",
        ),
        (refuses("cuStreamCreateWithPriority", 1), "making a stream"),
    ] {
        cuda.now(&scenario);
        let why = prepare(&Inside::default()).expect_err(words).to_string();
        assert!(why.contains(words), "{why}");
    }
    // What is refused while a run is launched: nothing is on its way, or less than all of it.
    cuda.now(&refuses("cuStreamWaitEvent", 1));
    let inside = prepared(None);
    let why = run(&inside, LEAST_LENT).expect_err("no order");
    assert!(why.to_string().contains("ordering streams"), "{why}");
    cuda.now(&refuses("cuLaunchKernel", 701));
    let why = run(&inside, LEAST_LENT).expect_err("no launch");
    assert!(why.to_string().contains("701 while launching"), "{why}");
    cuda.now(&h100(None));
    run(&inside, LEAST_LENT).expect("a launch that failed is not the end");
    // A context that is broken says so for ever.
    cuda.now(&h100(Some(Fault::Breaks(
        "gpufleet_tensor_bf16".to_owned(),
        700,
    ))));
    let why = run(&inside, LEAST_LENT).expect_err("it broke");
    assert!(why.to_string().contains("700 while running"), "{why}");
    cuda.now(&h100(None));
    let after = inside.prepare(Duration::ZERO).expect_err("it is over");
    assert_eq!(after, why);
}

#[test]
fn a_compiler_that_does_not_come_back_is_told_and_holds_nobody_up() {
    let cuda = Cuda::new(&h100(Some(Fault::Hang("cuModuleLoadData".to_owned()))));
    let inside = Inside::default();
    assert_eq!(inside.prepare(Duration::ZERO), Ok(false));
    assert_eq!(inside.prepare(Duration::from_secs(120)), Ok(false));
    let why = inside.prepare(Duration::from_secs(121));
    assert_eq!(why, Err(Cannot::Compiles(121)));
    assert!(!inside.finish(Duration::from_millis(1)), "it is at it");
    cuda.hangs();
}

#[test]
fn a_driver_that_does_not_answer_keeps_nobody_waiting_and_is_not_asked_twice() {
    let cuda = Cuda::new(&Scenario::default());
    let device = Device::of_this_thread().expect("a driver is here");
    assert!(device.answers(LONGEST));
    cuda.now(&Scenario {
        faults: vec![Fault::Error("cuEventQuery".to_owned(), 700)],
        ..Scenario::default()
    });
    assert!(device.answers(LONGEST), "an error is an answer");
    cuda.now(&Scenario {
        faults: vec![Fault::Hang("cuEventQuery".to_owned())],
        ..Scenario::default()
    });
    for _ in 0..3 {
        assert!(!device.answers(Duration::from_millis(50)));
    }
    cuda.hangs();
    cuda.now(&Scenario::default());
    assert!(!device.answers(LONGEST), "the first has not come back");
    assert_eq!(cuda.calls("cuEventQuery"), 0);
}

#[test]
fn asking_whether_the_driver_answers_ends_no_capture_of_another_thread() {
    let scenario = Scenario {
        capture: Capture::Other,
        ..Scenario::default()
    };
    let cuda = Cuda::new(&scenario);
    let device = Device::of_this_thread().expect("a driver is here");
    assert!(device.answers(LONGEST));
    assert_eq!(cuda.calls(counted::ENDED_CAPTURES), 0);
}

#[test]
fn without_a_context_there_is_no_device() {
    let none = Scenario {
        context: 0,
        ..Scenario::default()
    };
    let _cuda = Cuda::new(&none);
    assert_eq!(Device::of_this_thread().err(), Some(Cannot::NoContext));
}
