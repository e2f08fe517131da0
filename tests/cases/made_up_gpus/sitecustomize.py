"""Lets a node of a test's cluster pass for one with four accelerators: its Python finds this on PYTHONPATH first."""

import charter.launch.machine

charter.launch.machine.visible_gpus = lambda devices=None: ("0", "1", "2", "3")
