//! Of whom a machine is, and what its seller calls it, by what was told of it.
//!
//! Its agent, or the cluster, says who provides it (`cloud.provider`). Of a machine of which nobody did, and of days of
//! before that was kept, its type, place, account and id tell: each cloud has its own way of writing them. What is none of
//! a cloud's is nobody's here, and `cost.provider` names whose it is.

use gpufleet_analysis::chargeback::Seller;
use gpufleet_analysis::price_book::SHIPPED_MACHINES;

use super::gather::Seen;

/// Whether a zone is one of Google Cloud's: `us-central1-a`. Those of others end otherwise: `us-east-1a`, `eastus-1`.
fn is_google(zone: &str) -> bool {
    let Some((region, letter)) = zone.rsplit_once('-') else {
        return false;
    };
    let is_letter = letter.len() == 1 && letter.bytes().all(|it| it.is_ascii_lowercase());
    is_letter && region.contains('-') && region.ends_with(|last: char| last.is_ascii_digit())
}

/// What providers are told as, and what they sell.
const PROVIDERS: [(&str, &str, &str); 3] = [
    ("gcp", "Google Cloud", "Compute Engine"),
    ("aws", "AWS", "Amazon Elastic Compute Cloud"),
    ("azure", "Microsoft", "Virtual Machines"),
];

/// Whose it is; none where nobody says and what was told is no cloud's. What a provider of another name sells is `service`.
pub(super) fn of(seen: &Seen, machine_type: &str, service: &str) -> Option<Seller> {
    let known = PROVIDERS.iter().find(|it| it.0 == seen.provider);
    match known {
        Some((_, provider, service)) => return Some(seller(provider, service)),
        None if !seen.provider.is_empty() => return Some(seller(&seen.provider, service)),
        None => {}
    }
    let is_in_project = !seen.account.is_empty() && is_google(&seen.zone);
    let (provider, service) = if is_in_project {
        ("Google Cloud", "Compute Engine")
    } else if seen.instance.starts_with("i-") {
        ("AWS", "Amazon Elastic Compute Cloud")
    } else if machine_type.starts_with("Standard_") {
        ("Microsoft", "Virtual Machines")
    } else {
        return of_type(machine_type);
    };
    Some(seller(provider, service))
}

/// Whose a machine type is, where its prices are shipped.
pub(crate) fn of_type(machine_type: &str) -> Option<Seller> {
    let mut types = SHIPPED_MACHINES
        .lines()
        .filter_map(|it| it.split(',').next());
    let is_google = !machine_type.is_empty() && types.any(|it| it == machine_type);
    is_google.then(|| seller("Google Cloud", "Compute Engine"))
}

fn seller(provider: &str, service: &str) -> Seller {
    Seller {
        provider: provider.to_owned(),
        service: service.to_owned(),
    }
}

/// What it is called: of a machine of Google Cloud's its full name, as the billing export has it; else its id alone.
pub(super) fn resource(seen: &Seen) -> String {
    let Seen {
        provider,
        zone,
        account,
        instance,
        ..
    } = seen;
    let is_other = !matches!(provider.as_str(), "" | "gcp");
    if is_other || instance.is_empty() || account.is_empty() || !is_google(zone) {
        return instance.clone();
    }
    format!("//compute.googleapis.com/projects/{account}/zones/{zone}/instances/{instance}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_of_the_cloud_whose_words_it_tells_and_else_nobodys() {
        let uuid = "12345678-1234-1234-1234-123456789abc";
        let full = "//compute.googleapis.com/projects/lab/zones/us-central1-a/instances/4711";
        for (zone, account, instance, machine_type, provider, resource) in [
            ("us-central1-a", "lab", "4711", "", "Google Cloud", full),
            ("us-central1-a", "lab", "", "", "Google Cloud", ""),
            ("", "", "", "a3-highgpu-8g", "Google Cloud", ""),
            (
                "us-east-1a",
                "123456789012",
                "i-0abc",
                "p5.48xlarge",
                "AWS",
                "i-0abc",
            ),
            (
                "eastus-1",
                uuid,
                "",
                "Standard_ND96isr_H100_v5",
                "Microsoft",
                "",
            ),
            ("room-2", "", "blade-7", "DGX H100", "", "blade-7"),
            ("row-b", "", "", "", "", ""),
            ("", "", "", "", "", ""),
        ] {
            let seen = Seen {
                zone: zone.to_owned(),
                account: account.to_owned(),
                instance: instance.to_owned(),
                ..Seen::default()
            };
            let found = of(&seen, machine_type, "").map_or_else(String::new, |it| it.provider);
            assert_eq!(found, provider, "{zone} {machine_type}");
            assert_eq!(super::resource(&seen), resource, "{zone} {machine_type}");
        }
    }

    #[test]
    fn who_provides_a_machine_is_who_is_told_whatever_its_words_look_like() {
        for (told, provider, service) in [
            ("gcp", "Google Cloud", "Compute Engine"),
            ("aws", "AWS", "Amazon Elastic Compute Cloud"),
            ("azure", "Microsoft", "Virtual Machines"),
            ("our basement", "our basement", "GPU machines"),
        ] {
            let seen = Seen {
                provider: told.to_owned(),
                // It looks like Google Cloud's.
                zone: "us-central1-a".to_owned(),
                account: "lab".to_owned(),
                ..Seen::default()
            };
            let found = of(&seen, "a3-highgpu-8g", "GPU machines");
            assert_eq!(found, Some(seller(provider, service)), "{told}");
            let named = resource(&Seen {
                instance: "4711".to_owned(),
                ..seen
            });
            assert_eq!(named == "4711", told != "gcp", "{named}");
        }
    }
}
