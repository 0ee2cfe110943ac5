"""Most claims about the index hold for both engines; `index` is a fresh one of each in turn."""

import pytest

from anabranch.matching.engine import EngineName
from anabranch.matching.index import MatchIndex
from tests.matching_parts import ENGINES


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> EngineName:
    name: EngineName = request.param
    return name


@pytest.fixture
def index(engine: EngineName) -> MatchIndex:
    return MatchIndex(engine=engine)
