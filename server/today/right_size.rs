//! Rows of what could be saved: holders that could do with fewer or smaller GPUs. Their GPUs work, so it is
//! no waste and in no sum.

use gpufleet_analysis::lost::WHOLE_GPU;
use gpufleet_analysis::owner::Payer;

use super::waste::{Kind, Waste};
use crate::money::savings::{RightSize, Savings};
use crate::words::address;

/// A row for each of them.
pub(super) fn rows(savings: &Savings) -> Vec<Waste> {
    savings.right_size.iter().map(row).collect()
}

fn row(it: &RightSize) -> Waste {
    let proposal = &it.proposal;
    let would_do = format!("{} of {}", proposal.gpus, proposal.card);
    Waste {
        kind: Kind::RightSize,
        cluster: it.cluster.clone(),
        place: it.job.clone(),
        address: address::saved(it.origin),
        what: format!(
            "holds {} of {}; by the last seven days {would_do} would do",
            it.gpus, it.card
        ),
        milli_gpus: u64::from(it.gpus) * WHOLE_GPU,
        day_cost: Some(proposal.saved_per_day),
        unpriced: 0,
        since: None,
        owner: it.payer.name().to_owned(),
        action: match &it.payer {
            Payer::Team(team) => format!("Ask {team} to try {would_do}."),
            Payer::Unowned | Payer::Nobody => {
                format!("Find out who runs it, to try {would_do}; an owner rule names its team.")
            }
        },
        status: format!("proposed with {} confidence", proposal.confidence.name()),
        incident: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_could_do_with_less_has_a_row_with_its_owner_and_is_no_waste() {
        let of = |payer: Payer| RightSize::for_tests("job:ml/train", payer);
        let savings = Savings {
            right_size: vec![of(Payer::Team("science".to_owned())), of(Payer::Unowned)],
            ..Savings::default()
        };
        let rows = rows(&savings);
        let [first, second] = rows.as_slice() else {
            panic!("{rows:?}");
        };
        assert!(!first.kind.is_waste());
        assert_eq!(
            first.what,
            "holds 8 of big; by the last seven days 4 of small would do"
        );
        assert_eq!(first.day_cost, Some(1_760_000_000_000));
        assert_eq!(
            (first.owner.as_str(), first.action.as_str()),
            ("science", "Ask science to try 4 of small.")
        );
        assert_eq!(first.status, "proposed with low confidence");
        assert_eq!(first.address, "/cost#saved-live");
        assert!(second.action.contains("owner rule"), "{second:?}");
    }
}
