//! The bar of what GPUs do: a slice for each look of a state.

use gpufleet_analysis::ledger;
use gpufleet_telemetry::identity::Origin;

use super::HOLDER_UNKNOWN;
use crate::view::Counts;
use crate::words;
use crate::words::text::grouped;

/// Width of the bar of states in its own units.
const BAR: usize = 1_000;

/// GPUs of one look in the bar.
pub(super) struct Slice {
    pub(super) x: usize,
    pub(super) width: usize,
    pub(super) look: words::Look,
    pub(super) count: String,
    pub(super) address: Option<String>,
}

/// One slice for each look of a state; the three kinds of active share one. What is measured and nobody knows who holds it
/// is apart from what is not measured.
pub(super) fn bar(counts: &Counts, origin: Origin) -> Vec<Slice> {
    let mut looks: Vec<(words::Look, ledger::State, usize)> = Vec::new();
    let of = |state| match state {
        ledger::State::Unobserved => counts.unmeasured(),
        state => counts.of(state),
    };
    let known = words::ORDER.map(|state| (words::look(state), state, of(state)));
    let unknown = words::Look {
        name: HOLDER_UNKNOWN,
        ..words::look(ledger::State::Unobserved)
    };
    let unknown = (unknown, ledger::State::Unobserved, counts.holder_unknown);
    for (look, state, count) in known.into_iter().chain([unknown]) {
        match looks.iter_mut().find(|it| it.0 == look) {
            _ if count == 0 => {}
            Some(known) => known.2 += count,
            None => looks.push((look, state, count)),
        }
    }
    let mut before = 0;
    let slice = |(look, state, count): (words::Look, ledger::State, usize)| {
        let x = before * BAR / counts.all.max(1);
        before += count;
        Slice {
            x,
            width: before * BAR / counts.all.max(1) - x,
            look,
            count: grouped(count as f64),
            // Only live clusters are filtered by state there.
            address: (origin == Origin::Live).then(|| format!("/fleet?state={}", state.name())),
        }
    };
    looks.into_iter().map(slice).collect()
}

#[cfg(test)]
mod tests {
    use gpufleet_analysis::ledger::Reason;

    use super::*;

    #[test]
    fn the_bar_is_full_and_has_no_gap() {
        let mut counts = Counts::default();
        for (state, count) in [
            (ledger::State::ActiveUnrated, 3),
            (ledger::State::ActiveEfficient, 4),
            (ledger::State::Parked, 1),
            (ledger::State::Unobserved, 5),
        ] {
            (0..count).for_each(|_| counts.add(state, Reason::Unknown));
        }
        (0..2).for_each(|_| counts.add(ledger::State::Unobserved, Reason::HolderUnknown));
        let bar = bar(&counts, Origin::Simulated);
        let named = bar.iter().map(|it| (it.look.name, it.count.as_str()));
        let named: Vec<_> = named.collect();
        assert_eq!(
            named,
            [
                ("active", "7"),
                ("parked", "1"),
                ("not measured", "5"),
                ("holder unknown", "2")
            ],
            "kinds of active are one slice"
        );
        let mut end = 0;
        for slice in &bar {
            assert_eq!(slice.x, end);
            assert_eq!(slice.address, None, "the fleet page filters what is live");
            end += slice.width;
        }
        assert_eq!(end, BAR);
    }
}
