"""An answer as the client reads it, whole or piece by piece.

The rule: what is compared is everything a client can see except ids and times, so a stream and a plain body of the
same request read as the same.
"""

LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


class Choice:
    def __init__(self):
        self.text, self.calls, self.logprobs, self.finish = "", [], [], None

    def add_calls(self, calls):
        for position, call in enumerate(calls or []):
            index = call.get("index", position)
            while len(self.calls) <= index:
                self.calls.append(["", ""])
            function = call.get("function") or {}
            self.calls[index][0] += function.get("name") or ""
            self.calls[index][1] += function.get("arguments") or ""

    def add_logprobs(self, logprobs):
        if not logprobs:
            return
        if "content" in logprobs:
            for entry in logprobs["content"] or []:
                top = [(other["token"], other["logprob"]) for other in entry.get("top_logprobs", [])]
                self.logprobs.append((entry["token"], entry["logprob"], top))
        else:
            self.logprobs += zip(*(logprobs[name] or [] for name in LISTS if name in logprobs))


class Reading:
    """Choices by index, usage, and whether the answer is whole."""

    def __init__(self):
        self.choices, self.usage, self.whole = {}, None, False

    def add(self, value):
        """Takes a frame or a body; says whether it brought text, a call or an end."""
        self.usage = value.get("usage") or self.usage
        news = False
        for part in value["choices"]:
            choice = self.choices.setdefault(part["index"], Choice())
            message = part.get("delta") or part.get("message") or {}
            text = part.get("text") or message.get("content") or ""
            choice.text += text
            choice.add_calls(message.get("tool_calls"))
            choice.add_logprobs(part.get("logprobs"))
            choice.finish = part.get("finish_reason") or choice.finish
            news = news or bool(text or message.get("tool_calls") or part.get("finish_reason"))
        return news

    def visible(self):
        """Per choice: text, calls, log probabilities, end."""
        listed = sorted(self.choices.items())
        return [(index, c.text, [tuple(call) for call in c.calls], c.logprobs, c.finish) for index, c in listed]

    def difference(self, expected):
        """How a whole answer differs from the expected one; `None` if it doesn't."""
        seen, wanted = self.visible(), expected.visible()
        if seen == wanted:
            return None
        if len(seen) != len(wanted):
            return f"{len(seen)} choices instead of {len(wanted)}"
        names = ("index", "text", "tool calls", "log probabilities", "finish reason")
        for one, other in zip(seen, wanted):
            for name, got, want in zip(names, one, other):
                if got != want:
                    return f"choice {one[0]}: {name}: {first_difference(got, want)}"
        return None

    def not_a_prefix(self, expected):
        """How a cut answer contradicts the expected one; `None` if it is its beginning."""
        wanted = {entry[0]: entry for entry in expected.visible()}
        for index, text, calls, logprobs, finish in self.visible():
            if index not in wanted:
                return f"choice {index} should not be there"
            _, all_text, all_calls, all_logprobs, last = wanted[index]
            if not all_text.startswith(text):
                return f"choice {index}: text: {first_difference(text, all_text)}"
            if all_logprobs[: len(logprobs)] != logprobs:
                return f"choice {index}: log probabilities: {first_difference(logprobs, all_logprobs)}"
            if len(calls) > len(all_calls) or any(
                not (want[0].startswith(got[0]) and want[1].startswith(got[1])) for got, want in zip(calls, all_calls)
            ):
                return f"choice {index}: tool calls: {calls!r} do not begin {all_calls!r}"
            if finish not in (None, last):
                return f"choice {index}: ended with {finish!r} instead of {last!r}"
        return None


def first_difference(got, want):
    """Where two texts or lists part, with what stands there."""
    if not isinstance(got, (str, list)) or not isinstance(want, (str, list)):
        return f"{got!r} instead of {want!r}"
    pairs = zip(got, want)
    at = next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(got), len(want)))
    return f"from {at} on {got[at : at + 60]!r} instead of {want[at : at + 60]!r}"
