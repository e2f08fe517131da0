"""Plan of a project with a change, beside the plan as it is."""
