"""Which parameters of a block, or slices of them, have which role; which modules are attn and mlp.

One table says it for every causal architecture in transformers; `docs/roles.md` lists what comes of
it. A parameter that no rule matches keeps its own name, and a new architecture is a line or two:
`add_rule("attn.to_q$", "q_proj")`.
"""

import functools
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D

from kingpost.errors import UsageError
from kingpost.models import layouts
from kingpost.models.component import Component, Kind, Output, Slice, count_elements
from kingpost.models.layouts import Fused, Layout

# The first pattern that fits the end of a parameter's name (without .weight, .bias or _bias), from
# the beginning of one of its parts on, says its role, or how it is divided among roles; None: none.
_RULES: tuple[tuple[str, str | Layout | None], ...] = (
    # Beside the sub-layers: attention to other inputs, selection of tokens, further streams.
    (r"(encoder_attn|cross_?attn|crossattention|indexer|compressor|ple|altup|laurel)\..*", None),
    (r"\w+_(message_gate|hyper_connection|input|layernorm)\..*", None),
    (r"\w*att\w*\.experts\.router\..*", None),
    # Attention of every kind.
    (r"\w*att\w*\.experts\.input_linear", "q_proj"),
    (r"\w*att\w*\.experts\.output_linear", "o_proj"),
    (r"self_attention\.kv_proj", layouts.key_and_value),
    (r"q_proj", layouts.query_and_gate),
    (r"(q_b_proj|q_proj\.linear|q_lin|query|query_proj|project_q|Wq|q)", "q_proj"),
    (r"(k_proj|k_proj\.linear|k_lin|key_proj|project_k|Wk|k|\w*att\w*\.(self\.)?key)", "k_proj"),
    (r"(v_proj|v_proj\.linear|v_lin|value_proj|project_v|Wv|v)", "v_proj"),
    (r"(\w*att\w*\.(self\.)?value|v_proj_current|v_proj_delayed)", "v_proj"),
    (r"o_proj(\.linear)?|o_b_proj|out_lin|attention_out|rel_attn\.o", "o_proj"),
    (r"\w*att\w*\.(.+\.)?(out_proj|dense|c_proj|Wo|output)|mlstm_layer\.out_proj", "o_proj"),
    (r"linear_q_adapter_list\.\d+\.1", "q_proj"),
    (r"linear_k_adapter_list\.\d+\.1", "k_proj"),
    (r"linear_v_adapter_list\.\d+\.1", "v_proj"),
    (r"query_key_value", layouts.grouped_qkv),
    (r"qkv_proj", layouts.qkv_proj),
    (r"c_attn", layouts.c_attn),
    (r"Wqkv", layouts.concatenated_qkv),
    (r"q_gate_proj", layouts.latent_query_and_gate),
    (r"kv_b_proj", layouts.latent_key_and_value),
    (r"kv_a_proj_with_mqa", layouts.latent_and_rotary_key),
    # Gated delta rule, state spaces and other recurrences.
    (r"in_proj_qkv", layouts.delta_qkv),
    (r"in_proj_qkvz", layouts.delta_qkvz),
    (r"in_proj_ba", layouts.delta_ba),
    (r"qkv_opreact", layouts.mlstm_qkvo),
    (r"a_proj|in_proj_a|f_b_proj|f_proj", "alpha"),
    (r"b_proj|in_proj_b", "beta"),
    (r"g_proj|g_b_proj|in_proj_z|ogate_preact|output_gate|linear_y", "out_gate"),
    (r"\w*att\w*\.(.+\.)?(gate|gate_proj|receptance)", "out_gate"),
    (r"conv\.in_proj", layouts.short_conv_in_proj),
    (r"in_proj", layouts.ssm_in_proj),
    (r"conv1d|conv_1d|conv\.conv|conv_qk_depthwise", "conv"),
    # Routers of experts.
    (r"router|gate|router_gate|gate\.wg|router\.(layer|gate|classifier|proj)", "router"),
    (r"router_mlp\.out_proj", "router"),
    (r"(router|gate)\..*", None),
    # Feed-forward layers, dense and of experts.
    (r"(gate_up_proj|input_linear|Wi|proj_up_gate_z)", layouts.gate_up),
    (r"gate_up_proj_adapter_list\.\d+\.1", layouts.gate_up),
    (r"fc1", layouts.up_or_gate_up),
    (r"gate_proj|w1|w_0|proj_up_gate|feed_forward\.receptance", "gate_proj"),
    (r"up_proj|w3|v1|w_1|proj_up|c_fc|fc_in|lin1|dense_h_to_4h|ff\.layer_1", "up_proj"),
    (r"ffn\.0|intermediate|intermediate\.dense|dense\.dense|feed_forward\.key", "up_proj"),
    (r"down_proj|w2|w_out|proj_down|c_proj|fc2|fc_out|lin2|dense_4h_to_h", "down_proj"),
    (r"ffn\.2|ff\.layer_2|output_linear|(feed_forward\.)?output(\.dense)?|mlp\.Wo", "down_proj"),
    (r"feed_forward\.value", "down_proj"),
)
_users_rules: list[tuple[str, str | Layout]] = []

# The order in which the components of a block are listed.
_SUBLAYERS = ("attn", "ssm", "short_conv", "mlp")
_ROLES = (
    *("q_proj", "k_proj", "v_proj", "o_proj", "alpha", "beta", "out_gate", "conv"),
    *("gate_proj", "up_proj", "down_proj", "router"),
)
# The sub-layer that a parameter with this role belongs to; the other roles occur in several.
_SUBLAYER_OF_ROLE = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), "attn"),
    **dict.fromkeys(("gate_proj", "up_proj", "down_proj", "router"), "mlp"),
}
# And of parameters whose role does not tell.
_SUBLAYER_OF_NAME = (
    (r"(^|\.)conv\.(in_proj|out_proj)$", "short_conv"),
    (r"(^|\.)(?<!attn\.)(in_proj|out_proj|linear_[xy]|linear_out)$", "ssm"),
)
_LAST_ROLES = ("o_proj", "down_proj")
# The axis of the output features where neither the shape nor the module tells it.
_AXES = ((r"rel_attn\.o$", 0), (r"experts\.mlp\.w2$", 1))
# How modules say that they add the residual stream, or a norm after it, to what they compute.
_RESIDUALS = {"residual", "input_tensor"}
_NORMS_AFTER = {"layer_norm", "LayerNorm"}


@dataclass(frozen=True, eq=False)
class _Parameter:
    """A parameter of a block and what the rules say about it; a role without an index is whole."""

    name: str
    stem: str
    n_axes: int
    axis: int
    module: str
    roles: dict[str, Any]

    @property
    def sublayer(self) -> str:
        known = [_SUBLAYER_OF_ROLE[r] for r in self.roles if r in _SUBLAYER_OF_ROLE]
        named = [s for pattern, s in _SUBLAYER_OF_NAME if re.search(pattern, self.stem)]
        return next(iter(known + named), "")

    @property
    def is_expert(self) -> bool:
        """Whether it is a part of experts of which a router chooses some."""
        inside = "experts" in self.stem.split(".") or self.n_axes == 3
        routed = inside and "shared" not in self.stem and "router" not in self.roles
        return routed and self.sublayer == "mlp"


def add_rule(pattern: str, role: str | Layout) -> None:
    """Say what role the parameters with some name have; tried before the rules for transformers.

    Args:
        pattern: A regular expression, searched for in the name of a parameter inside its block
            without `.weight`, `.bias` or `_bias`.
        role: The role, one of those in use or a new one, or a layout for a fused parameter.

    Raises:
        UsageError: The pattern is no regular expression.
    """
    try:
        re.compile(pattern)
    except re.error as error:
        raise UsageError(
            f"The pattern {pattern!r} is no regular expression ({error}): mend it, or escape what "
            "is meant literally with re.escape."
        ) from error
    _users_rules.insert(0, (pattern, role))
    _rule.cache_clear()


def role_components(index: int, block: nn.Module, config: Any) -> list[Component]:
    """The sub-layers and the projections of one block.

    Args:
        index: Index of the block.
        block: The block.
        config: The model's configuration.

    Raises:
        KingpostError: A fused parameter is not laid out as its name promises.
    """
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    parameters = [_read(block, name, text) for name, _ in block.named_parameters()]

    def component(name: str, kind: Kind, slices: Any, outputs: Any) -> Component:
        n = count_elements(block, tuple(slices))
        return Component(index, name, kind, tuple(slices), tuple(outputs), n)

    found = [
        component(
            name, "sublayer", _slices_of(parameters, paths), _outputs_of(block, paths, parameters)
        )
        for name, paths in _sublayers(block, parameters).items()
    ]
    found += [
        component(role, "role", *_slices_and_outputs(block, parameters, role))
        for role in _in_order(role for p in parameters for role in p.roles)
    ]
    if experts := [p for p in parameters if p.is_expert]:
        slices = [Slice(p.name, p.axis) for p in experts]
        found.append(component("experts", "sublayer", slices, _experts_outputs(block, experts)))
    return found


def _in_order(roles: Iterator[str]) -> list[str]:
    rank = {role: i for i, role in enumerate(_ROLES)}
    return sorted(dict.fromkeys(roles), key=lambda role: rank.get(role, len(rank)))


@functools.lru_cache(maxsize=65536)
def _rule(stem: str) -> str | Layout | None:
    for pattern, role in _users_rules:
        if re.search(pattern, stem):
            return role
    for pattern, known in _RULES:
        if re.search(rf"(^|\.)({pattern})$", stem):
            return known
    return None


def _read(block: nn.Module, name: str, config: Any) -> _Parameter:
    """What the rules say about one parameter."""
    module, _, attribute = name.rpartition(".")
    owner, parameter = block.get_submodule(module), block.get_parameter(name)
    stem = re.sub(r"\.(weight|bias)$|_bias$", "", name)
    own = attribute in ("weight", "bias")
    axis = _axis(stem, attribute, parameter, owner)
    rule = None if _is_norm(owner) else _rule(stem)
    if callable(rule):
        holder = block.get_submodule(module.rpartition(".")[0]) if own else owner
        roles = rule(Fused(parameter.shape[axis], holder, config)) if parameter.dim() else {}
    else:
        roles = {} if rule is None else {rule: None}
    return _Parameter(name, stem, parameter.dim(), axis, module, roles)


def _is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower() and not list(module.children())


def _axis(stem: str, attribute: str, parameter: nn.Parameter, owner: nn.Module) -> int:
    """The axis of the output features."""
    for pattern, axis in _AXES:
        if re.search(pattern, stem):
            return axis
    if attribute.endswith("bias"):
        return max(parameter.dim() - 1, 0)
    if isinstance(owner, Conv1D):
        return 1
    stacked = parameter.dim() == 3 and not isinstance(owner, nn.Conv1d)
    return (2 if _is_transposed(owner) else 1) if stacked else 0


def _is_transposed(experts: nn.Module) -> bool:
    """Whether stacked experts are [E, in, out]: what gate and up give is twice what down takes."""
    gate_up, down = getattr(experts, "gate_up_proj", None), getattr(experts, "down_proj", None)
    if not (isinstance(gate_up, nn.Parameter) and isinstance(down, nn.Parameter)):
        return False
    return gate_up.shape[2] == 2 * down.shape[1]


def _slices_and_outputs(
    block: nn.Module, parameters: list[_Parameter], role: str
) -> tuple[list[Slice], list[Output]]:
    """The slices of a role, and its outputs where modules return all of it."""
    holding = [p for p in parameters if role in p.roles]
    slices = [Slice(p.name, p.axis, p.roles[role]) for p in holding]
    modules = {p.module: p.roles[role] for p in holding}
    whole = all(_is_linear(block.get_submodule(m)) for m in modules)
    # A router returns choices, or uses the weight of a module that it never calls. zamba2 adds what
    # one of several adapters returns.
    if role == "router" or not whole or any("adapter_list" in m for m in modules):
        return slices, []
    return slices, [Output(module, index) for module, index in modules.items()]


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | Conv1D)


def _sublayers(block: nn.Module, parameters: list[_Parameter]) -> dict[str, list[str]]:
    """The modules of each sub-layer: the smallest that hold parts of it together, and no other."""
    found: dict[str, list[str]] = {}

    def descend(path: str, module: nn.Module) -> None:
        inside = [p for p in parameters if p.sublayer and _is_inside(p.name, path)]
        kinds = {p.sublayer for p in inside}
        parts = {p.name.removeprefix(f"{path}." if path else "").split(".")[0] for p in inside}
        callable_ = path and not isinstance(module, nn.ModuleList)
        if callable_ and len(kinds) == 1 and (len(parts) > 1 or not list(module.children())):
            found.setdefault(kinds.pop(), []).append(path)
            return
        for name, child in module.named_children():
            if name in parts:
                descend(f"{path}.{name}" if path else name, child)

    descend("", block)
    return {kind: found[kind] for kind in _SUBLAYERS if kind in found}


def _is_inside(name: str, path: str) -> bool:
    return not path or name.startswith(f"{path}.")


def _slices_of(parameters: list[_Parameter], paths: list[str]) -> list[Slice]:
    return [
        Slice(p.name, p.axis) for p in parameters if any(_is_inside(p.name, path) for path in paths)
    ]


def _outputs_of(
    block: nn.Module, paths: list[str], parameters: list[_Parameter]
) -> Iterator[Output]:
    """Where what a sub-layer adds to the residual stream can be replaced."""
    last = {
        p.module: None
        for p in parameters
        if set(_LAST_ROLES) & set(p.roles) and _is_linear(block.get_submodule(p.module))
    }
    for path in paths:
        module = block.get_submodule(path)
        if _is_linear(module) or _adds_residual(module):
            yield from (Output(m) for m in last if m == path or _is_inside(m, path))
        else:
            yield Output(path)


def _adds_residual(module: nn.Module) -> bool:
    return any(
        _RESIDUALS & set(inspect.signature(part.forward).parameters)
        or _NORMS_AFTER & {name for name, _ in part.named_children()}
        for part in module.modules()
    )


def _experts_outputs(block: nn.Module, experts: list[_Parameter]) -> list[Output]:
    """The module that computes the experts and nothing else, where there is one."""
    paths = {re.sub(r"(^|\.)experts\..*", r"\1experts", p.name) for p in experts}
    path = paths.pop()
    if paths or not path.endswith("experts"):
        return []
    module = block.get_submodule(path)
    # longcat_flash has experts without weights there, which return their input.
    more = isinstance(module, nn.ModuleList) or any(
        isinstance(child, nn.Identity) for child in module.children()
    )
    return [] if more else [Output(path)]
