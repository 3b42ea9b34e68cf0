//! What a card is made of, by its NVML name: compute slices that MIG cuts it into, NVLinks.

/// Compute slices of cards that MIG cuts into fewer than [`MIG_SLICES`], by a part of their NVML name that is words of
/// it.
const FEWER_SLICES: [(&str, u32); 2] = [("A30", 4), ("RTX PRO 6000", 4)];

/// Compute slices of every other card that MIG cuts: A100, H100, H200, B200 and those that are made of these.
const MIG_SLICES: u32 = 7;

/// Into how many compute slices MIG cuts a card of this name, NVIDIA's MIG guide ("Supported GPUs"): where the driver
/// does not tell it itself.
pub fn mig_slices(name: &str) -> u32 {
    let is_end = |it: Option<char>| it.is_none_or(|it| !it.is_alphanumeric());
    let names = |part: &str| {
        name.match_indices(part).any(|(at, _)| {
            is_end(name[..at].chars().next_back()) && is_end(name[at + part.len()..].chars().next())
        })
    };
    let fewer = FEWER_SLICES.iter().find(|it| names(it.0));
    fewer.map_or(MIG_SLICES, |it| it.1)
}

/// NVLinks of cards that a baseboard or a rack connects by all of them, by whole NVML name: NVIDIA's specifications of
/// NVLink, "maximum number of links per GPU", 12 in its third generation (also the Fabric Manager user guide: two to each
/// of six NVSwitches) and 18 in the fourth and fifth (also NVIDIA's health checks, "expected_link_count"). A PCIe card
/// has as many as its bridge connects, and a V100 as many as its server's mesh: these are not here.
const NVLINKS: [(&str, u32); 7] = [
    ("NVIDIA A100-SXM4-40GB", 12),
    ("NVIDIA A100-SXM4-80GB", 12),
    ("NVIDIA H100 80GB HBM3", 18),
    ("NVIDIA H200", 18),
    ("NVIDIA B200", 18),
    ("NVIDIA GB200", 18),
    ("NVIDIA GB300", 18),
];

/// How many NVLinks a card of this name has, where machines are built that connect all of them; none where that is
/// not known. A virtual machine with some of a baseboard's GPUs may have fewer that are up.
pub fn nvlinks(name: &str) -> Option<u32> {
    NVLINKS.iter().find(|it| it.0 == name).map(|it| it.1)
}

#[cfg(test)]
mod tests {
    use super::super::lookup;
    use super::*;

    #[test]
    fn an_a30_has_four_slices_and_the_large_cards_seven() {
        for (name, slices) in [
            ("NVIDIA A30", 4),
            ("NVIDIA A30-24Q", 4),
            ("A30", 4),
            ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 4),
            ("NVIDIA A100-SXM4-40GB", 7),
            ("NVIDIA A100 80GB PCIe", 7),
            ("NVIDIA H100 80GB HBM3", 7),
            ("NVIDIA H200", 7),
            ("NVIDIA GH200 480GB", 7),
            ("NVIDIA B200", 7),
            ("NVIDIA GB300", 7),
            ("NVIDIA RTX A3000", 7),
            ("NVIDIA A300", 7),
            ("", 7),
        ] {
            assert_eq!(mig_slices(name), slices, "{name}");
        }
    }

    #[test]
    fn the_links_of_a_card_are_known_by_its_whole_name_and_give_its_bandwidth_together() {
        for (name, links) in [
            ("NVIDIA A100-SXM4-80GB", Some(12)),
            ("NVIDIA H100 80GB HBM3", Some(18)),
            ("NVIDIA B200", Some(18)),
            ("NVIDIA H100 PCIe", None),
            ("NVIDIA H100 NVL", None),
            ("NVIDIA A100 80GB PCIe", None),
            ("Tesla V100-SXM2-32GB", None),
            ("H200", None),
            ("", None),
        ] {
            assert_eq!(nvlinks(name), links, "{name}");
        }
        for (name, links) in NVLINKS {
            let spec = lookup(name).expect("its peaks are known");
            let all = spec.nvlink_bytes_per_second.expect("it has NVLink");
            // A link of the third and fourth generation carries 50 GB/s both ways, of the fifth 100.
            let of_each = all / f64::from(links) / 1e9;
            assert!([50.0, 100.0].contains(&of_each), "{name}: {of_each}");
        }
    }
}
