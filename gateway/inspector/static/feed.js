// New exchanges as they come: server-sent events, opened again with growing pauses after a failure.

import { fetchJson } from "./dom.js";
import { Retry } from "./retry.js";

/** Calls `rows(list)`, `state(text, isGood)` and `problem(text)`. */
export class Feed {
  #source = null;
  #retry = new Retry();
  #after = 0;
  #query = "";
  #listeners;

  constructor(listeners) {
    this.#listeners = listeners;
  }

  /** Begin with the exchanges of a query after a position. */
  open(query, after) {
    this.close();
    this.#query = query;
    this.#after = after;
    this.#connect();
  }

  close() {
    this.#retry.cancel();
    this.#source?.close();
    this.#source = null;
  }

  #connect() {
    const query = new URLSearchParams(this.#query);
    query.set("after", this.#after);
    const source = new EventSource(`/inspector/api/live?${query}`);
    this.#source = source;
    source.addEventListener("alive", (event) => {
      this.#good();
      this.#after = Number(event.lastEventId);
    });
    source.addEventListener("rows", (event) => {
      this.#good();
      this.#after = Number(event.lastEventId);
      this.#listeners.rows(JSON.parse(event.data));
    });
    source.addEventListener("problem", (event) => this.#listeners.problem(JSON.parse(event.data).reason));
    source.addEventListener("error", () => {
      if (source !== this.#source) return;
      if (source.readyState === EventSource.CLOSED) this.#explain();
      this.close();
      this.#listeners.state("Connection lost, trying again…", false);
      this.#retry.later(() => this.#connect());
    });
  }

  /** Say why the gateway answers without events. If it asks for a login, `fetchJson` loads the page again. */
  #explain() {
    fetchJson("/inspector/api/exchanges?limit=1").catch((error) => this.#listeners.problem(error.message));
  }

  #good() {
    this.#retry.reset();
    this.#listeners.problem("");
    this.#listeners.state("Live", true);
  }
}
