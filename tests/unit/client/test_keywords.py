"""Every keyword of the interface is in a signature; a misspelt one is an error, not ignored."""

import asyncio
import inspect
import pydoc
import re
from collections.abc import Callable

import pytest

import anabranch
from anabranch import (
    BlockingClient,
    BlockingSubscription,
    Client,
    LocalError,
    Received,
    Subscription,
)
from anabranch.client.keyword_hints import suggest_keywords
from tests.client_parts import network, run

CLASSES = (
    Client,
    BlockingClient,
    Subscription,
    BlockingSubscription,
    anabranch.PatternSubscription,
    anabranch.BlockingPatternSubscription,
    Received,
    anabranch.Fetcher,
)


def public_functions() -> list[Callable[..., object]]:
    methods = [
        method
        for each in CLASSES
        for name, method in inspect.getmembers(each, inspect.isfunction)
        if not name.startswith("_")
    ]
    return [*methods, anabranch.connect, anabranch.connect_blocking]


@pytest.mark.parametrize("function", public_functions(), ids=lambda each: each.__qualname__)
def test_no_public_signature_hides_its_keywords(function: Callable[..., object]) -> None:
    kinds = [each.kind for each in inspect.signature(function).parameters.values()]
    assert inspect.Parameter.VAR_KEYWORD not in kinds


@pytest.mark.parametrize("function", public_functions(), ids=lambda each: each.__qualname__)
def test_every_public_docstring_stands_by_itself(function: Callable[..., object]) -> None:
    assert function.__doc__
    assert not re.search(r"this module|top of", function.__doc__)


def test_a_misspelt_keyword_of_publish_is_an_error_with_the_right_one() -> None:
    async def story() -> None:
        async with network("a") as (a,), anabranch.connect(a.address) as client:
            for call in (client.publish, client.publish_soon, client.request):
                with pytest.raises(TypeError, match=r"'time_limt'.*[Dd]id you mean 'time_limit'\?"):
                    await call({"n": 1}, time_limt=3)  # type: ignore[call-arg]
            with pytest.raises(TypeError, match=r"argument 'ttl'; its keywords are .*time_limit"):
                await client.publish_many([{"n": 1}], ttl=5)  # type: ignore[call-arg]
            with pytest.raises(TypeError, match=r"'durabel'.*[Dd]id you mean 'durable'\?"):
                await client.subscribe("TRUE", durabel="x")  # type: ignore[call-arg]

    run(story)


def test_a_misspelt_keyword_of_connect_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"[Dd]id you mean 'options'\?"):
        anabranch.connect("127.0.0.1:4100", option=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"[Dd]id you mean 'network_file'\?"):
        anabranch.connect_blocking(networkfile="x")  # type: ignore[call-arg]


def keywords_of(function: Callable[..., object]) -> list[str]:
    known = inspect.signature(function).parameters.values()
    return [each.name for each in known if each.kind is each.KEYWORD_ONLY]


@pytest.mark.parametrize(
    "function",
    [each for each in [*public_functions(), anabranch.Fetcher.__init__] if keywords_of(each)],
    ids=lambda each: each.__qualname__,
)
def test_every_function_with_keywords_suggests_the_right_one(
    function: Callable[..., object],
) -> None:
    keyword = keywords_of(function)[-1]

    async def call() -> None:
        outcome = function(**{f"{keyword}s": 1})
        if inspect.isawaitable(outcome):
            await outcome

    with pytest.raises(TypeError, match=rf"did you mean '{keyword}'\?"):
        asyncio.run(call())


def test_a_choice_that_there_is_not_is_an_error_with_those_that_there_are() -> None:
    async def story() -> None:
        with pytest.raises(LocalError, match="order='steam' is invalid; give 'publisher' or 's"):
            await anabranch.connect("127.0.0.1:1", order="steam")  # type: ignore[arg-type]
        with pytest.raises(LocalError, match="the order of addresses is address_order='given'"):
            await anabranch.connect("127.0.0.1:1", order="given")  # type: ignore[arg-type]
        async with network("a") as (a,), anabranch.connect(a.address) as client:
            with pytest.raises(LocalError, match="quality='fast' is invalid; give 'reliable' or"):
                await client.subscribe("TRUE", quality="fast")  # type: ignore[arg-type]
            pattern = "a:{n = 1} THEN b:{n = 2} WITHIN 5 s"
            with pytest.raises(LocalError, match="placement='x' is invalid; give 'simple'"):
                await client.subscribe_pattern(pattern, placement="x")  # type: ignore[arg-type]
            with pytest.raises(LocalError, match="placement='x' is invalid; give 'simple'"):
                await client.define_pattern("p", pattern, placement="x")  # type: ignore[arg-type]

    run(story)


def test_a_keyword_like_no_other_lists_those_that_there_are() -> None:
    @suggest_keywords
    def paint(wall: str, *, colour: str, coats: int = 1) -> str:
        return wall * coats + colour

    assert paint("a", colour="red") == "ared"
    with pytest.raises(TypeError, match=r"argument 'x'; its keywords are colour, coats$"):
        paint("a", x=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("public", CLASSES, ids=lambda each: each.__name__)
def test_help_shows_the_types_of_arguments_as_they_are_written(public: type) -> None:
    shown = pydoc.plain(pydoc.render_doc(public))
    assert "anabranch.model.language" not in shown
