"""`charter check schema`: the JSON Schema of charter.yaml, for editors."""

import typer


def schema_command() -> None:
    """Print the JSON Schema of charter.yaml."""
    import json

    from charter.engines.project import project_json_schema

    typer.echo(json.dumps(project_json_schema(), indent=2, ensure_ascii=False))
