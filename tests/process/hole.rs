//! A relay that can become a black hole: connections stand, and nothing comes through until it is over.
//! Then what was sent meanwhile arrives, as from a network that was cut.

use std::sync::Condvar;

use super::prelude::*;

/// Relays bytes to a server, or keeps them.
pub struct Hole {
    pub addr: SocketAddr,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    shut: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn pass(&self) {
        let shut = self.shut.lock().unwrap();
        drop(self.opened.wait_while(shut, |shut| *shut).unwrap());
    }
}

impl Hole {
    pub fn before(server: SocketAddr) -> Hole {
        let gate = Arc::<Gate>::default();
        let both = Arc::clone(&gate);
        let addr = connections::each(move |client| {
            both.pass();
            let Ok(server) = TcpStream::connect(server) else {
                return;
            };
            let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            let back = Arc::clone(&both);
            std::thread::spawn(move || copy(server, client, &back));
            copy(from, to, &both);
        });
        Hole { addr, gate }
    }

    /// From now on nothing comes through.
    pub fn swallow(&self) {
        *self.gate.shut.lock().unwrap() = true;
    }

    pub fn heal(&self) {
        *self.gate.shut.lock().unwrap() = false;
        self.gate.opened.notify_all();
    }
}

impl Drop for Hole {
    fn drop(&mut self) {
        self.heal();
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, gate: &Gate) {
    let mut bytes = [0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        gate.pass();
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    gate.pass();
    // Either side may be gone already.
    drop(to.shutdown(Shutdown::Both));
    drop(from.shutdown(Shutdown::Both));
}
