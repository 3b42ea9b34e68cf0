-- The minutes of an hour that is over, packed together: a third of what they take as rows. Minutes
-- that come after that stand in minute_row until the hour is packed again; a minute is the sum of
-- both. With a rowid, so that SQLite fills the pages on which long rows go on.
CREATE TABLE minute_block (
    hour    INTEGER NOT NULL,
    subject INTEGER NOT NULL,
    data    BLOB    NOT NULL, -- store::block
    PRIMARY KEY (hour, subject)
) STRICT;
