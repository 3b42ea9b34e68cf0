//! What a second of a GPU costs: from the configuration, by the card's name.
//!
//! Limits: one price a card in the whole installation; what has no line has no price.

use std::collections::BTreeMap;

/// Prices by the card's name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prices(BTreeMap<String, i64>);

/// A price that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "detect.gpu_hour_usd: the price `{value}` of `{card}` is not one: dollars an hour above 0 and below 1,000,000 with at most 6 digits behind the point, like 11.06"
)]
pub struct PriceError {
    card: String,
    value: String,
}

/// Seconds of an hour.
const HOUR_S: i64 = 3_600;

/// Nano-USD of a dollar.
const NANO: i64 = 1_000_000_000;

impl Prices {
    /// The prices of the configuration.
    ///
    /// # Errors
    /// With the first that is none.
    pub fn read(table: &BTreeMap<String, String>) -> Result<Self, PriceError> {
        let one = |(card, value): (&String, &String)| {
            let nano = nano_usd(value).ok_or_else(|| PriceError {
                card: card.clone(),
                value: value.clone(),
            })?;
            Ok((card.clone(), nano / HOUR_S))
        };
        table.iter().map(one).collect::<Result<_, _>>().map(Self)
    }

    /// Nano-USD a second of one card.
    pub fn of(&self, card: &str) -> Option<i64> {
        self.0.get(card).copied()
    }
}

/// A decimal number of dollars in nano-USD, exactly.
fn nano_usd(text: &str) -> Option<i64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let is_digits = |it: &str| it.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty()
        || whole.len() > 6
        || part.len() > 6
        || !is_digits(whole)
        || !is_digits(part)
    {
        return None;
    }
    let padded: i64 = format!("{part:0<9}").parse().ok()?;
    let nano = whole.parse::<i64>().ok()? * NANO + padded;
    (nano >= HOUR_S).then_some(nano)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &str) -> Result<Prices, PriceError> {
        Prices::read(&BTreeMap::from([(
            "NVIDIA L4".to_owned(),
            value.to_owned(),
        )]))
    }

    #[test]
    fn a_price_is_exact_and_of_its_card_alone() {
        let prices = read("11.06").expect("a price");
        assert_eq!(prices.of("NVIDIA L4"), Some(11_060_000_000 / 3_600));
        assert_eq!(prices.of("NVIDIA L40"), None, "unpriced, not free");
    }

    #[test]
    fn what_is_no_price_is_refused_with_the_cards_name() {
        for value in [
            "",
            "0",
            "-1",
            "1e3",
            "1.2.3",
            "0.0000001",
            "1000000",
            "$5",
            ".5",
        ] {
            let error = read(value).expect_err(value);
            assert!(error.to_string().contains("`NVIDIA L4`"), "{error}");
        }
    }
}
