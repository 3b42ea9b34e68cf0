-- What of a row's money is not told, and why; empty where all is: an amount that no column holds is null and said
-- here, and so is what of the month's time could not be read.
ALTER TABLE money_day ADD COLUMN untold TEXT NOT NULL DEFAULT '';
ALTER TABLE money_month ADD COLUMN untold TEXT NOT NULL DEFAULT '';
