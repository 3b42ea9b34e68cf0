//! Many numbers as a person reads them: ranks, mostly.

/// Rows of numbers that are told one by one, "8–15" being one.
const MOST_ROWS: usize = 6;

/// Numbers in rising order as text, those in a row as one: "3", "8–15", "1, 4–6". At most [`MOST_ROWS`] are told, then
/// how many more there are.
pub fn rows(all: &[u32]) -> String {
    let mut rows: Vec<(u32, u32)> = Vec::new();
    for number in all {
        match rows.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => rows.push((*number, *number)),
        }
    }
    let of = |(first, last): &(u32, u32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}–{last}"),
    };
    let told: Vec<String> = rows.iter().take(MOST_ROWS).map(of).collect();
    let left = rows.iter().skip(MOST_ROWS);
    match left.map(|(first, last)| last - first + 1).sum::<u32>() {
        0 => told.join(", "),
        more => format!("{} and {more} more", told.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_a_row_are_one_and_many_rows_are_counted() {
        assert_eq!(rows(&[3]), "3");
        assert_eq!(rows(&[8, 9, 10, 11]), "8–11");
        assert_eq!(rows(&[0, 4, 5, 7, 8, 9]), "0, 4, 5, 7–9");
        assert_eq!(
            rows(&[0, 2, 4, 6, 8, 10, 12, 20, 21, u32::MAX]),
            "0, 2, 4, 6, 8, 10 and 4 more"
        );
    }
}
