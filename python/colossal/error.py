"""The exception of this package."""


class Error(RuntimeError):
    """An error of Colossal. Its text is the message of the command line: ``[component] rule: got value; remedy``."""

    def __init__(self, component: str, message: str) -> None:
        super().__init__(component, message)
        self.component = component
        """The section of the config, file format or part that reports the error."""
        self.message = message
        """The message without the component."""

    def __str__(self) -> str:
        return f"[{self.component}] {self.message}"
