//! Which cluster a resource belongs to, so that made-up data never joins live totals.
//!
//! The token's binding wins over what the data says, and that over the server's default. Recorded
//! data lives in `recorded` or `<name>-recorded`, simulated data in `demo` or `<name>-simulated`;
//! other names get the suffix, and live data that uses such a name gets `-live`. The rule looks at
//! nothing but the request, so the order in which data arrives cannot change it.

use std::borrow::Cow;

use gpufleet_telemetry::identity::Origin;

/// The cluster of the demo fleet.
pub const DEMO_CLUSTER: &str = "demo";

/// The cluster of recordings without one of their own.
pub const RECORDED_CLUSTER: &str = "recorded";

/// The name of the cluster for data of this origin that says it belongs to `name`.
pub fn cluster_for(origin: Origin, name: &str) -> Cow<'_, str> {
    if origin_of(name) == origin {
        return Cow::Borrowed(name);
    }
    let suffix = match origin {
        Origin::Live => "-live",
        Origin::Recorded => "-recorded",
        Origin::Simulated => "-simulated",
    };
    Cow::Owned(format!("{name}{suffix}"))
}

/// Of which origin the data of a cluster of this name is.
pub fn origin_of(name: &str) -> Origin {
    if name == RECORDED_CLUSTER || name.ends_with("-recorded") {
        Origin::Recorded
    } else if name == DEMO_CLUSTER || name.ends_with("-simulated") {
        Origin::Simulated
    } else {
        Origin::Live
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_data_never_shares_a_cluster_with_live_data() {
        use Origin::{Live, Recorded, Simulated};
        for (origin, name, expected) in [
            (Live, "prod", "prod"),
            (Recorded, "prod", "prod-recorded"),
            (Recorded, "recorded", "recorded"),
            (Recorded, "h200-recorded", "h200-recorded"),
            (Recorded, "demo", "demo-recorded"),
            (Simulated, "prod", "prod-simulated"),
            (Simulated, "demo", "demo"),
            (Simulated, "recorded", "recorded-simulated"),
            (Live, "demo", "demo-live"),
            (Live, "prod-recorded", "prod-recorded-live"),
        ] {
            assert_eq!(cluster_for(origin, name), expected, "{origin:?} {name}");
            assert_eq!(origin_of(expected), origin, "{expected}");
        }
        let names = ["prod", "demo", "recorded", "a-recorded", "a-simulated"];
        for name in names {
            for other in names {
                let live = cluster_for(Live, name);
                assert_ne!(live, cluster_for(Recorded, other));
                assert_ne!(live, cluster_for(Simulated, other));
            }
        }
    }
}
