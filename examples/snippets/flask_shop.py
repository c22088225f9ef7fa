"""A Flask application with SQLAlchemy: `flask --app examples.snippets.flask_shop run`."""

import os

from flask import Flask
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from holdfast import Holdfast

DATABASE = os.environ["HOLDFAST_DATABASE_URL"]

app = Flask(__name__)
jobs = Holdfast(DATABASE)


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


@jobs.task
def send_receipt(order_id: int) -> str:
    return f"receipt for order {order_id}"


# snippet
engine = create_engine(DATABASE.replace("postgresql:", "postgresql+psycopg:", 1))
Session = sessionmaker(engine)


@app.post("/orders/<int:order_id>/pay")
def pay(order_id: int) -> str:
    with Session.begin() as session:
        session.add(Order(id=order_id))
        send_receipt.using(conn=session).enqueue(order_id=order_id)
    return "paid"


# end
Base.metadata.create_all(engine)
