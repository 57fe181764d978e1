"""Every request this broker serves: its number, the versions advertised, and the form of request and response."""

from meridian.embedded.broker.schemas.admin import ADMIN_APIS
from meridian.embedded.broker.schemas.api import Api, ApiKey
from meridian.embedded.broker.schemas.groups import GROUP_APIS
from meridian.embedded.broker.schemas.streams import STREAM_APIS

APIS: dict[int, Api] = {api.key: api for api in (*STREAM_APIS, *GROUP_APIS, *ADMIN_APIS)}

__all__ = ["APIS", "Api", "ApiKey"]
