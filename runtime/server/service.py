"""The methods of `engine.proto`, over a client of the engine's thread."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from runtime.aux_info import AuxInfo
from runtime.errors import RequestError
from runtime.metrics import CONTENT_TYPE
from runtime.proto import engine_pb2 as pb
from runtime.server import from_proto, to_proto
from runtime.server.client import EngineClient, StatusError, Stream
from runtime.server.config import Role
from runtime.server.messages import Abort, Embed, Embedded, Export, Exported, Ping
from runtime.server.served import ModelInfo

SERVICE = pb.DESCRIPTOR.services_by_name["Engine"]
REQUEST_ID = "request-id"
"""Name of the initial metadata that comes once a request is queued."""
STALL_SECONDS = 5.0
"""A step that takes longer makes the engine look stalled; the longest ones take a fraction of a second."""
LONG_TEXT = 4096
"""Characters from which on a text is encoded in a thread of its own: a millisecond's work."""

Context = grpc.aio.ServicerContext[Any, Any]
Method = Callable[[Any, Context], Awaitable[Any]]


@dataclass(frozen=True)
class Malformed:
    """Bytes that are not the message that the method takes."""

    text: str


class EngineService:
    """See the module.

    Args:
        stall_seconds: how long a step may take before the engine counts as stalled.
    """

    def __init__(self, client: EngineClient, info: ModelInfo, stall_seconds: float = STALL_SECONDS) -> None:
        self._client = client
        self._info = info
        self._tokenizer = info.read_tokenizer()
        self._stall_seconds = stall_seconds

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a gRPC server calls. Requests are read here rather than by generated code, which would not say what is wrong."""
        methods: dict[str, Method] = {
            "Generate": self.generate,
            "Embed": self.embed,
            "Abort": self.abort,
            "Health": self.health,
            "Metrics": self.metrics,
        }
        made = {}
        for method in SERVICE.methods:
            make = (
                grpc.unary_stream_rpc_method_handler
                if method.server_streaming
                else grpc.unary_unary_rpc_method_handler
            )
            made[method.name] = make(
                _guarded(methods[method.name]),
                request_deserializer=functools.partial(_read, method.input_type._concrete_class),
                response_serializer=method.output_type._concrete_class.SerializeToString,
            )
        return grpc.method_handlers_generic_handler(SERVICE.full_name, made)

    async def generate(self, request: pb.GenerateRequest, context: Context) -> None:
        self._require_model(request.model)
        if self._info.role is not Role.GENERATE:
            raise StatusError(grpc.StatusCode.UNIMPLEMENTED, "this server only gives embeddings")
        self._client.require_open()
        stream = self._client.open(from_proto.submit(request, await self._encoded(request)))
        try:
            accepted = await stream.wait_accepted()
            await context.send_initial_metadata(((REQUEST_ID, accepted.request_id),))
            infos: dict[int, AuxInfo] | None = {} if request.stacked_aux else None
            while parts := await stream.take():
                response = to_proto.response(accepted.request_id, parts)
                if infos is not None:
                    infos |= {part.answer: part.finished.aux for part in parts if part.finished is not None}
                    if len(infos) == accepted.answers:
                        response.stacked_aux.CopyFrom(to_proto.stacked(infos))
                await _write(stream, context, response)
        finally:
            self._client.close(stream)

    async def embed(self, request: pb.EmbedRequest, _context: Context) -> pb.EmbedResponse:
        self._require_model(request.model)
        self._client.require_open()
        ids = from_proto.prompt_ids(request, await self._encoded(request))
        answer = await self._client.ask(Embed(ids))
        assert isinstance(answer, Embedded)
        return pb.EmbedResponse(ids=ids, rows=to_proto.tensor(answer.rows))

    async def abort(self, request: pb.AbortRequest, _context: Context) -> pb.AbortResponse:
        await self._client.ask(Abort(request.request_id))
        return pb.AbortResponse()

    async def health(self, _request: pb.HealthRequest, _context: Context) -> pb.HealthResponse:
        """Always answers: that the engine is not well is what it has to say."""
        state, error = pb.HEALTH_STATE_SERVING, ""
        try:
            await self._client.ask(Ping(), self._stall_seconds)
        except TimeoutError:
            state, error = (
                pb.HEALTH_STATE_STALLED,
                f"no step has ended in the last {self._stall_seconds:g} s",
            )
        except StatusError as refused:
            state, error = pb.HEALTH_STATE_FAILED, refused.text
        if state == pb.HEALTH_STATE_SERVING and self._client.draining:
            state = pb.HEALTH_STATE_DRAINING
        return pb.HealthResponse(state=state, error=error, model=self._info.name)

    async def metrics(self, _request: pb.MetricsRequest, _context: Context) -> pb.MetricsResponse:
        answer = await self._client.ask(Export())
        assert isinstance(answer, Exported)
        return pb.MetricsResponse(content_type=CONTENT_TYPE, text=answer.text)

    def _require_model(self, name: str) -> None:
        if name not in ("", self._info.name):
            raise StatusError(
                grpc.StatusCode.NOT_FOUND, f"model: {name} is not served here; {self._info.name} is"
            )

    async def _encoded(self, request: pb.GenerateRequest | pb.EmbedRequest) -> tuple[int, ...]:
        text = from_proto.text_of(request)
        if text is None:
            return ()
        if self._tokenizer is None:
            raise RequestError("prompt: this model has no tokenizer; give token ids")
        if len(text) < LONG_TEXT:
            return tuple(self._tokenizer.encode(text))
        return tuple(await asyncio.to_thread(self._tokenizer.encode, text))


async def _write(stream: Stream, context: Context, response: pb.GenerateResponse) -> None:
    """Hand a message to the client, unless the stream is refused while the client does not take it.

    Raises:
        StatusError: it was.
    """
    task = asyncio.current_task()
    assert task is not None
    stream.writing = task
    try:
        await context.write(response)
    except asyncio.CancelledError:
        if stream.refused is None:
            raise  # the client is gone
        task.uncancel()
        raise StatusError(stream.refused.code, stream.refused.text) from None
    finally:
        stream.writing = None


def _read(kind: type[Message], content: bytes) -> Message | Malformed:
    try:
        return kind.FromString(content)
    except DecodeError as error:
        return Malformed(f"{len(content)} bytes that are no {kind.DESCRIPTOR.name}: {error}")


def _guarded(method: Method) -> Method:
    """End the call with a status that says what was wrong."""

    async def call(request: Message | Malformed, context: Context) -> Any:
        try:
            if isinstance(request, Malformed):
                raise RequestError(request.text)
            return await method(request, context)
        except StatusError as error:
            return await context.abort(error.code, error.text)
        except RequestError as error:
            return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    return call
