//! The way to NCCL's RAS service: it listens on loopback in the network namespace of the job, which in
//! a pod is not the agent's. A thread that is made for one question enters it, asks and ends, so that no
//! other thread of the agent is ever there.
#![expect(
    unsafe_code,
    reason = "setns(2) has no safe wrapper in the standard library"
)]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::thread::JoinHandle;
use std::time::Duration;

use gpufleet_hooks_shm::process::{monotonic_ns, start_ticks};

use super::listener::listener;
use super::{ADDRESS, Answer, RasError, ask};

/// How long the service may take in all: NCCL gathers for 5 s at most.
const LONGEST: Duration = Duration::from_secs(12);

/// How long until it takes the connection: it is on this machine.
const CONNECT: Duration = Duration::from_secs(1);

/// Most addresses of an answer that are looked at: one a node of the largest jobs.
const MOST_HOSTS: usize = 4_096;

/// What a job answered to the agent of one of its nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct Gathered {
    /// The answer.
    pub answer: Answer,
    /// Which of the addresses in it are those of the namespace that was asked in.
    pub own: BTreeSet<String>,
    /// The user whose socket answered.
    pub uid: u32,
}

/// Where to ask: where this process runs, as long as it is still in the namespace that it was seen in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The process.
    pub pid: i32,
    /// When it started, clock ticks since boot.
    pub start_ticks: u64,
    /// Its network namespace, as [`namespace`] names it.
    pub namespace: String,
    /// Whether a namespace that is not the agent's may be entered.
    pub may_enter: bool,
}

/// A question that is being asked.
#[derive(Debug)]
pub struct Question(JoinHandle<Result<Gathered, ReachError>>);

/// Why a job was not heard.
#[derive(Debug, thiserror::Error)]
pub enum ReachError {
    /// The process is gone, or cannot be seen.
    #[error("the network namespace of process {pid} cannot be seen")]
    Process {
        /// Which.
        pid: i32,
        /// What the kernel says.
        source: io::Error,
    },
    /// It is another process by now, or went into another namespace.
    #[error("the training process is not any more in the network namespace it was seen in")]
    Moved,
    /// Its namespace is another one and may not be entered.
    #[error("the network namespace of a training process may not be entered")]
    NotPermitted(#[source] io::Error),
    /// Nobody listens there: no NCCL since 2.24, or NCCL_RAS_ENABLE=0.
    #[error("nobody answers at {ADDRESS}")]
    Nobody(#[source] io::Error),
    /// Somebody answers, and whose socket it is cannot be seen, or changed meanwhile.
    #[error("who listens at {ADDRESS} is not known")]
    Owner,
    /// What answers does not answer well.
    #[error(transparent)]
    Ras(#[from] RasError),
}

/// The network namespace of a process; equal for all in the same one.
///
/// # Errors
/// The process is gone or may not be looked at.
pub fn namespace(process: &str) -> io::Result<String> {
    let link = fs::read_link(format!("/proc/{process}/ns/net"))?;
    Ok(link.to_string_lossy().into_owned())
}

/// Begins to ask the service that listens where a process runs.
///
/// # Errors
/// There is no thread for it.
pub fn ask_at(target: Target) -> Result<Question, ReachError> {
    let thread = std::thread::Builder::new().name("nccl-ras".to_owned());
    let asking = thread.spawn(move || {
        enter(&target)?;
        here(ADDRESS.parse().expect("the address is written in numbers"))
    });
    asking.map(Question).map_err(ReachError::Nobody)
}

impl Question {
    /// The answer; takes up to some seconds.
    ///
    /// # Errors
    /// Why nothing came of it.
    pub fn answer(self) -> Result<Gathered, ReachError> {
        let broke_off = |_panic| io::Error::other("the thread that asked broke off");
        let answer = self.0.join().map_err(broke_off);
        answer.map_err(ReachError::Nobody)?
    }
}

impl Target {
    /// Whether the process is there and in its namespace, as far as a look tells.
    pub fn is_there(&self) -> bool {
        let pid = self.pid.to_string();
        namespace(&pid).is_ok_and(|it| it == self.namespace)
            && start_ticks(&pid) == Some(self.start_ticks)
    }
}

/// Brings this thread into the network namespace of a process, where it is the one that is expected and
/// may be entered. Everything is judged by the namespace that was opened: the process may go elsewhere, or
/// be another one, at any moment.
fn enter(target: &Target) -> Result<(), ReachError> {
    let pid = target.pid;
    let unseen = |source| ReachError::Process { pid, source };
    let file = File::open(format!("/proc/{pid}/ns/net")).map_err(unseen)?;
    let opened = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(unseen)?;
    let is_same = start_ticks(&pid.to_string()) == Some(target.start_ticks);
    if !is_same || opened.to_string_lossy() != target.namespace {
        return Err(ReachError::Moved);
    }
    if namespace("thread-self").map_err(unseen)? == target.namespace {
        return Ok(());
    }
    if !target.may_enter {
        let error = io::ErrorKind::PermissionDenied.into();
        return Err(ReachError::NotPermitted(error));
    }
    // SAFETY: it takes the number of an open file and changes this thread alone.
    let entered = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
    match entered {
        0 => Ok(()),
        _ => Err(ReachError::NotPermitted(io::Error::last_os_error())),
    }
}

/// Asks in the namespace of this thread.
fn here(address: SocketAddr) -> Result<Gathered, ReachError> {
    let before = listener(address);
    let stream = TcpStream::connect_timeout(&address, CONNECT).map_err(ReachError::Nobody)?;
    // The same socket before and after: it is the one that the connection was made to.
    let owner = before.filter(|it| listener(address) == Some(*it));
    let uid = owner.ok_or(ReachError::Owner)?.uid;
    let answer = ask(Bounded {
        stream,
        end_ns: monotonic_ns() + LONGEST.as_nanos() as u64,
    })?;
    let mut hosts = BTreeSet::new();
    if let Answer::Status(status) = &answer {
        let ranks = status.communicators.iter().flat_map(|it| &it.ranks);
        for rank in ranks {
            if hosts.len() < MOST_HOSTS {
                hosts.insert(rank.place.host.clone());
            }
        }
    }
    // Only an address of this namespace can be bound in it.
    let is_own = |host: &String| {
        let address = host.parse::<IpAddr>();
        address.is_ok_and(|it| UdpSocket::bind((it, 0)).is_ok())
    };
    hosts.retain(is_own);
    Ok(Gathered {
        answer,
        own: hosts,
        uid,
    })
}

/// A connection that ends at a moment, however slowly the other side talks.
struct Bounded {
    stream: TcpStream,
    end_ns: u64,
}

impl Bounded {
    fn left(&self) -> io::Result<Duration> {
        match self.end_ns.saturating_sub(monotonic_ns()) {
            0 => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Duration::from_nanos(left)),
        }
    }
}

impl Read for Bounded {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(to)
    }
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;
    use std::sync::mpsc;

    use super::*;

    /// An answer with a rank on this machine and one elsewhere.
    const TWO_RANKS: &str = r#"{"communicators": [{"hash": "0x1", "size": 2, "ranks": [
        {"rank": 0, "host": "127.0.0.1"}, {"rank": 1, "host": "203.0.113.9"}]}]}"#;

    /// A service that answers each line, the last one with `answer`.
    fn service(answer: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || serve(&listener, answer));
        address
    }

    /// Takes one connection and answers.
    fn serve(listener: &TcpListener, answer: &str) {
        let (mut stream, _) = listener.accept().expect("a connection");
        let lines = BufReader::new(stream.try_clone().expect("a handle")).lines();
        for line in lines.map_while(Result::ok) {
            let reply = match line.split(' ').next() {
                Some("CLIENT") => "SERVER PROTOCOL 2\n",
                Some("TIMEOUT" | "SET") => "OK\n",
                _ => answer,
            };
            stream.write_all(reply.as_bytes()).expect("it is read");
            if line.ends_with("STATUS") {
                return;
            }
        }
    }

    #[test]
    fn an_answer_says_which_of_its_ranks_are_on_this_machine() {
        let gathered = here(service(TWO_RANKS)).expect("an answer");
        assert_eq!(gathered.own, BTreeSet::from(["127.0.0.1".to_owned()]));
        assert!(matches!(gathered.answer, Answer::Status(_)));
    }

    #[test]
    fn where_nobody_listens_that_is_the_reason() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        drop(listener);
        assert!(matches!(here(address), Err(ReachError::Nobody(_))));
    }

    /// This process, in the namespace that it is in.
    fn own() -> Target {
        Target {
            pid: std::process::id().cast_signed(),
            start_ticks: start_ticks("self").expect("it is in /proc"),
            namespace: namespace("self").expect("it is in /proc"),
            may_enter: false,
        }
    }

    #[test]
    fn the_own_namespace_is_entered_without_rights_and_that_of_nobody_is_not() {
        assert!(own().is_there());
        enter(&own()).expect("it is there already");
        let nobody = Target {
            pid: 5_000_000,
            ..own()
        };
        assert!(!nobody.is_there());
        let error = ask_at(nobody).and_then(Question::answer);
        let error = error.expect_err("no process has that id");
        assert!(matches!(error, ReachError::Process { .. }), "{error}");
    }

    #[test]
    fn a_process_that_is_another_by_now_or_went_elsewhere_is_not_followed() {
        let reused = Target {
            start_ticks: own().start_ticks + 1,
            ..own()
        };
        let moved = Target {
            namespace: "net:[1]".to_owned(),
            may_enter: true,
            ..own()
        };
        for target in [reused, moved] {
            assert!(!target.is_there());
            assert!(matches!(enter(&target), Err(ReachError::Moved)));
        }
    }

    /// Brings this thread into a network namespace of its own, in which loopback works.
    fn leave() -> io::Result<()> {
        // SAFETY: it takes flags and changes this thread alone.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // In a new one nothing is up.
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket needs no network");
        // SAFETY: a structure of numbers may be all zeros.
        let mut loopback: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in loopback.ifr_name.iter_mut().zip(b"lo") {
            *to = *from as libc::c_char;
        }
        loopback.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
        // SAFETY: the socket is open, and this request reads a structure of this kind.
        let up =
            unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const loopback) };
        match up {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    #[test]
    fn another_network_namespace_is_entered_where_that_is_wanted_and_asked_in() {
        let (told, heard) = mpsc::channel();
        let job = std::thread::spawn(move || {
            if let Err(error) = leave() {
                return told.send(Err(error)).expect("it is heard");
            }
            let listener = TcpListener::bind(ADDRESS).expect("nobody else is here");
            let own = fs::read_link("/proc/thread-self").expect("it is in /proc");
            let thread = own.file_name().and_then(|it| it.to_str());
            let thread = thread.expect("it is a number");
            let target = Target {
                pid: thread.parse().expect("it is a number"),
                start_ticks: start_ticks(thread).expect("it is in /proc"),
                namespace: namespace(thread).expect("it is in /proc"),
                may_enter: false,
            };
            told.send(Ok(target)).expect("it is heard");
            serve(&listener, TWO_RANKS);
        });
        let target = match heard.recv().expect("it says one or the other") {
            Ok(target) => target,
            Err(error) => {
                eprintln!("NOT RUN: RAS in another network namespace, none may be made: {error}");
                return;
            }
        };
        let before = namespace("thread-self").expect("it is in /proc");
        assert_ne!(target.namespace, before);
        assert!(target.is_there());
        let refused = ask_at(target.clone()).and_then(Question::answer);
        let refused = refused.expect_err("it is off unless somebody wants it");
        assert!(matches!(refused, ReachError::NotPermitted(_)), "{refused}");
        let wanted = Target {
            may_enter: true,
            ..target
        };
        let gathered = ask_at(wanted).and_then(Question::answer);
        let gathered = gathered.expect("the service of that namespace answers");
        assert!(matches!(gathered.answer, Answer::Status(_)));
        assert_eq!(gathered.own, BTreeSet::from(["127.0.0.1".to_owned()]));
        assert_eq!(gathered.uid, rustix::process::geteuid().as_raw());
        job.join().expect("it has answered");
        let after = namespace("thread-self").expect("it is in /proc");
        assert_eq!(after, before, "no other thread went there");
    }

    #[test]
    fn an_answer_says_whose_socket_it_came_from() {
        let gathered = here(service(r#"{"communicators": []}"#)).expect("an answer");
        assert_eq!(gathered.uid, rustix::process::geteuid().as_raw());
    }

    #[test]
    fn who_never_comes_to_an_end_is_given_up() {
        let mut bounded = Bounded {
            stream: TcpStream::connect(service("")).expect("a connection"),
            end_ns: monotonic_ns(),
        };
        let error = bounded.read(&mut [0]).expect_err("its time is over");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
