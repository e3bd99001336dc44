"""Which version answers when an agent asks for a policy: a LiteLLM `Router` over the engine's names.

Every served name (`support@17`) is one deployment; the policy's name (`support`) is an alias that
points at the live one and is moved in a single `apply`. A name is answered by its own deployment or
by none: no fallbacks, no retries and no cooldowns, so that a rollout can never be answered by another
model, nor a version be shut out by one bad request.

The router picks and does not call. LiteLLM's call path drops `content: null`, `user`, `metadata` and
the token ids of streams and takes several times as long, so the gateway forwards the client's own
bytes to the deployment that was picked. Tried on LiteLLM 1.110.
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import EngineError

if TYPE_CHECKING:
    from litellm.types.router import Deployment


@dataclass(frozen=True)
class Route:
    """Where a call goes: `name` is the served name, never an alias; `base_url` ends in `/v1`."""

    name: str
    base_url: str
    api_key: str


class UnknownModel(EngineError):
    """Nobody serves the name that was asked for."""


class PolicyRouter:
    """The names that one engine answers to. Use it from one event loop only."""

    def __init__(self, base_url: str, api_key: str) -> None:
        """`base_url` is the engine's, without `/v1`. Importing LiteLLM takes seconds, so it happens here."""
        # Otherwise LiteLLM fetches a price list from the net, and reads the user's .env file, on import.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        os.environ.setdefault("LITELLM_MODE", "PRODUCTION")
        from litellm import Router

        self._base_url = f"{base_url}/v1"
        self._api_key = api_key
        self._live: dict[str, str] = {}
        self._router = Router(
            model_list=[], num_retries=0, disable_cooldowns=True, fallbacks=[], default_fallbacks=[], max_fallbacks=0
        )

    def serve(self, name: str) -> None:
        """Answer calls for `name`. Doing so again changes nothing."""
        from litellm.router_api import ChangeSet

        self._router.apply(ChangeSet(upsert=[self._deployment(name)]))

    def retire(self, name: str) -> None:
        """Answer `name` no longer. Raises `EngineError` while a policy points at it."""
        from litellm.router_api import ChangeSet

        policies = sorted(policy for policy, live in self._live.items() if live == name)
        if policies:
            raise EngineError(f"{name} is live for {', '.join(policies)}; flip the policy to another version first")
        self._router.apply(ChangeSet(delete=[name]))

    def flip(self, policy: str, name: str) -> None:
        """Let `policy` be answered by `name` from the next call on. Raises `UnknownModel` if it isn't served."""
        from litellm.router_api import ChangeSet

        if not self._serves(name):
            raise UnknownModel(f"{name} is not served, so {policy} can't point at it; call serve first")
        aliases = {**self._live, policy: name}
        self._router.apply(ChangeSet(settings={"model_group_alias": aliases}))
        self._live = aliases

    def live(self, policy: str) -> str | None:
        """The served name that answers for `policy`; None if it was never flipped."""
        return self._live.get(policy)

    def names(self) -> list[str]:
        """Every name that is answered, policies and versions, sorted."""
        return sorted({*self._live, *self._router.registry().names(kind="group_set")})

    async def pick(self, name: str) -> Route:
        """The deployment for a policy or a served name. Raises `UnknownModel`, which lists the names."""
        served = self._live.get(name, name)
        if not self._serves(served):
            raise UnknownModel(f"no model is served under {name!r}; the names are {', '.join(self.names())}")
        deployment = await self._router.select(name)
        parameters = deployment["litellm_params"]
        return Route(deployment["model_name"], parameters["api_base"], parameters["api_key"])

    def _serves(self, name: str) -> bool:
        # LiteLLM's registry takes no half characters.
        return name.isprintable() and bool(self._router.registry().has_deployment(name))

    def _deployment(self, name: str) -> "Deployment":
        from litellm.types.router import Deployment, LiteLLM_Params, ModelInfo

        return Deployment(
            model_name=name,
            litellm_params=LiteLLM_Params(
                model=f"openai/{name}", api_base=self._base_url, api_key=self._api_key, max_retries=0
            ),
            model_info=ModelInfo(id=name),
        )
