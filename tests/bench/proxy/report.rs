//! What was measured, as a table or as JSON.

use super::latency::Latency;

/// Nanoseconds per request, one figure a round.
#[derive(Clone, Default)]
pub struct Series(pub Vec<f64>);

impl Series {
    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        sorted
    }

    fn median(&self) -> f64 {
        let sorted = self.sorted();
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }

    fn range(&self) -> (f64, f64) {
        let sorted = self.sorted();
        let end = |value: Option<&f64>| value.copied().unwrap_or(f64::NAN);
        (end(sorted.first()), end(sorted.last()))
    }

    /// The ratios to another series, round by round.
    fn to(&self, other: &Series) -> Series {
        Series(self.0.iter().zip(&other.0).map(|(a, b)| a / b).collect())
    }
}

/// One case: what it is called, its target, and the CPU time of nginx and of each sidecar.
pub struct Line {
    pub name: &'static str,
    pub target: Option<f64>,
    pub nginx: Series,
    pub sidecars: Vec<Series>,
}

/// Everything that a run found.
pub struct Report {
    pub lines: Vec<Line>,
    /// The sidecars by name: the one under test first.
    pub names: Vec<String>,
    pub memory: u64,
    pub latencies: Vec<(&'static str, Latency)>,
}

/// The most memory that an idle sidecar may have, in bytes.
const MEMORY: u64 = 10 << 20;

impl Report {
    /// For people.
    pub fn table(&self) -> String {
        let mut text = String::from(
            "CPU of the proxy per request (user + system), medians of interleaved rounds\n\n",
        );
        text += &format!(
            "{:<34} {:>9} {:>9} {:>7}  {:<13} {:>6}\n",
            "", "nginx us", "ours us", "ratio", "(min-max)", "target"
        );
        for line in &self.lines {
            for (nth, (sidecar, name)) in line.sidecars.iter().zip(&self.names).enumerate() {
                let ratio = sidecar.to(&line.nginx);
                let (min, max) = ratio.range();
                let label = if nth == 0 { line.name } else { name };
                text += &format!(
                    "{label:<34} {:>9.2} {:>9.2} {:>7.3}  {:<13} {}\n",
                    line.nginx.median() / 1e3,
                    sidecar.median() / 1e3,
                    ratio.median(),
                    format!("({min:.2}-{max:.2})"),
                    match line.target {
                        Some(target) if nth == 0 =>
                            format!("{target:>6.2}  {}", verdict(ratio.median() <= target)),
                        // Round by round, because the machine changes between them.
                        _ if nth > 0 => {
                            let ours = line.sidecars.first().map(|ours| ours.to(sidecar));
                            let (low, high) = ours.as_ref().map_or((0.0, 0.0), Series::range);
                            let ours = ours.map_or(f64::NAN, |ours| ours.median());
                            format!("ours is {ours:.3} of it ({low:.2}-{high:.2})")
                        }
                        _ => String::new(),
                    }
                );
            }
        }
        text += &format!(
            "\nidle memory {:.1} MiB, target {} MiB  {}\n",
            self.memory as f64 / f64::from(1 << 20),
            MEMORY >> 20,
            verdict(self.memory < MEMORY)
        );
        for (name, latency) in &self.latencies {
            text += &format!(
                "latency at 2,000/s, {name:<7} p50 {:>6.0} us   p99 {:>6.0} us\n",
                latency.p50, latency.p99
            );
        }
        text
    }

    /// For programs.
    pub fn json(&self) -> String {
        let lines: Vec<serde_json::Value> = self.lines.iter().map(|line| self.line(line)).collect();
        let latencies: serde_json::Map<String, serde_json::Value> = self
            .latencies
            .iter()
            .map(|(name, latency)| {
                let value = serde_json::json!({"p50_us": latency.p50, "p99_us": latency.p99});
                ((*name).to_owned(), value)
            })
            .collect();
        serde_json::json!({
            "cases": lines,
            "idle_memory_bytes": self.memory,
            "latency_at_2000_per_second": latencies,
        })
        .to_string()
    }

    fn line(&self, line: &Line) -> serde_json::Value {
        let ours = line.sidecars.first().cloned().unwrap_or_default();
        let ratio = ours.to(&line.nginx);
        let (min, max) = ratio.range();
        serde_json::json!({
            "case": line.name,
            "nginx_us": line.nginx.median() / 1e3,
            "ours_us": ours.median() / 1e3,
            "ratio": ratio.median(),
            "ratio_min": min,
            "ratio_max": max,
            "target": line.target,
            "pass": line.target.map(|target| ratio.median() <= target),
        })
    }
}

fn verdict(pass: bool) -> &'static str {
    if pass { "PASS" } else { "MISS" }
}
