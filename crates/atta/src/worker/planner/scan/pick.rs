//! Whether a pick is under way that has not been answered. The next pick begins where it ends, so there is one at a
//! time.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pick {
    #[default]
    Nothing,
    UnderWay,
    /// Under way, and something was forgotten since it was sent: its answer does not make everything known.
    Outdated,
}

impl Pick {
    pub(super) fn is_under_way(self) -> bool {
        self != Pick::Nothing
    }

    pub(super) fn on_sent(&mut self) {
        *self = Pick::UnderWay;
    }

    /// A hint came in that no pick can follow now.
    pub(super) fn on_forgotten(&mut self) {
        if *self == Pick::UnderWay {
            *self = Pick::Outdated;
        }
    }

    /// The pick was answered, or has failed. Returns whether its answer is up to date.
    pub(super) fn on_answered(&mut self) -> bool {
        std::mem::take(self) != Pick::Outdated
    }
}

#[cfg(test)]
mod tests {
    use super::Pick::{Nothing, Outdated, UnderWay};
    use super::*;

    #[test]
    fn each_event_leads_to_one_state() {
        type Event = (&'static str, fn(&mut Pick), [Pick; 3]);
        // The event, and the states that follow Nothing, UnderWay and Outdated.
        let table: [Event; 3] = [
            ("sent", Pick::on_sent, [UnderWay, UnderWay, UnderWay]),
            ("forgotten", Pick::on_forgotten, [Nothing, Outdated, Outdated]),
            ("answered", |pick| _ = pick.on_answered(), [Nothing, Nothing, Nothing]),
        ];
        for (event, apply, expected) in table {
            for (before, after) in [Nothing, UnderWay, Outdated].into_iter().zip(expected) {
                let mut pick = before;
                apply(&mut pick);
                assert_eq!(pick, after, "{event}, {before:?}");
            }
        }
    }

    #[test]
    fn an_answer_is_up_to_date_unless_something_was_forgotten() {
        let answers = [Nothing, UnderWay, Outdated].map(|mut pick| pick.on_answered());
        assert_eq!(answers, [true, true, false]);
    }
}
