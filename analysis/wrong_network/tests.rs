//! Ports of made nodes: which way their traffic takes.

use super::*;

const GIGABIT: f64 = 1e9 / 8.0;

/// The host's port and eight RDMA ports, with what they carry each way.
fn ports(host: f64, rdma: f64) -> Vec<Port> {
    let port = |name: String, is_rdma: bool, speed: f64, bytes: f64| Port {
        name: name.into(),
        is_rdma,
        is_up: Some(true),
        speed: Some(speed * GIGABIT),
        sent: Some(bytes),
        received: Some(bytes * 1.1),
        ..Port::default()
    };
    let fast = (0..8).map(|it| port(format!("mlx5_{it}"), true, 400.0, rdma));
    let own = port("eth0".to_owned(), false, 100.0, host);
    std::iter::once(own).chain(fast).collect()
}

fn settings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pairs = pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    pairs.collect()
}

/// What is said of two nodes after so many looks.
fn judged(
    looks: u32,
    nodes: [&[Port]; 2],
    talks: Option<bool>,
    told: &[(&str, &str)],
) -> Result<Option<Finding>, Silent> {
    let mut watch = Watch::default();
    let nodes = [("node-2", nodes[1]), ("node-1", nodes[0])];
    let settings = settings(told);
    let mut said = Err(Silent::Starting);
    for _ in 0..looks {
        said = watch.observe(&Look {
            nodes: &nodes,
            talks,
            settings: &settings,
        });
    }
    said
}

fn of(nodes: [&[Port]; 2]) -> Option<Finding> {
    judged(6, nodes, Some(true), &[]).expect("it is judged")
}

#[test]
fn a_run_over_the_hosts_port_beside_silent_rdma_ports_goes_the_wrong_way() {
    let wrong = ports(2.2e9, 1e3);
    let found = of([&wrong, &wrong]).expect("it goes the wrong way");
    assert_eq!((&*found.node, found.nodes), ("node-1", 2));
    assert_eq!((&*found.busy, found.bytes_per_second), ("eth0", 2.2e9));
    assert_eq!((found.idle_ports, found.are_rdma), (8, true));
    assert_eq!(found.setting, None);
    assert_eq!(found.times, Some(32.0));
    assert_eq!(
        found.saved_part(),
        Some(0.75),
        "no more than was ever measured"
    );
}

#[test]
fn the_right_way_one_way_traffic_and_little_of_it_are_no_finding() {
    for (host, rdma) in [(2.2e9, 20e9), (20e6, 1e3), (0.0, 0.0)] {
        let right = ports(host, rdma);
        assert_eq!(of([&right, &right]), None, "{host} {rdma}");
    }
    let mut reads = ports(2.2e9, 1e3);
    // Reading data: it receives, and sends little.
    reads[0].sent = Some(6e7);
    assert_eq!(of([&reads, &reads]), None);
    let (wrong, right) = (ports(2.2e9, 1e3), ports(2.2e9, 20e9));
    assert_eq!(
        of([&wrong, &right]),
        None,
        "one node alone goes no way of its own"
    );
}

#[test]
fn ports_that_are_down_or_unread_are_no_evidence() {
    let mut down = ports(2.2e9, 0.0);
    down[1..].iter_mut().for_each(|it| it.is_up = Some(false));
    let said = judged(6, [&down, &down], Some(true), &[]);
    assert_eq!(said, Err(Silent::PortsUnknown), "there is no other way");
    let mut unread = ports(2.2e9, 0.0);
    unread[4].sent = None;
    let said = judged(6, [&unread, &unread], Some(true), &[]);
    assert_eq!(said, Err(Silent::PortsUnknown));
    assert_eq!(
        judged(6, [&[], &[]], Some(true), &[]),
        Err(Silent::PortsUnknown)
    );
    let wrong = ports(2.2e9, 0.0);
    let said = judged(6, [&wrong, &wrong], Some(false), &[]);
    assert_eq!(said, Err(Silent::NotKnownToTalk));
    let said = judged(5, [&wrong, &wrong], Some(true), &[]);
    assert_eq!(said, Err(Silent::Starting));
    let alone = Look {
        nodes: &[("node-1", &wrong)],
        talks: Some(true),
        settings: &BTreeMap::new(),
    };
    assert_eq!(Watch::default().observe(&alone), Err(Silent::OneNode));
}

#[test]
fn where_nothing_shows_that_ranks_talk_a_setting_says_whose_the_traffic_is() {
    let (wrong, right) = (ports(2.2e9, 0.0), ports(3e6, 18e9));
    let is_off = ("NCCL_IB_DISABLE", "1");
    let said = judged(6, [&wrong, &wrong], None, &[is_off]);
    let found = said.expect("it is judged").expect("it goes the wrong way");
    assert_eq!(found.setting.map(|it| it.key), Some("NCCL_IB_DISABLE"));
    for told in [&[][..], &[("NCCL_DEBUG", "INFO")]] {
        let said = judged(6, [&wrong, &wrong], None, told);
        assert_eq!(said, Err(Silent::NotKnownWhose));
    }
    let said = judged(6, [&right, &right], None, &[is_off]);
    assert_eq!(said, Ok(None), "it goes the right way all the same");
}

#[test]
fn without_speeds_it_is_told_and_has_no_price() {
    let mut wrong = ports(2.2e9, 0.0);
    wrong[0].speed = None;
    let found = of([&wrong, &wrong]).expect("it goes the wrong way");
    assert_eq!((found.times, found.saved_part()), (None, None));
}

#[test]
fn ethernet_ports_of_the_gpus_count_when_they_are_as_many_and_as_fast() {
    let wired = |speed: f64, count: usize| {
        let mut all = ports(2.2e9, 1e3);
        all.truncate(1 + count);
        for (place, port) in all[1..].iter_mut().enumerate() {
            port.is_rdma = false;
            port.name = format!("eth{}", place + 1).into();
            port.speed = Some(speed * GIGABIT);
        }
        all
    };
    let found = of([&wired(200.0, 8), &wired(200.0, 8)]).expect("it goes the wrong way");
    assert_eq!((found.idle_ports, found.are_rdma), (8, false));
    for (speed, count) in [(10.0, 8), (200.0, 3)] {
        let few = wired(speed, count);
        let said = judged(6, [&few, &few], Some(true), &[]);
        assert_eq!(said, Err(Silent::PortsUnknown), "{count} at {speed}");
    }
}

#[test]
fn the_setting_that_decides_first_is_named() {
    let wrong = ports(2.2e9, 0.0);
    for (told, key) in [
        (
            &[("NCCL_NET", "Socket"), ("NCCL_IB_DISABLE", "1")][..],
            Some("NCCL_NET"),
        ),
        (
            &[("NCCL_IB_DISABLE", "1"), ("NCCL_DEBUG", "INFO")],
            Some("NCCL_IB_DISABLE"),
        ),
        (
            &[("NCCL_IB_DISABLE", "0"), ("NCCL_SOCKET_IFNAME", "eth0")],
            None,
        ),
        (&[("NCCL_IB_HCA", "rocep0,rocep1")], Some("NCCL_IB_HCA")),
        (&[("NCCL_IB_HCA", "mlx5_0:1,mlx5_1:1")], None),
        (&[("NCCL_IB_HCA", "mlx5")], None),
        (&[("NCCL_IB_HCA", "=mlx5")], Some("NCCL_IB_HCA")),
        (&[("NCCL_IB_HCA", "^mlx5")], Some("NCCL_IB_HCA")),
        (&[("NCCL_IB_HCA", "^=mlx5_0")], None),
        (&[], None),
    ] {
        let said = judged(6, [&wrong, &wrong], Some(true), told);
        let found = said.expect("it is judged").expect("it goes the wrong way");
        assert_eq!(found.setting.map(|it| it.key), key, "{told:?}");
    }
}
