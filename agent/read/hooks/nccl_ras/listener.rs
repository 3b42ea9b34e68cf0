//! Whose socket listens at an address of this machine, as the kernel lists it: what connects to loopback
//! learns by no other way who is at the other end.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Most bytes read of a list: sockets that listen stand first in it, and 20,000 of them are enough.
const MAX_BYTES: u64 = 4 << 20;

/// The state of a socket that listens.
const LISTENS: &str = "0A";

/// A socket that listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Listener {
    /// The user who made it.
    pub(super) uid: u32,
    /// Its number, which no other socket has while it is there.
    inode: u64,
}

/// The socket that takes connections to an address in the network namespace of this thread.
pub(super) fn listener(address: SocketAddr) -> Option<Listener> {
    // A socket of IPv4 goes before one that takes both.
    let lists = ["tcp", "tcp6"].into_iter();
    let mut lists = lists.filter_map(|it| File::open(format!("/proc/thread-self/net/{it}")).ok());
    lists.find_map(|list| in_list(BufReader::new(list.take(MAX_BYTES)), address))
}

/// Whether this is a list of the kernel's in which somebody takes connections to loopback's port 28028.
pub fn understands(bytes: &[u8]) -> bool {
    in_list(bytes, SocketAddr::from(([127, 0, 0, 1], 28_028))).is_some()
}

fn in_list(list: impl BufRead, address: SocketAddr) -> Option<Listener> {
    list.lines()
        .skip(1)
        .map_while(Result::ok)
        .find_map(|line| in_line(&line, address))
}

/// `   0: 0100007F:6D7C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 12345 1 …`
fn in_line(line: &str, address: SocketAddr) -> Option<Listener> {
    let mut words = line.split_ascii_whitespace();
    let local = words.nth(1)?;
    if words.nth(1)? != LISTENS {
        return None;
    }
    let (host, port) = local.split_once(':')?;
    let host = host_of(host)?;
    let is_its = host.is_unspecified() || host == address.ip();
    if u16::from_str_radix(port, 16).ok()? != address.port() || !is_its {
        return None;
    }
    Some(Listener {
        uid: words.nth(3)?.parse().ok()?,
        inode: words.nth(1)?.parse().ok()?,
    })
}

/// An address in words of 32 bits, each as this machine has them in memory.
fn host_of(text: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let digits = text.get(at * 8..at * 8 + 8)?;
        let word = u32::from_str_radix(digits, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    match text.len() {
        8 => Some(IpAddr::V4(Ipv4Addr::from(word(0)?))),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let mut bytes = [0; 16];
            for (to, from) in bytes.iter_mut().zip(words.into_iter().flatten()) {
                *to = from;
            }
            Some(Ipv6Addr::from(bytes).to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// In the shape of /proc/net/tcp: a connection to the port, a neighbour, who listens.
    const LIST: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:6D7C 0100007F:A001 01 00000000:00000000 00:00000000 00000000  1001        0 11 1 0
   1: 0200007F:6D7C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1002        0 12 1 0
   2: 0100007F:6D7D 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1003        0 13 1 0
   3: 0100007F:6D7C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1004        0 14 1 0
";

    fn found(list: &str) -> Option<(u32, u64)> {
        let address = "127.0.0.1:28028".parse().expect("an address");
        in_list(list.as_bytes(), address).map(|it| (it.uid, it.inode))
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn who_listens_at_the_very_address_is_found_and_nobody_else() {
        assert_eq!(found(LIST), Some((1_004, 14)));
        let everywhere = LIST.replace("3: 0100007F", "3: 00000000");
        assert_eq!(found(&everywhere), Some((1_004, 14)));
        let (without, _) = LIST.split_once("   3:").expect("the last line");
        assert_eq!(found(without), None);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_socket_that_takes_both_families_is_found() {
        let both = |host: &str| LIST.replace("3: 0100007F", &format!("3: {host}"));
        let mapped = "0000000000000000FFFF00000100007F";
        assert_eq!(found(&both(&"0".repeat(32))), Some((1_004, 14)));
        assert_eq!(found(&both(mapped)), Some((1_004, 14)));
        let another = "00000000000000000000000001000000";
        assert_eq!(found(&both(another)), None, "::1 is another address");
    }

    #[test]
    fn lines_of_any_other_shape_are_nobody() {
        for line in [
            "",
            "1 2 3",
            "0: 0100007F:6D7C x 0A",
            "0: zz:6D7C x 0A 1 2 3 4 5 6",
        ] {
            assert_eq!(found(&format!("head\n{line}\n")), None, "{line}");
        }
    }

    #[test]
    fn a_socket_of_this_process_is_its_users_and_gone_when_it_is_closed() {
        let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = socket.local_addr().expect("an address");
        let found = listener(address).expect("it listens");
        assert_eq!(found.uid, rustix::process::geteuid().as_raw());
        drop(socket);
        assert_ne!(listener(address), Some(found));
    }
}
