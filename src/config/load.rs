//! Reads config files from the disk: as a whole, and never one that has no end.

use std::io::{Error, Read};
use std::path::{Path, PathBuf};

use super::command_line::CommandLine;
use super::file;
use super::settings::Settings;
use ojs_reader::{Report, SourceKind, Sources};

/// The largest config file, and all files of a folder together, in bytes: some ten thousand policies.
const LONGEST_FILE: u64 = 1 << 20;

/// A config file or a folder of them, and what is put over it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigFile {
    /// Where it is.
    pub path: PathBuf,
    /// What the environment and the command line say over it.
    pub overrides: CommandLine,
}

impl ConfigFile {
    /// The whole text, or those of the folder.
    ///
    /// # Errors
    /// It cannot be read, is longer than 1 MiB, is not UTF-8, or is no regular file (reading from a
    /// pipe would wait for ever). The folder has no file.
    pub fn read(&self) -> std::io::Result<Sources> {
        let kind = std::fs::metadata(&self.path)?;
        if !kind.is_file() && !kind.is_dir() {
            return Err(Error::other("it is not a regular file"));
        }
        read_path(&self.path)
    }

    /// The settings that these texts mean.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub fn parse(&self, texts: Sources) -> Result<Settings, Report> {
        file::read(texts, &self.overrides)
    }
}

impl Settings {
    /// Reads a file or the files of a folder, if there is one, and puts environment and command line over it.
    ///
    /// # Errors
    /// The file cannot be read, or everything that is wrong with it.
    pub fn load_with(path: Option<&Path>, overrides: &CommandLine) -> Result<Settings, Report> {
        let nothing = || Ok(Sources::file("command line", ""));
        file::read(path.map_or_else(nothing, read_or_report)?, overrides)
    }

    /// The settings as far as a file can be read, for who only asks where a sidecar is: what is wrong is at its default,
    /// and told beside them.
    ///
    /// # Errors
    /// Nothing of it can be read.
    pub fn as_far_as_read(
        path: Option<&Path>,
        overrides: &CommandLine,
    ) -> Result<(Settings, Report), Report> {
        let texts = path.map_or_else(|| Ok(Sources::file("", "")), read_or_report)?;
        Ok(file::read_what_can_be(texts, overrides))
    }

    /// Reads a text; `name` stands for the file in messages.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn parse(text: &str, name: &str) -> Result<Settings, Report> {
        Settings::parse_with(text, name, &CommandLine::default())
    }

    /// Reads a text likewise, and puts environment and command line over it.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn parse_with(text: &str, name: &str, overrides: &CommandLine) -> Result<Settings, Report> {
        file::read(Sources::file(name, text), overrides)
    }
}

fn read_or_report(path: &Path) -> Result<Sources, Report> {
    let name = path.display().to_string();
    read_path(path).map_err(|error| Report::unreadable(&name, &error))
}

/// The text of a file, or those of a folder: its files `*.toml` in the order of their names. What begins with a dot is
/// an editor's, or Kubernetes'.
fn read_path(path: &Path) -> std::io::Result<Sources> {
    if !path.is_dir() {
        return Ok(Sources::file(path.display().to_string(), read_text(path)?));
    }
    let entries = std::fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path()));
    let mut files = entries.collect::<Result<Vec<PathBuf>, Error>>()?;
    let is_hidden = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
    };
    files.retain(|path| path.extension().is_some_and(|kind| kind == "toml") && !is_hidden(path));
    files.sort();
    let mut texts = Sources::default();
    for file in &files {
        let name = file.display().to_string();
        let in_file = |error| Error::other(format!("{name}: {error}"));
        let text = match std::fs::metadata(file).map_err(in_file)?.is_file() {
            true => read_text(file).map_err(in_file)?,
            false => return Err(in_file(Error::other("it is not a regular file"))),
        };
        texts.push(SourceKind::File, &name, &text);
        if texts.text().len() as u64 > LONGEST_FILE {
            return Err(Error::other("its files together are larger than 1 MiB"));
        }
    }
    match files.is_empty() {
        true => Err(Error::other(
            "it is a folder without a file *.toml (containers make one where the mounted file is missing)",
        )),
        false => Ok(texts),
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
        return Err(Error::other("it is larger than 1 MiB"));
    }
    String::from_utf8(bytes).map_err(|_| Error::other("it is not UTF-8 text"))
}
