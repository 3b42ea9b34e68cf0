//! What a rank computes on: a card, or a part of one.

use gpufleet_telemetry::identity::{Resource, ResourceKind, attribute};

use crate::ledger::days;

/// A card, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Card {
    /// Its name.
    pub model: String,
    /// So many slices of so many are meant; none where nobody says how many.
    pub part: Option<(u32, u32)>,
}

impl Card {
    /// All of it.
    pub fn whole(model: impl Into<String>) -> Self {
        Self {
            model: model.into(),
            part: Some((1, 1)),
        }
    }

    /// That of a GPU or share, as it tells; none where it tells no card.
    pub fn of(resource: &Resource) -> Option<Self> {
        let card = Self::whole(resource.attribute(attribute::GPU_MODEL)?);
        Some(match resource.kind {
            ResourceKind::Share => Self {
                part: days::told_part(resource),
                ..card
            },
            _ => card,
        })
    }

    /// Whether it is less than a card, as far as anybody says.
    pub fn is_part(&self) -> bool {
        self.part.is_none_or(|(slices, of)| slices < of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_the_part_of_its_card_that_it_tells_itself() {
        let of = |kind, slices: &str| {
            let resource = Resource::new(kind, "x").with(attribute::GPU_MODEL, "NVIDIA H100");
            let card = Card::of(&resource.with(attribute::MIG_SLICES, slices));
            card.map(|it| (it.part, it.is_part()))
        };
        assert_eq!(of(ResourceKind::Gpu, ""), Some((Some((1, 1)), false)));
        assert_eq!(of(ResourceKind::Share, "1/7"), Some((Some((1, 7)), true)));
        assert_eq!(of(ResourceKind::Share, "7/7"), Some((Some((7, 7)), false)));
        assert_eq!(
            of(ResourceKind::Share, ""),
            Some((None, true)),
            "of how many?"
        );
        assert_eq!(Card::of(&Resource::new(ResourceKind::Gpu, "x")), None);
    }
}
