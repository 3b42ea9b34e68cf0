//! The training process' side of the way to the agent: a thread that hands the region over.
//!
//! The client makes its region before it knows of any agent and hands the same one to every agent it
//! meets, the first and those after a restart: so nothing moves under the threads that write, and
//! whoever comes finds the totals since the start. Without an agent everything works the same and
//! nobody reads. The thread holds no lock of the process, blocks every signal, and connects again
//! with growing pauses.
#![expect(unsafe_code, reason = "signals are blocked for the thread")]

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread::Thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recv, sendmsg, socket_with,
};

use crate::asked::Asked;
use crate::layout::{SIZE_BYTES, VERSION};
use crate::wire::{Ask, Hello, MESSAGE_BYTES, Reply, SOCKET, SOCKET_VARIABLE};
use crate::words::{WriterKind, words};
use crate::writer::Writer;

/// How often the thread says that the process lives, and looks whether it is to end.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// How long the agent may take to answer: it answers within milliseconds or is not well.
const ANSWER: Duration = Duration::from_secs(5);

/// Longest pause that an agent may ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Stack of the thread: it calls nothing deep.
const STACK_BYTES: usize = 128 * 1024;

words! {
    /// Where a client stands.
    State {
        /// No agent yet, or it went away.
        Away = 0 "away",
        /// An agent has the region.
        Connected = 1 "connected",
        /// The agent does not take it; tried again later.
        Refused = 2 "refused",
        /// The process has no region or no thread: everything written goes nowhere.
        Off = 3 "off",
    }
}

/// How a client is started.
#[derive(Debug, Clone)]
pub struct Options {
    /// What it is.
    pub kind: WriterKind,
    /// Where the agent listens.
    pub socket: PathBuf,
    /// First pause before connecting again; each one is twice the last.
    pub first_pause: Duration,
    /// Longest pause.
    pub longest_pause: Duration,
}

impl Options {
    /// As it is outside tests: the socket from the environment or its usual place.
    pub fn new(kind: WriterKind) -> Self {
        let socket = std::env::var_os(SOCKET_VARIABLE).filter(|it| !it.is_empty());
        Self {
            kind,
            socket: socket.map_or_else(|| PathBuf::from(SOCKET), PathBuf::from),
            first_pause: Duration::from_millis(200),
            longest_pause: Duration::from_secs(10),
        }
    }
}

/// A region and the thread that hands it over. When it is dropped the thread ends; the region stays.
pub struct Client {
    writer: Writer,
    shared: Arc<Shared>,
    thread: Option<Thread>,
}

struct Shared {
    is_over: AtomicBool,
    state: AtomicU8,
    /// What the last agent that took the region wants.
    is_probe_off: AtomicBool,
    /// What it asks for.
    asked: Asked,
}

impl Client {
    /// Makes the region and starts the thread. Never fails: where the kernel gives no memory or no
    /// thread the client is [`State::Off`] and takes every write.
    pub fn start(options: Options) -> Self {
        let shared = Arc::new(Shared {
            is_over: AtomicBool::new(false),
            state: AtomicU8::new(State::Away as u8),
            is_probe_off: AtomicBool::new(false),
            asked: Asked::default(),
        });
        let off = |writer, shared: Arc<Shared>| {
            shared.state.store(State::Off as u8, Ordering::Relaxed);
            Self {
                writer,
                shared,
                thread: None,
            }
        };
        let Ok(writer) = Writer::create(options.kind) else {
            return off(Writer::nobody(), shared);
        };
        let of_thread = shared.clone();
        let started = without_signals(|| {
            std::thread::Builder::new()
                .name("gpufleet-hooks".to_owned())
                .stack_size(STACK_BYTES)
                .spawn(move || run(writer, &options, &of_thread))
        });
        match started {
            Ok(handle) => Self {
                writer,
                shared,
                thread: Some(handle.thread().clone()),
            },
            Err(_no_thread) => off(writer, shared),
        }
    }

    /// The handle to write with.
    pub fn writer(&self) -> Writer {
        self.writer
    }

    /// Where it stands. In a forked child: where the parent stood.
    pub fn state(&self) -> State {
        let number = self.shared.state.load(Ordering::Relaxed);
        State::from_number(u64::from(number)).unwrap_or(State::Off)
    }
}

impl Client {
    /// Whether the node's agent has switched probes inside processes off; not before it was met.
    pub fn is_probe_off(&self) -> bool {
        self.shared.is_probe_off.load(Ordering::Relaxed)
    }

    /// What the node's agent asks of the process. Nothing comes before the region says that the process takes
    /// it ([`Writer::takes_profile`]).
    pub fn asked(&self) -> &Asked {
        &self.shared.asked
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = &self.thread {
            thread.unpark();
        }
    }
}

/// The thread.
fn run(writer: Writer, options: &Options, shared: &Shared) {
    let mut pause = options.first_pause;
    let become_ = |state: State| shared.state.store(state as u8, Ordering::Relaxed);
    while !shared.is_over.load(Ordering::Relaxed) {
        writer.heartbeat();
        let mut at_least = Duration::ZERO;
        match hand_over(writer, &options.socket) {
            Ok((socket, Answer::Taken { is_probe_off })) => {
                pause = options.first_pause;
                shared.is_probe_off.store(is_probe_off, Ordering::Relaxed);
                writer.taken();
                become_(State::Connected);
                stay(writer, &socket, shared);
                shared.asked.forget();
                become_(State::Away);
                close(writer, socket);
            }
            Ok((socket, Answer::Refused(retry_after))) => {
                become_(State::Refused);
                at_least = retry_after;
                close(writer, socket);
            }
            Err(_no_agent) => become_(State::Away),
        }
        wait(writer, shared, pause.max(at_least));
        pause = (pause * 2).min(options.longest_pause);
    }
}

/// Waits, and says meanwhile that the process lives.
fn wait(writer: Writer, shared: &Shared, pause: Duration) {
    let mut left = pause;
    while !left.is_zero() && !shared.is_over.load(Ordering::Relaxed) {
        let now = left.min(HEARTBEAT);
        // Ended early when the client is dropped; a pause that is too short does no harm.
        std::thread::park_timeout(now);
        left -= now;
        writer.heartbeat();
    }
}

/// What an agent says to a region.
enum Answer {
    /// It has it, and may want no probe inside the process.
    Taken { is_probe_off: bool },
    /// It does not take it; how long to wait.
    Refused(Duration),
}

/// Connects and sends the region.
fn hand_over(writer: Writer, path: &Path) -> Result<(OwnedFd, Answer), Errno> {
    let memory = writer.place().memory().ok_or(Errno::BADF)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    writer.place().connected(&socket);
    match converse(&socket, memory, path) {
        Ok(answer) => Ok((socket, answer)),
        Err(error) => {
            close(writer, socket);
            Err(error)
        }
    }
}

fn converse(socket: &OwnedFd, memory: impl AsFd, path: &Path) -> Result<Answer, Errno> {
    connect(socket, &SocketAddrUnix::new(path)?)?;
    let hello = Hello {
        layout: VERSION,
        size: SIZE_BYTES as u64,
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut files = SendAncillaryBuffer::new(&mut space);
    let memory = [memory.as_fd()];
    files.push(SendAncillaryMessage::ScmRights(&memory));
    let bytes = hello.to_bytes();
    let text = [IoSlice::new(&bytes)];
    // An agent that refuses may close before it is told anything: its answer says why.
    let _sent = sendmsg(socket, &text, &mut files, SendFlags::NOSIGNAL);
    if !is_readable(socket, ANSWER)? {
        return Err(Errno::TIMEDOUT);
    }
    let mut bytes = [0; MESSAGE_BYTES];
    let (length, _whole) = recv(socket, &mut bytes, RecvFlags::DONTWAIT)?;
    let reply = Reply::from_bytes(&bytes[..length]).ok_or(Errno::PROTO)?;
    let retry_after = Duration::from_millis(reply.retry_after_ms).min(LONGEST_PAUSE);
    let is_probe_off = reply.is_probe_off;
    Ok(match reply.refusal {
        Some(_) => Answer::Refused(retry_after),
        None => Answer::Taken { is_probe_off },
    })
}

/// Stays until the agent goes away.
fn stay(writer: Writer, socket: &OwnedFd, shared: &Shared) {
    while !shared.is_over.load(Ordering::Relaxed) {
        writer.heartbeat();
        match is_readable(socket, HEARTBEAT) {
            Ok(false) => {}
            Ok(true) => {
                let mut bytes = [0; MESSAGE_BYTES];
                match recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
                    // Whatever else comes is from a newer agent.
                    Ok((length @ 1.., _)) => {
                        if let Some(ask) = bytes.get(..length).and_then(Ask::from_bytes) {
                            shared.asked.take(ask);
                        }
                    }
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Ok((0, _)) | Err(_) => return,
                }
            }
            Err(_) => return,
        }
    }
}

fn close(writer: Writer, socket: OwnedFd) {
    writer.place().disconnected();
    drop(socket);
}

fn is_readable(socket: &OwnedFd, within: Duration) -> Result<bool, Errno> {
    let mut files = [PollFd::new(socket, PollFlags::IN)];
    let within = Timespec::try_from(within).map_err(|_too_long| Errno::INVAL)?;
    match poll(&mut files, Some(&within)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Runs `start` with every signal blocked: a thread started in it never runs a handler of the
/// training process.
fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are ours; the first is filled before it is read, the second is written by
    // the call that succeeds before it is read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        let blocked = libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let value = start();
        if blocked == 0 {
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        }
        value
    }
}
