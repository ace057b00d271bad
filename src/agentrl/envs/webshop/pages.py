"""Pages as text. A page is a list of parts, which a style puts together; a wording names buttons and orders parts.

Styles: ``compact`` (short lines, what can be clicked stands in square brackets), ``text`` and ``text_rich`` (the
original's observation modes of these names).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from agentrl.envs.webshop.product import Product
from agentrl.envs.webshop.session import Session, Target

STYLES = ("compact", "text", "text_rich")


@dataclass(frozen=True)
class Wording:
    """The words of a shop. ``buttons`` maps a button's name to its label."""

    buttons: Mapping[str, str]
    search: str = "Search page."
    results: str = 'Results for "{query}", page {page}, {total} found'
    nothing: str = "No product here."
    price: str = "Price: {price}"
    chosen: str = "chosen"
    no_text: str = "Nothing is written here."
    details_first: bool = False  # buttons and price before title and options


STANDARD = Wording(
    {
        "back": "Back to Search",
        "prev": "< Prev",
        "next": "Next >",
        "description": "Description",
        "features": "Features",
        "reviews": "Reviews",
        "attributes": "Attributes",
        "buy": "Buy Now",
    }
)
OTHER = Wording(
    {
        "back": "New Query",
        "prev": "Return",
        "next": "Show More",
        "description": "About",
        "features": "Details",
        "reviews": "Opinions",
        "attributes": "Tags",
        "buy": "Place Order",
    },
    search="Welcome. The search bar is open.",
    results="{total} items match {query} (screen {page})",
    nothing="There is nothing on this screen.",
    price="{price} each",
    chosen="picked",
    no_text="(empty)",
    details_first=True,
)
WORDINGS = {"standard": STANDARD, "other": OTHER}


def _clean(text: str) -> str:
    """One line, without square brackets: those are the grammar's."""
    return " ".join(text.replace("[", "(").replace("]", ")").split())


def label(target: Target, session: Session, wording: Wording) -> str:
    """What a click must name. An option value that stands under two names of one product carries its name."""
    if target.kind == "product":
        return session.shop.store.product(target.number).asin
    if target.kind == "button":
        return wording.buttons[target.name]
    value = _clean(target.value)
    names = [name for name, values in session.product.options.items() if target.value in values]
    taken = {b.lower() for b in wording.buttons.values()}
    return f"{target.name}: {value}" if len(names) > 1 or value in taken else value


def clickables(session: Session, wording: Wording) -> dict[str, Target]:
    """Lower-case label → target, in page order."""
    return {label(target, session, wording).lower(): target for target in session.targets()}


@dataclass
class Page:
    """A page in two pieces: ``body`` may be shortened to a run's observation limit, ``bar`` (buttons) may not."""

    body: list[str] = field(default_factory=list)
    bar: str = ""


def shortened(title: str, words: int | None) -> str:
    parts = _clean(title).split(" ")
    return " ".join(parts) if words is None or len(parts) <= words else " ".join(parts[:words]) + " …"


def compact(session: Session, wording: Wording, title_words: int | None = None) -> Page:
    """The page in short lines; every clickable text stands in square brackets, chosen options are named."""
    bar = "search[words]" + "".join(f" [{wording.buttons[t.name]}]" for t in session.targets() if t.kind == "button")
    page = Page(bar=bar)
    if session.kind == "search":
        page.body.append(wording.search)
    elif session.kind == "results":
        query = shortened(session.query, 16)
        page.body.append(wording.results.format(query=query, page=session.page, total=len(session.hits)))
        for number in session.shown():
            product = session.shop.store.product(number)
            title = shortened(product.title, title_words)
            line = [title, product.price_tag] if not wording.details_first else [product.price_tag, title]
            page.body.append(" ".join([f"[{product.asin}]", *line]))
        if not session.shown():
            page.body.append(wording.nothing)
    elif session.kind == "item":
        facts = [shortened(session.product.title, None), wording.price.format(price=session.product.price_tag)]
        if session.product.rating:
            facts[1] += f", {session.product.rating} stars"
        options = [_option_line(name, session, wording) for name in session.product.options]
        page.body += [*reversed(facts), *reversed(options)] if wording.details_first else [*facts, *options]
    elif session.kind == "sub":
        page.body += [_clean(text) for text in sub_text(session.product, session.sub)] or [wording.no_text]
    return page


def _option_line(name: str, session: Session, wording: Wording) -> str:
    targets = [t for t in session.targets() if t.kind == "option" and t.name == name]
    values = " ".join(f"[{label(t, session, wording)}]" for t in targets)
    chosen = session.options.get(name)
    return f"{_clean(name)}: {values}" + (f" ({wording.chosen}: {_clean(chosen)})" if chosen is not None else "")


def sub_text(product: Product, name: str) -> list[str]:
    """The lines of a sub page; the files hold no reviews."""
    if name == "description":
        return [product.description] if product.description.strip() else []
    if name == "features":
        return [b for b in product.bullets if b.strip()]
    return list(product.attributes) if name == "attributes" else []


def original(session: Session, wording: Wording, instruction: str, rich: bool) -> str:
    """The page as the original's ``text`` (parts joined by `` [SEP] ``) or ``text_rich`` mode shows it."""
    parts: list[tuple[str, Target | None]] = [("Instruction:", None), (instruction, None)]
    if session.kind == "search":
        parts = [("WebShop", None), *parts, ("Search", Target("button", "search"))]
    buttons = {t.name: (wording.buttons[t.name], t) for t in session.targets() if t.kind == "button"}
    parts += [buttons[name] for name in ("back",) if name in buttons]
    if session.kind == "results":
        parts.append((f"Page {session.page} (Total results: {len(session.hits)})", None))
        parts += [buttons[name] for name in ("prev", "next") if name in buttons]
        for number in session.shown():
            product = session.shop.store.product(number)
            link = (product.asin, Target("product", number=number))
            parts += [link, (product.title, None), (product.price_tag, None)]
    elif session.kind == "item":
        parts.append(buttons["prev"])
        for name in session.product.options:
            parts.append((name, None))
            parts += [
                (label(t, session, wording), t) for t in session.targets() if t.kind == "option" and t.name == name
            ]
        parts += [(session.product.title, None), (f"Price: {session.product.price_tag}", None)]
        parts.append((f"Rating: {session.product.rating or 'N.A.'}", None))
        parts += [buttons[name] for name in (*session.shop.sub_pages, "buy")]
    elif session.kind == "sub":
        parts.append(buttons["prev"])
        parts += [(text, None) for text in sub_text(session.product, session.sub)]
    if not rich:
        return " [SEP] ".join(text.strip() for text, _ in parts)
    return "\n".join(_rich(text, target, session) for text, target in parts)


def _rich(text: str, target: Target | None, session: Session) -> str:
    if target is None:
        return text
    if target.kind == "option":
        chosen = session.options.get(target.name) == target.value
        return f"  [clicked button] {text} [clicked button_]" if chosen else f"  [button] {text} [button_]"
    return f"[button] {text} [button_]"
