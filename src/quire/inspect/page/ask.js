// Questions to the server, with the key that the reader entered. The key is kept in this variable and nowhere else.
import { write } from "./dom.js";

let key = "";
const find = (id) => document.getElementById(id);

export async function ask(path, options = {}) {
  const headers = key ? { ...options.headers, authorization: `Bearer ${key}` } : options.headers;
  const answer = await fetch(path, { ...options, headers });
  if (answer.status !== 401) return answer;
  await askForKey((await answer.json()).error.message);
  return ask(path, options);
}

export async function json(path) {
  const answer = await ask(path), body = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(body.error?.message ?? `the server answers ${answer.status}`), { status: answer.status });
  return body;
}

let entering = null; // several questions wait for one key
function askForKey(why) {
  entering ??= new Promise((done) => {
    const dialog = find("key"), input = find("key-input");
    write(find("key-problem"), key ? why : "");
    dialog.oncancel = (event) => event.preventDefault();
    dialog.onclose = () => {
      key = input.value.trim();
      input.value = "";
      entering = null;
      done();
    };
    dialog.showModal();
  });
  return entering;
}
