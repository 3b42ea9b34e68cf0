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
use std::time::Duration;

use gpufleet_hooks_shm::process::monotonic_ns;

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
}

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
    /// Its namespace is another one and may not be entered.
    #[error("the network namespace of a training process may not be entered")]
    NotPermitted(#[source] io::Error),
    /// Nobody listens there: no NCCL since 2.24, or NCCL_RAS_ENABLE=0.
    #[error("nobody answers at {ADDRESS}")]
    Nobody(#[source] io::Error),
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

/// Asks the service that listens where the process `pid` runs. Takes up to some seconds.
///
/// # Errors
/// Why nothing came of it.
pub fn gather(pid: i32) -> Result<Gathered, ReachError> {
    let thread = std::thread::Builder::new().name("nccl-ras".to_owned());
    let asking = thread.spawn(move || {
        enter(pid)?;
        here(ADDRESS.parse().expect("the address is written in numbers"))
    });
    let nobody = |error| Err(ReachError::Nobody(error));
    match asking.map(std::thread::JoinHandle::join) {
        Ok(Ok(answer)) => answer,
        Ok(Err(_panic)) => nobody(io::Error::other("the thread that asked broke off")),
        Err(error) => nobody(error),
    }
}

/// Brings this thread into the network namespace of a process.
fn enter(pid: i32) -> Result<(), ReachError> {
    let unseen = |source| ReachError::Process { pid, source };
    let theirs = namespace(&pid.to_string()).map_err(unseen)?;
    if namespace("thread-self").map_err(unseen)? == theirs {
        return Ok(());
    }
    let file = File::open(format!("/proc/{pid}/ns/net")).map_err(unseen)?;
    // SAFETY: it takes the number of an open file and changes this thread alone.
    let entered = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
    match entered {
        0 => Ok(()),
        _ => Err(ReachError::NotPermitted(io::Error::last_os_error())),
    }
}

/// Asks in the namespace of this thread.
fn here(address: SocketAddr) -> Result<Gathered, ReachError> {
    let stream = TcpStream::connect_timeout(&address, CONNECT).map_err(ReachError::Nobody)?;
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
    Ok(Gathered { answer, own: hosts })
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

    use super::*;

    /// A service that answers each line, the last one with `answer`.
    fn service(answer: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
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
        });
        address
    }

    #[test]
    fn an_answer_says_which_of_its_ranks_are_on_this_machine() {
        let address = service(
            r#"{"communicators": [{"hash": "0x1", "size": 2, "ranks": [
                {"rank": 0, "host": "127.0.0.1"}, {"rank": 1, "host": "203.0.113.9"}]}]}"#,
        );
        let gathered = here(address).expect("an answer");
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

    #[test]
    fn the_own_namespace_is_entered_without_rights_and_that_of_nobody_is_not() {
        let own = std::process::id().cast_signed();
        enter(own).expect("it is there already");
        let error = gather(5_000_000).expect_err("no process has that id");
        assert!(matches!(error, ReachError::Process { .. }), "{error}");
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
