//! The live picture: starts against limits, redrawn in place in a terminal, or a line a second.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Duration;

use super::judge::{counts_until, starts};
use super::records::Pages;
use super::streams::{Limit, STREAMS};

/// How often the picture is drawn, and how long one column of its history is.
pub const FRAME: Duration = Duration::from_millis(250);
/// Columns of history.
const HISTORY: usize = 24;
/// Cells of a gauge up to the limit; there are as many beyond it.
const GAUGE: usize = 10;
/// More than any window: what is older shows in no gauge.
const RECENT: Duration = Duration::from_secs(6);

/// How to draw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// In place, with colours.
    Terminal,
    /// Plain lines.
    Lines,
}

/// The state that one frame shows.
#[derive(Debug)]
pub struct Frame<'a> {
    /// The records so far.
    pub pages: &'a Pages,
    /// When.
    pub now: Duration,
    /// How long it will run.
    pub whole: Duration,
    /// Jobs that the backend has given out and no worker has.
    pub held: usize,
}

/// Draws frames, one over the other.
#[derive(Debug)]
pub struct Picture {
    style: Style,
    drawn: usize,
    said: Option<u64>,
}

impl Picture {
    /// Nothing is drawn yet.
    pub fn new(style: Style) -> Picture {
        Picture {
            style,
            drawn: 0,
            said: None,
        }
    }

    /// Draws a frame; plain lines only once a second.
    ///
    /// # Errors
    /// `out` cannot be written.
    pub fn draw(&mut self, frame: &Frame<'_>, out: &mut dyn Write) -> io::Result<()> {
        match self.style {
            Style::Lines => {
                let second = frame.now.as_secs();
                if second == 0 || self.said == Some(second) {
                    return Ok(());
                }
                self.said = Some(second);
                writeln!(out, "{}", frame.line())?;
            }
            Style::Terminal => {
                let lines = frame.lines();
                // Lines are not wrapped while they are drawn, so that as many go up as went down.
                write!(out, "\x1b[?7l")?;
                if self.drawn > 0 {
                    write!(out, "\x1b[{}A", self.drawn)?;
                }
                for line in &lines {
                    writeln!(out, "\r{line}\x1b[0m\x1b[K")?;
                }
                write!(out, "\x1b[?7h")?;
                self.drawn = lines.len();
            }
        }
        out.flush()
    }
}

/// How a stream stands: what counts against its limit now, and the limit.
struct GaugeLevel {
    now: usize,
    limit: Option<usize>,
}

impl GaugeLevel {
    fn over(&self) -> bool {
        self.limit.is_some_and(|limit| self.now > limit)
    }
}

impl Frame<'_> {
    fn level(&self, stream: usize, rule: Limit) -> GaugeLevel {
        let recent = starts(self.pages, stream, self.now.saturating_sub(RECENT));
        let counts = |start| counts_until(rule, start) > self.now;
        GaugeLevel {
            now: recent.iter().filter(|start| counts(start)).count(),
            limit: rule.number().and_then(|limit| usize::try_from(limit).ok()),
        }
    }

    /// The whole frame in one line.
    fn line(&self) -> String {
        let mut line = format!("{:>4} s", self.now.as_secs());
        for (index, stream) in STREAMS.iter().enumerate() {
            let level = self.level(index, stream.limit);
            // Writing to a string cannot fail.
            let _ = match level.limit {
                Some(limit) => write!(line, "  {} {}/{limit}", stream.name, level.now),
                None => write!(line, "  {} {}/s", stream.name, level.now),
            };
            if level.over() {
                line.push_str(" OVER");
            }
        }
        let _ = write!(line, "  held {}", self.held);
        line
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "  {:<7} {:<14} {:<20} {:>8} {HISTORY_TITLE:>HISTORY$}",
            "key", "limit", "now, up to limit |", ""
        )];
        for (index, stream) in STREAMS.iter().enumerate() {
            let level = self.level(index, stream.limit);
            let said = match level.limit {
                Some(limit) => format!("{} of {limit}", level.now),
                None => format!("{} /s", level.now),
            };
            let colour = if level.over() { RED } else { GREEN };
            lines.push(format!(
                "  \x1b[1m{:<7}\x1b[0m {:<14} {} {colour}{said:>8}\x1b[0m {CYAN}{}",
                stream.name,
                stream.limit.to_string(),
                gauge(&level),
                self.history(index)
            ));
        }
        let waiting: usize = (0..STREAMS.len())
            .map(|stream| self.pages.waiting(stream))
            .sum();
        lines.push(format!(
            "  {:.0} of {:.0} s; {waiting} jobs wait, {} of them held by the sidecar under a live claim",
            self.now.min(self.whole).as_secs_f64(),
            self.whole.as_secs_f64(),
            self.held.min(waiting),
        ));
        lines
    }

    /// Starts of a stream per frame, the newest at the right, as little columns.
    fn history(&self, stream: usize) -> String {
        let frame = FRAME.as_millis();
        // The last column is the last whole frame.
        let end = self.now.as_millis() / frame;
        let mut bins = [0_usize; HISTORY];
        for job in self.pages.received.iter().rev() {
            let back = end.saturating_sub(job.at.as_millis() / frame);
            let Ok(back) = usize::try_from(back) else {
                break;
            };
            if back > HISTORY {
                break;
            }
            let bin = HISTORY.checked_sub(back).and_then(|bin| bins.get_mut(bin));
            if let Some(bin) = bin.filter(|_| job.stream == stream) {
                *bin += 1;
            }
        }
        let most = bins.iter().copied().max().unwrap_or_default().max(1);
        let column = |count: &usize| {
            let step = (count * (COLUMNS.len() - 1)).div_ceil(most);
            COLUMNS.get(step).copied().unwrap_or(' ')
        };
        bins.iter().map(column).collect()
    }
}

const HISTORY_TITLE: &str = "starts each 250 ms";
const COLUMNS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const GREEN: &str = "\x1b[32m";
const RED: &str = "\x1b[1;31m";
const CYAN: &str = "\x1b[36m";

/// A bar with the limit in its middle; what is beyond it is red.
fn gauge(level: &GaugeLevel) -> String {
    let Some(limit) = level.limit else {
        return " ".repeat(2 * GAUGE);
    };
    let filled = (level.now * GAUGE).div_ceil(limit.max(1)).min(2 * GAUGE);
    let mut bar = format!("{GREEN}{}", "█".repeat(filled.min(GAUGE)));
    bar.push_str(&" ".repeat(GAUGE.saturating_sub(filled)));
    match filled.checked_sub(GAUGE) {
        Some(over) if over > 0 => {
            let _ = write!(bar, "{RED}{}", "█".repeat(over));
            bar.push_str(&" ".repeat(GAUGE - over));
        }
        _ => {
            let _ = write!(bar, "\x1b[0m|{}", " ".repeat(GAUGE - 1));
        }
    }
    bar.push_str("\x1b[0m");
    bar
}

#[cfg(test)]
mod tests {
    use super::super::records::{ProbeTrip, Received};
    use super::*;

    /// Stripe starts at these times.
    fn pages(times: impl IntoIterator<Item = u64>) -> Pages {
        let mut pages = Pages::default();
        for sent in (0..5_000).step_by(10) {
            let (sent, back) = (Duration::from_millis(sent), Duration::from_millis(sent + 1));
            pages.probes.push(ProbeTrip { sent, back });
        }
        for at in times {
            let at = Duration::from_millis(at);
            pages.received.push(Received {
                stream: 0,
                job: at.as_millis().to_string(),
                at,
                done: Some(at),
                acked: true,
            });
        }
        pages
    }

    fn drawn(style: Style, pages: &Pages, at: &[u64]) -> String {
        let (mut picture, mut out) = (Picture::new(style), Vec::new());
        for now in at {
            let frame = Frame {
                pages,
                now: Duration::from_millis(*now),
                whole: Duration::from_secs(12),
                held: 7,
            };
            picture.draw(&frame, &mut out).unwrap();
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_plain_line_a_second_says_who_is_over() {
        let pages = pages((0..21).map(|n| 1_000 + n));
        let text = drawn(Style::Lines, &pages, &[250, 1_100, 1_250, 2_100, 4_100]);
        assert_eq!(
            text,
            "   1 s  stripe 21/20 OVER  render 0/3  mail 0/10  free 0/s  held 7\n   \
             2 s  stripe 21/20 OVER  render 0/3  mail 0/10  free 0/s  held 7\n   \
             4 s  stripe 0/20  render 0/3  mail 0/10  free 0/s  held 7\n"
        );
        assert!(!text.contains('\x1b'));
    }

    #[test]
    fn a_terminal_frame_is_drawn_over_the_last_and_fits_80_columns() {
        let pages = pages((0..99).map(|n| 1_000 + n));
        let text = drawn(Style::Terminal, &pages, &[1_250, 1_500]);
        assert_eq!(text.matches("\x1b[6A").count(), 1, "{text:?}");
        for line in text.lines() {
            let mut visible = String::new();
            let mut rest = line;
            while let Some((before, after)) = rest.split_once('\x1b') {
                visible.push_str(before);
                rest = after.trim_start_matches(|c: char| !c.is_ascii_alphabetic());
                rest = rest.get(1..).unwrap_or_default();
            }
            visible.push_str(rest);
            let visible = visible.replace('\r', "");
            assert!(visible.chars().count() <= 79, "{visible}");
        }
        assert!(text.contains("99 of 20"), "{text}");
    }
}
