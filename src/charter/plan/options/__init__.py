"""One way to run one stage: its price, its risk, what it is compared with, and why others were dropped."""
