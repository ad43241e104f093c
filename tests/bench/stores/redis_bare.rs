//! The scripts of the store on Redis, called without the store: with the very arguments that it gives
//! them, overheard by MONITOR.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use ojs_throttle::store::{Ledger, LedgerExt};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};

/// Where the arguments of a call of a script have the time past which it is refused.
const NOT_AFTER: usize = 9;

/// A take and an end as the store calls them.
pub struct Calls {
    take: Vec<Vec<u8>>,
    end: Vec<Vec<u8>>,
    /// What in them names the job and its key.
    job: String,
    key: String,
}

impl Calls {
    /// Has the store start and end a job, and listens.
    pub async fn overheard(
        port: u16,
        store: &dyn Ledger,
        ask: &ojs_throttle::store::Claimed,
    ) -> Calls {
        let said = listen(port);
        // The first call may load the script.
        for _ in 0..2 {
            store.take(&[ask], 1).await.unwrap();
            store.end(&ask.job, None).await.unwrap();
        }
        let heard = || loop {
            let words = words(&said.recv_timeout(Duration::from_secs(5)).unwrap());
            let names_it = words.iter().any(|word| word == ask.job.as_bytes());
            if words.first().is_some_and(|first| first == b"EVALSHA") && names_it {
                return words;
            }
        };
        // A take has more to say than an end.
        let (mut take, mut end) = (heard(), heard());
        while end.len() >= take.len() {
            (take, end) = (end, heard());
        }
        take[NOT_AFTER] = (1_u64 << 53).to_string().into_bytes();
        Calls {
            take,
            end,
            job: ask.job.to_string(),
            key: ask.limited[0].key.to_string(),
        }
    }

    /// Both for another job and key.
    pub fn of(&self, job: &str, key: &str) -> (Cmd, Cmd) {
        let command = |words: &[Vec<u8>]| {
            let mut command = Cmd::new();
            for word in words {
                let text = std::str::from_utf8(word).unwrap();
                match text {
                    _ if text == self.job => command.arg(job),
                    _ if text.contains(&self.key) => command.arg(text.replace(&self.key, key)),
                    _ => command.arg(text),
                };
            }
            command
        };
        (command(&self.take), command(&self.end))
    }
}

/// One call, as the store makes it.
pub async fn call(connection: &mut MultiplexedConnection, command: &Cmd) -> Value {
    let answer = connection.send_packed_command(command).await.unwrap();
    answer.extract_error().unwrap()
}

/// What the server is told from now on, but not what its scripts do.
fn listen(port: u16) -> Receiver<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"MONITOR\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "+OK");
    let (give, take) = channel();
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            if !line.contains(" lua] ") && give.send(line).is_err() {
                return;
            }
        }
    });
    take
}

/// The words of a line: `+TIME [0 FROM] "WORD" "WORD"`, with escapes.
fn words(line: &str) -> Vec<Vec<u8>> {
    let quoted = line.split_once("] ").map_or("", |(_, rest)| rest);
    let mut bytes = quoted.bytes();
    let mut words = Vec::new();
    while bytes.by_ref().any(|byte| byte == b'"') {
        let mut word = Vec::new();
        while let Some(byte) = bytes.next().filter(|byte| *byte != b'"') {
            word.push(match byte {
                b'\\' => match bytes.next().unwrap() {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'x' => {
                        let hex = [bytes.next().unwrap(), bytes.next().unwrap()];
                        u8::from_str_radix(std::str::from_utf8(&hex).unwrap(), 16).unwrap()
                    }
                    other => other,
                },
                other => other,
            });
        }
        words.push(word);
    }
    words
}
