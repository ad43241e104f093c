//! What rows of tables are made of, whichever database has them.

/// A column of a row, or an argument of a statement. A flag is 0 or 1.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum SqlValue {
    Nothing,
    Number(i64),
    Text(String),
    Bytes(Vec<u8>),
}

/// Rows, each as its columns.
pub(crate) type Rows = Vec<Vec<SqlValue>>;

impl SqlValue {
    pub(super) fn number(&self) -> Option<i64> {
        match self {
            SqlValue::Number(number) => Some(*number),
            _ => None,
        }
    }

    pub(super) fn text(self) -> Option<String> {
        match self {
            SqlValue::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn bytes(self) -> Option<Vec<u8>> {
        match self {
            SqlValue::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }
}

impl From<u64> for SqlValue {
    fn from(value: u64) -> SqlValue {
        SqlValue::Number(number(value))
    }
}

impl From<&str> for SqlValue {
    fn from(text: &str) -> SqlValue {
        SqlValue::Text(text.to_owned())
    }
}

/// A time or a length as databases have it: their numbers have a sign.
pub(crate) fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A time or a length that was written as a [`number`].
pub(crate) fn unsigned(value: i64) -> u64 {
    match u64::try_from(value) {
        Ok(value) if value < i64::MAX.unsigned_abs() => value,
        Ok(_) => u64::MAX,
        Err(_) => 0,
    }
}
