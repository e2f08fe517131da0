"""What SkyPilot 0.14 takes in a task, as far as Charter writes it: strict, so that a misspelt field is an error.

The real schema is asked in `tests/engines/test_skypilot.py`, which needs SkyPilot; this one stands in for it offline.
"""

TEXT = {"type": "string", "minLength": 1}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
AT_LEAST = {"type": "string", "pattern": r"^\d+(\.\d+)?\+$"}
CANDIDATE = {
    "infra": {"type": "string", "pattern": r"^[a-z0-9-]+(/[a-z0-9-]+){0,2}$"},
    "accelerators": {"type": "string", "pattern": r"^[A-Za-z0-9-]+:\d+$"},
    "use_spot": {"type": "boolean"},
}
SHARED = {
    "cpus": AT_LEAST,
    "memory": AT_LEAST,
    "max_hourly_cost": {"type": "number", "exclusiveMinimum": 0},
    "labels": TEXTS,
    "job_recovery": {
        "type": "object",
        "additionalProperties": False,
        "required": ["strategy"],
        "properties": {
            "strategy": {"enum": ["EAGER_NEXT_REGION", "FAILOVER"]},
            "max_restarts_on_errors": {"type": "integer", "minimum": 0},
            "recover_on_exit_codes": {
                "type": "array",
                "items": {"type": "integer", "minimum": 1, "maximum": 255},
                "uniqueItems": True,
            },
        },
    },
}
TASK = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "num_nodes", "resources", "run"],
    "properties": {
        "name": TEXT,
        "workdir": TEXT,
        "num_nodes": {"const": 1},
        "setup": TEXT,
        "run": TEXT,
        "envs": TEXTS,
        "secrets": {"type": "object", "additionalProperties": {"type": "null"}},
        "file_mounts": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "additionalProperties": False,
                "required": ["source", "mode"],
                "properties": {"source": TEXT, "mode": {"enum": ["MOUNT", "COPY", "MOUNT_CACHED"]}},
            },
        },
        "resources": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                **CANDIDATE,
                **SHARED,
                "any_of": {
                    "type": "array",
                    "minItems": 2,
                    "uniqueItems": True,
                    "items": {"type": "object", "additionalProperties": False, "properties": CANDIDATE},
                },
            },
        },
    },
}
HEADER = {"type": "object", "additionalProperties": False, "required": ["name"], "properties": {"name": TEXT}}
