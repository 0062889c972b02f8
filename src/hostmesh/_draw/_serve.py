"""`hostmesh plan --html` and `--serve`: the page in a file, or for browsers of this machine."""

from __future__ import annotations

import http.server

import click

from ._page import page


def start_of(
    mesh: str | None,
    processes: int | None,
    order: str,
    owners: str,
    spec: str,
    shape: str | None,
    dtype: str,
    process: int | None,
) -> dict[str, str]:
    """What the page begins with, of the options of the command: those left out are its own.

    >>> start_of("x=2", 2, "block", "", "x", None, "int8", None)
    {'mesh': 'x=2', 'processes': '2', 'order': 'block', 'spec': 'x', 'dtype': 'int8'}
    """
    given = {
        "mesh": mesh,
        "processes": None if processes is None else str(processes),
        "order": "list" if owners else order,
        "owners": owners or None,
        # No spec means that nothing is cut, but of the page's own mesh that would show nothing.
        "spec": spec if spec or mesh else None,
        "shape": shape,
        "dtype": dtype,
        "process": None if process is None else str(process),
    }
    return {name: value for name, value in given.items() if value is not None}


def start_of_reshard(specs: tuple[str, str] | None, hosts: int | None) -> dict[str, str]:
    """What the page of a reshard begins with beside that.

    >>> start_of_reshard(("x", "None,x"), 2)
    {'hosts': '2', 'tab': 'reshard', 'spec': 'x', 'to': 'None,x'}
    """
    start = {} if hosts is None else {"hosts": str(hosts)}
    if specs is not None:
        start |= {"tab": "reshard", "spec": specs[0], "to": specs[1]}
    return start


def serve(port: int, start: dict[str, str]) -> None:
    """Gives the page to browsers of this machine alone, until Ctrl-C."""
    whole = page(start).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/":
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(whole)))
            self.end_headers()
            self.wfile.write(whole)

        def log_message(self, format: str, *args: object) -> None:
            pass

    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise click.ClickException(f"--port {port}: {error.strerror or error}") from None
    with server:
        click.echo(f"http://127.0.0.1:{server.server_address[1]}/  (Ctrl-C ends)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            click.echo()
