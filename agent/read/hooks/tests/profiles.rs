//! Profiles that are asked of training processes, and what becomes of each request.

use gpufleet_hooks_shm::records::Profile;
use gpufleet_hooks_shm::wire::ASK_NUMBER_BITS;
use gpufleet_hooks_shm::words::ProfileState;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::profiles::{Came, MAX_ORDERS, Profiles, Whose};
use super::*;

const COMMAND: u128 = 0x67e5_5044_10b1_426f_9247_bb68_0e5f_e0c8;
const EXPIRES: i64 = 60_000_000_000;

type Orders = mpsc::Sender<ProfileOrder>;

fn asking(folder: &Path, users: &Arc<Users>) -> (Hooks, Orders) {
    let config = HooksConfig {
        socket_path: folder.join("hooks.sock"),
        ..HooksConfig::default()
    };
    let (sender, orders) = mpsc::channel(MAX_ORDERS);
    let hooks = Hooks::new(&config, Duration::from_secs(1), Arc::clone(users), None);
    (
        hooks.expect("it is enabled").with_profiles(Some(orders)),
        sender,
    )
}

fn order(orders: &Orders, whose: Whose, expires: i64) -> oneshot::Receiver<Came> {
    let (done, came) = oneshot::channel();
    let order = ProfileOrder {
        id: Uuid::from_u128(COMMAND),
        whose,
        steps: 3,
        expires: Timestamp(expires),
        done,
    };
    orders.try_send(order).expect("there is room");
    came
}

/// The number that the process is asked by.
fn number() -> u64 {
    COMMAND as u64 & ((1 << ASK_NUMBER_BITS) - 1)
}

fn rank(number: i64) -> Whose {
    Whose::Rank(format!("/llama//0/{number}"))
}

fn became(state: ProfileState, text: &str) -> Profile {
    Profile {
        number: number(),
        state,
        at: unix_ns(),
        step: 7,
        steps: 3,
        bytes: 1_300_000,
        gaps: None,
        untold: None,
        text: text.to_owned(),
    }
}

fn at(hooks: &mut Hooks, at: i64, monotonic: u64) -> Readings {
    let turn = Turn {
        at: Timestamp(at),
        monotonic: Duration::from_secs(monotonic),
        node: Arc::new(NodeFacts::for_tests()),
    };
    hooks.round(&turn).expect("a round")
}

/// A process that trains as rank 0 and takes requests.
fn trains(hooks: &mut Hooks) -> Writer {
    let writer = joins(hooks, 0, "/a");
    writer.identity(&identity(0));
    writer.takes_profile(true);
    writer
}

#[test]
fn what_a_process_says_of_the_profile_that_it_was_asked_for_is_the_answer_and_an_event_of_its_rank()
{
    for (state, text, is_done) in [
        (ProfileState::Done, "/scratch/a.json.gz", true),
        (ProfileState::Failed, "the disk is full", false),
    ] {
        let folder = folder();
        let (mut hooks, orders) = asking(folder.path(), &Arc::default());
        let writer = trains(&mut hooks);
        round(&mut hooks);
        let mut came = order(&orders, rank(0), unix_ns() + EXPIRES);
        // What it did for another request is no answer to this one.
        let other = became(ProfileState::Done, "/scratch/old.json.gz");
        writer.profile(&Profile { number: 1, ..other });
        round(&mut hooks);
        came.try_recv().expect_err("it is not begun");
        writer.profile(&became(ProfileState::Running, ""));
        assert_eq!(round(&mut hooks).events, []);
        came.try_recv().expect_err("it is on its way");
        writer.profile(&became(state, text));
        let events = round(&mut hooks).events;
        let expected = if is_done {
            let words = "a profile of 3 steps after step 7: /scratch/a.json.gz (1.3 MB)";
            Came::Done(words.to_owned())
        } else {
            Came::Failed(text.to_owned())
        };
        assert_eq!(came.try_recv(), Ok(expected));
        assert_eq!(kinds(&events), [EventKind::Profiled]);
        assert_eq!(&*events[0].resource_id, "/llama//0/0");
        let name = if is_done { about::PATH } else { about::REASON };
        assert_eq!(events[0].attributes[name], text);
        assert_eq!(events[0].attributes.contains_key(about::BYTES), is_done);
        assert_eq!(round(&mut hooks).events, [], "it is told once");
    }
}

#[test]
fn of_two_requests_to_one_process_the_second_waits_until_the_first_is_over() {
    let folder = folder();
    let (mut hooks, _orders) = asking(folder.path(), &Arc::default());
    let writer = trains(&mut hooks);
    let (orders, taken) = mpsc::channel(MAX_ORDERS);
    let mut profiles = Profiles::new(taken);
    let mut asked = |hooks: &mut Hooks| {
        round(hooks);
        let turn = Turn {
            at: Timestamp(unix_ns()),
            monotonic: Duration::ZERO,
            node: Arc::new(NodeFacts::for_tests()),
        };
        let asks = profiles.round(&hooks.processes, &turn);
        asks.iter().map(|it| it.1.number).collect::<Vec<u64>>()
    };
    let mut first = order(&orders, rank(0), unix_ns() + EXPIRES);
    let (done, _second) = oneshot::channel();
    let second = ProfileOrder {
        id: Uuid::from_u128(COMMAND + 1),
        whose: rank(0),
        steps: 3,
        expires: Timestamp(unix_ns() + EXPIRES),
        done,
    };
    orders.try_send(second).expect("there is room");
    assert_eq!(asked(&mut hooks), [number()]);
    writer.profile(&became(ProfileState::Running, ""));
    assert_eq!(asked(&mut hooks), [0; 0], "it is being recorded");
    writer.profile(&became(ProfileState::Done, "/scratch/a.json.gz"));
    assert_eq!(asked(&mut hooks), [number() + 1]);
    assert!(first.try_recv().is_ok(), "it is told what came of it");
}

#[test]
fn a_request_that_nobody_begins_expires_one_that_is_begun_has_its_time_and_one_of_a_dead_process_fails()
 {
    let check = |begins: bool, later: u64, expected: Option<&str>| {
        let folder = folder();
        let (mut hooks, orders) = asking(folder.path(), &Arc::default());
        let writer = trains(&mut hooks);
        let now = unix_ns();
        at(&mut hooks, now, 0);
        let mut came = order(&orders, rank(0), now + EXPIRES);
        if begins {
            writer.profile(&became(ProfileState::Running, ""));
        }
        at(&mut hooks, now, 0);
        let after = now + later as i64 * 1_000_000_000;
        at(&mut hooks, after, later);
        let came = came.try_recv().ok().map(|it| format!("{it:?}"));
        match (&came, expected) {
            (None, None) => {}
            (Some(came), Some(words)) => assert!(came.starts_with(words), "{came}"),
            _ => panic!("{begins} {later}: {came:?}"),
        }
    };
    check(false, 59, None);
    check(false, 61, Some("Expired(\"no step of the process ended"));
    check(true, 599, None);
    check(
        true,
        601,
        Some("Failed(\"it was begun and not over within 600 s"),
    );

    let folder = folder();
    let (mut hooks, orders) = asking(folder.path(), &Arc::default());
    let _writer = trains(&mut hooks);
    round(&mut hooks);
    let mut came = order(&orders, rank(0), unix_ns() + EXPIRES);
    round(&mut hooks);
    for process in hooks.processes.values_mut() {
        process.ended(Timestamp(unix_ns()));
    }
    round(&mut hooks);
    let came = came.try_recv().expect("it is answered");
    assert!(
        matches!(&came, Came::Failed(why) if why.contains("ended")),
        "{came:?}"
    );
}

#[test]
fn a_request_about_a_gpu_goes_to_the_process_that_the_driver_lists_there_and_to_no_other() {
    let folder = folder();
    let users = Arc::<Users>::default();
    let (mut hooks, orders) = asking(folder.path(), &users);
    let claims = |writer: &Writer, rank| {
        let gpu_uuid = "GPU-a".to_owned();
        writer.identity(&Identity {
            gpu_uuid,
            ..identity(rank)
        });
    };
    let first = joins(&mut hooks, 0, "/a");
    claims(&first, 0);
    let refused = |hooks: &mut Hooks, whose: Whose, words: &str| {
        round(hooks);
        let mut came = order(&orders, whose, unix_ns() + EXPIRES);
        round(hooks);
        let came = came.try_recv().expect("it is answered");
        assert!(
            matches!(&came, Came::Failed(why) if why.contains(words)),
            "{came:?}"
        );
    };
    let gpu = || Whose::Gpu("GPU-a".to_owned());
    refused(&mut hooks, gpu(), "listed on GPU-a");
    refused(&mut hooks, rank(1), "rank /llama//0/1 is not on this node");
    let listed = |processes: &[i32]| {
        let sample = |pid: &i32| Sample {
            metric: catalog::gpu::PROCESS_MEMORY.id,
            part: Some(Part::new(PartKind::Process, pid.to_string())),
            reading: Ok(1.0),
        };
        users.note(&[ResourceSamples {
            resource: Arc::new(Resource::new(ResourceKind::Gpu, "GPU-a")),
            samples: processes.iter().map(sample).collect(),
        }]);
    };
    listed(&[NOBODY]);
    refused(&mut hooks, gpu(), "GPUFLEET_PROFILE");
    first.takes_profile(true);
    round(&mut hooks);
    let mut came = order(&orders, gpu(), unix_ns() + EXPIRES);
    round(&mut hooks);
    came.try_recv().expect_err("it is asked");
    first.profile(&became(ProfileState::Done, "/a"));
    round(&mut hooks);
    assert!(matches!(came.try_recv(), Ok(Came::Done(_))));
    let second = joins(&mut hooks, 1, "/a");
    claims(&second, 1);
    listed(&[NOBODY, NOBODY + 1]);
    refused(
        &mut hooks,
        gpu(),
        "arguments.rank: /llama//0/0, /llama//0/1",
    );
}

#[test]
fn a_request_is_answered_also_where_no_process_can_be_heard() {
    let folder = folder();
    // No folder for the socket; and one that is there, and is none.
    for socket in ["none/hooks.sock", "hooks.sock"] {
        let socket = folder.path().join(socket);
        let config = HooksConfig {
            socket_path: socket.clone(),
            ..HooksConfig::default()
        };
        if socket.parent() == Some(folder.path()) {
            std::fs::create_dir(&socket).expect("a folder where the socket would be");
        }
        let (orders, receiver) = mpsc::channel(MAX_ORDERS);
        let hooks = Hooks::new(&config, Duration::from_secs(1), Arc::default(), None);
        let mut hooks = hooks.expect("it is enabled").with_profiles(Some(receiver));
        let mut came = order(&orders, rank(0), unix_ns() + EXPIRES);
        let turn = Turn {
            at: Timestamp(unix_ns()),
            monotonic: Duration::ZERO,
            node: Arc::new(NodeFacts::for_tests()),
        };
        let _whether_it_listens = hooks.round(&turn);
        let came = came.try_recv();
        assert!(
            matches!(&came, Ok(Came::Failed(why)) if why.contains("is not on this node")),
            "{socket:?}: {came:?}"
        );
    }
}

#[test]
fn a_request_comes_through_to_a_client_that_takes_it_and_is_withdrawn_when_it_expires() {
    let folder = folder();
    let (mut hooks, orders) = asking(folder.path(), &Arc::default());
    let client = client::Client::start(Options {
        socket: folder.path().join("hooks.sock"),
        first_pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(10),
        ..Options::new(WriterKind::Python)
    });
    client.writer().identity(&identity(0));
    client.writer().takes_profile(true);
    let end = monotonic_ns() + LONGEST_NS;
    let until = |what: &str, is_so: &mut dyn FnMut() -> bool| {
        while !is_so() {
            assert!(monotonic_ns() < end, "{what}");
            std::thread::yield_now();
        }
    };
    until("the rank is known", &mut || {
        round(&mut hooks);
        hooks.processes.values().any(|it| it.rank.is_some())
    });
    let now = unix_ns();
    let mut came = order(&orders, rank(0), now + EXPIRES);
    until("it is asked for", &mut || {
        at(&mut hooks, now, 0);
        client.asked().is_any()
    });
    until("it is withdrawn", &mut || {
        at(&mut hooks, now + 2 * EXPIRES, 120);
        !client.asked().is_any()
    });
    assert!(matches!(came.try_recv(), Ok(Came::Expired(_))));
}
