//! An enqueue that stands in the line, from its own side.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::state::{Come, Pressure};
use super::want::Want;

/// A place in the line; left when dropped.
#[derive(Debug)]
pub struct PlaceInLine {
    pressure: Arc<Pressure>,
    number: u64,
    told: oneshot::Receiver<Come>,
}

impl PlaceInLine {
    /// Puts an enqueue in line until its places are free. `None`: the line is too long.
    pub fn stand(pressure: &Arc<Pressure>, wants: Vec<Want>, most: usize) -> Option<PlaceInLine> {
        let (tell, told) = oneshot::channel();
        let number = pressure.state.lock().line.stand(wants, tell, most)?;
        Some(PlaceInLine {
            pressure: Arc::clone(pressure),
            number,
            told,
        })
    }

    /// Waits for news: places, or a job that it must drop.
    pub async fn come(&mut self) -> Option<Come> {
        (&mut self.told).await.ok()
    }

    /// It waits on, after it has tried to drop a job.
    pub fn stand_on(&mut self, wants: Vec<Want>) {
        let (tell, told) = oneshot::channel();
        self.told = told;
        let mut state = self.pressure.state.lock();
        state.line.stand_on(self.number, wants, tell);
    }
}

impl Drop for PlaceInLine {
    fn drop(&mut self) {
        self.pressure.state.lock().line.leave(self.number);
    }
}
