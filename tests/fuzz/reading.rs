//! What requests and answers are in bytes, read by the text of HTTP/1.1 and by no code of the program.

use std::io::Read;
use std::net::TcpStream;

/// One request, as its client may have meant it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Meant {
    pub method: String,
    pub target: String,
    pub body: Vec<u8>,
}

/// What bytes of a client are: whole requests, and what stands behind them.
#[derive(Debug)]
pub struct Reading {
    pub requests: Vec<Meant>,
    pub rest: Rest,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rest {
    Nothing,
    /// The begin of a request.
    Part,
    /// No request, whatever follows.
    Wrong,
}

/// A piece that is not whole, or wrong.
pub type Read_<T> = Result<T, Rest>;

impl Reading {
    pub fn of(mut bytes: &[u8]) -> Reading {
        let mut requests = Vec::new();
        let rest = loop {
            if bytes.is_empty() {
                break Rest::Nothing;
            }
            match request(bytes) {
                Ok((meant, length)) => {
                    requests.push(meant);
                    bytes = &bytes[length..];
                }
                Err(rest) => break rest,
            }
        };
        Reading { requests, rest }
    }
}

/// The first request, and how long it is.
pub fn request(bytes: &[u8]) -> Read_<(Meant, usize)> {
    let mut headers = [httparse::EMPTY_HEADER; 128];
    let mut head = httparse::Request::new(&mut headers);
    let length = match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Err(Rest::Part),
        Err(_) => return Err(Rest::Wrong),
    };
    let (body, took) = body(head.headers, &bytes[length..], Some(0))?;
    let meant = Meant {
        method: head.method.unwrap_or_default().to_owned(),
        target: head.path.unwrap_or_default().to_owned(),
        body,
    };
    Ok((meant, length + took))
}

/// An answer that is whole.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
}

/// The first answer to a request of this method, and how long it is. `ended`: nothing more comes.
pub fn answer(bytes: &[u8], method: &str, ended: bool) -> Read_<(Answer, usize)> {
    let mut headers = [httparse::EMPTY_HEADER; 128];
    let mut head = httparse::Response::new(&mut headers);
    let length = match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Err(Rest::Part),
        Err(_) => return Err(Rest::Wrong),
    };
    let status = head.code.unwrap_or_default();
    let bare = method == "HEAD" || status < 200 || status == 204 || status == 304;
    let (body, took) = match bare {
        true => (Vec::new(), 0),
        false => body(
            head.headers,
            &bytes[length..],
            ended.then_some(bytes.len() - length),
        )?,
    };
    Ok((Answer { status, body }, length + took))
}

/// The body behind a head, and how many bytes it takes; one of no said length has so many.
fn body(
    headers: &[httparse::Header<'_>],
    bytes: &[u8],
    unsaid: Option<usize>,
) -> Read_<(Vec<u8>, usize)> {
    let of = |name: &str| -> Vec<&[u8]> {
        let found = headers
            .iter()
            .filter(|header| header.name.eq_ignore_ascii_case(name));
        found.map(|header| header.value.trim_ascii()).collect()
    };
    match (&*of("transfer-encoding"), &*of("content-length")) {
        ([coding], _) if coding.eq_ignore_ascii_case(b"chunked") => chunks(bytes),
        // Said twice alike is said once.
        ([], [said, more @ ..])
            if !said.is_empty()
                && said.iter().all(u8::is_ascii_digit)
                && more.iter().all(|other| other == said) =>
        {
            let length: usize = std::str::from_utf8(said)
                .unwrap()
                .parse()
                .map_err(|_| Rest::Wrong)?;
            let body = bytes.get(..length).ok_or(Rest::Part)?;
            Ok((body.to_vec(), length))
        }
        ([], []) => {
            let length = unsaid.ok_or(Rest::Part)?;
            Ok((bytes[..length].to_vec(), length))
        }
        _ => Err(Rest::Wrong),
    }
}

fn line(bytes: &[u8]) -> Read_<(&[u8], usize)> {
    let end = bytes
        .windows(2)
        .position(|two| two == b"\r\n")
        .ok_or(Rest::Part)?;
    Ok((&bytes[..end], end + 2))
}

fn chunks(bytes: &[u8]) -> Read_<(Vec<u8>, usize)> {
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        let (head, took) = line(&bytes[at..])?;
        at += took;
        let size = head
            .split(|byte| *byte == b';')
            .next()
            .unwrap_or_default()
            .trim_ascii_end();
        let text = std::str::from_utf8(size).map_err(|_| Rest::Wrong)?;
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(Rest::Wrong);
        }
        let size = usize::from_str_radix(text, 16).map_err(|_| Rest::Wrong)?;
        if size == 0 {
            break;
        }
        let end = at.checked_add(size).ok_or(Rest::Wrong)?;
        body.extend_from_slice(bytes.get(at..end).ok_or(Rest::Part)?);
        match bytes.get(end..end + 2).ok_or(Rest::Part)? {
            b"\r\n" => at = end + 2,
            _ => return Err(Rest::Wrong),
        }
    }
    loop {
        let (trailer, took) = line(&bytes[at..])?;
        at += took;
        if trailer.is_empty() {
            return Ok((body, at));
        }
    }
}

/// Reads answers to requests of these methods, as many as there are; what else came, and whether the connection ended.
pub fn answers(stream: &mut TcpStream, methods: &[String], more: usize) -> (Vec<Answer>, bool) {
    let (mut bytes, mut found, mut ended) = (Vec::new(), Vec::new(), false);
    let mut buffer = [0; 16 << 10];
    loop {
        let method = methods.get(found.len()).map_or("GET", String::as_str);
        match answer(&bytes, method, ended) {
            Ok((answer, length)) => {
                bytes.drain(..length);
                if answer.status >= 200 {
                    found.push(answer);
                }
                if found.len() >= methods.len() + more {
                    return (found, ended);
                }
                continue;
            }
            Err(Rest::Wrong) => panic!("no answer: {}", bytes.escape_ascii()),
            Err(_) if ended => {
                // What was refused within its body may have been a HEAD, whose answer has none.
                let refused = answer(&bytes, "HEAD", ended).ok();
                let refused = refused.filter(|(_, length)| *length == bytes.len());
                if let Some((answer, _)) = refused.filter(|_| found.len() >= methods.len()) {
                    found.push(answer);
                    return (found, true);
                }
                assert!(bytes.is_empty(), "half an answer: {}", bytes.escape_ascii());
                return (found, true);
            }
            Err(_) => {}
        }
        match stream.read(&mut buffer) {
            Ok(0) => ended = true,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            // It waits for more.
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                ) =>
            {
                return (found, false);
            }
            // What was not read resets the connection.
            Err(_) => ended = true,
        }
    }
}
