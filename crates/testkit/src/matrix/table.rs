//! Prints one line per row, which `cargo xtask matrix` combines into one table.

use super::Row;
use super::columns::Cell;

/// Prints the row. Returns whether all of it is green.
pub(super) fn print(row: &Row, cells: &[Cell]) -> bool {
    let texts: Vec<String> = cells.iter().map(text).collect();
    println!("matrix\t{}\t{}", row.name, texts.join("\t"));
    !cells.iter().any(Cell::is_red)
}

fn text(cell: &Cell) -> String {
    match cell {
        Cell::Ok(time) => format!("ok {:.1} s", time.as_secs_f64()),
        Cell::Red(what) => format!("FAIL {what}"),
        Cell::Skipped(reason) => format!("- {reason}"),
    }
}
