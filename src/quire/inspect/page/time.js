// A recording's time: a slider over its steps, and jumps to what happened.
import { count, plural } from "./document.js";
import { element, write } from "./dom.js";

const WORDS = { preempted: "preempted", admitted: "admitted after a wait", load_failed: "load failed", refused: "refused" };

export class Time {
  constructor(node, recording, go) {
    this.recording = recording;
    this.go = go;
    this.slider = element("input", { type: "range", min: 0, max: recording.steps, id: "step", onchange: () => go(this.slider.value), oninput: () => this.say(this.slider.value) });
    this.label = element("label", { for: "step" });
    const jump = (text, by) => element("button", { type: "button", onclick: () => go(by()) }, text);
    const { step, what, request } = recording.moments;
    const moments = element("select", { id: "moment", onchange: () => moments.value && go(moments.value) }, element("option", { value: "" }, plural(step.length, "event")),
      ...step.map((at, place) => element("option", { value: at }, `step ${count(at)}: ${request[place]} ${WORDS[what[place]] ?? what[place]}`)));
    node.append(this.label, this.slider,
      jump("‹ Step", () => Math.max(0, this.step - 1)), jump("Step ›", () => Math.min(recording.steps, this.step + 1)),
      jump("Next preemption", () => this.next("preempted")), jump("Next admission after a wait", () => this.next("admitted")),
      element("label", { for: "moment" }, "Go to "), moments);
    node.hidden = false;
  }

  next(what) {
    const { moments, steps } = this.recording;
    return moments.step.find((at, place) => at > this.step && moments.what[place] === what) ?? steps;
  }

  say(step) {
    write(this.label, `Step ${count(Number(step))} of ${count(this.recording.steps)}`);
  }

  update(step) {
    if (this.step === step) return;
    this.step = step;
    this.slider.value = step;
    this.say(step);
  }
}
