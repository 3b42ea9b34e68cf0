//! Small fleets for tests: boxes of eight GPUs at 80.0 an hour, 40.0 on Spot, since 2026-10-01; machines with an
//! eighth of a GPU; and hosts that GPUs are added to.

use super::*;
use crate::price_book::{Tables, Text};

/// 2026-10-01, hours since the epoch.
pub(crate) const FIRST_HOUR: i64 = 497_448;

/// Milliseconds of an hour.
pub(crate) const HOUR: i64 = 3_600_000;

pub(crate) const RATES: &str = "machine_type,region,basis,currency,hour,gpu_hour,from,until,quality,source\n\
    box-8g,here,on_demand,USD,80,9,2026-10-01,,list,a\n\
    box-8g,here,spot,USD,40,4.5,2026-10-01,,list,a\n";

pub(crate) const OWNERS: &str = "from,until,kind,key,value,team\n\
    2026-01-01,,namespace,,research,science\n2026-01-01,,namespace,,ads,money\n";

/// A book of box-8g, slice-1 and host-4 with these rates and commitments.
pub(crate) fn book(rates: &str, commitments: &str) -> Book {
    let machines = "machine_type,gpu_model,gpu_count,vcpus,memory_gib\nbox-8g,h100,8,208,1872\n\
        slice-1,h100,0.125,26,234\nhost-4,,0,4,15\nhost+t4,t4,1,,\n";
    let header = "id,machine_type,region,nodes,basis,currency,hour,from,until,owner\n";
    let tables = Tables {
        machines: vec![Text::new("machines", machines)],
        rates: vec![Text::new("rates", rates)],
        commitments: vec![Text::new("commitments", &format!("{header}{commitments}"))],
        discounts: Vec::new(),
    };
    Book::load("USD", &tables)
}

pub(crate) fn owners() -> Owners {
    Owners::read(OWNERS).expect("a table")
}

pub(crate) fn node(name: &str, basis: Basis) -> Node {
    Node {
        cluster: "c".to_owned(),
        name: name.to_owned(),
        resource: format!("//compute.googleapis.com/projects/p/zones/here-a/instances/{name}"),
        project: "p".to_owned(),
        pool: "pool".to_owned(),
        machine_type: "box-8g".to_owned(),
        region: "here".to_owned(),
        zone: "here-a".to_owned(),
        gpu_model: "h100".to_owned(),
        gpus: 8,
        basis,
        card: None,
        seller: None,
    }
}

/// Nodes of eight GPUs and the holders `research/train`, `ads/rank`, `misc/own` (unowned).
pub(crate) fn fleet(nodes: usize) -> Fleet {
    let holder = |namespace: &str, job: &str| Holder {
        name: format!("{job}-0"),
        namespace: namespace.to_owned(),
        job: job.to_owned(),
        model: format!("{job}-model"),
        ..Holder::default()
    };
    Fleet {
        nodes: (0..nodes)
            .map(|it| node(&format!("node-{it}"), Basis::OnDemand))
            .collect(),
        gpus: (0..nodes * 8 + 2).map(|it| format!("GPU-{it}")).collect(),
        shares: (0..14).map(|it| format!("MIG-{it}")).collect(),
        holders: vec![
            holder("research", "train"),
            holder("ads", "rank"),
            holder("misc", "own"),
        ],
    }
}

/// A whole GPU's time in one state.
pub(crate) fn part(holder: Option<usize>, state: State, millis: i64) -> Part {
    Part {
        share: None,
        slices: 1,
        of: 1,
        holder,
        state,
        reason: Reason::Unknown,
        millis,
        lost_millis: 0,
        energy: Energy::default(),
    }
}

/// A node in the hour of this number, billed for all of it, whose GPUs all did the same.
pub(crate) fn period(node: usize, hour: i64, parts: &[Part]) -> NodePeriod {
    let from_ms = (FIRST_HOUR + hour) * HOUR;
    let gpu = |number: usize| GpuPeriod {
        gpu: node * 8 + number,
        present_millis: HOUR,
        parts: parts.to_vec(),
    };
    NodePeriod {
        node,
        from_ms,
        until_ms: from_ms + HOUR,
        billed: vec![(from_ms, from_ms + HOUR)],
        starting_millis: 0,
        gpus: (0..8).map(gpu).collect(),
    }
}

/// October 2026.
pub(crate) fn october(fleet: &Fleet, periods: &[NodePeriod], book: &Book) -> Chargeback {
    october_in(Detail::Gpus, fleet, periods, book)
}

/// The same with lines so far apart.
pub(crate) fn october_in(
    detail: Detail,
    fleet: &Fleet,
    periods: &[NodePeriod],
    book: &Book,
) -> Chargeback {
    chargeback(&Asked {
        detail,
        from_ms: FIRST_HOUR * HOUR,
        until_ms: (FIRST_HOUR + 744) * HOUR,
        now_ms: i64::MAX,
        fleet,
        periods,
        book,
        commitments: book.commitments(),
        owners: &owners(),
    })
}
