use super::text::{Line, Style};

/// Columns between two cells, as kubectl prints them, and in a window that is too narrow for that.
const GAPS: [usize; 2] = [3, 2];
/// The widest cell: the longest name of a Kubernetes object. Wider ones are shortened.
const MAX_CELL: usize = 253;
/// The narrowest that a flexible column becomes.
const MIN_FLEXIBLE: usize = 8;

/// A column of a [`Table`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    heading: String,
    is_number: bool,
    is_flexible: bool,
    is_optional: bool,
}

impl Column {
    /// Returns a column of text, aligned to the left.
    #[must_use]
    pub fn text(heading: impl Into<String>) -> Self {
        Self { heading: heading.into(), is_number: false, is_flexible: false, is_optional: false }
    }

    /// Returns a column of numbers, aligned to the right.
    #[must_use]
    pub fn number(heading: impl Into<String>) -> Self {
        Self { is_number: true, ..Self::text(heading) }
    }

    /// Makes it a column that is shortened if the table is too wide. Without any it is the last column.
    #[must_use]
    pub fn flexible(self) -> Self {
        Self { is_flexible: true, ..self }
    }

    /// Makes it a column that is left out if the table is too wide even so. The first ones are left out first.
    #[must_use]
    pub fn optional(self) -> Self {
        Self { is_optional: true, ..self }
    }
}

/// A table as kubectl prints it.
#[derive(Clone, Debug, Default)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Line>>,
    has_no_headings: bool,
    /// Minimum widths of the columns.
    at_least: Vec<usize>,
}

impl Table {
    /// Returns a table without rows.
    #[must_use]
    pub fn new(columns: impl IntoIterator<Item = Column>) -> Self {
        Self { columns: columns.into_iter().collect(), ..Self::default() }
    }

    /// Omits the line of headings.
    #[must_use]
    pub fn without_headings(self) -> Self {
        Self { has_no_headings: true, ..self }
    }

    /// Makes the columns at least as wide as those of an earlier table, which this one continues.
    #[must_use]
    pub fn continuing(self, earlier: &Self) -> Self {
        Self { at_least: earlier.widths(), has_no_headings: true, ..self }
    }

    /// Adds a row, with a cell for each column. An empty cell becomes `<none>`, as `awk` would skip it.
    pub fn push<C: Into<Line>>(&mut self, cells: impl IntoIterator<Item = C>) {
        let cell = |cell: C| {
            let cell: Line = cell.into();
            if cell.width() == 0 { Line::new("<none>", Style::Dim) } else { cell.shortened(MAX_CELL) }
        };
        let mut row: Vec<Line> = cells.into_iter().map(cell).collect();
        row.resize(self.columns.len(), Line::default());
        self.rows.push(row);
    }

    /// Returns true if it has no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the lines. If the table is wider than `width` columns, the flexible columns are shortened, the widest
    /// first, to a minimum width; then optional columns are left out. Lines may still be too wide.
    #[must_use]
    pub fn lines(&self, width: usize) -> Vec<Line> {
        let mut widths = self.widths();
        let shown = self.shown(&widths, width);
        let (widest, gaps) =
            (shown.iter().map(|at| widths[*at]).sum::<usize>(), shown.len().saturating_sub(1));
        let gap = GAPS.into_iter().find(|gap| widest + gaps * gap <= width).unwrap_or(GAPS[1]);
        for _ in 0..(widest + gaps * gap).saturating_sub(width) {
            let flexible = self.flexible().filter(|at| shown.contains(at));
            let widest = flexible.max_by_key(|at| widths[*at]).filter(|at| widths[*at] > MIN_FLEXIBLE);
            let Some(widest) = widest else { break };
            widths[widest] -= 1;
        }
        let headings = self.columns.iter().map(|column| Line::new(&column.heading, Style::Bold)).collect();
        let headings = Some(headings).filter(|_| !self.has_no_headings);
        headings.iter().chain(&self.rows).map(|cells| self.line(cells, &shown, &widths, gap)).collect()
    }

    /// Returns the positions of the columns for which there is room.
    fn shown(&self, widths: &[usize], width: usize) -> Vec<usize> {
        let mut least = widths.to_vec();
        self.flexible().for_each(|at| least[at] = least[at].min(MIN_FLEXIBLE));
        let mut shown: Vec<usize> = (0..widths.len()).collect();
        let is_too_wide = |shown: &[usize]| {
            shown.iter().map(|at| least[*at] + GAPS[1]).sum::<usize>().saturating_sub(GAPS[1]) > width
        };
        while is_too_wide(&shown)
            && let Some(at) = shown.iter().position(|at| self.columns[*at].is_optional)
        {
            shown.remove(at);
        }
        shown
    }

    /// Returns the positions of the flexible columns.
    fn flexible(&self) -> impl Iterator<Item = usize> {
        let is_any = self.columns.iter().any(|column| column.is_flexible);
        let last = self.columns.len().wrapping_sub(1);
        let columns = self.columns.iter().enumerate();
        columns
            .filter(move |(at, column)| if is_any { column.is_flexible } else { *at == last })
            .map(|(at, _)| at)
    }

    fn widths(&self) -> Vec<usize> {
        let width = |(at, column): (usize, &Column)| {
            let heading = if self.has_no_headings { 0 } else { column.heading.chars().count() };
            let at_least = self.at_least.get(at).copied().unwrap_or(0);
            self.rows.iter().map(|row| row[at].width()).max().unwrap_or(0).max(heading).max(at_least)
        };
        self.columns.iter().enumerate().map(width).collect()
    }

    fn line(&self, cells: &[Line], shown: &[usize], widths: &[usize], gap: usize) -> Line {
        let mut line = Line::default();
        for (number, at) in shown.iter().enumerate() {
            if number > 0 {
                line = line.add(" ".repeat(gap), Style::Plain);
            }
            let (width, column) = (widths[*at], &self.columns[*at]);
            let cell = cells[*at].clone().shortened(width);
            let fill = " ".repeat(width.saturating_sub(cell.width()));
            line = match column.is_number {
                true => line.add(fill, Style::Plain).join(cell),
                false => line.join(cell).add(fill, Style::Plain),
            };
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::page;

    fn table() -> Table {
        let columns = [Column::text("NODE").flexible(), Column::number("FREE"), Column::text("POLICY")];
        let mut table = Table::new(columns);
        table.push(["worker-with-a-long-name", "7", "single-numa-node"]);
        table.push(["w", "128", ""]);
        table
    }

    fn text(table: &Table, width: usize) -> String {
        page(&table.lines(width), width, false)
    }

    #[test]
    fn columns_are_aligned() {
        let expected = "\
NODE                      FREE   POLICY
worker-with-a-long-name      7   single-numa-node
w                          128   <none>";
        assert_eq!(text(&table(), 80), expected);
        assert_eq!(text(&table(), usize::MAX), expected);
        let rows = expected.split_once('\n').unwrap().1.replace("      7", "     7");
        assert_eq!(text(&table().without_headings(), 80), rows.replace("    128", "   128"));
    }

    #[test]
    fn the_flexible_column_is_shortened() {
        let expected = "\
NODE             FREE  POLICY
worker-with-a-…     7  single-numa-node
w                 128  <none>";
        assert_eq!(text(&table(), 39), expected);
        let narrow = text(&table(), 20);
        assert_eq!(narrow.lines().nth(1).unwrap(), "worker-…     7  sing");
        let gaps = text(&table(), 47);
        assert!(gaps.contains("worker-with-a-long-name     7  single"), "{gaps}");
    }

    #[test]
    fn of_several_flexible_columns_the_widest_is_shortened() {
        let columns = ["A", "B", "C"].map(|heading| Column::text(heading).flexible());
        let mut table = Table::new(columns);
        table.push(["0123456789abcdef", "0123456789", "x"]);
        assert_eq!(text(&table, 27).lines().nth(1).unwrap(), "0123456789a…  0123456789  x");
        assert_eq!(text(&table, 23).lines().nth(1).unwrap(), "01234567…  01234567…  x");
    }

    #[test]
    fn without_room_optional_columns_are_left_out() {
        let columns = [
            Column::text("NODE"),
            Column::number("FREE").optional(),
            Column::text("DEVICES").flexible().optional(),
            Column::text("STATUS"),
        ];
        let mut table = Table::new(columns);
        table.push(["worker", "7", "nic 1, gpu 2", "OK"]);
        assert_eq!(text(&table, 30).lines().nth(1).unwrap(), "worker     7  nic 1, …  OK");
        assert_eq!(text(&table, 29), "NODE    DEVICES       STATUS\nworker  nic 1, gpu 2  OK");
        assert_eq!(text(&table, 24).lines().nth(1).unwrap(), "worker  nic 1, …  OK");
        assert_eq!(text(&table, 23), "NODE     STATUS\nworker   OK");
        assert_eq!(text(&table, 5), "NODE\nworke");
    }

    #[test]
    fn a_continued_table_keeps_its_widths() {
        let mut more = Table::new(table().columns).continuing(&table());
        more.push(["w", "1", "none"]);
        assert_eq!(text(&more, 80), "w                            1   none");
    }

    #[test]
    fn without_a_flexible_column_the_last_one_is_shortened() {
        let mut table = Table::new([Column::text("A"), Column::text("B")]);
        table.push(["a", "0123456789abcdef"]);
        assert_eq!(text(&table, 13), "A  B\na  012345678…");
    }

    #[test]
    fn a_cell_cannot_make_the_table_huge() {
        let mut table = Table::new([Column::text("A"), Column::text("B")]);
        table.push(["x".repeat(100_000), "b".to_owned()]);
        assert_eq!(table.lines(usize::MAX)[0].width(), MAX_CELL + GAPS[0] + 1);
        table.push(["only one cell"]);
        assert_eq!(table.lines(usize::MAX).len(), 3);
        assert!(Table::default().lines(80)[0].text().is_empty());
    }
}
