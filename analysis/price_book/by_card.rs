//! A node whose machine type has no rate, and whose cards have one: it costs what they do together.

use super::{Ask, Basis, Book, Quote, Stretch};

impl Book {
    /// The price over a time as [`Self::quote`] has it; where that has none, of as many cards as are asked for, each of
    /// which is the machine type `card` at its own rate. Where that has none either, the reason stays.
    pub fn quote_or_cards(&self, ask: &Ask<'_>, card: Option<&str>) -> Vec<Stretch> {
        let stretches = self.quote(ask);
        let Some(card) = card else {
            return stretches;
        };
        let mut all = Vec::with_capacity(stretches.len());
        for stretch in stretches {
            let Err(why) = &stretch.quote else {
                all.push(stretch);
                continue;
            };
            let of_card = self.quote(&Ask {
                machine_type: card,
                gpus: 1,
                basis: Basis::Own,
                from_ms: stretch.from_ms,
                until_ms: stretch.until_ms,
                ..*ask
            });
            all.extend(of_card.into_iter().map(|it| {
                let of_all = it.quote.ok().and_then(|it| it.times(ask.gpus));
                Stretch {
                    quote: of_all.ok_or_else(|| why.clone()),
                    ..it
                }
            }));
        }
        all
    }
}

impl Quote {
    /// What so many cost; none where the sum does not fit.
    fn times(self, count: u32) -> Option<Self> {
        let times = |hour: i64| hour.checked_mul(count.into());
        Some(Self {
            list_hour: times(self.list_hour)?,
            hour: times(self.hour)?,
            gpu_part_hour: self.gpu_part_hour.and_then(times),
            ..self
        })
    }
}
