"""Pay orders from the shell: `python -m examples.snippets.script 1 2 3`. All of them and their receipts, or none."""

import sys

import psycopg

from holdfast import Holdfast

# snippet
app = Holdfast()  # HOLDFAST_DATABASE_URL


@app.task
def send_receipt(order_id: int) -> str:
    return f"receipt for order {order_id}"


def pay(conn: psycopg.Connection, order_id: int) -> None:
    conn.execute("INSERT INTO orders VALUES (%s)", [order_id])
    send_receipt.using(conn=conn).enqueue(order_id=order_id)


# end
def main() -> None:
    with psycopg.connect(app.database.dsn) as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS orders (id int PRIMARY KEY)")
        conn.commit()
        for order in sys.argv[1:]:
            pay(conn, int(order))


if __name__ == "__main__":
    main()
