"""Read YAML with the line number of every key, for error messages."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trtkit.errors import ConfigError, Problem
from trtkit.files import read_text

KeyPath = tuple[str | int, ...]
_MAX_MIB, _MAX_VALUES = 16, 100_000


class _TooManyError(Exception):
    """Too many nodes: aliases of aliases double at each level, so a short file could exhaust memory."""


@dataclass(frozen=True)
class YamlFile:
    """A YAML file's data, and the 1-based line of each key path."""

    path: Path
    data: dict[str, Any]
    lines: dict[KeyPath, int]

    def where(self, key_path: KeyPath) -> str:
        """Return `file:line` of `key_path`, or of its nearest parent in the file."""
        while key_path and key_path not in self.lines:
            key_path = key_path[:-1]
        return f"{self.path}:{self.lines.get(key_path, 1)}"


def read_yaml(path: Path) -> YamlFile:
    """Parse `path`, whose top level must be a mapping. Raises ConfigError with the line of an error."""
    try:
        node = yaml.compose(read_text(path, _MAX_MIB), Loader=yaml.SafeLoader)
    except RecursionError:
        raise _config_error(path, "not valid YAML: values are nested too deeply") from None
    except (OSError, UnicodeDecodeError) as error:
        raise _config_error(path, f"the config cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise _config_error(path, *_yaml_fault(error)) from error
    if not isinstance(node, yaml.MappingNode):
        raise _config_error(path, "a config must be a mapping with keys such as `source:`")
    lines: dict[KeyPath, int] = {}
    try:
        data = _construct(node, (), lines, path)
    except RecursionError:
        raise _config_error(path, "an alias contains itself") from None
    except _TooManyError:
        raise _config_error(path, f"aliases expand to more than {_MAX_VALUES} values") from None
    return YamlFile(path, data, lines)


def _construct(node: yaml.Node, at: KeyPath, lines: dict[KeyPath, int], path: Path) -> Any:
    """Build the value of `node` and record the line of every key below it."""
    if len(lines) > _MAX_VALUES:
        raise _TooManyError
    if isinstance(node, yaml.MappingNode):
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise _config_error(path, "a key is a list or a mapping; expected text", line)
            key = str(key_node.value)
            if key in mapping:
                raise _config_error(path, f"duplicate key `{key}`", line)
            lines[(*at, key)] = line
            mapping[key] = _construct(value_node, (*at, key), lines, path)
        return mapping
    if isinstance(node, yaml.SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            lines[(*at, index)] = item.start_mark.line + 1
            items.append(_construct(item, (*at, index), lines, path))
        return items
    try:
        return parse_scalar(node)
    except (yaml.YAMLError, ValueError) as error:
        what = getattr(error, "problem", None) or str(error)
        raise _config_error(path, f"not valid YAML: {what}", node.start_mark.line + 1) from None


def parse_scalar(node: yaml.Node) -> Any:
    """Return the Python value of a scalar node by YAML's safe rules."""
    loader = yaml.SafeLoader("")
    return loader.construct_object(node, deep=True)


def _yaml_fault(error: yaml.YAMLError) -> tuple[str, int]:
    """Return PyYAML's message and line."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    return f"not valid YAML: {problem}", mark.line + 1 if mark else 1


def _config_error(path: Path, what: str, line: int = 1) -> ConfigError:
    return ConfigError("invalid config", [Problem(what, f"{path}:{line}")])
