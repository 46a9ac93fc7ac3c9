//! Tables with aligned columns, and notes between their rows.

use std::fmt;

const GAP: &str = "   ";

/// A table of `N` columns.
pub(super) struct Table<const N: usize> {
    lines: Vec<Line<N>>,
}

enum Line<const N: usize> {
    Cells([String; N]),
    Note(String),
}

impl<const N: usize> Table<N> {
    pub(super) fn new(header: [&str; N]) -> Self {
        Self {
            lines: vec![Line::Cells(header.map(str::to_owned))],
        }
    }

    pub(super) fn row(&mut self, cells: [String; N]) {
        self.lines.push(Line::Cells(cells));
    }

    /// A line without columns, below the last row.
    pub(super) fn note(&mut self, text: &str) {
        self.lines.push(Line::Note(text.to_owned()));
    }
}

impl<const N: usize> fmt::Display for Table<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut widths = [0; N];
        for line in &self.lines {
            if let Line::Cells(cells) = line {
                for (width, cell) in widths.iter_mut().zip(cells) {
                    *width = (*width).max(cell.chars().count());
                }
            }
        }
        for line in &self.lines {
            match line {
                Line::Note(text) => writeln!(f, "{text}")?,
                Line::Cells(cells) => {
                    let padded = cells
                        .iter()
                        .zip(widths)
                        .map(|(cell, width)| format!("{cell:width$}"));
                    writeln!(f, "{}", padded.collect::<Vec<_>>().join(GAP).trim_end())?;
                }
            }
        }
        Ok(())
    }
}
