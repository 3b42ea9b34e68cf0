//! Tables of text: columns as wide as their widest cell, numbers to the right; and lines cut to a terminal.

use crate::words;

/// A table.
#[derive(Debug, Default)]
pub(crate) struct Table {
    heads: Vec<&'static str>,
    /// Of each column, whether its cells stand to the right.
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

/// What stands between two columns.
const GAP: &str = "  ";

impl Table {
    /// A table with these columns; a head that begins with `>` is one of numbers.
    pub(crate) fn new(heads: &[&'static str]) -> Self {
        Self {
            heads: heads
                .iter()
                .map(|head| head.trim_start_matches('>'))
                .collect(),
            right: heads.iter().map(|head| head.starts_with('>')).collect(),
            rows: Vec::new(),
        }
    }

    /// One more row. What is in it ends no line and commands no terminal, whoever wrote it.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        let cells = cells.iter().map(|it| words::plain(it));
        self.rows.push(cells.collect());
    }

    /// The table, or `none` when it has no rows.
    pub(crate) fn text(&self, none: &str) -> String {
        if self.rows.is_empty() {
            return format!("{none}\n");
        }
        let heads: Vec<String> = self.heads.iter().map(|head| (*head).to_owned()).collect();
        let all: Vec<&Vec<String>> = std::iter::once(&heads).chain(&self.rows).collect();
        let wide = |column: usize| {
            let cells = all.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.heads.len()).map(wide).collect();
        let mut text = String::new();
        for row in all {
            let cells = row.iter().zip(&widths).zip(&self.right);
            let cells = cells.map(|((cell, width), right)| match right {
                true => format!("{cell:>width$}"),
                false => format!("{cell:<width$}"),
            });
            let line = cells.collect::<Vec<_>>().join(GAP);
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// A text of which no line is wider than so many columns of a terminal: it wraps what is, and then the first lines go off
/// its top. A line that is cut ends with `…`.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    let lines = text.lines().map(|line| {
        if line.chars().map(width).sum::<usize>() <= columns {
            return format!("{line}\n");
        }
        let mut left = columns.saturating_sub(width('…'));
        let kept = line.chars().map_while(|it| {
            left = left.checked_sub(width(it))?;
            Some(it)
        });
        format!("{}…\n", kept.collect::<String>())
    });
    lines.collect()
}

/// How many columns a character takes at most: letters of Europe, punctuation and arrows one; ideographs, emoji and
/// whatever else there is two.
const fn width(character: char) -> usize {
    match character {
        '\0'..='\u{10ff}' | '\u{2000}'..='\u{22ff}' => 1,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_where_the_terminal_ends_and_says_so() {
        for (line, columns, expected) in [
            ("NODE  WATTS", 11, "NODE  WATTS"),
            ("NODE  WATTS", 10, "NODE  WAT…"),
            ("über – 7 W", 10, "über – 7 W"),
            ("研究-1", 6, "研究-1"),
            ("研究-1", 5, "研究…"),
            ("研究-1", 4, "研…"),
            ("NODE", 1, "…"),
        ] {
            assert_eq!(cut(line, columns), format!("{expected}\n"), "{columns}");
        }
        assert_eq!(cut("one two\nthree\n", 5), "one …\nthree\n");
    }

    #[test]
    fn a_cell_ends_no_line_and_commands_no_terminal() {
        let mut table = Table::new(&["NODE", "HOLDER"]);
        table.row(vec!["a".to_owned(), "llm\nb  nobody\u{1b}[2J".to_owned()]);
        assert_eq!(table.text(""), "NODE  HOLDER\na     llm b  nobody [2J\n");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_numbers_stand_to_the_right() {
        let mut table = Table::new(&["NODE", ">WATTS"]);
        assert_eq!(table.text("no nodes"), "no nodes\n");
        table.row(vec!["a".to_owned(), "7".to_owned()]);
        table.row(vec!["über-1".to_owned(), "650".to_owned()]);
        assert_eq!(
            table.text("no nodes"),
            "NODE    WATTS\na           7\nüber-1    650\n"
        );
    }
}
