"""What if: the plan of a project again with a change, beside the plan as it is."""
