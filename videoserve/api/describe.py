"""What FastAPI cannot see by itself for /openapi.json: bodies that are read by hand, and the shape of errors."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from videoserve.api.chat_schemas import ChatCompletionRequest, CompletionRequest
from videoserve.api.pictures import FIELDS as PICTURES
from videoserve.api.schemas import CreateVideo, ErrorBody, RemixVideo

# Of this interface, not of the package.
VERSION = "1.0"
REF = "#/components/schemas/{model}"
BODIES = (CreateVideo, RemixVideo, ChatCompletionRequest, CompletionRequest)
# Every route refuses a query parameter that it does not have.
MISASKED: dict[int | str, dict[str, Any]] = {422: {"model": ErrorBody}}


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """The request body of a route that takes `model` as JSON or as a form."""
    reference = {"$ref": REF.format(model=model.__name__)}
    form = {"$ref": REF.format(model=_form_name(model))} if model is CreateVideo else reference
    content = {"application/json": {"schema": reference}, "multipart/form-data": {"schema": form}}
    return {"requestBody": {"required": True, "content": content}}


def json_body_of(model: type[BaseModel]) -> dict[str, Any]:
    """The request body of a route that takes `model` as JSON only."""
    schema = {"$ref": REF.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def headers_of(**meanings: str) -> dict[str, Any]:
    """The request headers of a route that reads them by hand; `Last_Event_ID` stands for Last-Event-ID."""
    return {
        "parameters": [
            {"in": "header", "name": name.replace("_", "-"), "schema": {"type": "string"}, "description": meaning}
            for name, meaning in meanings.items()
        ]
    }


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The answers of a route that are no success, beside those that every route has."""
    return {status: {"model": ErrorBody} for status in sorted({*statuses, 401, 403, 422, 503})}


def install(app: FastAPI) -> None:
    """Makes `app.openapi` add the models that no route declares."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _described(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _described(app: FastAPI) -> dict[str, Any]:
    schema = get_openapi(
        title="videoserve",
        version=VERSION,
        summary="A picture and a prompt go in, an mp4 comes out; a chat goes in, an answer comes out.",
        description="Compatible with the videos and chat parts of the official `openai` Python client.",
        routes=app.routes,
    )
    _, definitions = models_json_schema([(model, "validation") for model in BODIES], ref_template=REF)
    models = definitions["$defs"]
    create = models[CreateVideo.__name__]
    files = {name: {"type": "string", "format": "binary"} for name in PICTURES if name != "reference_url"}
    models[_form_name(CreateVideo)] = {
        **{key: value for key, value in create.items() if key != "examples"},
        "title": _form_name(CreateVideo),
        "properties": create["properties"] | files,
    }
    schema["components"]["schemas"].update(models)
    schema["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    # Keys are only asked for once the server has some.
    schema["security"] = [{}, {"key": []}]
    return schema


def _form_name(model: type[BaseModel]) -> str:
    return f"{model.__name__}Form"
