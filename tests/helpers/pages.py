"""The pages of docs/ whose commands the tests run."""

FROM_TEXT = ("tutorials/first-model.md", "tutorials/browser.md")  # these pages begin with text
FROM_MODEL = (  # these begin with the dataset and the model of index.md
    "tutorials/fine-tuning.md",
    "tutorials/many-devices.md",
    "how-to/train.md",
    "how-to/modern-transformer.md",
    "how-to/mix-datasets.md",
    "how-to/resume.md",
    "how-to/training-speed.md",
    "how-to/monitor.md",
)
GUIDES = (  # these begin with more files, which tests/examples/test_guides.py makes
    *(
        "translate",
        "sentences",
        "characters",
        "documents",
        "markup",
        "search",
        "constraints",
        "output",
        "translation-speed",
        "score",
        "export",
        "marian",
        "browser",
        "server",
        "deploy",
    ),
    *("production", "prepare-real-data", "back-translation"),
)
