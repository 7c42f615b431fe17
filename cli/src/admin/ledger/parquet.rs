//! Rows as Parquet files, by the `parquet` crate: <https://parquet.apache.org/docs/file-format/>. Columns are compressed with zstd, in
//! groups of rows that fit in memory.

use anyhow::{Context, Result};
use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::record::Row;
use parquet::schema::parser::parse_message_type;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The rows of a group: about 20 MB in memory.
const GROUP_ROWS: usize = 100_000;

/// A row that has a table.
pub trait Record {
    /// The table's columns, in Parquet's own words.
    const SCHEMA: &'static str;

    /// Puts the row's values into the columns, in their order.
    fn put(&self, columns: &mut Columns<'_>);
}

/// One column of the group that is being gathered.
#[derive(Debug)]
enum Column {
    Int(Vec<i64>),
    /// Values, and for each row whether it has one.
    MaybeInt(Vec<i64>, Vec<i16>),
    Bytes(Vec<ByteArray>),
    /// The same of bytes.
    MaybeBytes(Vec<ByteArray>, Vec<i16>),
}

/// The columns of a group, for one row after the other.
#[derive(Debug)]
pub struct Columns<'c> {
    columns: std::slice::IterMut<'c, Column>,
}

impl Columns<'_> {
    /// A number that every row has.
    pub fn int(&mut self, value: i64) {
        if let Some(Column::Int(values)) = self.columns.next() {
            values.push(value);
        }
    }

    /// A number that some rows have.
    pub fn maybe_int(&mut self, value: Option<i64>) {
        if let Some(Column::MaybeInt(values, present)) = self.columns.next() {
            present.push(i16::from(value.is_some()));
            values.extend(value);
        }
    }

    /// Text, or other bytes, that every row has.
    pub fn bytes(&mut self, value: &[u8]) {
        if let Some(Column::Bytes(values)) = self.columns.next() {
            values.push(value.to_vec().into());
        }
    }

    /// Text that some rows have.
    pub fn maybe_bytes(&mut self, value: Option<&[u8]>) {
        if let Some(Column::MaybeBytes(values, present)) = self.columns.next() {
            present.push(i16::from(value.is_some()));
            values.extend(value.map(|value| ByteArray::from(value.to_vec())));
        }
    }
}

/// A file that is being written.
pub struct Table {
    writer: SerializedFileWriter<File>,
    path: PathBuf,
    columns: Vec<Column>,
    in_group: usize,
    rows: u64,
}

impl Table {
    /// Makes the file; there must be none.
    pub fn create<R: Record>(path: PathBuf) -> Result<Self> {
        let schema = Arc::new(parse_message_type(R::SCHEMA).context("the schema of a table")?);
        let columns = schema.get_fields().iter().map(|field| {
            use parquet::basic::Type::INT64;
            match (field.get_physical_type() == INT64, field.is_optional()) {
                (true, false) => Column::Int(Vec::new()),
                (true, true) => Column::MaybeInt(Vec::new(), Vec::new()),
                (false, false) => Column::Bytes(Vec::new()),
                (false, true) => Column::MaybeBytes(Vec::new(), Vec::new()),
            }
        });
        let columns = columns.collect();
        let zstd = Compression::ZSTD(ZstdLevel::try_new(3)?);
        let properties = WriterProperties::builder().set_compression(zstd).build();
        let file = File::create_new(&path).with_context(|| format!("{} cannot be made", path.display()))?;
        let writer = SerializedFileWriter::new(file, schema, Arc::new(properties))?;
        Ok(Self { writer, path, columns, in_group: 0, rows: 0 })
    }

    /// Appends a row, which is of the type that the table was made for.
    pub fn push<R: Record>(&mut self, row: &R) -> Result<()> {
        row.put(&mut Columns { columns: self.columns.iter_mut() });
        self.in_group += 1;
        self.rows += 1;
        if self.in_group == GROUP_ROWS { self.write_group() } else { Ok(()) }
    }

    fn write_group(&mut self) -> Result<()> {
        self.in_group = 0;
        let failed = || format!("{} cannot be written", self.path.display());
        let mut group = self.writer.next_row_group().with_context(failed)?;
        for column in &mut self.columns {
            let mut writer = group.next_column().with_context(failed)?.context("a column is missing")?;
            let written = match column {
                Column::Int(values) => writer.typed::<Int64Type>().write_batch(values, None, None),
                Column::MaybeInt(values, present) => {
                    writer.typed::<Int64Type>().write_batch(values, Some(present), None)
                }
                Column::Bytes(values) => writer.typed::<ByteArrayType>().write_batch(values, None, None),
                Column::MaybeBytes(values, present) => {
                    writer.typed::<ByteArrayType>().write_batch(values, Some(present), None)
                }
            };
            written.with_context(failed)?;
            writer.close().with_context(failed)?;
            match column {
                Column::Int(values) => values.clear(),
                Column::Bytes(values) => values.clear(),
                Column::MaybeInt(values, present) => {
                    values.clear();
                    present.clear();
                }
                Column::MaybeBytes(values, present) => {
                    values.clear();
                    present.clear();
                }
            }
        }
        group.close().with_context(failed)?;
        Ok(())
    }

    /// Writes what is left, and makes the file durable. Returns the number of its rows.
    pub fn finish(mut self) -> Result<u64> {
        if self.in_group > 0 {
            self.write_group()?;
        }
        let failed = || format!("{} cannot be written", self.path.display());
        let file = self.writer.into_inner().with_context(failed)?;
        file.sync_all().with_context(failed)?;
        Ok(self.rows)
    }
}

/// Reads all rows of a file.
pub fn each_row(path: &Path, mut take: impl FnMut(&Row) -> Result<()>) -> Result<()> {
    let failed = || format!("{} cannot be read", path.display());
    let file = File::open(path).with_context(failed)?;
    for row in SerializedFileReader::new(file).with_context(failed)? {
        take(&row.with_context(failed)?).with_context(failed)?;
    }
    Ok(())
}

/// The number of rows that a file says it has.
pub fn rows_of(path: &Path) -> Result<u64> {
    let file = File::open(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let reader =
        SerializedFileReader::new(file).with_context(|| format!("{} is no Parquet file", path.display()))?;
    Ok(reader.metadata().file_metadata().num_rows().unsigned_abs())
}
