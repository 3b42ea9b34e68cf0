//! Whether a text is FOCUS of a version, as far as columns, empty fields, formats and values go.

use super::Version;
use crate::table;

mod split;

/// What a column may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Text,
    /// With a point and at least one digit on each side: `4.0`.
    Decimal,
    /// `YYYY-MM-DDTHH:mm:ssZ`.
    Time,
    /// Three capitals.
    Currency,
    /// A flat JSON object.
    Object,
    /// A JSON object with a list of these.
    Elements(split::Entry),
    OneOf(&'static [&'static str]),
}

/// Columns that must not be empty.
const MANDATORY: [&str; 18] = [
    "BilledCost",
    "BillingAccountId",
    "BillingAccountType",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ContractedCost",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "ProviderName",
    "PublisherName",
    "ServiceCategory",
    "ServiceName",
    "ServiceSubcategory",
];

/// And, of 1.3, these.
const MANDATORY_1_3: [&str; 2] = ["HostProviderName", "ServiceProviderName"];

/// Values of ServiceCategory.
const SERVICE_CATEGORIES: [&str; 19] = [
    "AI and Machine Learning",
    "Analytics",
    "Business Applications",
    "Compute",
    "Databases",
    "Developer Tools",
    "Identity",
    "Integration",
    "Internet of Things",
    "Management and Governance",
    "Media",
    "Migration",
    "Mobile",
    "Multicloud",
    "Networking",
    "Other",
    "Security",
    "Storage",
    "Web",
];

/// Most problems that are told: a table that is wrong is wrong in every row.
const MAX_TOLD: usize = 100;

fn format(column: &str) -> Format {
    match column {
        _ if column.ends_with("Cost") || column.ends_with("UnitPrice") => Format::Decimal,
        _ if column.ends_with("Quantity") => Format::Decimal,
        _ if column.ends_with("PeriodStart") || column.ends_with("PeriodEnd") => Format::Time,
        "BillingCurrency" | "PricingCurrency" => Format::Currency,
        "Tags" | "SkuPriceDetails" | "AllocatedTags" => Format::Object,
        "AllocatedMethodDetails" => Format::Elements(split::Entry::Allocated),
        "ContractApplied" => Format::Elements(split::Entry::Contract),
        "ChargeCategory" => Format::OneOf(&["Usage", "Purchase", "Tax", "Credit", "Adjustment"]),
        "ChargeClass" => Format::OneOf(&["Correction"]),
        "ChargeFrequency" => Format::OneOf(&["One-Time", "Recurring", "Usage-Based"]),
        "PricingCategory" => Format::OneOf(&["Standard", "Dynamic", "Committed", "Other"]),
        "CommitmentDiscountCategory" => Format::OneOf(&["Spend", "Usage"]),
        "CommitmentDiscountStatus" | "CapacityReservationStatus" => {
            Format::OneOf(&["Used", "Unused"])
        }
        "ServiceCategory" => Format::OneOf(&SERVICE_CATEGORIES),
        _ => Format::Text,
    }
}

/// Everything that is wrong with it, by line and column; nothing when it is right.
pub fn check(text: &str, version: Version) -> Vec<String> {
    let header: Vec<&str> = text.lines().next().unwrap_or_default().split(',').collect();
    let mut wrong = check_header(&header, version);
    if !wrong.is_empty() {
        return wrong;
    }
    let rows = match table::read(text, &header) {
        Ok(rows) => rows,
        Err(error) => return vec![error.to_string()],
    };
    let mut split = split::Split::default();
    for row in rows {
        let field = |column: &str| {
            let at = header.iter().position(|it| *it == column);
            at.map_or("", |at| row.fields[at].as_str())
        };
        let found = header.iter().filter_map(|it| is_wrong(it, field(it)));
        let found = found.chain(together(&field));
        let found = found.chain(split.together(&field));
        wrong.extend(found.map(|it| format!("line {}: {it}", row.line)));
        if wrong.len() > MAX_TOLD {
            break;
        }
    }
    wrong.extend(split.not_whole());
    wrong.truncate(MAX_TOLD);
    wrong
}

fn check_header(header: &[&str], version: Version) -> Vec<String> {
    let columns = version.columns();
    let missing = columns.iter().filter(|it| !header.contains(it));
    let mut wrong: Vec<String> = missing
        .map(|it| format!("column {it} is missing"))
        .collect();
    let own = header.iter().position(|it| it.starts_with("x_"));
    let own = own.unwrap_or(header.len());
    for (at, column) in header.iter().enumerate() {
        if at >= own && !column.starts_with("x_") {
            wrong.push(format!("column {column} stands behind columns of our own"));
        }
        if at < own && !columns.contains(column) {
            let version = version.name();
            wrong.push(format!("column {column} is not one of FOCUS {version}"));
        }
        if header[..at].contains(column) {
            wrong.push(format!("column {column} is there twice"));
        }
    }
    wrong
}

/// What is wrong with one field.
fn is_wrong(column: &str, value: &str) -> Option<String> {
    if value.is_empty() {
        let is_needed = MANDATORY.contains(&column) || MANDATORY_1_3.contains(&column);
        return is_needed.then(|| format!("{column} is empty"));
    }
    if column.starts_with("x_") {
        return None;
    }
    let is_right = match format(column) {
        Format::Text => true,
        Format::Decimal => is_decimal(value),
        Format::Time => table::moment(value).is_some_and(|it| table::moment_text(it) == value),
        Format::Currency => value.len() == 3 && value.bytes().all(|it| it.is_ascii_uppercase()),
        Format::Object => is_flat_object(value),
        Format::Elements(entry) => entry.is_right(value),
        Format::OneOf(values) => values.contains(&value),
    };
    (!is_right).then(|| format!("{column} is `{value}`"))
}

fn is_flat_object(value: &str) -> bool {
    let object: Result<serde_json::Map<String, serde_json::Value>, _> = serde_json::from_str(value);
    object.is_ok_and(|it| it.values().all(|it| !it.is_object() && !it.is_array()))
}

fn is_decimal(value: &str) -> bool {
    let digits = value.strip_prefix('-').unwrap_or(value);
    let is_digits = |it: &str| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit());
    let parts = digits.split_once('.');
    parts.is_some_and(|(whole, part)| is_digits(whole) && is_digits(part))
}

/// What does not go together in one row.
fn together<'a>(field: &impl Fn(&str) -> &'a str) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut rule = |is_broken: bool, text: &str| {
        if is_broken {
            wrong.push(text.to_owned());
        }
    };
    let has = |column: &str| !field(column).is_empty();
    let is_usage = field("ChargeCategory") == "Usage" && !has("ChargeClass");
    let is_committed = has("CommitmentDiscountId");
    for column in ["CommitmentDiscountCategory", "CommitmentDiscountType"] {
        let text = format!("{column} and CommitmentDiscountId go together");
        rule(has(column) != is_committed, &text);
    }
    rule(
        has("CommitmentDiscountStatus") != (is_committed && is_usage),
        "CommitmentDiscountStatus is of usage that a commitment covers or fails to",
    );
    let is_unused = field("CommitmentDiscountStatus") == "Unused";
    let is_consumed = has("ConsumedQuantity");
    rule(is_unused && is_consumed, "what is unused is not consumed");
    rule(
        is_usage && !is_unused && !is_consumed,
        "usage has a ConsumedQuantity",
    );
    rule(
        is_usage && !has("PricingQuantity"),
        "usage has a PricingQuantity",
    );
    rule(
        has("SkuPriceId") && !has("ListUnitPrice"),
        "a SKU's price has a ListUnitPrice",
    );
    for name in ["Pricing", "Consumed", "CommitmentDiscount"] {
        let (quantity, unit) = (format!("{name}Quantity"), format!("{name}Unit"));
        let text = format!("{quantity} and {unit} go together");
        rule(has(&quantity) != has(&unit), &text);
    }
    for name in ["BillingPeriod", "ChargePeriod"] {
        let (start, end) = (format!("{name}Start"), format!("{name}End"));
        let text = format!("{end} is not after {start}");
        rule(field(&start) >= field(&end), &text);
    }
    let is_account = has("SubAccountId") == has("SubAccountType");
    rule(!is_account, "SubAccountId and SubAccountType go together");
    rule(
        has("ResourceType") && !has("ResourceId"),
        "a ResourceType needs a ResourceId",
    );
    wrong
}
