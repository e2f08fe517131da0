"""Work that takes longer than a page may: plans, counts, comparisons, each in a process that can be killed."""
