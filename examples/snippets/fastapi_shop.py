"""A FastAPI application with SQLAlchemy's AsyncSession: `fastapi dev examples/snippets/fastapi_shop.py`."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from holdfast import Holdfast

DATABASE = os.environ["HOLDFAST_DATABASE_URL"]

jobs = Holdfast(DATABASE)
engine = create_async_engine(DATABASE.replace("postgresql:", "postgresql+asyncpg:", 1))
Session = async_sessionmaker(engine)


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


@jobs.task
async def send_receipt(order_id: int) -> str:
    return f"receipt for order {order_id}"


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with engine.begin() as conn:
        await conn.run_sync(Base.metadata.create_all)
    async with jobs:
        yield
    await engine.dispose()


app = FastAPI(lifespan=lifespan)


# snippet
async def session() -> AsyncIterator[AsyncSession]:
    async with Session() as session:
        yield session


@app.post("/orders/{order_id}/pay")
async def pay(order_id: int, session: Annotated[AsyncSession, Depends(session)]) -> None:
    async with session.begin():  # committed before the response, not after it
        session.add(Order(id=order_id))
        await send_receipt.using(conn=session).aenqueue(order_id=order_id)


# end
