//! What copies between a GPU and others of its node mean. A GPU is judged by the middle of its pairs, so that one which
//! is slow with everybody makes nobody else slow; a single pair that is far under the others of the same GPU is told
//! where its other end is in good standing.
//!
//! Numbers: starting points, as all in [`crate::verdict`]. Pairs are alike where CUDA ranks their links alike: NVLink
//! and PCIe are never held against each other.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::measured::{Measured, Peer};

/// Part of what is usual below which copies are slow: less than of memory, because others' traffic may take a part
/// of the same way.
pub const LEAST_OF_USUAL: f64 = 0.70;

/// Pairs of one GPU from which one of them can stand out.
const LEAST_PAIRS: usize = 3;

/// Bytes a second of the slower way of a pair.
fn slower(peer: &Peer) -> f64 {
    peer.to.min(peer.from)
}

/// The middle of some rates; none of none.
pub(crate) fn middle(mut rates: Vec<f64>) -> Option<f64> {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied()
}

fn by_link(measured: &Measured) -> BTreeMap<i32, Vec<&Peer>> {
    let mut links: BTreeMap<i32, Vec<&Peer>> = BTreeMap::new();
    for peer in &measured.peers {
        links.entry(peer.link).or_default().push(peer);
    }
    links
}

/// The middle of a GPU's pairs in bytes a second, over its fastest kind of link, with CUDA's rank of that.
pub fn rate(measured: &Measured) -> Option<(i32, f64)> {
    let links = by_link(measured).into_iter();
    let rates = links.filter_map(|(link, peers)| {
        let rates = peers.into_iter().map(slower).collect();
        Some((link, middle(rates)?))
    });
    rates.max_by(|a, b| a.1.total_cmp(&b.1))
}

/// Pairs that are far under the others of this GPU, in words; none whose other end is known to be slow or broken
/// by itself.
pub fn slow_pairs(measured: &Measured, known_bad: &[Arc<str>]) -> Vec<String> {
    let mut slow = Vec::new();
    for peers in by_link(measured).into_values() {
        let Some(middle) = middle(peers.iter().map(|it| slower(it)).collect()) else {
            continue;
        };
        for peer in peers.iter().filter(|_| peers.len() >= LEAST_PAIRS) {
            let part = slower(peer) / middle;
            if part < LEAST_OF_USUAL && !known_bad.iter().any(|it| **it == *peer.gpu) {
                let (gpu, part) = (&peer.gpu, part * 100.0);
                slow.push(format!(
                    "copies with {gpu} at {part:.0} % of those with others"
                ));
            }
        }
    }
    slow
}

#[cfg(test)]
mod tests {
    use super::*;

    const NVLINK: i32 = 0;
    const PCIE: i32 = 1;

    fn measured(peers: &[(&str, i32, f64, f64)]) -> Measured {
        let peer = |(gpu, link, to, from): &(&str, i32, f64, f64)| Peer {
            gpu: (*gpu).to_owned(),
            link: *link,
            to: *to,
            from: *from,
        };
        Measured {
            peers: peers.iter().map(peer).collect(),
            ..Measured::default()
        }
    }

    #[test]
    fn a_gpu_is_as_fast_as_the_middle_of_its_pairs_the_slower_way_over_its_fastest_links() {
        assert_eq!(rate(&measured(&[])), None);
        let one_slow = measured(&[
            ("a", NVLINK, 400e9, 390e9),
            ("b", NVLINK, 410e9, 80e9),
            ("c", NVLINK, 395e9, 400e9),
        ]);
        assert_eq!(rate(&one_slow), Some((NVLINK, 390e9)));
        let two_kinds = measured(&[
            ("a", PCIE, 25e9, 25e9),
            ("b", NVLINK, 100e9, 100e9),
            ("c", PCIE, 24e9, 25e9),
        ]);
        assert_eq!(rate(&two_kinds), Some((NVLINK, 100e9)));
    }

    #[test]
    fn a_pair_stands_out_among_three_of_its_kind_unless_its_other_end_is_bad_by_itself() {
        let pairs = [
            ("a", NVLINK, 400e9, 400e9),
            ("b", NVLINK, 400e9, 200e9),
            ("c", NVLINK, 400e9, 400e9),
        ];
        let told = slow_pairs(&measured(&pairs), &[]);
        assert_eq!(told, ["copies with b at 50 % of those with others"]);
        assert!(slow_pairs(&measured(&pairs), &[Arc::from("b")]).is_empty());
        assert!(slow_pairs(&measured(&pairs[..2]), &[]).is_empty(), "of two");
        let mut other_link = pairs;
        other_link[1].1 = PCIE;
        assert!(slow_pairs(&measured(&other_link), &[]).is_empty());
        let nearly = [pairs[0], ("b", NVLINK, 281e9, 400e9), pairs[2]];
        assert!(slow_pairs(&measured(&nearly), &[]).is_empty());
    }
}
