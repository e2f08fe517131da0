"""The records of a finished stage as a data set for others: TRL's formats, in four kinds of files, with a card."""
