//! The file of samples: notes (`# name: value`), a line with the names of the columns, then one line per sample. It is
//! written line by line, so that it can be read at any time.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::sample::Sample;
use crate::Result;

#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    file: File,
    has_columns: bool,
}

impl Log {
    pub(super) fn create(path: &Path) -> Result<Log> {
        let file = File::create(path).map_err(|error| format!("writing {}: {error}", path.display()))?;
        Ok(Log { path: path.to_owned(), file, has_columns: false })
    }

    pub(super) fn note(&mut self, name: &str, value: &str) -> Result {
        self.line(&format!("# {name}: {value}"))
    }

    pub(super) fn write(&mut self, sample: &Sample) -> Result {
        if !self.has_columns {
            let names: Vec<&str> = sample.0.iter().map(|(name, _)| name.as_str()).collect();
            self.line(&names.join(","))?;
            self.has_columns = true;
        }
        let values: Vec<String> = sample.0.iter().map(|(_, value)| field(*value)).collect();
        self.line(&values.join(","))
    }

    fn line(&mut self, line: &str) -> Result {
        writeln!(self.file, "{line}").map_err(|error| format!("writing {}: {error}", self.path.display()))
    }
}

fn field(value: f64) -> String {
    if value.is_nan() { String::new() } else { format!("{}", (value * 1000.0).round() / 1000.0) }
}

/// The samples of a soak, or of the part of it that was run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Series {
    pub(super) notes: Vec<(String, String)>,
    pub(super) columns: Vec<String>,
    rows: Vec<Vec<f64>>,
}

impl Series {
    pub(super) fn read(file: &Path) -> Result<Series> {
        let text =
            fs::read_to_string(file).map_err(|error| format!("reading {}: {error}", file.display()))?;
        Series::parse(&text).map_err(|error| format!("{}: {error}", file.display()))
    }

    pub(super) fn parse(text: &str) -> Result<Series> {
        let mut series = Series::default();
        for line in text.lines() {
            if let Some(note) = line.strip_prefix("# ") {
                let (name, value) = note.split_once(": ").unwrap_or((note, ""));
                series.notes.push((name.to_owned(), value.to_owned()));
            } else if series.columns.is_empty() {
                series.columns = line.split(',').map(str::to_owned).collect();
            } else {
                let row: Vec<f64> = line.split(',').map(|field| field.parse().unwrap_or(f64::NAN)).collect();
                // The last line may be incomplete.
                if row.len() == series.columns.len() {
                    series.rows.push(row);
                }
            }
        }
        if series.rows.is_empty() { Err("no samples in it".to_owned()) } else { Ok(series) }
    }

    pub(super) fn note(&self, name: &str) -> Option<&str> {
        self.notes.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The times, in seconds, and values of a column, if it exists.
    pub(super) fn points(&self, column: &str) -> Vec<(f64, f64)> {
        let place = |name: &str| self.columns.iter().position(|column| column == name);
        let (Some(time), Some(place)) = (place("seconds"), place(column)) else { return Vec::new() };
        self.rows.iter().map(|row| (row[time], row[place])).filter(|(_, value)| value.is_finite()).collect()
    }

    /// When the last sample was taken, in seconds.
    pub(super) fn length(&self) -> f64 {
        self.points("seconds").last().map_or(0.0, |(time, _)| *time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_samples_of_an_interrupted_soak_can_be_read() {
        let text = "# rate: 100\nseconds,backlog\n10,5\n20,\n30,7\n# left: 0\n4";
        let series = Series::parse(text).unwrap();
        assert_eq!(series.note("rate"), Some("100"));
        assert_eq!(series.note("left"), Some("0"));
        assert_eq!(series.points("backlog"), [(10.0, 5.0), (30.0, 7.0)]);
        assert_eq!(series.length(), 30.0);
        assert!(Series::parse("# rate: 100\nseconds,backlog\n").is_err());
    }
}
