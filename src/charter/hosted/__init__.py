"""Stages that another engine computes: started, followed, stopped, verified and taken over as Charter's own."""
