"""`charter catalog models`: the models that a plan knows by name."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from charter.cli.common import JsonOption, console, plain_table, print_json

if TYPE_CHECKING:
    from charter.catalog.models import CatalogModel


def models(
    search: Annotated[
        str, typer.Argument(metavar="[NAME]", help="Only models with this in their name or another name of theirs.")
    ] = "",
    json_: JsonOption = False,
) -> None:
    """List models: parameters, layers, context, other names, and where each architecture was read."""
    from charter.catalog.models import catalog
    from charter.errors import UsageError
    from charter.units import format_count

    needle = search.casefold()
    matches = [model for model in catalog() if any(needle in name.casefold() for name in (model.name, *model.aliases))]
    if not matches:
        raise UsageError(
            f"no model of the catalog has {search!r} in its name; a plan takes the path of a config.json too"
        )
    rows = [_facts(model) for model in matches]
    if json_:
        print_json({"models": rows})
        return
    figures = ("parameters", "active", "layers", "width", "context")
    table = plain_table(("model", "left"), *((name, "right") for name in figures), ("as of", "left"))
    for row in rows:
        table.add_row(
            row["name"], format_count(row["parameters"]), format_count(row["active_parameters"]), str(row["layers"]),
            f"{row['hidden_size']:,}", f"{row['context']:,}", row["as_of"],
        )  # fmt: skip
    console().print(table)
    if len(rows) == 1:
        typer.echo(f"Other names: {', '.join(rows[0]['aliases']) or 'none'}. Source: {rows[0]['source']}.")


def _facts(model: "CatalogModel") -> dict[str, Any]:
    from charter.physics.shapes import count_parameters

    shape, count = model.architecture, count_parameters(model.architecture)
    return {
        "name": model.name,
        "aliases": list(model.aliases),
        "parameters": count.total,
        "active_parameters": count.active,
        "layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "context": shape.max_position_embeddings,
        "experts": shape.mixture.num_experts if shape.mixture else 0,
        "source": model.provenance.source,
        "as_of": model.provenance.as_of,
        "confidence": model.provenance.confidence,
        "note": model.note,
    }
