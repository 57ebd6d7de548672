"""Who is calling: nobody, a user by token, an app by its signed token, or an installation of an app."""

from __future__ import annotations

import base64
import functools
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.standin.github.state import ROLES, App, Installation, Repository, Token, User, World

_LEVELS = ("none", "read", "write", "admin")


class Unauthorized(Exception):
    """Bad credentials; the text is GitHub's."""


@dataclass(frozen=True)
class Actor:
    """`user` is None for nobody and for an app by itself."""

    user: User | None = None
    app: App | None = None
    installation: Installation | None = None
    token: Token | None = None

    @property
    def key(self) -> str:
        """What the rate limit counts by."""
        if self.token:
            return self.token.value
        return f"app:{self.app.id}" if self.app else "anonymous"

    def may_see(self, repo: Repository) -> bool:
        if self.installation:
            return not repo.private or self.installation.account is repo.owner
        return not repo.private or (self.user is not None and repo.role(self.user) != "none")

    def has_role(self, repo: Repository, role: str) -> bool:
        if self.user is None:
            return role == "read" and not repo.private
        return ROLES.index(repo.role(self.user)) >= ROLES.index(role)

    def has_permission(self, repo: Repository | None, wanted: tuple[str, ...]) -> bool:
        """What an installation may do; `wanted` lists alternatives."""
        if self.token is None or self.installation is None:
            return False
        if repo is not None and self.installation.account is not repo.owner:
            return all(one.endswith(":read") for one in wanted) and not repo.private
        have = {"metadata": "read", **self.token.permissions}
        return not wanted or any(
            _LEVELS.index(have.get(name, "none")) >= _LEVELS.index(level)
            for name, _, level in (one.partition(":") for one in wanted)
        )


def identify(world: World, header: str | None) -> Actor:
    """Reads an Authorization header: `token X`, `Bearer X` or Basic with the token as password."""
    if not header:
        return Actor()
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "basic":
        value = base64.b64decode(value).decode("utf-8", "replace").partition(":")[2]
    elif scheme.lower() not in ("token", "bearer"):
        raise Unauthorized("Bad credentials")
    if value.count(".") == 2:
        return Actor(app=_app_of(world, value))
    token = world.tokens.get(value)
    if token is None or (token.expires_at is not None and token.expires_at <= world.now()):
        raise Unauthorized("Bad credentials")
    if token.installation and token.installation.suspended:
        raise Unauthorized("This installation has been suspended")
    app = token.installation.app if token.installation else None
    return Actor(token.user, app, token.installation, token)


def _app_of(world: World, text: str) -> App:
    try:
        claims = jwt.decode(text, options={"verify_signature": False})
        app = world.apps[int(claims["iss"])]
    except (jwt.PyJWTError, KeyError, ValueError) as error:
        raise Unauthorized("A JSON web token could not be decoded") from error
    try:
        # The stand-in's clock can be moved, so the times are checked against it and not by the library.
        jwt.decode(
            text, app.public_key, algorithms=["RS256"], options={"verify_exp": False, "verify_iat": False}
        )
    except jwt.PyJWTError as error:
        raise Unauthorized("A JSON web token could not be decoded") from error
    now = world.now().timestamp()
    issued, expires = claims.get("iat"), claims.get("exp")
    if not isinstance(expires, int) or expires < now:
        raise Unauthorized(
            "'Expiration time' claim ('exp') must be a numeric value representing the future time at which the assertion expires"
        )
    if expires > now + 600 + 60:
        raise Unauthorized("'Expiration time' claim ('exp') is too far in the future")
    if not isinstance(issued, int) or issued > now + 60:
        raise Unauthorized(
            "'Issued at' claim ('iat') must be an Integer representing the time that the assertion was issued"
        )
    return app


@functools.cache
def _key(number: int) -> rsa.RSAPrivateKey:
    """One for each app of a world; other worlds may have the same, for making them is slow."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def create_app(
    world: World, slug: str, owner: str, permissions: dict[str, str], events: tuple[str, ...]
) -> App:
    key = _key(len(world.apps))
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    app = App(
        id=world.next_id(),
        slug=slug,
        owner=world.user(owner),
        bot=world.user(f"{slug}[bot]", "Bot"),
        private_key=private.decode(),
        public_key=public.decode(),
        permissions=permissions,
        events=events,
        created_at=world.now(),
    )
    world.apps[app.id] = app
    return app


def issue_token(world: World, user: User, installation: Installation | None = None) -> Token:
    """A personal token, which lasts, or an installation's, which lasts an hour."""
    kind = "ghs" if installation else "ghp"
    expires: datetime | None = world.now() + timedelta(hours=1) if installation else None
    permissions = dict(installation.app.permissions) if installation else {}
    token = Token(f"{kind}_{secrets.token_hex(18)}", user, installation, expires, permissions)
    world.tokens[token.value] = token
    return token
