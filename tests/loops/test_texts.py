"""TRL's SFTTrainer on texts alone: on what is cached it trains exactly as on the texts themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.texts import FORMS, SPEAKERS, chat_tokenizer, text_project, write_table

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
datasets = pytest.importorskip("datasets", reason="datasets is not installed")
trl = pytest.importorskip("trl", reason="trl is not installed")

STEPS = 20
LIMIT = 9


def trainer(base: Path, data: Any, **options: Any) -> Any:
    """An SFTTrainer of a tiny model, the same whenever it is made."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2
    )
    arguments = {
        "output_dir": str(base / "out"),
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "max_steps": STEPS,
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "max_length": LIMIT,
        **options,
    }
    return trl.SFTTrainer(
        model=transformers.LlamaForCausalLM(config),
        args=trl.SFTConfig(**arguments),
        train_dataset=data,
        processing_class=transformers.AutoTokenizer.from_pretrained(base / "text", local_files_only=True),
    )


def test_human_and_gpt_are_the_user_and_the_assistant(tmp_path: Path) -> None:
    """ShareGPT's own words for them become TRL's rows of the same messages: TRL itself would show the template both."""
    chat_tokenizer(tmp_path / "text")
    live = trainer(tmp_path, datasets.Dataset.from_list(FORMS["messages"][0]))
    rows = [
        {"conversations": [{"from": SPEAKERS[one["role"]], "value": one["content"]} for one in row["messages"]]}
        for row in FORMS["messages"][0]
    ]
    write_table(tmp_path / "train.jsonl", rows)
    encoders = {"tokens": {"uses": "transformers-tokens", "model": "text", "max_length": LIMIT}}
    with text_project(tmp_path, {"messages": "conversations"}, encoders=encoders) as project:
        project.build()
        with project.store.snapshot("test").feed(batch_size=2) as feed:
            ours = trainer(tmp_path, feed.as_hf_dataset())
    for column in ("input_ids", "labels"):
        assert [row[column] for row in ours.train_dataset] == [row[column] for row in live.train_dataset]


def losses(made: Any) -> list[float]:
    made.train()
    return [line["loss"] for line in made.state.log_history if "loss" in line]


def cached(base: Path, form: str, **settings: Any) -> Any:
    """The rows that come from the cache."""
    rows, texts = FORMS[form]
    write_table(base / "train.jsonl", rows)
    encoders = {"tokens": {"uses": "transformers-tokens", "model": "text", "max_length": LIMIT, **settings}}
    with text_project(base, texts, encoders=encoders) as project:
        project.build()
        with project.store.snapshot("test").feed(batch_size=2) as feed:
            return feed.as_hf_dataset()


@pytest.mark.parametrize(
    ("form", "settings", "options"),
    [
        pytest.param("text", {}, {}, id="text"),
        pytest.param("text", {"eos": "on"}, {"packing": True}, id="text-packed"),
        pytest.param("completion", {}, {"packing": True}, id="completion-packed"),
        pytest.param("messages", {}, {"packing": True}, id="messages-packed"),
        pytest.param("text", {"eos": "on"}, {}, id="text-eos"),
        pytest.param("text", {"labels": "all"}, {}, id="text-labels"),
        pytest.param("completion", {}, {}, id="completion"),
        pytest.param("completion", {"labels": "all"}, {"completion_only_loss": False}, id="completion-all"),
        pytest.param("messages", {}, {}, id="messages"),
        pytest.param("messages", {"labels": "assistant"}, {"assistant_only_loss": True}, id="assistant"),
        pytest.param("spoken", {}, {}, id="spoken"),
        pytest.param("tools", {}, {}, id="tools"),
        pytest.param("tools-json", {"labels": "assistant"}, {"assistant_only_loss": True}, id="tools-json"),
        pytest.param("spoken-tools", {}, {}, id="spoken-tools"),
        pytest.param("from", {}, {}, id="from-value"),
    ],
)
def test_training_is_what_it_would_be_without_a_cache(
    tmp_path: Path, form: str, settings: dict[str, Any], options: dict[str, Any]
) -> None:
    """Rows, labels and 20 losses are those of TRL on the texts: ends and completions are where TRL has them."""
    chat_tokenizer(tmp_path / "text")
    live = trainer(tmp_path, datasets.Dataset.from_list(FORMS[form][0]), **options)
    rows = cached(tmp_path, form, **settings)
    ours = trainer(tmp_path, rows, packing=options.get("packing", False))
    assert [row["input_ids"] for row in ours.train_dataset] == [row["input_ids"] for row in live.train_dataset]
    assert [row["labels"] for row in ours.train_dataset] == [row["labels"] for row in live.train_dataset]
    found, wanted = losses(ours), losses(live)
    assert len(wanted) == STEPS
    assert len(set(wanted)) > 5
    assert found == pytest.approx(wanted, abs=1e-6)
