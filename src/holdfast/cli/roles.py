"""`holdfast roles`: the rights of each role in the database."""

from typing import Annotated

import typer

from holdfast.operate.roles import roles_sql

app = typer.Typer(
    help="Print the SQL that creates roles for producers, workers and operators.", no_args_is_help=True
)


@app.command("sql")
def sql_command(
    prefix: Annotated[str, typer.Option(help="The prefix of all role names.")] = "holdfast",
    queue: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Also a role that may enqueue into this queue only; may be given again."
        ),
    ] = None,
) -> None:
    """Print a script that creates the roles and grants each its rights. Run it again after every upgrade."""
    typer.echo(roles_sql(prefix, queue or ()), nl=False)
