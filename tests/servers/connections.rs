//! Servers of a test that have a thread for each connection, until the test program ends.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// Does this with each connection, in a thread of its own. The address is any free one.
pub fn each(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    each_of(TcpListener::bind("127.0.0.1:0").unwrap(), Arc::new(serve))
}

/// The same at this address.
pub fn each_at(addr: SocketAddr, serve: impl Fn(TcpStream) + Send + Sync + 'static) {
    each_of(TcpListener::bind(addr).unwrap(), Arc::new(serve));
}

fn each_of(listener: TcpListener, serve: Arc<dyn Fn(TcpStream) + Send + Sync>) -> SocketAddr {
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let serve = Arc::clone(&serve);
            thread::spawn(move || serve(stream));
        }
    });
    addr
}
