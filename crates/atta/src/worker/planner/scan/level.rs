//! What is known of one level.

use std::time::Instant;

use super::request::{LevelRequest, Position, Request, Seen};

#[derive(Debug)]
pub(super) struct Level {
    /// Where the next pick begins.
    pub(super) position: Position,
    /// Due jobs up to here are claimed. None: all of them, when they were last asked for.
    pub(super) known_to: Option<Position>,
    /// Something may have come in since it was last asked for.
    pub(super) is_wanted: bool,
    pub(super) brought_at: Instant,
}

/// How far a pick came in a level.
pub(super) enum Reach {
    /// The pick was full before it came to this level.
    NotRead,
    /// There may be more behind the last job that it brought.
    Cut,
    /// To the end, or to the limit of the pick.
    ToTheEnd,
}

impl Level {
    pub(super) fn new(now: Instant) -> Level {
        let (position, known_to) = (Position::START, Some(Position::START));
        Level { position, known_to, is_wanted: true, brought_at: now }
    }

    /// Whether a pick asks for it: something may have come in, or it has more.
    pub(super) fn is_asked(&self) -> bool {
        self.is_wanted || self.known_to.is_some()
    }

    /// Nothing is known of it.
    pub(super) fn forget(&mut self) {
        (self.position, self.known_to) = (Position::START, Some(Position::START));
    }

    /// The next pick begins here at the latest.
    pub(super) fn rewind(&mut self, to: Position) {
        self.position = self.position.min(to);
        self.known_to = Some(self.known_to.map_or(to, |known| known.min(to)));
    }

    /// A pick was answered that asked for this level as its level number `index`.
    pub(super) fn on_seen(
        &mut self,
        now: Instant,
        request: &Request,
        seen: &Seen,
        index: usize,
        reach: Reach,
    ) {
        let (asked, (count, last)) = (&request.levels[index], seen.levels[index]);
        if last.is_some() {
            self.brought_at = now;
        }
        match (reach, last) {
            (Reach::NotRead, _) => {
                self.is_wanted = true;
                if request.from_start {
                    self.forget();
                }
            }
            (Reach::Cut, Some(last)) => self.cut_at(Position::after(last)),
            (_, Some(last)) if count >= asked.limit => self.cut_at(Position::after(last)),
            (_, last) => {
                let reached = last.map(|last| Position::a_little_before(last.1));
                self.on_end(asked, request, seen, reached);
            }
        }
    }

    fn cut_at(&mut self, position: Position) {
        self.position = position;
        self.known_to = Some(position);
    }

    /// All due jobs are claimed. The next pick begins near the last of them, or near the time of this pick.
    fn on_end(&mut self, asked: &LevelRequest, request: &Request, seen: &Seen, reached: Option<Position>) {
        self.known_to = None;
        let searched = seen.now.map(Position::a_little_before);
        // A limited pick has read its last priority only as far as its limit.
        let is_limited = asked.key.priority == request.before.0;
        let searched = searched.map(|searched| match is_limited {
            true => searched.min(Position::before(request.before)),
            false => searched,
        });
        self.position = self.position.max(asked.after).max(reached.max(searched).unwrap_or(Position::START));
    }
}
