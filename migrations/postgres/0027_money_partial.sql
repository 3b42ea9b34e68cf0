-- How many days of GPUs a day was made without because they could not be read: its rows say so in untold, and it is
-- made again.
ALTER TABLE money_day_mark ADD COLUMN partial BIGINT NOT NULL DEFAULT 0;
