//! Reads a config file from the disk: as a whole, and never one that has no end.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::command_line::CommandLine;
use super::file;
use super::report::Report;
use super::settings::Settings;

/// The largest config file, in bytes: some ten thousand policies.
const LONGEST_FILE: u64 = 1 << 20;

/// A config file, and what is put over it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigFile {
    /// Where it is.
    pub path: PathBuf,
    /// What the command line says over it.
    pub overrides: CommandLine,
}

impl ConfigFile {
    /// The whole text.
    ///
    /// # Errors
    /// It cannot be read, is longer than 1 MiB, is not UTF-8, or is no regular file (reading from a
    /// pipe would wait for ever).
    pub fn read(&self) -> std::io::Result<String> {
        if !std::fs::metadata(&self.path)?.is_file() {
            return Err(std::io::Error::other("it is not a regular file"));
        }
        read_text(&self.path)
    }

    /// The settings that a text of this file means.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn parse(&self, text: &str) -> Result<Settings, Report> {
        let name = self.path.display().to_string();
        file::read(text, &name, &self.overrides)
    }
}

impl Settings {
    /// Reads a file, if there is one, and puts the command line over it.
    ///
    /// # Errors
    /// The file cannot be read, or everything that is wrong with it.
    pub fn load_with(path: Option<&Path>, overrides: &CommandLine) -> Result<Settings, Report> {
        let Some(path) = path else {
            return file::read("", "command line", overrides);
        };
        let name = path.display().to_string();
        match read_text(path) {
            Ok(text) => file::read(&text, &name, overrides),
            Err(error) => Err(file::unreadable(&name, &error)),
        }
    }

    /// Reads a text; `name` stands for the file in messages.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn parse(text: &str, name: &str) -> Result<Settings, Report> {
        file::read(text, name, &CommandLine::default())
    }
}

/// The whole of a file that may be a config file: a device or a log given by mistake is not read whole.
fn read_text(path: &Path) -> std::io::Result<String> {
    read_whole(std::fs::File::open(path)?)
}

pub(super) fn read_whole(from: impl Read) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    from.take(LONGEST_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST_FILE {
        return Err(std::io::Error::other("it is larger than 1 MiB"));
    }
    String::from_utf8(bytes).map_err(|_| std::io::Error::other("it is not UTF-8 text"))
}
