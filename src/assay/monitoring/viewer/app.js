// Everything that comes from a rollout enters the page through textContent, never as markup.
"use strict";

const $ = (selector, root = document) => root.querySelector(selector);
const form = $("#filters");
const marked = new Set();
let steps = [];
let cursor = null;
let request = 0;

async function ask(path, options) {
  const response = await fetch(path, options);
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error || response.statusText);
  return answer;
}

const post = (path, body) =>
  ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

function say(text) {
  $("#status").textContent = text;
}

function element(tag, text, kind) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

const chip = (text, kind) => element("span", text, "chip " + (kind || ""));
const number = (value) => (value === null || value === undefined ? "none" : Number(value.toPrecision(3)).toString());

function filters() {
  const query = new URLSearchParams();
  for (const [name, value] of new FormData(form)) if (value !== "") query.set(name, value);
  return query;
}

async function load(fresh) {
  const mine = ++request;
  const query = filters();
  if (!fresh && cursor) {
    query.set("before", cursor.step);
    query.set("offset", cursor.offset);
  }
  say("Loading…");
  try {
    const answer = await ask("/api/groups?" + query);
    if (mine !== request) return;
    if (fresh) $("#groups").replaceChildren();
    for (const group of answer.groups) $("#groups").append(drawGroup(group));
    cursor = answer.next_before === null ? null : { step: answer.next_before, offset: answer.next_offset };
    $("#more").hidden = cursor === null;
    const shown = $("#groups").childElementCount;
    say(shown ? `${shown} groups` + (cursor ? ", more below" : "") :
      cursor ? `Nothing in the newest ${answer.scanned} steps yet; load more to look further back.` : "Nothing matches.");
  } catch (error) {
    if (mine === request) say(error.message);
  }
}

function drawGroup(group) {
  const node = $("#group").content.cloneNode(true).firstElementChild;
  $(".title", node).textContent = `step ${group.step} · group ${group.group}`;
  $(".task", node).textContent = group.task || "";
  $(".gold", node).textContent = group.gold === null ? "no gold" : `gold: ${group.gold}`;
  $(".gold", node).title = group.gold || "";
  $(".prompt pre", node).textContent = readable(group.prompt, group.prompt_format);
  for (const completion of group.completions) $(".row", node).append(drawCompletion(group, completion));
  $(".history", node).addEventListener("click", () => showHistory(group.prompt_key));
  const again = $(".rescore", node);
  again.hidden = !document.body.dataset.rescorer;
  again.addEventListener("click", () => rescore(group, node));
  return node;
}

function readable(prompt, format) {
  if (format !== "messages") return prompt;
  try {
    return JSON.parse(prompt).map((message) => `[${message.role}]\n${message.content}`).join("\n\n");
  } catch {
    return prompt;
  }
}

function drawCompletion(group, completion) {
  const node = $("#completion").content.cloneNode(true).firstElementChild;
  const id = `${group.step}/${group.group}/${completion.sample}`;
  node.dataset.sample = completion.sample;
  node.classList.toggle("correct", completion.correct === true);
  node.classList.toggle("wrong", completion.correct === false);
  node.classList.toggle("aside", !completion.matches);
  const facts = $(".facts", node);
  const verdict = completion.correct === null ? "no verdict" : completion.correct ? "✔ correct" : "✘ wrong";
  facts.append(chip(verdict, completion.correct === true ? "good" : completion.correct === false ? "bad" : ""));
  facts.append(chip(`reward ${number(completion.reward)}`), chip(`advantage ${number(completion.advantage)}`));
  if (completion.num_tokens !== null) facts.append(chip(`${completion.num_tokens} tokens`));
  if (completion.finish) facts.append(chip(completion.finish, completion.finish === "stop" ? "" : "bad"));
  for (const flag of completion.flags) facts.append(chip(`⚑ ${flag}`, "bad"));
  const parts = $(".parts", node);
  for (const judgement of completion.judgements) parts.append(drawJudgement(judgement));
  drawText($(".text", node), completion);
  $(".id", node).textContent = id;
  const box = $(".mark", node);
  box.checked = marked.has(id);
  box.addEventListener("change", () => {
    box.checked ? marked.add(id) : marked.delete(id);
    $("#marked").textContent = `${marked.size} marked`;
    $("#export").disabled = marked.size === 0;
  });
  $(".compare", node).addEventListener("click", () => compare(id, node));
  $(".tokens", node).addEventListener("click", () => toggleTokens(node, group, completion));
  $(".quantity", node).addEventListener("change", () => drawHeat(node));
  return node;
}

function drawJudgement(judgement) {
  const failed = ["unparsable", "timeout", "error"].includes(judgement.outcome);
  const made = chip(`${judgement.name}: ${judgement.outcome} ${number(judgement.reward)}`, failed ? "bad" : "");
  made.title = [judgement.extracted !== null ? `extracted: ${judgement.extracted}` : "", judgement.detail].join("\n");
  return made;
}

function drawText(target, completion) {
  const text = completion.text || "";
  // Spans count code points, JavaScript strings count UTF-16 units.
  const points = Array.from(text);
  const spans = completion.judgements
    .filter((item) => item.span_start !== null && item.span_end > item.span_start)
    .map((item) => [item.span_start, Math.min(item.span_end, points.length), item.name])
    .sort((a, b) => a[0] - b[0]);
  let at = 0;
  for (const [start, end, name] of spans) {
    if (start < at) continue;
    target.append(points.slice(at, start).join(""));
    const hit = element("mark", points.slice(start, end).join(""));
    hit.title = `extracted by ${name}`;
    target.append(hit);
    at = end;
  }
  target.append(points.slice(at).join(""));
}

async function toggleTokens(node, group, completion) {
  const heat = $(".heat", node);
  const showing = heat.hidden;
  if (showing && !node.tokens) {
    try {
      node.tokens = await ask(
        `/api/tokens?step=${group.step}&group=${group.group}&sample=${completion.sample}`);
    } catch (error) {
      say(error.message);
      return;
    }
  }
  heat.hidden = !showing;
  $(".text", node).hidden = showing;
  $(".quantity", node).hidden = !showing;
  if (showing) drawHeat(node);
}

function drawHeat(node) {
  const tokens = node.tokens;
  const quantity = $(".quantity", node).value;
  const values = quantity === "mismatch"
    ? tokens.old_logps.map((old, index) =>
        old === null || tokens.sampling_logps[index] === null ? null : Math.abs(old - tokens.sampling_logps[index]))
    : tokens[quantity];
  const heat = $(".heat", node);
  heat.replaceChildren();
  if (!values.some((value) => value !== null)) heat.append(element("p", "Not stored: the trainer scored no tokens of this group, or was not asked for entropies."));
  const strength = { sampling_logps: (v) => Math.min(1, -v / 5), entropies: (v) => Math.min(1, v / 3),
    mismatch: (v) => Math.min(1, v / 0.5) }[quantity];
  tokens.token_ids.forEach((token, index) => {
    const cell = element("span", tokens.texts ? tokens.texts[index] : `${token} `);
    const value = values[index];
    if (tokens.loss_mask[index] === false) cell.className = "tool";
    if (value !== null && value !== undefined) cell.style.backgroundColor = `rgb(230 120 0 / ${strength(value)})`;
    cell.title = `#${index} id ${token}: ${value === null || value === undefined ? "no value" : value.toFixed(4)}`;
    heat.append(cell);
  });
}

async function showHistory(key) {
  say("Looking for this prompt in all steps…");
  try {
    const groups = await ask("/api/prompt?key=" + encodeURIComponent(key));
    request += 1;
    cursor = null;
    $("#more").hidden = true;
    $("#groups").replaceChildren(...groups.map(drawGroup));
    say(`${groups.length} draws of this prompt, oldest first; change a filter to go back.`);
  } catch (error) {
    say(error.message);
  }
}

let first = null;

async function compare(id, node) {
  if (first === null || first.id === id) {
    const again = first !== null;
    if (again) first.node.classList.remove("chosen");
    first = again ? null : { id, node };
    node.classList.toggle("chosen", !again);
    say(again ? "" : `Comparing ${id} with ...; press Compare at another completion, of any step.`);
    return;
  }
  const left = first;
  first = null;
  left.node.classList.remove("chosen");
  try {
    await diff(left.id, id);
    say("");
  } catch (error) {
    say(error.message);
  }
}

async function diff(left, right) {
  showDiff(await ask(`/api/diff?left=${encodeURIComponent(left)}&right=${encodeURIComponent(right)}`));
}

function showDiff(answer) {
  const dialog = $("#diff");
  $(".shared", dialog).textContent = `${Math.round(100 * answer.shared)}% of the longer text is shared`;
  [answer.left, answer.right].forEach((side, index) => {
    const column = dialog.querySelectorAll("article")[index];
    const verdict = side.correct === null ? "no verdict" : side.correct ? "✔ correct" : "✘ wrong";
    $(".facts", column).replaceChildren(chip(side.id), chip(verdict, side.correct ? "good" : side.correct === false ? "bad" : ""),
      chip(`reward ${number(side.reward)}`), chip(`${side.num_tokens} tokens`), chip(side.finish || ""));
    $("pre", column).replaceChildren(...answer.pieces.filter((piece) => piece[index] !== "").map((piece) =>
      piece[0] === piece[1] ? document.createTextNode(piece[index]) : element("mark", piece[index], index ? "new" : "old")));
  });
  dialog.showModal();
}

async function rescore(group, node) {
  say("Re-scoring…");
  try {
    const judgements = await post("/api/rescore", { step: group.step, group: group.group });
    for (const judgement of judgements) {
      const card = node.querySelector(`[data-sample="${Number(judgement.sample)}"]`);
      for (const old of card.querySelectorAll(".again")) old.remove();
      const made = drawJudgement(judgement);
      made.textContent = "now " + made.textContent;
      made.classList.add("again", "good");
      $(".parts", card).append(made);
    }
    say(`Re-scored with ${document.body.dataset.rescorer}; the store is unchanged.`);
  } catch (error) {
    say(error.message);
  }
}

$("#export").addEventListener("click", async () => {
  try {
    const { jsonl } = await post("/api/export", { ids: [...marked] });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([jsonl], { type: "application/x-ndjson" }));
    link.download = "marked.jsonl";
    link.click();
    URL.revokeObjectURL(link.href);
  } catch (error) {
    say(error.message);
  }
});

$("#diff .close").addEventListener("click", () => $("#diff").close());

function move(by) {
  if (!steps.length) return;
  const now = steps.indexOf(Number(form.elements.step.value));
  const next = now < 0 ? steps.length - 1 : Math.min(steps.length - 1, Math.max(0, now + by));
  form.elements.step.value = steps[next];
  load(true);
}

let pause;
form.addEventListener("input", () => {
  clearTimeout(pause);
  pause = setTimeout(() => load(true), 250);
});
form.addEventListener("submit", (event) => event.preventDefault());
$("#previous").addEventListener("click", () => move(-1));
$("#next").addEventListener("click", () => move(1));
$("#more").addEventListener("click", () => load(false));

ask("/api/run").then((run) => {
  steps = run.steps;
  document.title = `${run.name} · assay view`;
  $("#name").textContent = run.name;
  const range = steps.length ? `steps ${steps[0]} to ${steps[steps.length - 1]}, ${run.rows_in_newest} completions in the newest` : "no rollouts yet";
  $("#summary").textContent = range;
  if (run.rescorer) document.body.dataset.rescorer = run.rescorer;
  for (const step of steps.slice(-500)) $("#steps").append(Object.assign(document.createElement("option"), { value: step }));
  for (const task of run.tasks) form.elements.task.append(element("option", task));
  const wanted = new URLSearchParams(location.search);
  form.elements.step.value = wanted.get("step") || "";
  const pair = (wanted.get("compare") || "").split(",");
  return load(true).then(() => (pair.length === 2 ? diff(...pair) : null));
}).catch((error) => say(error.message));
