"""docs/lifecycle.md draws lifecycle.TRANSITIONS; the drawing is read back and compared in both directions."""

import re
from pathlib import Path

from mayflymq.lifecycle import TRANSITIONS, Event
from mayflymq.model import State

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "lifecycle.md").read_text(encoding="utf-8")
ARROW = re.compile(r"^(\S+) --> (\S+): (.+)$")

Arrow = tuple[State | None, Event, State | None]


def _state(name: str) -> State | None:
    return None if name == "[*]" else State(name)


def drawn() -> list[Arrow]:
    found = re.search(r"```mermaid\nstateDiagram-v2\n(.+?)```", PAGE, re.DOTALL)
    assert found, "the page has no state diagram"
    arrows: list[Arrow] = []
    for line in filter(None, map(str.strip, found[1].splitlines())):
        arrow = ARROW.match(line)
        assert arrow, f"not an arrow with its events: {line}"
        source, target, events = arrow.groups()
        arrows += [(_state(source), Event(event.strip()), _state(target)) for event in events.split(",")]
    return arrows


def table() -> set[Arrow]:
    return {(source, event, target) for (source, event), targets in TRANSITIONS.items() for target in targets}


def test_the_drawing_shows_each_transition_of_the_table_and_no_other() -> None:
    shown = drawn()
    expected = {arrow for arrow in table() if arrow[1] is not Event.REMOVE}
    assert set(shown) - expected == set(), "drawn, and not in the table"
    assert expected - set(shown) == set(), "in the table, and not drawn"
    assert len(shown) == len(set(shown)), "an arrow is drawn twice"


def test_removal_is_stated_as_the_rule_that_the_table_holds() -> None:
    """Eight arrows to the end would hide the rest, so the page says it in a sentence."""
    assert "a job in any state can be removed" in PAGE
    removals = {arrow for arrow in table() if arrow[1] is Event.REMOVE}
    assert removals == {(state, Event.REMOVE, None) for state in State}


def test_the_page_explains_each_state_and_each_event_once() -> None:
    named = re.findall(r"^\| (`.+?) \|", PAGE, re.MULTILINE)
    words = [word for cell in named for word in re.findall(r"`(\w+)`", cell)]
    assert sorted(words) == sorted([*State, *Event])
