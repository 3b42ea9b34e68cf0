//! What stands between a server and its database, and can be shut while both run on.
//!
//! Shut, it refuses connections and ends those that there are, as a database does that is stopped. Threads wait for
//! bytes and connections; nobody polls.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// What is passed on at a time, bytes.
const PIECE: usize = 16 * 1024;

/// The gate in front of one database.
#[derive(Debug)]
pub struct Gate {
    address: SocketAddr,
    to: String,
    /// Both ends of every connection since it was opened.
    streams: Arc<Mutex<Vec<TcpStream>>>,
    /// What takes connections; none while it is shut.
    keeper: Option<Keeper>,
}

#[derive(Debug)]
struct Keeper {
    is_shut: Arc<Mutex<bool>>,
    thread: JoinHandle<()>,
}

impl Gate {
    /// One in front of the database with this URL, which has host and port; open.
    ///
    /// # Panics
    /// When it has none.
    pub fn before(url: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let mut gate = Self {
            address: listener.local_addr().expect("it is bound"),
            to: place(url).to_owned(),
            streams: Arc::default(),
            keeper: None,
        };
        gate.keep(listener);
        gate
    }

    /// The same URL, through it.
    pub fn url(&self, url: &str) -> String {
        url.replacen(place(url), &self.address.to_string(), 1)
    }

    /// Refuses connections and ends those that there are.
    ///
    /// # Panics
    /// When it is shut.
    pub fn shut(&mut self) {
        let keeper = self.keeper.take().expect("it is open");
        *keeper
            .is_shut
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = true;
        // The one that it waits for, so that it looks at that.
        drop(TcpStream::connect(self.address));
        keeper.thread.join().expect("it only passes bytes on");
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        for stream in streams.drain(..) {
            // One that has ended by itself cannot be ended.
            _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Takes connections again.
    ///
    /// # Panics
    /// When somebody else has taken its port.
    pub fn open(&mut self) {
        let listener = TcpListener::bind(self.address).expect("the port was its own");
        self.keep(listener);
    }

    fn keep(&mut self, listener: TcpListener) {
        let is_shut = Arc::new(Mutex::new(false));
        let (to, streams) = (self.to.clone(), Arc::clone(&self.streams));
        let shut = Arc::clone(&is_shut);
        let thread = std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if *shut.lock().unwrap_or_else(PoisonError::into_inner) {
                    return;
                }
                let database = TcpStream::connect(&to).expect("the tests' PostgreSQL runs");
                let mut streams = streams.lock().unwrap_or_else(PoisonError::into_inner);
                for stream in [&client, &database] {
                    streams.push(stream.try_clone().expect("a socket can be shared"));
                }
                let back = [&database, &client].map(|it| it.try_clone());
                pass(client, database);
                let [Ok(database), Ok(client)] = back else {
                    panic!("a socket can be shared");
                };
                pass(database, client);
            }
        });
        self.keeper = Some(Keeper { is_shut, thread });
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        if self.keeper.is_some() {
            self.shut();
        }
    }
}

/// Host and port in a URL.
fn place(url: &str) -> &str {
    let (_, rest) = url.split_once("://").expect("a URL has a scheme");
    let rest = rest.split_once('/').map_or(rest, |it| it.0);
    rest.rsplit_once('@').map_or(rest, |it| it.1)
}

/// Passes on what comes, until one of both ends.
fn pass(mut from: TcpStream, mut to: TcpStream) {
    std::thread::spawn(move || {
        let mut piece = [0; PIECE];
        while let Ok(length @ 1..) = from.read(&mut piece) {
            if to.write_all(&piece[..length]).is_err() {
                break;
            }
        }
        for stream in [&from, &to] {
            // One that has ended by itself cannot be ended.
            _ = stream.shutdown(Shutdown::Both);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_passes_until_it_is_shut_and_again_when_it_is_open() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("postgres://me@{}/name", listener.local_addr().unwrap());
        let echo = std::thread::spawn(move || {
            for stream in listener.incoming().take(2) {
                let mut stream = stream.unwrap();
                let mut said = [0; 2];
                stream.read_exact(&mut said).unwrap();
                stream.write_all(&said).unwrap();
            }
        });
        let mut gate = Gate::before(&url);
        let through = gate.url(&url);
        assert_eq!(through, format!("postgres://me@{}/name", gate.address));
        let speak = |to: SocketAddr| {
            let mut stream = TcpStream::connect(to).unwrap();
            stream.write_all(b"hi").unwrap();
            let mut said = [0; 2];
            stream.read_exact(&mut said).unwrap();
            assert_eq!(&said, b"hi");
            stream
        };
        let mut first = speak(gate.address);
        gate.shut();
        assert!(!matches!(first.read(&mut [0]), Ok(1..)), "it was ended");
        assert!(TcpStream::connect(gate.address).is_err(), "none is taken");
        gate.open();
        speak(gate.address);
        echo.join().unwrap();
    }
}
