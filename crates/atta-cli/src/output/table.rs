//! Tables for people, fitted to the width of the terminal. Without a terminal nothing is left out or cut.
//!
//! Names, ids and numbers are never cut. If a table is too wide, columns that are zero or empty in all rows are left out.
//! If that is not enough, the least useful columns are left out; each table defines the order ([`Column`]). If even the
//! necessary columns do not fit, each row becomes a block with one value per line.

use std::io::IsTerminal;

use anstyle::Style;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::{clean, styled};

/// The narrowest that a long text is cut to, if it is longer.
const SHORTEST_TEXT: usize = 20;
const GAP: usize = 2;

/// A column of a table, and what happens to it if the table is too wide.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    heading: &'static str,
    need: Need,
    is_long_text: bool,
}

/// The order in which columns are kept: the lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Need {
    /// Identifies the row, or is useful even if it is zero: always shown.
    Always,
    /// Left out only if it is zero or empty in all rows.
    UnlessZero,
    /// Shown if there is room. The lowest rank is the most useful.
    Rank(u8),
}

impl Column {
    /// A column without which a row makes no sense.
    pub(crate) const fn always(heading: &'static str) -> Column {
        Column { heading, need: Need::Always, is_long_text: false }
    }

    /// A column that is left out only if it is zero or empty in all rows.
    pub(crate) const fn unless_zero(heading: &'static str) -> Column {
        Column { need: Need::UnlessZero, ..Column::always(heading) }
    }

    /// A column that is shown if there is room. The lowest rank is the most useful.
    pub(crate) const fn ranked(rank: u8, heading: &'static str) -> Column {
        Column { need: Need::Rank(rank), ..Column::always(heading) }
    }

    /// A column of texts that identify nothing and may be cut.
    pub(crate) const fn long_text(rank: u8, heading: &'static str) -> Column {
        Column { is_long_text: true, ..Column::ranked(rank, heading) }
    }
}

/// Rows of cells under a heading. Empty columns are omitted.
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

/// A text on one line, and its style.
pub(crate) struct Cell {
    text: String,
    style: Style,
    is_number: bool,
}

impl Cell {
    pub(crate) fn text(text: impl AsRef<str>) -> Cell {
        Cell { text: clean(text.as_ref()), style: Style::new(), is_number: false }
    }

    pub(crate) fn maybe(text: Option<impl AsRef<str>>) -> Cell {
        text.map_or_else(|| Cell::text(""), Cell::text)
    }

    pub(crate) fn number(number: impl ToString) -> Cell {
        Cell { is_number: true, ..Cell::text(number.to_string()) }
    }

    pub(crate) fn styled(mut self, style: Style) -> Cell {
        self.style = style;
        self
    }

    fn is_zero(&self) -> bool {
        self.text.is_empty() || (self.is_number && self.text == "0")
    }
}

impl Table {
    pub(crate) fn new(columns: &[Column]) -> Table {
        Table { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row. It must have as many cells as there are columns.
    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// The table for the width of standard output.
    pub(crate) fn show(&self) -> String {
        self.show_within(terminal_width())
    }

    fn show_within(&self, limit: Option<usize>) -> String {
        let used: Vec<usize> = (0..self.columns.len()).filter(|column| self.is_used(*column)).collect();
        let Some(limit) = limit else { return self.show_columns(&used, None) };
        if self.fits(&used, limit) {
            return self.show_columns(&used, Some(limit));
        }
        let not_zero: Vec<usize> = used.into_iter().filter(|column| self.is_worth_showing(*column)).collect();
        match self.choose(&not_zero, limit) {
            None => self.show_blocks(limit),
            Some(chosen) => {
                let left_out = not_zero.iter().filter(|column| !chosen.contains(column));
                self.show_columns(&chosen, Some(limit)) + &self.name_left_out(left_out, limit)
            }
        }
    }

    fn is_used(&self, column: usize) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|row| !row[column].text.is_empty())
    }

    fn is_worth_showing(&self, column: usize) -> bool {
        self.columns[column].need == Need::Always || self.rows.iter().any(|row| !row[column].is_zero())
    }

    /// Adds columns while they fit, the most useful first. None: even the necessary columns do not fit.
    fn choose(&self, columns: &[usize], limit: usize) -> Option<Vec<usize>> {
        let is_necessary = |column: &usize| self.columns[*column].need <= Need::UnlessZero;
        let (mut chosen, mut rest): (Vec<usize>, Vec<usize>) =
            columns.iter().partition(|it| is_necessary(it));
        if !self.fits(&chosen, limit) {
            return None;
        }
        rest.sort_by_key(|column| self.columns[*column].need);
        for column in rest {
            chosen.push(column);
            if !self.fits(&chosen, limit) {
                chosen.pop();
            }
        }
        chosen.sort_unstable();
        Some(chosen)
    }

    /// Whether these columns fit, if long texts are cut.
    fn fits(&self, columns: &[usize], limit: usize) -> bool {
        let widths = columns.iter().map(|column| match self.columns[*column].is_long_text {
            true => self.width(*column).min(SHORTEST_TEXT),
            false => self.width(*column),
        });
        widths.sum::<usize>() + gaps(columns.len()) <= limit
    }

    fn show_columns(&self, columns: &[usize], limit: Option<usize>) -> String {
        let mut widths: Vec<usize> = columns.iter().map(|column| self.width(*column)).collect();
        if let Some(limit) = limit {
            let is_long_text: Vec<bool> = columns.iter().map(|it| self.columns[*it].is_long_text).collect();
            cut_long_texts(&mut widths, &is_long_text, limit);
        }
        let mut text = String::new();
        let heading = |column: usize| {
            Cell { is_number: self.is_number(column), ..Cell::text(self.columns[column].heading) }
                .styled(Style::new().bold())
        };
        let headings: Vec<Cell> = columns.iter().map(|column| heading(*column)).collect();
        write_row(&mut text, &headings.iter().collect::<Vec<_>>(), &widths);
        for row in &self.rows {
            let cells: Vec<&Cell> = columns.iter().map(|column| &row[*column]).collect();
            write_row(&mut text, &cells, &widths);
        }
        text
    }

    /// Names the columns for which there was no room, so that nobody takes them for empty.
    fn name_left_out<'a>(&self, columns: impl Iterator<Item = &'a usize>, limit: usize) -> String {
        let headings: Vec<&str> = columns.map(|column| self.columns[*column].heading).collect();
        let headings: Vec<&str> = headings.into_iter().filter(|heading| !heading.is_empty()).collect();
        if headings.is_empty() {
            return String::new();
        }
        let mut lines = vec!["no room for:".to_owned()];
        for (index, heading) in headings.iter().enumerate() {
            let end = if index + 1 < headings.len() { "," } else { "" };
            let word = format!(" {heading}{end}");
            match lines.last_mut() {
                Some(line) if line.width() + word.width() <= limit => line.push_str(&word),
                _ => lines.push(format!(" {word}")),
            }
        }
        lines.iter().map(|line| styled(Style::new().dimmed(), line) + "\n").collect()
    }

    /// One block per row. Only long texts are cut; a name that is wider than the terminal continues in its next line.
    fn show_blocks(&self, limit: usize) -> String {
        let name_width = self.columns.iter().map(|column| column.heading.width()).max().unwrap_or(0);
        let mut blocks = Vec::with_capacity(self.rows.len());
        for row in &self.rows {
            let mut block = String::new();
            for (column, cell) in self.columns.iter().zip(row) {
                if cell.text.is_empty() || (cell.is_zero() && column.need != Need::Always) {
                    continue;
                }
                let room =
                    if column.is_long_text { limit.saturating_sub(name_width + GAP) } else { usize::MAX };
                let shown = styled(cell.style, &cut(&cell.text, room.max(SHORTEST_TEXT)));
                let padding = " ".repeat(name_width - column.heading.width() + GAP);
                let line = format!("{}{padding}{shown}", styled(Style::new().bold(), column.heading));
                block.push_str(line.trim_end());
                block.push('\n');
            }
            blocks.push(block);
        }
        blocks.join("\n")
    }

    fn is_number(&self, column: usize) -> bool {
        self.rows.iter().all(|row| row[column].is_number)
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| row[column].text.width());
        cells.max().unwrap_or(0).max(self.columns[column].heading.width())
    }
}

fn terminal_width() -> Option<usize> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    let (terminal_size::Width(width), _) = terminal_size::terminal_size()?;
    Some(width.into())
}

fn gaps(columns: usize) -> usize {
    GAP * columns.saturating_sub(1)
}

/// Narrows the widest columns of long texts until all columns fit, or none can be narrower.
fn cut_long_texts(widths: &mut [usize], is_long_text: &[bool], limit: usize) {
    while widths.iter().sum::<usize>() + gaps(widths.len()) > limit {
        let texts = widths.iter_mut().zip(is_long_text).filter(|(_, is_long)| **is_long);
        let Some(widest) = texts.map(|(width, _)| width).max() else { return };
        if *widest <= SHORTEST_TEXT {
            return;
        }
        *widest -= 1;
    }
}

fn write_row(text: &mut String, cells: &[&Cell], widths: &[usize]) {
    let mut line = String::new();
    for (index, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let shown = cut(&cell.text, *width);
        let padding = " ".repeat(width.saturating_sub(shown.width()));
        // The codes of a style would keep the end of the line from being trimmed.
        let shown = if shown.is_empty() { shown } else { styled(cell.style, &shown) };
        let is_last = index + 1 == cells.len();
        match (cell.is_number, is_last) {
            (true, _) => line.extend([padding, shown]),
            (false, false) => line.extend([shown, padding]),
            (false, true) => line.push_str(&shown),
        }
        if !is_last {
            line.push_str(&" ".repeat(GAP));
        }
    }
    text.push_str(line.trim_end());
    text.push('\n');
}

/// The text, cut to this width, with … in place of what is missing.
fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut used = 1;
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used > width {
            break;
        }
        kept.push(c);
    }
    kept + "…"
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 6] = [
        Column::always("ID"),
        Column::always("TASK"),
        Column::ranked(2, "KEY"),
        Column::unless_zero("JOBS"),
        Column::ranked(3, "QUEUES"),
        Column::long_text(1, "ERROR"),
    ];

    fn plain(table: &Table, limit: Option<usize>) -> String {
        anstream::adapter::strip_str(&table.show_within(limit)).to_string()
    }

    fn table(key: &str) -> Table {
        let mut table = Table::new(&COLUMNS);
        for (id, task, error) in [(7, "send", "it broke\nbadly and for many reasons"), (1234, "日本", "")] {
            table.row(vec![
                Cell::number(id),
                Cell::text(task),
                Cell::text(key),
                Cell::number(2),
                Cell::number(0),
                Cell::text(error),
            ]);
        }
        table
    }

    #[test]
    fn without_a_terminal_everything_is_shown_and_empty_columns_are_left_out() {
        let expected = "  ID  TASK  JOBS  QUEUES  ERROR\n   \
            7  send     2       0  it broke badly and for many reasons\n1234  日本     2       0\n";
        assert_eq!(plain(&table(""), None), expected);
    }

    #[test]
    fn long_texts_are_cut_before_a_column_is_left_out() {
        let expected = "  ID  TASK  JOBS  QUEUES  ERROR\n   \
            7  send     2       0  it broke badly and …\n1234  日本     2       0\n";
        assert_eq!(plain(&table(""), Some(46)), expected);
    }

    #[test]
    fn zeros_are_left_out_first_and_then_the_least_useful() {
        let zeros =
            "  ID  TASK  JOBS  ERROR\n   7  send     2  it broke badly and for man…\n1234  日本     2\n";
        assert_eq!(plain(&table(""), Some(45)), zeros);
        let key = "  ID  TASK  JOBS  ERROR\n   7  send     2  it broke badly and f…\n1234  日本     2\nno room for: KEY\n";
        assert_eq!(plain(&table("a-key-that-is-long"), Some(39)), key);
        let error =
            "  ID  TASK  KEY    JOBS\n   7  send  a key     2\n1234  日本  a key     2\nno room for: ERROR\n";
        assert_eq!(plain(&table("a key"), Some(24)), error);
        let both = plain(&table("a key"), Some(16));
        assert!(both.ends_with("\nno room for:\n  KEY, ERROR\n"), "{both}");
    }

    #[test]
    fn if_the_necessary_columns_do_not_fit_each_row_is_a_block() {
        let blocks = "ID      7\nTASK    send\nKEY     k\nJOBS    2\nERROR   it broke badly and …\n\n\
            ID      1234\nTASK    日本\nKEY     k\nJOBS    2\n";
        assert_eq!(plain(&table("k"), Some(15)), blocks);
    }

    #[test]
    fn wide_characters_are_not_cut_in_the_middle() {
        assert_eq!(cut("日本語日本語", 8), "日本語…");
        assert_eq!(cut("12345678", 8), "12345678");
    }

    #[test]
    fn control_characters_are_not_printed() {
        assert_eq!(Cell::text("a\u{1b}[2Jb").text, "a [2Jb");
    }
}
