//! An enqueue that stands in the line, from its own side.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::state::{BlockedEnqueue, Come, Pressure};
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
        let mut state = pressure.state.lock();
        if state.line.len() >= most {
            return None;
        }
        state.last_in_line += 1;
        let number = state.last_in_line;
        let tell = Some(tell);
        state.line.insert(number, BlockedEnqueue { wants, tell });
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
        let tell = Some(tell);
        let waiter = BlockedEnqueue { wants, tell };
        self.pressure.state.lock().line.insert(self.number, waiter);
    }
}

impl Drop for PlaceInLine {
    fn drop(&mut self) {
        self.pressure.state.lock().line.remove(&self.number);
    }
}
