"""Errors that a user can act on: each names the cause and the next step."""


class CragError(Exception):
    """Base of every error that crag_dspy raises on purpose.

    `code` is stable and machine-readable; the message is one sentence of cause and one of what to do next.
    """

    code = "crag_error"


class SettingsError(CragError):
    """A setting is misspelt, missing or impossible."""

    code = "settings"


class QuestionError(CragError):
    """The question cannot be asked as it stands (empty, too long)."""

    code = "question"


class IndexUnusable(CragError):
    """The index is missing, or was made with other parts."""

    code = "index"


class IngestError(CragError):
    """Nothing usable could be read from what was to be ingested."""

    code = "ingest"


class ModelFileError(CragError):
    """Weights of the embedded LM are missing, truncated or altered."""

    code = "model_file"


class LocalLMError(CragError):
    """The embedded LM cannot be started."""

    code = "local_lm"


class LMFailure(CragError):
    """The LM cannot be asked; the provider's own words are left out, for they may echo the key."""

    code = "lm"

    def __init__(self, error: Exception) -> None:
        status = getattr(error, "status", None)
        super().__init__(
            f"The LM could not be asked ({type(error).__name__}{f', HTTP {status}' if status else ''}). "
            "Check CRAG_LM, the key variable of its provider, and CRAG_LM_API_BASE."
        )


class DatasetError(CragError):
    """A row of a training, dev or test set is malformed; file and line are named."""

    code = "dataset"


class StateError(CragError):
    """A saved program does not fit this code, or may not be saved."""

    code = "state"


class SecretLeak(CragError):
    """Something about to be stored contains a configured credential."""

    code = "secret"


class SourceFailure(CragError):
    """One source (index, search provider, page) failed; the answer goes on from the rest.

    Caught by the program, which turns it into a `Warning_` with the same code.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
