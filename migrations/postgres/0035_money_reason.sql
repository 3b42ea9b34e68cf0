-- Why a GPU was in its state, such as no_demand of what nobody held; unknown: the state says it all or nobody knows, empty:
-- of days of before that stand as they stood.
ALTER TABLE money_day ADD COLUMN reason TEXT NOT NULL DEFAULT '';
