//! Tables of text: columns as wide as their widest cell, numbers to the right.

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

#[cfg(test)]
mod tests {
    use super::*;

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
