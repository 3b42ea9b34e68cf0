//! The shipper against a model of the server, over a network that loses requests and replies.
//!
//! Longer than 500 lines because every test of it needs that one model.

use std::collections::BTreeMap;

use gpufleet_spool::Limits;
use gpufleet_spool::sim::{Random, SimDisk};

use super::*;

/// Seeds of the simulation that every run goes through.
const SEEDS: u64 = 200;

type Key = (AgentId, Epoch, Stream);

/// What a server does with a request, and what a crash leaves of it.
#[derive(Default)]
struct Server {
    folded: BTreeMap<Key, Vec<(u64, Vec<u8>)>>,
    gaps: Vec<(Key, u64, u64)>,
    committed: BTreeMap<Key, Vec<(u64, Vec<u8>)>>,
    wanted: BTreeMap<Key, u64>,
    committed_wanted: BTreeMap<Key, u64>,
    /// It does not say how far it has folded.
    is_old: bool,
}

impl Server {
    fn offer(&mut self, request: &Request) -> Result<Reply, Failure> {
        let key = (request.agent, request.epoch, request.stream);
        let durable_seq = Some(self.committed_wanted.get(&key).copied().unwrap_or(1) - 1);
        let wanted = *self.wanted.get(&key).unwrap_or(&1);
        let passes = request
            .dropped
            .is_some_and(|(first, last)| first <= wanted && last + 1 == request.seq);
        if request.seq > wanted && !passes {
            return Err(Failure {
                refusal: Some(Refusal::WrongSeq),
                wanted_seq: Some(wanted),
                durable_seq,
                retry_after: None,
            });
        }
        if request.payload.starts_with(b"bad") {
            return Err(Failure {
                refusal: Some(Refusal::Invalid),
                ..Failure::default()
            });
        }
        if request.seq >= wanted {
            if request.seq > wanted {
                self.gaps.push((key, wanted, request.seq - 1));
            }
            self.wanted.insert(key, request.seq + 1);
            let folded = self.folded.entry(key).or_default();
            folded.push((request.seq, request.payload.clone()));
        }
        let folded_seq = self.wanted.get(&key).map(|wanted| wanted - 1);
        Ok(Reply {
            durable_seq,
            folded_seq: folded_seq.filter(|_| !self.is_old),
        })
    }

    fn commit(&mut self) {
        self.committed = self.folded.clone();
        self.committed_wanted = self.wanted.clone();
    }

    fn crash(&mut self) {
        self.folded = self.committed.clone();
        self.wanted = self.committed_wanted.clone();
    }
}

fn random(seed: u64) -> Box<dyn FnMut() -> Uuid + Send> {
    let mut random = Random::new(seed);
    Box::new(move || Uuid::from_u64_pair(random.next(), random.next()))
}

fn open(disk: &SimDisk, seed: u64) -> Shipper<SimDisk> {
    let limits = Limits {
        segment_bytes: 500,
        ..Limits::default()
    };
    let mut random = random(seed);
    let epoch = Epoch(random());
    let (spool, _) = Spool::open(disk.clone(), limits, epoch, Timestamp(0)).expect("it opens");
    Shipper::new(AgentId(Uuid::from_u128(1)), spool, random)
}

fn at(second: u64) -> Timestamp {
    Timestamp::from_seconds(i64::try_from(second).expect("small"))
}

/// One step of one lane against the server.
fn turn(
    shipper: &mut Shipper<SimDisk>,
    server: &mut Server,
    lane: Lane,
    second: u64,
    request_lost: bool,
    reply_lost: bool,
) -> bool {
    let monotonic = Duration::from_secs(second);
    let Next::Send(request) = shipper.next(lane, monotonic).expect("the disk works") else {
        return false;
    };
    let answer = if request_lost {
        Err(Failure::default())
    } else {
        let answer = server.offer(&request);
        if reply_lost {
            Err(Failure::default())
        } else {
            answer
        }
    };
    match answer {
        Ok(reply) => shipper
            .on_reply(&request, reply, at(second))
            .expect("the disk works"),
        Err(failure) => {
            shipper
                .on_failure(&request, &failure, at(second), monotonic)
                .expect("the disk works");
        }
    }
    true
}

fn simulate(seed: u64) {
    let mut chance = Random::new(seed);
    let disk = SimDisk::new(seed);
    let mut server = Server::default();
    let mut shipper = open(&disk, seed);
    let mut written = BTreeMap::new();
    let mut second = 0;
    for step in 0_u64..400 {
        second += chance.below(20);
        match chance.below(12) {
            0..=3 => {
                let stream = Stream::ALL[usize::from(chance.one_in(3))];
                let payload = step.to_le_bytes().repeat(5);
                let seq = shipper.append(stream, &payload, at(second)).expect("room");
                let epoch = shipper.spool().epoch();
                written.insert((epoch, stream as usize, seq), payload);
            }
            4..=8 => {
                let lane = [Lane::Live, Lane::Backfill][usize::from(chance.one_in(2))];
                let (lost, reply) = (chance.one_in(5), chance.one_in(5));
                turn(&mut shipper, &mut server, lane, second, lost, reply);
            }
            9 => server.commit(),
            10 => server.crash(),
            _ => {
                disk.crash();
                shipper = open(&disk, seed * 1_000 + step);
                // The server hears of a new process; the one before it is gone.
            }
        }
    }
    // Everything works again: all of it arrives.
    for _ in 0..2_000 {
        second += 30;
        let moved = [Lane::Live, Lane::Backfill]
            .map(|lane| turn(&mut shipper, &mut server, lane, second, false, false));
        server.commit();
        if moved == [false, false] && shipper.health().iter().all(|it| it.waiting_bytes == 0) {
            break;
        }
    }
    let mut stored = BTreeMap::new();
    for ((_, epoch, stream), records) in &server.committed {
        for (seq, payload) in records {
            let before = stored.insert((*epoch, *stream as usize, *seq), payload.clone());
            assert_eq!(before, None, "folded twice");
        }
    }
    assert_eq!(stored, written, "seed {seed}");
    assert_eq!(server.gaps, [], "nothing was dropped, so no gap was told");
    let health = shipper.health();
    assert!(health.iter().all(|it| it.waiting_bytes == 0), "{health:?}");
}

#[test]
fn whatever_the_network_and_the_crashes_do_each_request_is_stored_exactly_once() {
    for seed in 0..SEEDS {
        simulate(seed);
    }
}

#[test]
fn a_request_that_is_refused_for_ever_blocks_nothing_and_is_told_as_a_gap() {
    let mut server = Server::default();
    let mut shipper = open(&SimDisk::new(1), 1);
    for payload in [b"good", b"bad!", b"fine"] {
        shipper.append(Stream::Logs, payload, at(0)).expect("room");
    }
    for second in 0..6 {
        turn(&mut shipper, &mut server, Lane::Live, second, false, false);
    }
    let folded: Vec<u64> = server.folded.values().flatten().map(|it| it.0).collect();
    assert_eq!(folded, [1, 3]);
    assert_eq!(server.gaps.len(), 1);
    let drops = shipper.take_drops();
    assert_eq!((drops[0].first, drops[0].last), (2, 2));
    assert_eq!(drops[0].why, gpufleet_spool::DropReason::Refused);
}

#[test]
fn a_server_that_refuses_everything_for_ever_does_not_empty_the_spool_at_once() {
    let mut server = Server::default();
    let mut shipper = open(&SimDisk::new(1), 1);
    for _ in 0..1_000 {
        shipper.append(Stream::Logs, b"bad!", at(0)).expect("room");
    }
    // Ten minutes, a try each second.
    let mut refused = 0;
    for second in 0..600 {
        refused += usize::from(turn(
            &mut shipper,
            &mut server,
            Lane::Live,
            second,
            false,
            false,
        ));
    }
    assert!((20..60).contains(&refused), "{refused}");
    assert!(shipper.health()[1].failures >= 20);
}

#[test]
fn after_an_outage_live_data_go_first_and_the_backlog_newest_epoch_first() {
    let mut server = Server::default();
    let mut shipper = open(&SimDisk::new(1), 1);
    let mut second = 0_u64;
    for _ in 0..30 {
        second += 10;
        let payload = second.to_le_bytes();
        shipper
            .append(Stream::Metrics, &payload, at(second))
            .expect("room");
        let lost = second < 300;
        turn(
            &mut shipper,
            &mut server,
            Lane::Live,
            second * 10,
            lost,
            false,
        );
    }
    assert_eq!(
        shipper.spool().epochs().count(),
        2,
        "the first reply began a new epoch"
    );
    second += 10;
    shipper
        .append(Stream::Metrics, b"live", at(second))
        .expect("room");
    turn(&mut shipper, &mut server, Lane::Live, 10_000, false, false);
    let live = shipper.spool().epoch();
    let newest = server
        .folded
        .iter()
        .find(|((_, epoch, _), _)| *epoch == live);
    assert_eq!(
        newest.map(|it| it.1.len()),
        Some(1),
        "live data did not wait"
    );
    let Ok(Next::Send(request)) = shipper.next(Lane::Backfill, Duration::from_secs(10_001)) else {
        panic!("the backlog is drained beside it");
    };
    assert_ne!(request.epoch, live);
    assert_eq!(request.lane, Lane::Backfill);
}

#[test]
fn a_server_is_asked_again_slowly_and_never_sooner_than_it_says() {
    let mut shipper = open(&SimDisk::new(1), 1);
    shipper.append(Stream::Metrics, b"x", at(0)).expect("room");
    let mut monotonic = Duration::ZERO;
    let mut waits = Vec::new();
    for _ in 0..10 {
        let Ok(Next::Send(request)) = shipper.next(Lane::Live, monotonic) else {
            panic!("it waited as long as it was told to");
        };
        let failure = Failure::default();
        let verdict = shipper.on_failure(&request, &failure, at(0), monotonic);
        assert_eq!(verdict.expect("the disk works"), Verdict::GoOn);
        let Ok(Next::Wait(wait)) = shipper.next(Lane::Live, monotonic) else {
            panic!("it waits after a failure");
        };
        waits.push(wait);
        monotonic += wait;
    }
    assert!(waits[0] <= BACK_OFF_FIRST, "{waits:?}");
    assert!(waits[9] >= BACK_OFF_MOST / 2 && waits[9] <= BACK_OFF_MOST);
    let Ok(Next::Send(request)) = shipper.next(Lane::Live, monotonic) else {
        panic!("it waited");
    };
    let asked = Failure {
        refusal: Some(Refusal::Full),
        retry_after: Some(Duration::from_secs(120)),
        ..Failure::default()
    };
    shipper
        .on_failure(&request, &asked, at(0), monotonic)
        .expect("the disk works");
    let soon = shipper.next(Lane::Live, monotonic + Duration::from_secs(119));
    assert!(matches!(soon, Ok(Next::Wait(_))));
}

#[test]
fn a_server_is_sent_again_what_it_has_forgotten_and_nothing_that_it_only_has_not_committed() {
    for (dies, is_old, expected) in [
        (true, false, 7),
        (false, false, 1),
        (true, true, 7),
        // It does not say what it has: all that is not durable comes again.
        (false, true, 7),
    ] {
        let mut server = Server {
            is_old,
            ..Server::default()
        };
        let mut shipper = open(&SimDisk::new(1), 1);
        for second in 0..10 {
            shipper
                .append(Stream::Logs, b"x", at(second))
                .expect("room");
            turn(&mut shipper, &mut server, Lane::Live, second, false, false);
            if second == 2 {
                server.commit();
            }
        }
        if dies {
            server.crash();
        }
        // Later, in one moment: nothing that comes again waits for the next question.
        let mut requests = 0;
        while turn(&mut shipper, &mut server, Lane::Live, 100, false, false) {
            requests += 1;
        }
        let case = format!("dies: {dies}, old: {is_old}");
        assert_eq!(requests, expected, "{case}");
        let folded: Vec<u64> = server.folded.values().flatten().map(|it| it.0).collect();
        assert_eq!(folded, (1..=10).collect::<Vec<u64>>(), "{case}");
        assert_eq!(shipper.health()[1].shipped, 10, "{case}: each counts once");
        assert_eq!(shipper.spool().epochs().count(), 1, "{case}: none is late");
        assert!(!shipper.has_unsent(), "{case}");
    }
}

#[test]
fn seqs_that_a_server_has_folded_and_the_spool_never_gave_out_make_it_begin_anew() {
    let mut shipper = open(&SimDisk::new(1), 1);
    shipper.append(Stream::Metrics, b"x", at(0)).expect("room");
    let before = shipper.spool().epoch();
    let Ok(Next::Send(request)) = shipper.next(Lane::Live, Duration::ZERO) else {
        panic!("there is something to send");
    };
    let reply = Reply {
        durable_seq: Some(0),
        folded_seq: Some(2),
    };
    shipper
        .on_reply(&request, reply, at(0))
        .expect("the disk works");
    assert_ne!(shipper.spool().epoch(), before);
}

#[test]
fn a_receiver_that_knows_no_epochs_is_believed_when_it_says_yes() {
    let mut shipper = open(&SimDisk::new(1), 1);
    shipper.append(Stream::Metrics, b"x", at(0)).expect("room");
    let Ok(Next::Send(request)) = shipper.next(Lane::Live, Duration::ZERO) else {
        panic!("there is something to send");
    };
    shipper
        .on_reply(&request, Reply::default(), at(0))
        .expect("the disk works");
    assert_eq!(shipper.health()[0].waiting_bytes, 0);
}

#[test]
fn a_server_that_knows_more_than_the_spool_makes_it_begin_anew() {
    let mut shipper = open(&SimDisk::new(1), 1);
    shipper.append(Stream::Metrics, b"x", at(0)).expect("room");
    let before = shipper.spool().epoch();
    let Ok(Next::Send(request)) = shipper.next(Lane::Live, Duration::ZERO) else {
        panic!("there is something to send");
    };
    let reply = Reply {
        durable_seq: Some(900),
        ..Reply::default()
    };
    shipper
        .on_reply(&request, reply, at(0))
        .expect("the disk works");
    assert_ne!(shipper.spool().epoch(), before);
}

#[test]
fn what_the_server_has_already_is_not_told_as_given_up() {
    let disk = SimDisk::new(1);
    let mut server = Server::default();
    let mut shipper = open(&disk, 1);
    for second in 0..3 {
        shipper.append(Stream::Metrics, b"x", at(0)).expect("room");
        turn(&mut shipper, &mut server, Lane::Live, second, false, false);
    }
    server.commit();
    shipper.append(Stream::Metrics, b"y", at(3)).expect("room");
    drop(shipper);
    // The agent was killed before it heard that the first three are durable.
    let mut shipper = open(&disk, 2);
    turn(&mut shipper, &mut server, Lane::Live, 3, false, false);
    let Ok(Next::Send(request)) = shipper.next(Lane::Live, Duration::from_secs(4)) else {
        panic!("there is something to send");
    };
    assert_eq!((request.seq, request.dropped), (4, None));
}

#[test]
fn what_a_machine_makes_after_it_was_set_back_is_not_taken_for_what_the_server_has() {
    let mut server = Server::default();
    let mut first = open(&SimDisk::new(1), 1);
    let snapshot = SimDisk::new(1);
    let mut copy = open(&snapshot, 1);
    let add = |shipper: &mut Shipper<SimDisk>, payload: &[u8]| {
        shipper
            .append(Stream::Metrics, payload, at(0))
            .expect("room");
    };
    for payload in [b"1", b"2"] {
        add(&mut first, payload);
        add(&mut copy, payload);
    }
    for payload in [b"3", b"4", b"5"] {
        add(&mut first, payload);
    }
    let mut second = 0;
    let mut drain = |shipper: &mut Shipper<SimDisk>| {
        for _ in 0..20 {
            second += 30;
            for lane in [Lane::Live, Lane::Backfill] {
                turn(shipper, &mut server, lane, second, false, false);
            }
            server.commit();
        }
    };
    drain(&mut first);
    // The machine is set back to the snapshot, with the server out of reach for long.
    let mut shipper = open(&snapshot, 2);
    let new: Vec<Vec<u8>> = (b'a'..b'k').map(|letter| vec![letter]).collect();
    new.iter().for_each(|payload| add(&mut shipper, payload));
    drain(&mut shipper);
    let mut folded: Vec<Vec<u8>> = server
        .folded
        .into_values()
        .flatten()
        .map(|it| it.1)
        .collect();
    folded.sort();
    let old = [b"1", b"2", b"3", b"4", b"5"].map(|it| it.to_vec());
    assert_eq!(folded, [old.as_slice(), &new].concat());
}

#[test]
fn a_process_that_stood_still_goes_on_in_a_new_epoch() {
    let mut shipper = open(&SimDisk::new(1), 1);
    let mut epochs = Vec::new();
    for second in [0, 10, 160, 311, 320] {
        shipper
            .append(Stream::Logs, b"x", at(second))
            .expect("room");
        epochs.push(shipper.spool().epoch());
    }
    assert_eq!(epochs[0], epochs[2]);
    assert_ne!(epochs[2], epochs[3], "as after a snapshot of its memory");
    assert_eq!(epochs[3], epochs[4]);
}

#[test]
fn a_process_that_dies_again_and_again_does_not_fill_the_spool_with_epochs() {
    let disk = SimDisk::new(1);
    for seed in 0..100 {
        let mut shipper = open(&disk, seed);
        shipper.append(Stream::Logs, b"x", at(0)).expect("room");
        assert!(shipper.spool().epochs().count() <= MOST_EPOCHS_TO_BEGIN);
        assert_eq!(shipper.take_drops(), []);
    }
}

#[test]
fn a_cloned_id_is_told_to_the_driver() {
    let mut shipper = open(&SimDisk::new(1), 1);
    shipper.append(Stream::Logs, b"x", at(0)).expect("room");
    let Ok(Next::Send(request)) = shipper.next(Lane::Live, Duration::ZERO) else {
        panic!("there is something to send");
    };
    let conflict = Failure {
        refusal: Some(Refusal::AgentIdConflict),
        ..Failure::default()
    };
    let verdict = shipper.on_failure(&request, &conflict, at(0), Duration::ZERO);
    assert_eq!(verdict.expect("the disk works"), Verdict::NewIdentity);
}
