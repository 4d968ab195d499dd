// A box to ask the model something, whose request is then visible in the other views.
import { ask, json } from "./ask.js";
import { element } from "./dom.js";
import { go } from "./frame.js";

export class Chat {
  constructor(node, button) {
    this.node = node;
    this.button = button;
    this.log = element("div", { class: "log", role: "log", tabindex: 0, "aria-label": "Conversation" });
    this.input = element("textarea", { id: "chat-text", rows: 3, onkeydown: (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.send(); } });
    this.tokens = element("input", { id: "chat-tokens", type: "number", min: 1, value: 200 });
    this.sender = element("button", { type: "button", onclick: () => (this.sending ? this.sending.abort() : this.send()) }, "Send");
    node.append(element("div", { class: "head" }, element("h2", {}, "Ask the model"), element("button", { type: "button", onclick: () => this.toggle(false) }, "Close")),
      this.log, element("label", { for: "chat-text" }, "Message (Ctrl+Enter sends)"), this.input,
      element("div", { class: "tools" }, element("label", {}, "Maximum tokens", this.tokens), this.sender));
    button.addEventListener("click", () => this.toggle(node.hidden));
    node.addEventListener("keydown", (event) => event.key === "Escape" && this.toggle(false));
    this.messages = [];
  }

  offer(isThere) {
    this.button.hidden = !isThere;
  }

  toggle(isOpen) {
    this.node.hidden = !isOpen;
    this.button.setAttribute("aria-expanded", isOpen);
    (isOpen ? this.input : this.button).focus();
  }

  line(text, kind) {
    const made = element("p", { class: kind }, text);
    this.log.append(made);
    this.log.scrollTop = this.log.scrollHeight;
    return made;
  }

  async send() {
    const text = this.input.value.trim();
    if (!text || this.sending) return;
    this.input.value = "";
    this.line(text, "mine");
    this.messages.push({ role: "user", content: text });
    this.sending = new AbortController();
    this.sender.textContent = "Stop";
    const answer = this.line("", "answer");
    try {
      await this.read(answer);
    } catch (error) {
      if (error.name !== "AbortError") this.line(error.message, "bad");
    }
    this.messages.push({ role: "assistant", content: answer.textContent });
    this.sending = null;
    this.sender.textContent = "Send";
  }

  async read(answer) {
    this.model ??= (await json("/v1/models")).data[0].id;
    const body = { model: this.model, messages: this.messages, max_tokens: Number(this.tokens.value) || 200, stream: true };
    const response = await ask("/v1/chat/completions", { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" }, signal: this.sending.signal });
    if (!response.ok) throw new Error((await response.json()).error?.message ?? `the server answers ${response.status}`);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "", isNamed = false;
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const events = (text + part.value).split("\n\n");
      text = events.pop();
      for (const event of events) {
        if (!event.startsWith("data: {")) continue;
        const piece = JSON.parse(event.slice(6));
        if (piece.error) throw new Error(piece.error.message);
        if (!isNamed) this.name(piece.id, (isNamed = true));
        answer.append(piece.choices?.[0]?.delta?.content ?? "");
        this.log.scrollTop = this.log.scrollHeight;
      }
    }
  }

  // The engine's name of the first choice: the answer's id without its prefix.
  name(id) {
    const name = `${id.slice(id.indexOf("-") + 1)}-0`;
    const place = `requests/${encodeURIComponent(name)}`;
    this.log.lastElementChild.before(element("a", { href: `#${place}` }, "Its request"));
    go(place);
  }
}
