-- Whether a day was made without something that could not be read, 1 or 0: its rows say so in untold, and it is made again.
ALTER TABLE money_day_mark ADD COLUMN partial INTEGER NOT NULL DEFAULT 0;
