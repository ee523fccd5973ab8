//! Tables for people: aligned, and cut to the width of the terminal; not cut if there is no terminal.

use std::io::IsTerminal;

use anstyle::Style;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::{clean, styled};

/// No column is cut to less than this, and a column of numbers is not cut at all.
const NARROWEST: usize = 3;
const GAP: usize = 2;

/// Rows of cells under a heading. Empty columns are omitted.
pub(crate) struct Table {
    headings: Vec<&'static str>,
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
}

impl Table {
    pub(crate) fn new(headings: &[&'static str]) -> Table {
        Table { headings: headings.to_vec(), rows: Vec::new() }
    }

    /// Adds a row. It must have as many cells as there are headings.
    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// The table for the width of standard output.
    pub(crate) fn show(&self) -> String {
        self.show_within(terminal_width())
    }

    fn show_within(&self, width: Option<usize>) -> String {
        let columns: Vec<usize> = (0..self.headings.len()).filter(|column| self.is_used(*column)).collect();
        let mut widths: Vec<usize> = columns.iter().map(|column| self.width(*column)).collect();
        if let Some(width) = width {
            let is_number: Vec<bool> = columns.iter().map(|column| self.is_number(*column)).collect();
            narrow(&mut widths, &is_number, width);
        }
        let mut text = String::new();
        let heading = |column: usize| {
            Cell { is_number: self.is_number(column), ..Cell::text(self.headings[column]) }
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

    fn is_used(&self, column: usize) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|row| !row[column].text.is_empty())
    }

    fn is_number(&self, column: usize) -> bool {
        self.rows.iter().all(|row| row[column].is_number)
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| row[column].text.width());
        cells.max().unwrap_or(0).max(self.headings[column].width())
    }
}

fn terminal_width() -> Option<usize> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    let (terminal_size::Width(width), _) = terminal_size::terminal_size()?;
    Some(width.into())
}

/// Narrows the widest columns of text until all fit, or none can be narrower.
fn narrow(widths: &mut [usize], is_number: &[bool], limit: usize) {
    let gaps = GAP * widths.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > limit {
        let texts = widths.iter_mut().zip(is_number).filter(|(_, is_number)| !**is_number);
        let Some(widest) = texts.map(|(width, _)| width).max() else { return };
        if *widest <= NARROWEST {
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
        let shown = styled(cell.style, &shown);
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

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    fn table() -> Table {
        let mut table = Table::new(&["ID", "TASK", "KEY", "ERROR"]);
        table.row(vec![Cell::number(7), Cell::text("send"), Cell::text(""), Cell::text("it broke\nbadly")]);
        table.row(vec![Cell::number(1234), Cell::text("日本"), Cell::text(""), Cell::text("")]);
        table
    }

    #[test]
    fn without_a_terminal_everything_is_shown_and_empty_columns_are_left_out() {
        let shown = plain(&table().show_within(None));
        assert_eq!(shown, "  ID  TASK  ERROR\n   7  send  it broke badly\n1234  日本\n");
    }

    #[test]
    fn the_widest_column_gives_way_first() {
        let shown = plain(&table().show_within(Some(22)));
        assert_eq!(shown, "  ID  TASK  ERROR\n   7  send  it broke …\n1234  日本\n");
        assert!(shown.lines().all(|line| line.width() <= 22), "{shown}");
    }

    #[test]
    fn wide_characters_are_not_cut_in_the_middle() {
        assert_eq!(cut("日本語日本語", 8), "日本語…");
        assert_eq!(cut("12345678", 8), "12345678");
    }

    #[test]
    fn what_could_control_a_terminal_is_not_passed_on() {
        assert_eq!(Cell::text("a\u{1b}[2Jb").text, "a [2Jb");
    }
}
