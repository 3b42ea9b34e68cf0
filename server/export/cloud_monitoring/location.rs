//! The places that Cloud Monitoring knows. It discards every point of a series whose `location` or `zone` is none of
//! them ("Unrecognized region or location"), and who runs machines of his own names zones as he likes (`rack-7`).
//!
//! They are told by their form, because their list grows: regions and zones of Google, those of AWS behind `aws:`, and
//! [`EVERYWHERE`]. Sources: cloud.google.com/monitoring/docs/region-support, and the descriptor of `generic_node`.

/// The location of what is nowhere.
pub const EVERYWHERE: &str = "global";

/// How names of Google's regions begin.
const CONTINENTS: [&str; 8] = [
    "africa",
    "asia",
    "australia",
    "europe",
    "me",
    "northamerica",
    "southamerica",
    "us",
];

/// Where in it a region is, at Google and AWS; a number follows.
const DIRECTIONS: [&str; 9] = [
    "central",
    "east",
    "north",
    "northeast",
    "northwest",
    "south",
    "southeast",
    "southwest",
    "west",
];

/// Digits of a region's number.
const MOST_DIGITS: usize = 2;

/// What a place of Google is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Google {
    /// A region, `us-central1`.
    Region,
    /// A zone of one, `us-central1-a`.
    Zone,
}

/// What a place of this name is at Google; none where it has none of that name.
pub fn google(name: &str) -> Option<Google> {
    let (continent, rest) = name.split_once('-')?;
    let (region, zone) = match rest.split_once('-') {
        Some((region, zone)) => (region, Some(zone)),
        None => (rest, None),
    };
    let number = |it: &&str| region.strip_prefix(*it).is_some_and(is_number);
    if !CONTINENTS.contains(&continent) || !DIRECTIONS.iter().any(number) {
        return None;
    }
    match zone {
        None => Some(Google::Region),
        Some(zone) => is_zone(zone).then_some(Google::Zone),
    }
}

/// What Cloud Monitoring calls a region or zone of AWS, `aws:us-east-1a`; none where it has none of that name.
pub fn aws(name: &str) -> Option<String> {
    let words: Vec<&str> = name.split('-').collect();
    let (country, direction, last) = match words.as_slice() {
        [country, direction, last] | [country, "gov", direction, last] => {
            (*country, direction, *last)
        }
        _ => return None,
    };
    let number = last
        .strip_suffix(|it: char| it.is_ascii_lowercase())
        .unwrap_or(last);
    let is_country = country.len() == 2 && country.bytes().all(|it| it.is_ascii_lowercase());
    let is_place = is_country && DIRECTIONS.contains(direction) && is_number(number);
    is_place.then(|| format!("aws:{name}"))
}

/// Whether Cloud Monitoring takes it as a location.
pub fn is_known(location: &str) -> bool {
    let of_aws = location.strip_prefix("aws:");
    location == EVERYWHERE || google(location).is_some() || of_aws.and_then(aws).is_some()
}

fn is_number(text: &str) -> bool {
    (1..=MOST_DIGITS).contains(&text.len()) && text.bytes().all(|it| it.is_ascii_digit())
}

/// A letter; for zones with accelerators alone `ai` and a number before it.
fn is_zone(text: &str) -> bool {
    let Some(before) = text.strip_suffix(|it: char| it.is_ascii_lowercase()) else {
        return false;
    };
    before.is_empty() || before.strip_prefix("ai").is_some_and(is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_google_and_aws_are_known_and_what_somebody_calls_his_own_is_not() {
        for zone in [
            "us-central1-a",
            "europe-west12-b",
            "asia-southeast1-c",
            "northamerica-northeast2-a",
            "me-west1-a",
            "us-south1-ai1b",
        ] {
            assert_eq!(google(zone), Some(Google::Zone), "{zone}");
            let region = zone.rsplit_once('-').expect("a zone").0;
            assert_eq!(google(region), Some(Google::Region), "{region}");
            assert_eq!(aws(zone), None, "{zone}");
            assert!(is_known(zone) && is_known(region));
        }
        for place in [
            "us-east-1",
            "eu-central-1b",
            "ap-southeast-2a",
            "us-gov-west-1",
        ] {
            let named = aws(place).unwrap_or_else(|| panic!("{place}"));
            assert_eq!(named, format!("aws:{place}"));
            assert!(is_known(&named) && !is_known(place), "{place}");
        }
        for place in [
            "",
            "-",
            "rack-7",
            "us",
            "us-central",
            "us-central1-",
            "us-central1-rack",
            "us-central1-a-b",
            "us-central123",
            "eu-north1-a",
            "mars-east1-a",
            "eastus-1",
            "US-EAST-04A",
            "fr-par-1",
            "us-lax-1a",
            "aws:",
            "aws:rack-7",
            "Global",
        ] {
            assert!(!is_known(place) && google(place).is_none(), "{place}");
            assert_eq!(aws(place), None, "{place}");
        }
        assert!(is_known(EVERYWHERE));
    }
}
