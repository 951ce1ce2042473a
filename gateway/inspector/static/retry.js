// Tries again after failures, with growing pauses.

const SHORTEST = 1000;
const LONGEST = 15000;

export class Retry {
  #timer = 0;
  #pause = SHORTEST;

  /** Call `action` after a pause, in place of what was to be called. Each pause is longer, until `reset`. */
  later(action) {
    this.cancel();
    this.#timer = setTimeout(action, this.#pause);
    this.#pause = Math.min(this.#pause * 2, LONGEST);
  }

  cancel() {
    clearTimeout(this.#timer);
  }

  /** Begin with the shortest pause again. */
  reset() {
    this.#pause = SHORTEST;
  }
}
