"""What the tests need of the versions of the libraries that they run with."""

import openai._base_client

sdk_http = getattr(openai._base_client, "httpx2", None) or openai._base_client.httpx  # type: ignore[attr-defined]
"""The HTTP library that openai's client, and so LangChain's, sends with: httpx2 since version 3."""
