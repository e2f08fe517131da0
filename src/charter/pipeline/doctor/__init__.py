"""Looks at the machine, the engine and all outside that a project needs; changes nothing but probe files."""
