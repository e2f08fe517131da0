"""`charter ui`: the dashboard of one or several projects, served on this machine or written as files."""

from pathlib import Path
from typing import Annotated

import typer


def ui(
    directories: Annotated[
        list[Path] | None,
        typer.Argument(help="Projects, or directories that hold some.", metavar="[DIR]...", show_default=False),
    ] = None,
    project: Annotated[
        list[Path] | None, typer.Option("-C", "--directory", help="One more of them, as other commands take it.")
    ] = None,
    port: Annotated[int, typer.Option("--port", help="Port; 0 takes a free one.")] = 8765,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; other than loopback only with TLS.")
    ] = "127.0.0.1",
    name: Annotated[
        list[str] | None,
        typer.Option("--name", help="Name that browsers call this server by, beside its address; repeatable."),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            "--token", metavar="REF", help="Where the token is: env:NAME or file:PATH; a random one if left out."
        ),
    ] = None,
    viewer_token: Annotated[
        str | None,
        typer.Option("--viewer-token", metavar="REF", help="A second token, for those who may look but not act."),
    ] = None,
    buttons: Annotated[
        bool | None,
        typer.Option(
            "--buttons/--no-buttons",
            help="Buttons that approve, stop and start; without either, on this machine alone.",
        ),
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option("--tls-certificate", help="PEM file with the certificate and its chain.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="PEM file with the private key.")] = None,
    export: Annotated[
        Path | None, typer.Option("--export", metavar="OUT", help="Write all pages as files into OUT; serve nothing.")
    ] = None,
) -> None:
    """Show runs, costs and plans in a browser; only for whoever has the printed address."""
    from charter.dashboard.reading import check_roots
    from charter.dashboard.site import Settings, missing_extra, token_from
    from charter.inference.serve.protocol import is_loopback
    from charter.redaction import show

    roots = (*(directories or ()), *(project or ())) or (Path("."),)
    check_roots(roots)
    settings = Settings(
        roots=roots,
        token=token_from(token),
        viewer_token=token_from(viewer_token) if viewer_token else None,
        acts=is_loopback(host) if buttons is None else buttons,
        host=host,
        port=port,
        certificate=tls_certificate,
        key=tls_key,
        names=tuple(name or ()),
    )
    try:
        from charter.dashboard.app import export_pages, serve
    except ImportError as error:
        raise missing_extra(error) from error
    if export is not None:
        count = export_pages(settings, export)
        typer.echo(f"Wrote {count} pages to {export}; open {export / 'index.html'}")
        return
    may = "look, approve, stop and start" if settings.acts else "look"
    serve(settings, lambda address: show(f"Dashboard: {address}\nWho has this address can {may}; Ctrl-C ends it."))
