//! The binary. All that it does is in the library: see [`ojs_throttle::program`].

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// Saves a tenth of the processor time of a request against the system's allocator: hyper takes two buffers of 8 KiB
/// for each request, which glibc splits and joins every time. It costs half a MiB when idle.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    ojs_throttle::program::main()
}
