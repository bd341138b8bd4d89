"""The names under which the model is served."""

from __future__ import annotations

import time
from typing import Literal

from fastapi import FastAPI
from pydantic import BaseModel

from kit.errors import NotFoundError
from kit.server.settings import ServerSettings


class Model(BaseModel):
    """A served model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "local"


class ModelList(BaseModel):
    """All served models: one, and its other names."""

    object: Literal["list"] = "list"
    data: list[Model]


def install_models(app: FastAPI, settings: ServerSettings) -> None:
    """Add GET /v1/models and GET /v1/models/{id}."""
    created = int(time.time())

    @app.get("/v1/models", tags=["models"])
    async def models() -> ModelList:
        """The served model, by its name and its aliases."""
        names = (settings.name, *settings.aliases)
        return ModelList(data=[Model(id=name, created=created) for name in names])

    # A hub id holds a slash.
    @app.get("/v1/models/{model:path}", tags=["models"])
    async def one_model(model: str) -> Model:
        """One name of the served model."""
        check_model(model, settings)
        return Model(id=model, created=created)


def check_model(model: str | None, settings: ServerSettings) -> None:
    """Raise NotFoundError for a name that is not served; an absent one means the served model."""
    names = (settings.name, *settings.aliases)
    if model is not None and model not in names:
        raise NotFoundError(
            f"model {model!r:.200} is not served here; served: {', '.join(map(repr, names))}",
            param="model",
        )
