"""Jobs: pictures that are drawn whether or not anybody holds a connection."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict
from contextlib import aclosing
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import BaseModel

from kit.errors import CancelledError, InvalidRequestError, KitError, NotFoundError
from kit.server.answers import ErrorDetail, ImagesAnswer
from kit.server.edits import form_content, read_edit
from kit.server.errors import error_content, internal_error
from kit.server.forms import FormRoute
from kit.server.normalise import PublicRequest
from kit.server.pictures import Picture, images_answer
from kit.server.protocol import ImageGenerationBody
from kit.server.running import ImageStep, RunningRequest
from kit.server.service import Service, encode_all, json_answer
from kit.server.settings import ServerSettings

JobStatus = Literal["queued", "running", "succeeded", "failed", "cancelled"]


class JobProgress(BaseModel):
    """How far a job is."""

    num_images: int
    num_images_done: int = 0
    step: int = 0
    """Of the picture that is drawn now; 0 before its first."""

    num_steps: int | None = None
    """Known after the first step."""


class JobAnswer(BaseModel):
    """A job as its owner sees it."""

    id: str
    object: Literal["image_generation.job"] = "image_generation.job"
    status: JobStatus
    created_at: int
    ended_at: int | None
    expires_at: int | None
    """When the result is forgotten, perhaps earlier if newer ones need the room."""

    progress: JobProgress
    result: ImagesAnswer | None
    """The answer of the images endpoint that takes the same body."""

    error: ErrorDetail | None


class Job:
    """One job from its submission to its end, whatever that is; the first end counts."""

    def __init__(self, running: RunningRequest) -> None:
        self.id = f"job-{uuid.uuid4().hex}"
        self.status: JobStatus = "queued"
        self.created, self.ended = time.time(), 0.0
        self.num_bytes = 0
        self._running = running
        self._progress = JobProgress(num_images=len(running.public.children))
        self._result: ImagesAnswer | None = None
        self._error: ErrorDetail | None = None

    @property
    def has_ended(self) -> bool:
        return self.ended > 0

    def answer(self, ttl_s: float) -> JobAnswer:
        """Return the job as it is now."""
        return JobAnswer(
            id=self.id,
            status=self.status,
            created_at=int(self.created),
            ended_at=int(self.ended) if self.has_ended else None,
            expires_at=int(self.ended + ttl_s) if self.has_ended else None,
            progress=self._progress,
            result=self._result,
            error=self._error,
        )

    def cancel(self) -> None:
        """End the job unless it has ended; a running picture stops before its next step."""
        self._fail("cancelled", error_content(CancelledError(f"job {self.id} was cancelled")))
        self._running.cancel()

    async def run(self, model: str) -> None:
        """Follow the request to its end; raises nothing but asyncio.CancelledError."""
        public, pictures = self._running.public, list[Picture]()
        try:
            async with aclosing(self._running.events()) as events:
                async for event in events:
                    if not self.has_ended:
                        self.status = "running"
                    if isinstance(event, ImageStep):
                        self._progress.step = event.event.step
                        self._progress.num_steps = event.event.num_steps
                    else:
                        pictures += await encode_all([event.result], public.output)
                        self._progress.num_images_done += 1
                        self._progress.step = 0
            self._succeed(images_answer(public, pictures, model))
        except CancelledError as error:
            self._fail("cancelled", error_content(error))
        except KitError as error:
            self._fail("failed", error_content(error))
        except Exception as error:
            self._fail("failed", internal_error(error, f"job {self.id}"))

    def _succeed(self, result: ImagesAnswer) -> None:
        if not self.has_ended:
            self.status, self.ended, self._result = "succeeded", time.time(), result
            self.num_bytes = sum(len(image.b64_json) for image in result.data)

    def _fail(self, status: JobStatus, content: dict[str, Any]) -> None:
        if not self.has_ended:
            self.status, self.ended = status, time.time()
            self._error = ErrorDetail(**content["error"])


class Jobs:
    """The jobs of one server: those that are not done, and the last that are."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, running: RunningRequest) -> Job:
        """Follow a submitted request."""
        job = Job(running)
        self._jobs[job.id] = job
        # The event loop itself holds tasks weakly.
        task = asyncio.create_task(job.run(self._settings.name))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._forget_old()
        return job

    def find(self, job_id: str) -> Job:
        """Return a job; raises NotFoundError."""
        self._forget_old()
        job = self._jobs.get(job_id)
        if job is None:
            raise NotFoundError(
                f"there is no job {job_id!r:.100}; results are kept for "
                f"{self._settings.job_ttl_s:g} s, the last {self._settings.max_finished_jobs}",
                param="job",
            )
        return job

    async def close(self) -> None:
        """Cancel all jobs and wait until nothing follows them."""
        for job in self._jobs.values():
            job.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _forget_old(self) -> None:
        """Drop ended jobs that are too old or too many; the oldest end goes first."""
        settings, now = self._settings, time.time()
        ended = sorted(
            (job for job in self._jobs.values() if job.has_ended), key=lambda job: job.ended
        )
        num_bytes = sum(job.num_bytes for job in ended)
        for left, job in zip(range(len(ended), 0, -1), ended, strict=True):
            is_old = now - job.ended > settings.job_ttl_s
            is_too_much = left > settings.max_finished_jobs or num_bytes > settings.max_job_bytes
            if not (is_old or is_too_much):
                break
            del self._jobs[job.id]
            num_bytes -= job.num_bytes


def install_jobs(app: FastAPI, service: Service) -> Jobs:
    """Add POST /v1/jobs, and GET and DELETE /v1/jobs/{id}."""
    jobs, ttl_s = Jobs(service.settings), service.settings.job_ttl_s

    async def queue(public: PublicRequest, endpoint: str) -> Response:
        if public.stream:
            raise InvalidRequestError(
                f"stream: a job is asked for its progress; leave it out, or send the request to "
                f"{endpoint}",
                param="stream",
            )
        return json_answer(jobs.add(await service.start(public)).answer(ttl_s), 202)

    async def submit_form(request: Request) -> Response:
        return await queue(await read_edit(request, service), "/v1/images/edits")

    app.router.add_api_route(
        "/v1/jobs",
        submit_form,
        methods=["POST"],
        include_in_schema=False,  # the document has one operation for both kinds of bodies
        route_class_override=FormRoute,
    )

    @app.post(
        "/v1/jobs",
        tags=["jobs"],
        status_code=202,
        response_model=JobAnswer,
        openapi_extra={"requestBody": {"content": form_content()}},
    )
    async def submit(body: ImageGenerationBody) -> Response:
        """Queue pictures and answer at once.

        The body is that of /v1/images/generations, or with reference images the form of
        /v1/images/edits.
        """
        return await queue(service.read_generation(body), "/v1/images/generations")

    @app.get("/v1/jobs/{job_id}", tags=["jobs"], response_model=JobAnswer)
    async def get(job_id: str) -> Response:
        """Say how far a job is, with its result when it is done."""
        return json_answer(jobs.find(job_id).answer(ttl_s))

    @app.delete("/v1/jobs/{job_id}", tags=["jobs"], response_model=JobAnswer)
    async def cancel(job_id: str) -> Response:
        """Cancel a job; one that has ended stays as it is."""
        job = jobs.find(job_id)
        job.cancel()
        return json_answer(job.answer(ttl_s))

    return jobs
