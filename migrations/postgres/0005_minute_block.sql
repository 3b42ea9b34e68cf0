-- The minutes of an hour that is over, packed together: a third of what they take as rows. Minutes
-- that come after that stand in minute_row until the hour is packed again; a minute is the sum of
-- both.
CREATE TABLE minute_block (
    hour    BIGINT NOT NULL,
    subject BIGINT NOT NULL,
    data    BYTEA  NOT NULL, -- store::block
    PRIMARY KEY (hour, subject)
);
-- Packed data does not compress.
ALTER TABLE minute_block ALTER COLUMN data SET STORAGE EXTERNAL;
-- Rows live here for little more than an hour and are rewritten twice: with room on their page the
-- index need not change, and the room of the older versions is used again at once.
ALTER TABLE minute_row SET (fillfactor = 50);
