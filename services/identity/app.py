"""Wiring of the identity service."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial

from meridian.periodic import every
from meridian.request_body import BodyLimit
from meridian.service import Kernel
from meridian.settings import load
from services.identity import access_store, store
from services.identity.access import Access
from services.identity.api_admin import admin_router
from services.identity.api_registration import registration_router
from services.identity.api_tokens import MAX_BODY_BYTES, token_router
from services.identity.authority import CertificateAuthority
from services.identity.bootstrap import apply_bootstrap, read_bootstrap
from services.identity.compute_ids import mint_compute_id
from services.identity.enrolment import Enrolment
from services.identity.key_files import installation_salt
from services.identity.measures import IdentityMeasures
from services.identity.registration_body import TokenFirst
from services.identity.revocation import Revocation
from services.identity.revocation_lists import RevocationLists
from services.identity.settings import IdentitySettings
from services.identity.tenancy import Tenancy
from services.identity.token_keys import TokenKeys

_UPKEEP_INTERVAL_S = 60.0
_KEEP_EXPIRED = timedelta(days=30)
# scrypt takes 16 MiB and tens of milliseconds each, for whoever asks: a flood of requests must wait.
_HASHED_AT_ONCE = 2


def build(kernel: Kernel) -> None:
    """Add identity's routes and its upkeep to the kernel."""
    settings = load(IdentitySettings)
    kernel.http_settings = settings
    clock, database, outbox = kernel.clock, kernel.database, kernel.outbox
    directory = settings.key_dir or kernel.settings.data_dir / "identity"
    measures = IdentityMeasures(kernel.registry)
    authority = CertificateAuthority(
        directory,
        settings.trust_domain,
        root_ttl_s=settings.root_ca_ttl_s,
        issuing_ttl_s=settings.issuing_ca_ttl_s,
    )
    keys = TokenKeys(
        directory,
        issuer=settings.issuer,
        audience=settings.audience,
        key_ttl_s=settings.token_key_ttl_s,
        token_ttl_s=settings.token_ttl_s,
    )
    hashing = asyncio.Semaphore(_HASHED_AT_ONCE)
    enrolment = Enrolment(
        outbox,
        clock,
        authority,
        mint_compute_id,
        hashing,
        ttl_s=settings.certificate_ttl_s,
        backdate_s=settings.certificate_backdate_s,
    )
    access = Access(database, clock, partial(kernel.new_id, "tok"), keys, hashing, ttl_s=settings.token_ttl_s)
    revocation = Revocation(outbox, clock, partial(kernel.new_id, "rev"))
    tenancy = Tenancy(outbox, clock, settings.trust_domain)

    async def open_keys() -> None:
        async with database.transaction() as connection:
            await store.lock_key_directory(connection)
            authority.open(clock.now())
            keys.open(clock.now())
            salt = installation_salt(directory)
            enrolment.join_token_salt = tenancy.join_token_salt = salt

    async def bootstrap() -> None:
        if settings.bootstrap_file is None:
            return
        content = read_bootstrap(settings.bootstrap_file)
        async with outbox.transaction() as transaction:
            await store.lock_registrations(transaction.connection)
            await apply_bootstrap(transaction, content, enrolment.join_token_salt, settings.trust_domain, clock.now())

    async def upkeep() -> None:
        await open_keys()
        async with database.transaction() as connection:
            limit = clock.now() - _KEEP_EXPIRED
            await store.forget_certificates(connection, limit)
            await access_store.forget_tokens(connection, limit)
            await store.forget_token_revocations(connection, limit)
            counts = await store.count_by_state(connection)
        measures.identities.clear()
        for kind, status, count in counts:
            measures.identities.labels(kind, status).set(count)

    # The last one added is the first to see a request.
    kernel.http.add_middleware(BodyLimit, settings.max_body_bytes, {"/v1/tokens": MAX_BODY_BYTES})
    kernel.http.add_middleware(TokenFirst, enrolment.check_token)
    kernel.before_start += [open_keys, bootstrap]
    kernel.add_task("upkeep", every(_UPKEEP_INTERVAL_S, upkeep))
    lists = RevocationLists(authority, database, clock, ttl_s=settings.crl_ttl_s)
    kernel.http.include_router(registration_router(enrolment, authority, lists, clock, measures))
    kernel.http.include_router(token_router(access, keys, measures, issuer=settings.issuer))
    kernel.http.include_router(admin_router(access, revocation, tenancy, database, kernel.new_id, measures))
