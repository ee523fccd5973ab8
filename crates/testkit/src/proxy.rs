//! A proxy between a worker and its server, whose connections a test can cut at the worst moment.
//!
//! Threads copy the data in both directions. The client's messages are also parsed, as far as is needed to count round
//! trips.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// A proxy on loopback. Its connections end when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    wire: Arc<Wire>,
}

#[derive(Debug)]
struct Wire {
    server: String,
    is_closed: AtomicBool,
    /// New connections are refused.
    is_down: AtomicBool,
    round_trips: AtomicU64,
    lost_answers: AtomicU64,
    refused: AtomicU64,
    /// How long each piece of data is delayed.
    delay_ms: AtomicU64,
    /// How many bytes per second go through each connection, in each direction; 0: no limit.
    bytes_per_second: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    connections: Vec<Connection>,
    /// An answer that contains this text is lost.
    lost_answer: Option<Vec<u8>>,
    /// The answer to a request that contains this text is lost.
    unanswered: Option<Vec<u8>>,
}

/// The two ends of a connection: client and server.
#[derive(Clone, Debug)]
struct Connection {
    ends: Arc<[TcpStream; 2]>,
    /// Data no longer go through, and neither end is notified.
    is_mute: Arc<AtomicBool>,
}

impl Connection {
    fn cut(&self) {
        self.ends.iter().for_each(cut);
    }
}

impl Proxy {
    /// A proxy to the server of this connection string, and the connection string of the same database through it.
    pub fn before(url: &str) -> (Proxy, String) {
        let (_, rest) = url.split_once('@').expect("a connection string with a user");
        let (server, _) = rest.split_once('/').expect("a connection string with a database");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a listener has an address");
        let wire = Arc::new(Wire {
            server: server.to_owned(),
            is_closed: AtomicBool::new(false),
            is_down: AtomicBool::new(false),
            round_trips: AtomicU64::new(0),
            lost_answers: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            delay_ms: AtomicU64::new(0),
            bytes_per_second: AtomicU64::new(0),
            state: Mutex::default(),
        });
        let accepting = wire.clone();
        thread::spawn(move || accept(&listener, &accepting));
        let through = url.replace(server, &address.to_string());
        (Proxy { address, wire }, through)
    }

    /// How often a client has waited for the server: simple queries and Sync messages, prepared or not.
    pub fn round_trips(&self) -> u64 {
        self.wire.round_trips.load(Ordering::Relaxed)
    }

    /// The next answer that contains this text is lost, together with its connection: the server has executed the
    /// request, and the client can't know that.
    pub fn lose_answer_with(&self, text: &str) {
        self.wire.lock().lost_answer = Some(text.as_bytes().to_vec());
    }

    /// The answer to the next request that contains this text is lost, together with its connection.
    pub fn lose_answer_to(&self, text: &str) {
        self.wire.lock().unanswered = Some(text.as_bytes().to_vec());
    }

    /// How many answers were lost in this way.
    pub fn lost_answers(&self) -> u64 {
        self.wire.lost_answers.load(Ordering::SeqCst)
    }

    /// Cuts all connections, and refuses new ones until [`Proxy::come_back`].
    pub fn go_away(&self) {
        self.wire.is_down.store(true, Ordering::Relaxed);
        self.wire.cut_all();
    }

    /// Cuts all connections; new ones are accepted.
    pub fn cut_all(&self) {
        self.wire.cut_all();
    }

    /// Cuts one of the existing connections: the one with this number, modulo their count.
    pub fn cut_one(&self, number: usize) {
        let mut state = self.wire.lock();
        if let Some(index) = number.checked_rem(state.connections.len()) {
            state.connections.swap_remove(index).cut();
        }
    }

    /// Makes all connections half-open: both ends believe that they exist, and no data go through. New ones work. They
    /// stay half-open until they are cut, as a machine's own keepalives would do at some time.
    pub fn mute_all(&self) {
        for connection in &self.wire.lock().connections {
            connection.is_mute.store(true, Ordering::Relaxed);
        }
    }

    /// Cuts the half-open connections.
    pub fn cut_mute(&self) {
        self.wire.lock().connections.retain(|connection| {
            let is_mute = connection.is_mute.load(Ordering::Relaxed);
            if is_mute {
                connection.cut();
            }
            !is_mute
        });
    }

    /// Delays all data by this time, in each direction.
    pub fn delay(&self, delay: Duration) {
        let delay = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self.wire.delay_ms.store(delay, Ordering::Relaxed);
    }

    /// Limits each connection to this many bytes per second, in each direction; 0: no limit.
    pub fn throttle(&self, bytes_per_second: u64) {
        self.wire.bytes_per_second.store(bytes_per_second, Ordering::Relaxed);
    }

    /// How many connections it refused while it was down.
    pub fn refused(&self) -> u64 {
        self.wire.refused.load(Ordering::Relaxed)
    }

    /// Accepts connections again.
    pub fn come_back(&self) {
        self.wire.is_down.store(false, Ordering::Relaxed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.wire.is_closed.store(true, Ordering::Relaxed);
        self.wire.cut_all();
        // Wakes the accepting thread, so that it ends.
        let _ = TcpStream::connect(self.address);
    }
}

impl Wire {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cut_all(&self) {
        for connection in self.lock().connections.drain(..) {
            connection.cut();
        }
    }

    /// Waits as long as this piece of data has to be delayed.
    fn hold_up(&self, bytes: usize) {
        let delay = Duration::from_millis(self.delay_ms.load(Ordering::Relaxed));
        let speed = self.bytes_per_second.load(Ordering::Relaxed);
        let length = u64::try_from(bytes).unwrap_or(u64::MAX);
        let crawl = (length * 1000).checked_div(speed).map_or(Duration::ZERO, Duration::from_millis);
        if !(delay + crawl).is_zero() {
            thread::sleep(delay + crawl);
        }
    }

    /// Removes a connection that ended: a proxy that lives for hours has thousands of connections, one after the other.
    fn forget(&self, gone: &Connection) {
        self.lock().connections.retain(|connection| !Arc::ptr_eq(&connection.ends, &gone.ends));
    }

    fn is_lost_answer(&self, answer: &[u8]) -> bool {
        take_if_in(&mut self.lock().lost_answer, answer)
    }

    fn is_unanswered(&self, question: &[u8]) -> bool {
        take_if_in(&mut self.lock().unanswered, question)
    }
}

/// Removes the text if the bytes contain it. The texts of tests are short, and small messages arrive in one piece.
fn take_if_in(text: &mut Option<Vec<u8>>, bytes: &[u8]) -> bool {
    let found = text.as_ref().is_some_and(|text| bytes.windows(text.len()).any(|part| part == text));
    if found {
        *text = None;
    }
    found
}

fn accept(listener: &TcpListener, wire: &Arc<Wire>) {
    for client in listener.incoming() {
        if wire.is_closed.load(Ordering::Relaxed) {
            return;
        }
        let Ok(client) = client else { continue };
        if wire.is_down.load(Ordering::Relaxed) {
            cut(&client);
            wire.refused.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        // If the server does not answer, the client finds its connection closed.
        let Ok(server) = TcpStream::connect(&wire.server) else { continue };
        let copies = (client.try_clone(), server.try_clone(), client.try_clone(), server.try_clone());
        let (Ok(to_client), Ok(to_server), Ok(client_end), Ok(server_end)) = copies else { continue };
        let connection = Connection {
            ends: Arc::new([client_end, server_end]),
            is_mute: Arc::new(AtomicBool::new(false)),
        };
        wire.lock().connections.push(connection.clone());
        let (questions, answers) = (wire.clone(), wire.clone());
        let is_doomed = Arc::new(AtomicBool::new(false));
        let doom = is_doomed.clone();
        let is_mute = connection.is_mute.clone();
        thread::spawn(move || {
            copy_questions(client, to_server, &questions, &doom, &connection.is_mute);
            questions.forget(&connection);
        });
        thread::spawn(move || copy_answers(server, to_client, &answers, &is_doomed, &is_mute));
    }
}

fn copy_questions(
    mut client: TcpStream,
    mut server: TcpStream,
    wire: &Wire,
    is_doomed: &AtomicBool,
    is_mute: &AtomicBool,
) {
    let mut reader = Reader::default();
    let mut buffer = [0; 16 * 1024];
    while let Some(read) = client.read(&mut buffer).ok().filter(|read| *read > 0) {
        wire.round_trips.fetch_add(reader.round_trips_in(&buffer[..read]), Ordering::Relaxed);
        if wire.is_unanswered(&buffer[..read]) {
            is_doomed.store(true, Ordering::SeqCst);
        }
        wire.hold_up(read);
        if is_mute.load(Ordering::Relaxed) {
            continue;
        }
        if server.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    cut(&server);
    cut(&client);
}

fn copy_answers(
    mut server: TcpStream,
    mut client: TcpStream,
    wire: &Wire,
    is_doomed: &AtomicBool,
    is_mute: &AtomicBool,
) {
    let mut buffer = [0; 64 * 1024];
    while let Some(read) = server.read(&mut buffer).ok().filter(|read| *read > 0) {
        if is_doomed.load(Ordering::SeqCst) || wire.is_lost_answer(&buffer[..read]) {
            wire.lost_answers.fetch_add(1, Ordering::SeqCst);
            break;
        }
        wire.hold_up(read);
        if is_mute.load(Ordering::Relaxed) {
            continue;
        }
        if client.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    cut(&server);
    cut(&client);
}

fn cut(connection: &TcpStream) {
    // It may be closed already.
    let _ = connection.shutdown(Shutdown::Both);
}

/// Parses the client's messages: each has a type, a length and a body; the first one has no type.
#[derive(Default)]
struct Reader {
    has_started: bool,
    header: Vec<u8>,
    body_left: usize,
}

impl Reader {
    fn round_trips_in(&mut self, mut bytes: &[u8]) -> u64 {
        let mut count = 0;
        while !bytes.is_empty() {
            let skip = self.body_left.min(bytes.len());
            self.body_left -= skip;
            bytes = &bytes[skip..];
            let [byte, rest @ ..] = bytes else { break };
            self.header.push(*byte);
            bytes = rest;
            let kind = usize::from(self.has_started);
            if let [a, b, c, d] = self.header[kind.min(self.header.len())..] {
                let length = u32::from_be_bytes([a, b, c, d]);
                self.body_left = usize::try_from(length).map_or(0, |length| length.saturating_sub(4));
                count += u64::from(self.has_started && matches!(self.header[0], b'Q' | b'S'));
                // A request for TLS comes before the first message, and has exactly this length.
                self.has_started = self.has_started || length != 8;
                self.header.clear();
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_queries_and_synchronisations_in_pieces_of_any_size() {
        let startup = [0, 0, 0, 9, 0, 3, 0, 0, 0];
        let query = [b'Q', 0, 0, 0, 6, b'S', 0];
        let parse = [b'P', 0, 0, 0, 7, b'Q', b'Q', 0];
        let sync = [b'S', 0, 0, 0, 4];
        let all = [&startup[..], &query, &parse, &sync, &sync, &query].concat();
        for size in 1..all.len() {
            let mut reader = Reader::default();
            let count: u64 = all.chunks(size).map(|chunk| reader.round_trips_in(chunk)).sum();
            assert_eq!(count, 4, "in pieces of {size}");
        }
    }
}
