"""GET /v1/server/info and /v1/models."""

from __future__ import annotations

from fastapi.testclient import TestClient

from kit.api import ImageEngine
from kit.config.deploy import leaf_values
from kit.server.info import Info


def test_info_is_what_runs(api: TestClient, served: ImageEngine) -> None:
    info = Info(**api.get("/v1/server/info").json())
    assert (info.name, info.aliases) == ("painter", ["org/painter"])
    assert (info.kv.mode, info.kv.backend, info.kv.kernel) == (
        "paged_scheduler",
        "FLASH_ATTN",
        "cpu_reference",
    )
    assert info.kv.num_pages * info.kv.page_bytes == info.kv.pool_bytes
    assert info.kv.page_size == served.info.page_size
    assert {name: s.value for name, s in info.deployment.items()} == dict(
        leaf_values(served.config)
    )
    assert info.deployment["stage.diffusion_kv_mode"].source == "packaged hunyuan_image3_paged.yaml"
    assert [size.size for size in info.sizes] == [str(size) for size in served.preprocessor.sizes]
    assert info.versions.keys() >= {"hunyuan-paged-kit", "torch", "python"}
    assert "has no strength" in info.not_supported["strength"]
    assert info.limits["reference_images"] == 3
    assert info.model.reference_refusal is None


def test_defaults_are_those_of_a_request_that_says_nothing(api: TestClient) -> None:
    defaults = api.get("/v1/server/info").json()["defaults"]
    answer = api.post("/v1/images/generations", json={"prompt": "a cat"}).json()
    seen = answer["sampling"] | {"output_format": answer["output_format"]}
    seen["template"] = answer["data"][0]["replay"]["record"]["request"]["template"]
    assert {name: seen[name] for name in defaults.keys() & seen.keys() - {"seed"}} == {
        name: value for name, value in defaults.items() if name not in ("seed", "timeout_s")
    }


def test_sizes_tell_the_tokens_that_a_picture_of_each_writes(api: TestClient) -> None:
    sizes = api.get("/v1/server/info").json()["sizes"]
    largest, smallest = (pick(sizes, key=lambda size: size["target_tokens"]) for pick in (max, min))
    assert largest["target_tokens"] > smallest["target_tokens"]
    for size in (largest, smallest):
        body = {"prompt": "a cat", "size": size["size"], "num_inference_steps": 1}
        answer = api.post("/v1/images/generations", json=body).json()
        assert answer["metrics"]["target_tokens"] == size["target_tokens"]


def test_info_names_no_folder(api: TestClient, served: ImageEngine) -> None:
    text = api.get("/v1/server/info").text
    assert str(served.model_path) not in text
    assert str(served.model_path.parent) not in text


def test_models_by_name_and_alias(api: TestClient) -> None:
    listed = api.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["painter", "org/painter"]
    for model in listed["data"]:
        assert api.get(f"/v1/models/{model['id']}").json() == model
    assert api.get("/v1/models/org%2Fpainter").json()["id"] == "org/painter"
    unknown = api.get("/v1/models/gpt-4")
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "model")
